program.o: trainer_side/program.c trainer_side/program.h \
  trainer_side/trainer_internal.h lib/base/base.h lib/ws_error.h \
  lib/ws_memory.h lib/engine/devices.h lib/engine/engine.h \
  lib/convert/convert.h lib/transport/transport.h lib/ws_nic.h \
  lib/transport/topology.h lib/hub/hub.h lib/link/link.h \
  planner/planner.h planner/source.h trainer_side/ws_trainer.h

trainer_side/program.h:

trainer_side/trainer_internal.h:

lib/base/base.h:

lib/ws_error.h:

lib/ws_memory.h:

lib/engine/devices.h:

lib/engine/engine.h:

lib/convert/convert.h:

lib/transport/transport.h:

lib/ws_nic.h:

lib/transport/topology.h:

lib/hub/hub.h:

lib/link/link.h:

planner/planner.h:

planner/source.h:

trainer_side/ws_trainer.h:
