# SPDX-License-Identifier: Apache-2.0
"""Who dies or stops in an update over ipc: ops are slowed down as elsewhere; memory is mapped, for
the roles have it from weightsync (tests/ipc_kill.c is about process_vm_writev)."""
from hurt import kill_rollout, kill_trainer, stop_rollout, stop_trainer
from run import Run
from world import scenario


class SameHostRun(Run):
    def wires(self, name):
        return ["--transport", "fault", "--nics", "delay=0.9:ipc:host"]


def hurt(world, how, *more):
    """On one run, as the scenarios of hurt.py are."""
    if not isinstance(world.run, SameHostRun):
        world.stop_living()
        world.run = SameHostRun(world.inputs, world.folder()).start()
        world.run.all_live(40)
    how(world, *more)


@scenario("ipc: a rollout killed in mid transfer: its replica keeps the old weights, the other goes on")
def _(world):
    hurt(world, kill_rollout, 0, 1)


@scenario("ipc: a trainer killed in mid transfer: nobody commits, the same version is pushed again")
def _(world):
    hurt(world, kill_trainer, 1)


@scenario("ipc: a rollout stopped past the deadline and continued: dropped, told so, in again")
def _(world):
    hurt(world, stop_rollout)


@scenario("ipc: a trainer stopped past the deadline and continued: late writes change nothing")
def _(world):
    hurt(world, stop_trainer)
