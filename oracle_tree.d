oracle_tree.o: cli/oracle_tree.c cli/oracle.h cli/roles.h cli/cli.h \
  lib/base/base.h lib/ws_error.h lib/ws_memory.h lib/base/safetensors.h \
  lib/link/link.h planner/planner.h rollout_side/ws_rollout.h \
  lib/ws_nic.h trainer_side/ws_trainer.h

cli/oracle.h:

cli/roles.h:

cli/cli.h:

lib/base/base.h:

lib/ws_error.h:

lib/ws_memory.h:

lib/base/safetensors.h:

lib/link/link.h:

planner/planner.h:

rollout_side/ws_rollout.h:

lib/ws_nic.h:

trainer_side/ws_trainer.h:
