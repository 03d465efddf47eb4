# SPDX-License-Identifier: Apache-2.0
"""One run of hub, trainers and rollouts as processes of their own, which can be hurt singly.

The data plane is slowed down by the fault transport (each op's completion comes up to 64 polls
late), so that "in mid transfer" lasts for seconds and is no matter of luck.
"""
import hashlib
import json
import os
import re
import signal
import subprocess
import time

from processes import Process, Wrong, until

LOST_S = 6      # of silence lose a member
PHASE_S = 8     # a rank's deadline for each phase
PUSH_S = 20     # a push's deadline
RELOAD_S = 3    # an on-reload command's
SLOW = ["--transport", "fault", "--nics", "delay=0.9:fabric:tcp/127.0.0.1"]


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Inputs:
    """A checkpoint and manifests, made once."""

    def __init__(self, build, work, model="qwen3-30b-a3b"):
        self.weightsync = os.path.join(build, "weightsync")
        self.build, self.work = build, work
        self.checkpoint = os.path.join(work, "model")
        self.key = os.path.join(work, "key")
        self.trainer = os.path.join(work, "T.json")
        self.rollout = os.path.join(work, "R.json")
        self.make("synth", "--model", model, "--scale", "1/16384", "-o", self.checkpoint)
        self.make("keygen", "-o", self.key)
        self.manifest("trainer", "fsdp2", "dp=2", self.trainer)
        self.manifest("rollout", "vllm", "tp=2", self.rollout)

    def make(self, *argv):
        done = subprocess.run([self.weightsync, *argv], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise Wrong("%s: %s" % (" ".join(argv), done.stderr))
        return done.stdout

    def manifest(self, side, layout, mesh, path):
        self.make("manifest", "--model", self.checkpoint, "--side", side, "--layout", layout,
                  "--mesh", mesh, "-o", path)


class Run:
    """2 trainers, 2 replicas of 2 ranks.  Trainer 0's objects, one per push, say how it goes."""

    trainer_count, replica_count, rank_count = 2, 2, 2
    lost_s, push_s, live_s, start_s = LOST_S, PUSH_S, 5, 20

    def __init__(self, inputs, folder, updates=1000, slow=True, inplace=False, min_replicas=1, fanout="none"):
        self.inputs, self.folder, self.updates, self.slow = inputs, folder, updates, slow
        self.inplace, self.min_replicas, self.fanout = inplace, min_replicas, fanout
        os.makedirs(folder)
        self.reload = os.path.join(folder, "reload.sh")
        with open(self.reload, "w") as file:
            file.write('order="%s/order-$WEIGHTSYNC_REPLICA-$WEIGHTSYNC_RANK"\n'
                       '[ ! -f "$order" ] || . "$order"\nexit 0\n' % folder)
        self.hub = None
        self.endpoint = "tcp://127.0.0.1:*"
        self.trainers = [None] * self.trainer_count
        self.rollouts = {}
        self.old = []  # processes that were replaced

    # ---- starting

    def start_hub(self, *more):
        if self.hub is not None:
            self.old.append(self.hub)
        self.hub = self.process("hub", [
            self.inputs.weightsync, "hub", "--key", self.inputs.key, "--trainers", "2",
            "--replica-ranks", "2", "--min-replicas", str(self.min_replicas), "--op-bytes", "8K",
            "--lost-after", "%ds" % self.lost_s, "--phase-deadline", "%ds" % PHASE_S,
            "--join-deadline", "%ds" % self.start_s, "--fanout", self.fanout, "--bind", self.endpoint, *more])
        self.endpoint = self.hub.says("^tcp://", self.start_s, stream="out")

    def process(self, name, argv):
        return Process(self.folder, name, argv)

    def wires(self, name):
        """The options that say over which NICs a process moves data."""
        return SLOW if self.slow else []

    def member(self, name):
        return ["--hub", self.endpoint, "--key", self.inputs.key, "--checkpoint",
                self.inputs.checkpoint, "--start-deadline", "%ds" % self.start_s, *self.wires(name)]

    def start_trainer(self, rank, version=1, manifest=None, more=()):
        if self.trainers[rank] is not None:
            self.old.append(self.trainers[rank])
        name = "trainer%d" % rank
        self.trainers[rank] = self.process(name, [
            self.inputs.weightsync, "push", "--change", "--trainer", manifest or self.inputs.trainer,
            "--rank", str(rank), "--world", "2", "--version", str(version), "--updates",
            str(self.updates), "--interval", "300ms", "--deadline", "%ds" % self.push_s, "--keep-going",
            "--change", "--json", *self.member(name), *more])
        return self.trainers[rank]

    def rollout_argv(self, replica, rank, manifest=None, key=None, more=()):
        argv = [self.inputs.weightsync, "serve", "--change", "--rollout", manifest or self.inputs.rollout,
                "--replica", str(replica), "--rank", str(rank), "--world", "2", "--verify",
                "--change", "--trainer", self.inputs.trainer, "-v", "--on-reload", "exec:sh " + self.reload,
                "--reload-deadline", "%ds" % RELOAD_S, "--dump", self.dump_path(replica), *more]
        if self.inplace:
            argv.append("--inplace")
        argv += self.member("rollout%d.%d" % (replica, rank))
        if key is not None:
            argv[argv.index("--key") + 1] = key
        return argv

    def start_rollout(self, replica, rank, argv=None):
        at = (replica, rank)
        if at in self.rollouts:
            self.old.append(self.rollouts[at])
        self.rollouts[at] = self.process("rollout%d.%d" % at, argv or self.rollout_argv(replica, rank))
        return self.rollouts[at]

    def start(self):
        self.start_hub()
        for rank in range(self.trainer_count):
            self.start_trainer(rank)
        for replica in range(self.replica_count):
            for rank in range(self.rank_count):
                self.start_rollout(replica, rank)
        return self

    def dump_path(self, replica, rank=None):
        name = "dump%d.safetensors" % replica
        return os.path.join(self.folder, name if rank is None else "rank%d.%s" % (rank, name))

    def order(self, replica, rank, line):
        """What the reload command of a rank does from now on; '': nothing."""
        with open(os.path.join(self.folder, "order-%d-%d" % (replica, rank)), "w") as file:
            file.write(line + "\n")

    # ---- watching

    def members(self):
        return [p for p in [self.hub, *self.trainers, *self.rollouts.values()] if p is not None]

    def pushes(self):
        return self.trainers[0].objects()

    def push(self, what, seconds, since, wanted):
        """The first push of trainer 0 from the since-th on that is wanted."""
        def look():
            if not self.trainers[0].alive():
                raise Wrong("%s: trainer 0 ended: %s" % (what, self.trainers[0].lines()[-1:]))
            return [push for push in self.pushes()[since:] if wanted(push)]
        try:
            return until(what, seconds, look)[0]
        except Wrong as wrong:
            last = [(p["version"], p["ok"], [r["version"] for r in p["replicas"]], p["error"])
                    for p in self.pushes()[-2:]]
            raise Wrong("%s; the last pushes: %s" % (wrong, last)) from None

    def all_live(self, seconds=25, processes=None):
        """A push from now on goes live in every rank of both replicas, with right bytes."""
        push = self.push("a version goes live everywhere", seconds, len(self.pushes()), lambda p:
                         p["ok"] and len(p["replicas"]) == self.replica_count and
                         all(r["live"] for r in p["replicas"]))
        for process in self.rollouts.values():
            process.says("version %d is live" % push["version"], self.live_s)
        self.whole(processes)
        for rank in range(self.rank_count):
            until("both replicas dump the same bytes of rank %d" % rank, 10, lambda r=rank: len(
                {digest(self.dump_path(replica, r)) for replica in range(self.replica_count)}) == 1, 0.1)
        return push["version"]

    def whole(self, processes=None):
        """Nobody has seen a byte that isn't of its version; whoever should live, does."""
        for process in self.rollouts.values():
            wrong = process.lines("bytes differ|has changed under")
            if wrong:
                raise Wrong("%s holds wrong bytes: %s" % (process.name, wrong[0]))
        for process in processes or self.members():
            if not process.alive():
                raise Wrong("%s, which is healthy, has ended with %s: %s" % (
                    process.name, process.child.returncode, process.lines()[-1:]))

    def mid_transfer(self, at=(0, 0), share=0.3, hold=None):
        """Waits until an update's bytes are under way to a rollout; its version.  hold: a process that is stopped
        (SIGSTOP) then, so that it is in the middle for as long as the caller needs to hurt it."""
        process = self.rollouts[at]
        for _ in range(10):
            writes = [push["phases"]["write"] for push in self.pushes() if push["ok"]]
            since = {at: rollout.mark() for at, rollout in self.rollouts.items()}
            line = process.says(r"version \d+ begins", self.push_s + 20, since[at])
            time.sleep(share * (min(writes[-3:]) if writes else 1))
            version = int(re.search(r"version (\d+) begins", line).group(1))
            if hold is not None:
                hold.kill(signal.SIGSTOP)
            if self.is_in_middle(hold, at, since, version):
                return version
            if hold is not None:
                hold.kill(signal.SIGCONT)
        raise Wrong("version %d, too, had landed before anybody could be hurt" % version)

    def is_in_middle(self, hold, at, since, version):
        """Of writing a version, or of receiving it.  What is under way without a trainer has a second to land; without
        the hub all goes on."""
        if hold is self.rollouts[at]:
            hold.heard_out()
        elif hold is not None:
            time.sleep(1 if hold in self.trainers else 0.3)
        landed = [to for to, rollout in self.rollouts.items()
                  if rollout.lines("version %d has landed" % version, since=since[to])]
        return not landed if hold in self.trainers else at not in landed

    def status(self):
        done = subprocess.run([self.inputs.weightsync, "status", "--hub", self.endpoint, "--key",
                               self.inputs.key, "--deadline", "60s", "--json"], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise Wrong("status: " + done.stderr)
        return json.loads(done.stdout)

    # ---- ending

    def stop(self, seconds=8):
        """SIGTERM to all members: each ends, none with 0 but the hub (1 if the last push had failed)."""
        # Rollouts first: when all trainers have left a run has ended well for them.
        for members in (self.rollouts.values(), self.trainers):
            for process in members:
                if process is not None:
                    process.kill(signal.SIGTERM)
            for process in members:
                if process is not None and process.ends(seconds) == 0:
                    raise Wrong("%s was ended by a signal and says 0" % process.name)
        if self.hub is not None:
            self.hub.kill(signal.SIGTERM)
            self.hub.ends(seconds)
            if self.hub.child.returncode not in (0, 1) or len(self.hub.lines()) != self.hub.child.returncode:
                raise Wrong("the hub ends with %d: %s" % (self.hub.child.returncode, self.hub.lines()))
