local.o: lib/engine/local.c lib/cuda/cuda.h lib/ws_memory.h \
  lib/ws_error.h lib/engine/engine_internal.h lib/engine/engine.h \
  lib/base/base.h lib/convert/convert.h lib/transport/transport.h \
  lib/ws_nic.h

lib/cuda/cuda.h:

lib/ws_memory.h:

lib/ws_error.h:

lib/engine/engine_internal.h:

lib/engine/engine.h:

lib/base/base.h:

lib/convert/convert.h:

lib/transport/transport.h:

lib/ws_nic.h:
