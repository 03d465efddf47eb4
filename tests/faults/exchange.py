# SPDX-License-Identifier: Apache-2.0
"""Who dies or stops while trainers tell each other maxima of blocks: rollouts hold FP8, whose blocks
have rows of both trainers.  Rollouts are halted meanwhile, so that trainers write to nobody else."""
import os
import signal
import time

from hurt import all_abort
from processes import Wrong, until
from run import LOST_S, Run
from world import expect, scenario


class ExchangeRun(Run):
    def __init__(self, inputs, folder, **how):
        super().__init__(inputs, folder, **how)
        self.quantized = os.path.join(folder, "quantized.json")
        inputs.make("manifest", "--model", inputs.checkpoint, "--side", "rollout", "--layout", "vllm",
                    "--mesh", "tp=2", "--quant", "fp8-block", "-o", self.quantized)

    def rollout_argv(self, replica, rank, manifest=None, key=None, more=()):
        return super().rollout_argv(replica, rank, manifest or self.quantized, key, more)

    def mid_exchange(self):
        """Halts the rollouts between two pushes; the version that trainers alone are in then."""
        for _ in range(20):
            self.push("a push ends", 20, len(self.pushes()), lambda p: p["ok"])
            for process in self.rollouts.values():
                process.kill(signal.SIGSTOP)
            before = self.status()
            if before["state"] == "idle":
                return until("the next attempt begins", 2, lambda: [
                    said["version"] for said in [self.status()] if said["attempt"] > before["attempt"]])[0]
            self.rollouts_go_on()
        raise Wrong("the next push always began before the rollouts were halted")

    def rollouts_go_on(self):
        for process in self.rollouts.values():
            process.kill(signal.SIGCONT)


def living(world):
    """On one run, as the scenarios of hurt.py are."""
    if not isinstance(world.run, ExchangeRun):
        world.stop_living()
        world.run = ExchangeRun(world.inputs, world.folder()).start()
        world.run.all_live(40)
    return world.run


@scenario("exchange: a trainer killed in the middle: nobody commits, the same version is pushed again")
def _(world):
    run = living(world)
    victim, other = run.trainers[1], run.trainers[0]
    since = {at: p.mark() for at, p in run.rollouts.items()}
    said = other.mark()
    version = run.mid_exchange()
    victim.kill(signal.SIGKILL)
    run.rollouts_go_on()
    expect(victim.ends(2) == -signal.SIGKILL, "it wasn't killed")
    all_abort(run, version, since, "trainer 1")
    other.says("cannot push version %d: .*trainer 1" % version, LOST_S + 3, said)
    healthy = [p for p in run.members() if p is not victim]
    run.whole(healthy)
    run.start_trainer(1, version)
    live = run.all_live()
    run.whole(healthy)
    expect(live >= version, "version %d was pushed after %d" % (live, version))


@scenario("exchange: a trainer stopped in the middle and continued: the attempt aborts, late maxima change nothing")
def _(world):
    run = living(world)
    victim = run.trainers[1]
    since = {at: p.mark() for at, p in run.rollouts.items()}
    mark = victim.mark()
    version = run.mid_exchange()
    victim.kill(signal.SIGSTOP)
    run.rollouts_go_on()
    all_abort(run, version, since, "trainer 1")
    time.sleep(1)
    victim.kill(signal.SIGCONT)
    victim.says("cannot push version %d: " % version, 5, mark)
    run.all_live()
