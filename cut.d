cut.o: lib/engine/cut.c lib/engine/engine_internal.h lib/engine/engine.h \
  lib/base/base.h lib/ws_error.h lib/ws_memory.h lib/convert/convert.h \
  lib/transport/transport.h lib/ws_nic.h

lib/engine/engine_internal.h:

lib/engine/engine.h:

lib/base/base.h:

lib/ws_error.h:

lib/ws_memory.h:

lib/convert/convert.h:

lib/transport/transport.h:

lib/ws_nic.h:
