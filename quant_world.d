quant_world.o: tests/quant_world.c tests/quant_world.h \
  lib/convert/convert.h lib/base/base.h lib/ws_error.h lib/ws_memory.h \
  planner/planner.h tests/test.h

tests/quant_world.h:

lib/convert/convert.h:

lib/base/base.h:

lib/ws_error.h:

lib/ws_memory.h:

planner/planner.h:

tests/test.h:
