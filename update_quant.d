update_quant.o: tests/update_quant.c tests/test.h tests/update_world.h \
  lib/base/base.h lib/ws_error.h lib/ws_memory.h planner/planner.h \
  rollout_side/ws_rollout.h lib/ws_nic.h trainer_side/ws_trainer.h

tests/test.h:

tests/update_world.h:

lib/base/base.h:

lib/ws_error.h:

lib/ws_memory.h:

planner/planner.h:

rollout_side/ws_rollout.h:

lib/ws_nic.h:

trainer_side/ws_trainer.h:
