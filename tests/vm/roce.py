# SPDX-License-Identifier: Apache-2.0
"""Updates between two hosts over real RoCE rails: that every byte arrives, what each rail carried, and what
happens when rails, peers or addresses go away.  Every fault is bounded in time, said clearly, leaves
the old weights whole, and the next version goes live.

usage: roce.py BUILD WORK [TRANSPORT [PATTERN]]   WORK lies in the repository; TRANSPORT: verbs, fabric:tcp
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import pair  # noqa: E402
from pair import PairRun, Remote, on, host_of, wires  # noqa: E402
from processes import Wrong, closing, everybody, scenario_fails  # noqa: E402
from run import Inputs  # noqa: E402

scenarios = []
SHARE_MIN = 0.3         # of the bytes, on each of two rails
# Of a rail while something is cut in mid update: it lasts for seconds.  What queue pairs have under way, 64
# packets each, must not wait in the queue for as long as they wait for an acknowledgement.
SLOW_RATE = "8mbit"
SLOW_KNOBS = "?mtu=1024&timeout=18"


def expect(true, what):
    if not true:
        raise Wrong(what)


def scenario(name, always=True):
    """Not always: only where PATTERN is given, since the whole has six minutes."""
    def register(function):
        scenarios.append((name, function, always))
        return function
    return register


class World:
    def __init__(self, build, work, transport):
        self.work, self.transport, self.count = work, transport, 0
        for part in ("whole", "hurt"):
            os.mkdir(os.path.join(work, part))
        self.whole = Inputs(build, os.path.join(work, "whole"))                # 8 MB
        self.small = Inputs(build, os.path.join(work, "hurt"), "qwen3-32b")    # 3 MB
        self.run = None

    def folder(self):
        self.count += 1
        return os.path.join(self.work, "run%d" % self.count)

    def living(self):
        """The run that is hurt: two rails per rank, slow ones, a version live."""
        if self.run is None:
            shape("a", pair.RAILS)
            self.run = PairRun(self.small, self.folder(), self.transport, knobs=SLOW_KNOBS).start()
            self.run.all_live(120)
        return self.run


# ------------------------------------------------------------------ whole updates

def whole_updates(world, rails, chosen=False):
    """`run --verify`, 2 trainers to 2 rollouts; what trainer 0 says of each version.  chosen: nobody is told
    which NICs to use, and rollouts pass on what they hold alike, inside their host."""
    folder, inputs = world.folder(), world.whole
    os.mkdir(folder)
    PairRun.port += 1
    processes = []
    for rank in range(4):
        name = "trainer%d" % rank if rank < 2 else "rollout%d" % (rank - 2)
        host = host_of(name)
        processes.append(Remote(host, folder, name, [
            "env", "RANK=%d" % rank, "WORLD_SIZE=4", inputs.weightsync, "run", "--trainer", inputs.trainer,
            "--rollout", inputs.rollout, "--checkpoint", inputs.checkpoint, "--updates", "3", "--verify", "--json",
            "--hub", "tcp://%s:%d" % (pair.HUB_ADDRESS, PairRun.port), "--key", inputs.key,
            *(["--fanout", "node"] if chosen else wires(world.transport, host, rails))]))
    for process in processes:
        status = process.ends(300)
        expect(status == 0, "%s ends with %d: %s" % (process.name, status, process.lines()[-2:]))
    plan = os.path.join(folder, "plan.json")
    with open(plan, "w") as file:
        file.write(inputs.make("plan", inputs.trainer, inputs.rollout, "--json"))
    checked = subprocess.run([sys.executable, os.path.join(pair.here, "..", "check_updates.py"),
                              processes[0].base + ".out", "3", plan, world.transport.split(":")[0]],
                             capture_output=True, text=True)
    expect(checked.returncode == 0, checked.stderr)
    updates = [json.loads(line) for line in processes[0].lines("^{", "out")]
    if chosen:
        passed_on = processes[2].lines(": sent .* over ipc host")
        expect(len(passed_on) == 1 and " 0 B over verbs rxe1" in passed_on[0], "rollout 0 says %s" % processes[2].lines())
        print("    %s" % updates[0]["nics_chosen"])
    print("    %d bytes in %s s" % (updates[0]["bytes"], ", ".join("%.2f" % u["seconds"] for u in updates)))
    return updates


def shares(nics):
    """Of one push's NICs, or of several pushes'."""
    sent = {}
    for nic in nics:
        if nic["peers"] > 0:
            sent[nic["name"]] = sent.get(nic["name"], 0) + nic["bytes_sent"]
    return {name: bytes_sent / max(sum(sent.values()), 1) for name, bytes_sent in sent.items()}


def expect_shares(updates):
    """Of all updates together: a single one is a handful of writes per rail."""
    share = shares([nic for update in updates for nic in update["nics"]])
    print("    shares: %s" % ", ".join("%s %.0f %%" % (name, 100 * s) for name, s in share.items()))
    expect(len(share) == 2 and min(share.values()) >= SHARE_MIN, "a rail carries too little: %s" % share)


@scenario("fsdp2 dp=2 on host a to vllm tp=2 on host b, 1 NIC per rank: every byte of 3 versions")
def _(world):
    whole_updates(world, (1,))


@scenario("the same over what auto chooses, on one rail ends of different MTU: every byte, each rail carries its share")
def _(world):
    on("b", "ip", "link", "set", "eth1", "mtu", "1500")
    try:
        expect_shares(whole_updates(world, (1, 2), chosen=world.transport == "verbs"))
    finally:
        on("b", "ip", "link", "set", "eth1", "mtu", "9000")


# ------------------------------------------------------------------ what breaks in mid update

class Attempt:
    """An update of which bytes are under way, and what everybody had said before.  What is done to it may take too
    long on a busy machine, and then hits the next one."""

    def __init__(self, run):
        self.run, self.version = run, None
        for tries_left in (2, 1, 0):
            self.since = {at: process.mark() for at, process in run.rollouts.items()}
            self.pushes = len(run.pushes())
            try:
                self.version = run.mid_transfer(share=0.2)
                break
            except Wrong:  # it had landed already
                if tries_left == 0:
                    raise

    def aborts(self, pattern, victim=None, within=None):
        """The push fails in time and says why; each rollout but the victim, where that version had begun, says
        that it holds the old weights, every byte."""
        push = self.run.push("a push fails with '%s'" % pattern, within or 2 * self.run.push_s, self.pushes,
                             lambda p: not p["ok"] and re.search(pattern, p["error"]))
        self.version = push["version"]
        for at, process in self.run.rollouts.items():
            if process is victim or not process.lines("version %d begins" % self.version, since=self.since[at]):
                continue
            process.says("version %d was aborted, the old weights stay: " % self.version, 60, self.since[at])
            process.says("version %d is whole" % (self.version - 1), 60, self.since[at])

    def over(self, victim=None):
        """A version is live everywhere, and nobody who is healthy has ended."""
        self.run.all_live(120, [process for process in self.run.members() if process is not victim])


def shape(host, rails, *how):
    """What leaves by these rails: as netem is told, and from host a slowly, where trainers send."""
    netem = [*(["rate", SLOW_RATE, "limit", "4000"] if host == "a" else []), *how]
    kind = "netem " + " ".join(netem) if netem else "pfifo_fast"
    on(host, "sh", "-c", "; ".join("tc qdisc replace dev %s root %s" % (rail, kind) for rail in rails))


def link(host, rails, state):
    on(host, "sh", "-c", "; ".join("ip link set %s %s" % (rail, state) for rail in rails))


@scenario("a rail's link goes down in mid update: that version aborts, the next runs on the other rail, and the rail comes back")
def _(world):
    run = world.living()
    for tries_left in (2, 1, 0):
        attempt = Attempt(run)
        link("b", ("eth0",), "down")
        try:
            attempt.aborts("rxe1", within=run.push_s)
            break
        except Wrong:  # it went down between two versions, and cost none: once more
            if tries_left == 0 or "rxe1" not in run.pushes()[-1]["nic_trouble"]:
                raise
            link("b", ("eth0",), "up")
            run.push("both rails carry bytes again", 120, len(run.pushes()), lambda p: p["ok"] and min(
                shares(p["nics"]).values()) >= SHARE_MIN)
    try:
        attempt.over()
        nics = run.pushes()[-1]["nics"]
        alive = [nic for nic in nics if nic["bytes_sent"] > 0]
        expect(len(alive) == 1, "one rail should carry all: %s" % nics)
        trouble = run.pushes()[-1]["nic_trouble"]
        expect("rxe1" in trouble and "1 of 2 NICs" in trouble, "the report doesn't name the rail: %s" % trouble)
    finally:
        link("b", ("eth0",), "up")
    run.push("both rails carry bytes again", 120, len(run.pushes()), lambda p: p["ok"] and min(
        shares(p["nics"]).values()) >= SHARE_MIN)
    attempt.over()


@scenario("both rails' links go down in mid update and come up")
def _(world):
    run = world.living()
    attempt = Attempt(run)
    link("b", pair.RAILS, "down")
    try:
        attempt.aborts("rxe[12]" if world.transport == "verbs" else "")
        time.sleep(1)
    finally:
        link("b", pair.RAILS, "up")
    attempt.over()


@scenario("the management network is dark in mid update and comes back", always=False)
def _(world):
    run = world.living()
    attempt = Attempt(run)
    link("b", (pair.CONTROL,), "down")
    time.sleep(run.lost_s + 2)
    link("b", (pair.CONTROL,), "up")
    # After all has landed, nobody knows here whether a rank heard "commit": it serves nothing until it is told.
    for at, process in run.rollouts.items():
        process.says("version %d (is live|was aborted, (the old weights stay|the memory is poisoned until a later version))" %
                     attempt.version, run.push_s, attempt.since[at])
    attempt.over()


@scenario("a rollout is killed in mid update: its replica keeps the old weights, and it comes back")
def _(world):
    run = world.living()
    victim = run.rollouts[0, 1]
    attempt = Attempt(run)
    victim.kill(signal.SIGKILL)
    expect(victim.ends(60) == -signal.SIGKILL, "it wasn't killed")
    attempt.aborts("rollout 0.1", victim)
    run.start_rollout(0, 1)
    attempt.over(victim)


@scenario("a rollout is stopped past the deadline in mid update, and continued")
def _(world):
    run = world.living()
    victim = run.rollouts[0, 0]
    attempt = Attempt(run)
    victim.kill(signal.SIGSTOP)
    attempt.aborts("rollout 0.0", victim)
    victim.kill(signal.SIGCONT)
    attempt.aborts("")
    attempt.over()


@scenario("a trainer is killed in mid update: nobody commits, and it comes back")
def _(world):
    run = world.living()
    victim = run.trainers[1]
    attempt = Attempt(run)
    victim.kill(signal.SIGKILL)
    expect(victim.ends(60) == -signal.SIGKILL, "it wasn't killed")
    attempt.aborts("trainer 1")
    run.start_trainer(1, attempt.version)
    attempt.over(victim)


@scenario("a trainer is stopped past the deadline in mid update and continued: its late writes change nothing")
def _(world):
    run = world.living()
    victim = run.trainers[1]
    attempt = Attempt(run)
    victim.kill(signal.SIGSTOP)
    attempt.aborts("trainer 1")
    victim.kill(signal.SIGCONT)
    attempt.over()


# ------------------------------------------------------------------ a network that isn't what it was

@scenario("a rail swallows everything, its ports stay up: a version aborts, one goes live on the other rail, and the rail comes back")
def _(world):
    run = world.living()
    attempt = Attempt(run)
    shape("a", ("eth1",), "loss", "100%")
    try:
        attempt.aborts("rxe2.*transport retry counter exceeded")
        since = len(run.pushes())
        push = run.push("a version goes live", 120, since, lambda p: p["ok"])
        more = [p["error"] for p in run.pushes()[since:] if not p["ok"]]
        # Each trainer finds out by itself.  On a machine so slow that it takes the 8 s after which
        # rails are tried again, both do so once.
        expect(len(more) <= 3, "the rail cost more versions: %s" % more)
        expect(len([nic for nic in push["nics"] if nic["bytes_sent"] > 0]) == 1,
               "one rail should carry all: %s" % push["nics"])
        print("    %s" % push["nic_trouble"])
        # The second: it has been tried again meanwhile, and couldn't be connected.
        expect(re.search("rxe2.*left out to 'rollout .*: (transport retry counter exceeded|Connection timed out|mute since|no answer)",
                         push["nic_trouble"]),
               "the report doesn't name the rail: %s" % push["nic_trouble"])
    finally:
        shape("a", ("eth1",))
    run.push("both rails carry bytes again", 120, len(run.pushes()), lambda p: p["ok"] and min(
        shares(p["nics"]).values()) >= SHARE_MIN)
    attempt.over()


@scenario("1 % of packets lost on both rails, both ways: every version arrives whole")
def _(world):
    run = world.living()
    for host in "ab":
        shape(host, pair.RAILS, "loss", "1%")
    try:
        since = len(run.pushes())
        run.push("a version arrives", 120, since, lambda p: p["ok"])
        run.all_live(120)
    finally:
        for host in "ab":
            shape(host, pair.RAILS)
    failed = [push["error"] for push in run.pushes()[since:] if not push["ok"]]
    expect(not failed, "1 %% of loss failed a version: %s" % failed)


# Not always, for the six minutes: ends of different MTU are tried in every run.
@scenario("a switch drops frames above 600 bytes in mid update: the version aborts in time, saying why", always=False)
def _(world):
    run = world.living()
    attempt = Attempt(run)
    on("b", "sh", "-c", "tc qdisc add dev eth0 ingress && tc filter add dev eth0 parent ffff: matchall "
       "action police rate 10gbit burst 1m mtu 600 conform-exceed drop/ok")
    try:
        attempt.aborts("rxe1.*transport retry counter exceeded")
    finally:
        on("b", "tc", "qdisc", "del", "dev", "eth0", "ingress")
    attempt.over()


@scenario("a rail's address, and so its GID, changes in mid update: the next version goes to the new one")
def _(world):
    run = world.living()
    attempt = Attempt(run)
    on("b", "sh", "-c", "ip addr del 10.0.1.2/24 dev eth0; ip addr add 10.0.1.22/24 dev eth0")
    try:
        attempt.over()
        run.push("both rails carry bytes", 120, len(run.pushes()), lambda p: p["ok"] and min(
            shares(p["nics"]).values()) >= SHARE_MIN)
        said = " ".join(member["nic_trouble"] for member in run.status()["members"])
        expect(world.transport != "verbs" or re.search("rxe1.*GID changed from .*10.0.1.2.* to .*10.0.1.22", said),
               "status doesn't tell of it: '%s'" % said)
    finally:
        on("b", "sh", "-c", "ip addr del 10.0.1.22/24 dev eth0; ip addr add 10.0.1.2/24 dev eth0")
    attempt.over()


# ------------------------------------------------------------------ a rollout whose NIC falls short, or says what isn't so

def short_of(world, knob, pattern):
    run = world.living()
    healthy = [process for process in run.members() if process is not run.rollouts[0, 1]]
    run.rollouts[0, 1].kill(signal.SIGTERM)
    run.rollouts[0, 1].ends(60)
    sibling, said = run.rollouts[0, 0], run.rollouts[0, 0].mark()
    argv = run.rollout_argv(0, 1)
    nics = argv.index("--nics") + 1
    argv[nics] = ",".join("%s&%s" % (nic, knob) for nic in argv[nics].split(","))
    since = len(run.pushes())
    run.start_rollout(0, 1, argv)
    push = run.push("a push fails for it", 90, since, lambda p: not p["ok"] and re.search(pattern, p["error"]))
    print("    %s" % push["error"][:300])
    sibling.says("version %d was aborted, the old weights stay: " % push["version"], 60, said)
    sibling.says("version %d is whole" % (push["version"] - 1), 60, said)
    run.rollouts[0, 1].kill(signal.SIGKILL)
    run.rollouts[0, 1].ends(60)
    run.start_rollout(0, 1)
    run.all_live(120, healthy)


@scenario("a rollout posts no receives (RNR): the version aborts in time, saying why")
def _(world):
    short_of(world, "receives=0", "RNR retry counter exceeded")


@scenario("a rollout's completion queue is too small: the version aborts in time, saying why")
def _(world):
    short_of(world, "cq=1", "its completion queue ran over")


@scenario("a rollout tells keys that are wrong: the version aborts in time, saying why")
def _(world):
    short_of(world, "key=%d" % 0x5a00, "remote access error")


# Not always: verbs_faults writes past a region in every run, and what follows is as with a wrong key.
@scenario("a rollout tells addresses that lead past its regions: the version aborts in time, saying why", always=False)
def _(world):
    short_of(world, "past=%d" % (1 << 30), "remote access error")


# ------------------------------------------------------------------ main

def one(world, name, function):
    started, why = time.monotonic(), None
    try:
        function(world)
    except (Wrong, subprocess.SubprocessError, OSError, KeyError, ValueError) as wrong:
        why = wrong
    seconds = time.monotonic() - started
    if why is None:
        print("ok %s (%.1f s)" % (name, seconds), flush=True)
        return
    scenario_fails(name, why, seconds, 60)
    world.run = None
    for process in everybody:
        process.kill(signal.SIGKILL)
    everybody.clear()
    for host in "ab":
        link(host, (*pair.RAILS, pair.CONTROL), "up")


def main(build, work, transport="verbs", pattern=""):
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    for host in "ab":
        on(host, "sh", "-c", "pkill -KILL -x weightsync || true")  # of a script that was killed
    world = World(os.path.abspath(build), os.path.abspath(work), transport)
    for name, function, always in scenarios:
        if re.search(pattern, name) if pattern else always:
            open(os.path.join(work, "found"), "w").close()
            one(world, name, function)
    if world.run is not None:
        one(world, "the run that was hurt ends", lambda w: w.run.stop(60))
    on("a", "sh", "-c", "; ".join("tc qdisc replace dev %s root pfifo_fast" % rail for rail in pair.RAILS))
    return closing()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
