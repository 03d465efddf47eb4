update_bytes_world.o: tests/update_bytes_world.c tests/quant_world.h \
  lib/convert/convert.h lib/base/base.h lib/ws_error.h lib/ws_memory.h \
  planner/planner.h tests/test.h tests/update_world.h \
  rollout_side/ws_rollout.h lib/ws_nic.h trainer_side/ws_trainer.h

tests/quant_world.h:

lib/convert/convert.h:

lib/base/base.h:

lib/ws_error.h:

lib/ws_memory.h:

planner/planner.h:

tests/test.h:

tests/update_world.h:

rollout_side/ws_rollout.h:

lib/ws_nic.h:

trainer_side/ws_trainer.h:
