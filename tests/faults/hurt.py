# SPDX-License-Identifier: Apache-2.0
"""Scenarios that hurt one run after the other without ending it: who dies or stops in an update,
reload commands that fail, the hub, and who may not come in."""
import os
import re
import signal
import time

from processes import Process, Wrong, marked, until
from run import LOST_S, PHASE_S, PUSH_S, RELOAD_S, SLOW, digest
from world import changed_manifest, command_line, expect, scenario


# ------------------------------------------------------------------ somebody dies in mid transfer

def kill_rollout(world, replica, rank):
    run = world.living()
    victim, sibling = run.rollouts[replica, rank], run.rollouts[replica, 1 - rank]
    other = 1 - replica
    before, since = sibling.mark(), len(run.pushes())
    version = run.mid_transfer((replica, rank), 0.15, hold=victim)
    sibling.says("version %d begins" % version, 5)  # maybe before the victim did; it has dumped the one before
    dumps = {r: digest(run.dump_path(replica, r)) for r in range(2)}
    victim.kill(signal.SIGKILL)
    expect(victim.ends(2) == -signal.SIGKILL, "it wasn't killed")
    push = run.push("the push of version %d ends" % version, PUSH_S + 2, since,
                    lambda p: p["version"] == version)
    states = {r["replica"]: r for r in push["replicas"]}
    expect(push["ok"] and states[other]["live"], "replica %d should have version %d: %s" % (other, version, push))
    expect(not states.get(replica, {"live": False})["live"], "replica %d can't be live: %s" % (replica, push))
    expect("rollout %d.%d" % (replica, rank) in states.get(replica, {}).get("error", ""),
           "the report doesn't name rollout %d.%d: %s" % (replica, rank, push["replicas"]))
    sibling.says("version %d was aborted, the old weights stay: .*rollout %d.%d" % (version, replica, rank),
                 LOST_S + 2, before)
    sibling.says("is whole", 2, before)
    expect(not sibling.lines("version %d is live" % version), "the sibling serves half of a replica")
    for r in range(2):
        expect(digest(run.dump_path(replica, r)) == dumps[r], "the dump of the old weights has changed")
    healthy = [p for p in run.members() if p is not victim]
    run.whole(healthy)
    run.start_rollout(replica, rank)
    run.all_live()
    run.whole(healthy)


@scenario("a rollout of replica 0 killed in mid transfer: its replica keeps the old weights, the other goes on")
def _(world):
    kill_rollout(world, 0, 0)


@scenario("a rollout of replica 1 killed in mid transfer")
def _(world):
    kill_rollout(world, 1, 1)


def all_abort(run, version, since, pattern):
    """Every rollout says once that version was aborted, and still holds the one before."""
    for at, process in run.rollouts.items():
        process.says("version %d was aborted, the old weights stay: .*%s" % (version, pattern),
                     LOST_S + 3, since[at])
        process.says("is whole", 3, since[at])
        expect(len(process.lines("was aborted", since=since[at])) == 1, "%s says it twice: %s" % (
            process.name, process.lines("was aborted", since=since[at])))


def kill_trainer(world, rank):
    run = world.living()
    victim, other = run.trainers[rank], run.trainers[1 - rank]
    since = {at: p.mark() for at, p in run.rollouts.items()}
    said = other.mark()
    version = run.mid_transfer(hold=victim)
    victim.kill(signal.SIGKILL)
    expect(victim.ends(2) == -signal.SIGKILL, "it wasn't killed")
    all_abort(run, version, since, "trainer %d" % rank)
    other.says("cannot push version %d: .*trainer %d" % (version, rank), LOST_S + 3, said)
    healthy = [p for p in run.members() if p is not victim]
    run.whole(healthy)
    run.start_trainer(rank, version)
    live = run.all_live()
    run.whole(healthy)
    expect(live >= version, "version %d was pushed after %d" % (live, version))


@scenario("trainer 1 killed in mid transfer: nobody commits, the same version is pushed again")
def _(world):
    kill_trainer(world, 1)


@scenario("trainer 0 killed in mid transfer")
def _(world):
    kill_trainer(world, 0)


# ------------------------------------------------------------------ somebody stops for a while

def stop_rollout(world):
    run = world.living()
    victim = run.rollouts[1, 0]
    mark, since = victim.mark(), len(run.pushes())
    version = run.mid_transfer((1, 0), hold=victim)
    push = run.push("the push of version %d ends" % version, PUSH_S + 2, since,
                    lambda p: p["version"] == version)
    states = {r["replica"]: r for r in push["replicas"]}
    expect(push["ok"] and states[0]["live"] and not states[1]["live"], "replica 0 alone should be live: %s" % push)
    expect("rollout 1.0" in states[1]["error"], "the report doesn't name rollout 1.0: %s" % states[1])
    victim.kill(signal.SIGCONT)
    victim.says("version %d was aborted, the old weights stay: " % version, 5, mark)
    victim.says("is whole", 2, mark)
    run.all_live()


@scenario("a rollout stopped past the deadline and continued: dropped, told so, in again")
def _(world):
    stop_rollout(world)


def stop_trainer(world):
    run = world.living()
    victim = run.trainers[1]
    since = {at: p.mark() for at, p in run.rollouts.items()}
    mark = victim.mark()
    version = run.mid_transfer(hold=victim)
    all_abort(run, version, since, "trainer 1")
    time.sleep(1)
    victim.kill(signal.SIGCONT)
    victim.says("cannot push version %d: " % version, 5, mark)
    run.all_live()


@scenario("a trainer stopped past the deadline and continued: the attempt aborts, late writes change nothing")
def _(world):
    stop_trainer(world)


@scenario("a rollout whose engine never calls step: dropped with a sentence that says so")
def _(world):
    run = world.living()
    run.rollouts[1, 1].kill(signal.SIGTERM)
    run.rollouts[1, 1].ends(5)
    stuck = run.start_rollout(1, 1, [os.path.join(world.work, "never_steps"), run.endpoint, world.inputs.key,
                                     world.inputs.rollout, "1", "1", "2", SLOW[1], SLOW[3]])
    stuck.says("wired", 15)
    push = run.push("a push ends without replica 1", PHASE_S + PUSH_S, len(run.pushes()), lambda p: p["ok"] and any(
        r["replica"] == 1 and "step" in r["error"] for r in p["replicas"]))
    states = {r["replica"]: r for r in push["replicas"]}
    expect(states[0]["live"], "replica 0 should be live: %s" % push)
    expect(re.search(r"rollout 1\.1 .*(hasn't|never) called ws_rollout_step", states[1]["error"]),
           "who doesn't step? %s" % states[1]["error"])
    stuck.kill(signal.SIGKILL)
    stuck.ends(2)
    run.start_rollout(1, 1)
    run.all_live()


# ------------------------------------------------------------------ the reload command

def bad_reload(world, order, pattern):
    run = world.living()
    victim = run.rollouts[1, 0]
    mark, since = victim.mark(), len(run.pushes())
    run.order(1, 0, order)
    push = run.push("a push names replica 1", PUSH_S + RELOAD_S, since, lambda p: p["ok"] and any(
        r["replica"] == 1 and re.search(pattern, r["error"]) for r in p["replicas"]))
    states = {r["replica"]: r for r in push["replicas"]}
    expect(states[0]["live"] and not states[1]["live"], "replica 0 alone should be live: %s" % push)
    expect("rollout 1.0" in states[1]["error"], "the report doesn't name rollout 1.0: %s" % states[1])
    victim.says("version %d was aborted, the memory is poisoned.*" % push["version"] + pattern, 5, mark)
    run.order(1, 0, "")
    run.all_live()


@scenario("a reload command that fails: that replica is poisoned, named and dropped, the other goes on")
def _(world):
    bad_reload(world, "exit 3", "ended with status 3")


@scenario("a reload command that hangs past its deadline: killed, the same")
def _(world):
    bad_reload(world, "exec sleep 60", "hadn't ended after %d ms and was killed" % (RELOAD_S * 1000))
    until("the command is gone", 3, lambda: not [p for p in marked() if b"sleep" in command_line(p)])


@scenario("a rollout killed between commit and live: its replica stays poisoned until the next push")
def _(world):
    run = world.living()
    victim, sibling = run.rollouts[1, 0], run.rollouts[1, 1]
    mark, since = sibling.mark(), len(run.pushes())
    version = committed(run, victim)
    victim.kill(signal.SIGKILL)
    victim.ends(2)
    run.order(1, 0, "")
    push = run.push("the push of version %d ends" % version, PUSH_S + 2, since, lambda p: p["version"] == version)
    states = {r["replica"]: r for r in push["replicas"]}
    expect(push["ok"] and states[0]["live"] and not states[1]["live"], "replica 0 alone should be live: %s" % push)
    expect("rollout 1.0" in states[1]["error"], "the report doesn't name rollout 1.0: %s" % states[1])
    sibling.says("version %d was aborted, the memory is poisoned" % version, 5, mark)
    run.start_rollout(1, 0)
    run.all_live()


def committed(run, hold):
    """Waits until replica 1's rank 0 runs its reload command, which takes a while now, and stops somebody then."""
    flag = os.path.join(run.folder, "reloading")
    process = run.rollouts[1, 0]
    run.order(1, 0, "echo $WEIGHTSYNC_VERSION >%s.new; mv %s.new %s; sleep 2" % (flag, flag, flag))
    for _ in range(10):
        until("rollout 1.0 reloads", 20, lambda: os.path.exists(flag))
        hold.kill(signal.SIGSTOP)
        with open(flag) as file:
            version = int(file.read())
        os.remove(flag)
        if hold is process:
            process.heard_out()
        if not process.lines("version %d is live" % version):
            return version
        hold.kill(signal.SIGCONT)
    raise Wrong("version %d, too, was live before anybody could be hurt" % version)


# ------------------------------------------------------------------ the hub

def kill_hub(world, in_transfer):
    run = world.living()
    since = {at: p.mark() for at, p in run.rollouts.items()}
    if in_transfer:
        run.mid_transfer(hold=run.hub)
    else:
        run.push("a push ends", 20, len(run.pushes()), lambda p: p["ok"])
    run.hub.kill(signal.SIGKILL)
    run.hub.ends(2)
    for at, process in run.rollouts.items():
        process.says("the hub at '%s' is silent" % run.endpoint, LOST_S + 3, since[at])
    healthy = [p for p in run.members() if p is not run.hub]
    run.start_hub()
    for at, process in run.rollouts.items():
        process.says("the hub at '%s' is back" % run.endpoint, 8, since[at])
    run.all_live(30)
    run.whole(healthy)
    for at, process in run.rollouts.items():
        for word in ("is silent", "is back"):
            expect(len(process.lines(word, since=since[at])) == 1, "%s says '%s' %d times" % (
                process.name, word, len(process.lines(word, since=since[at]))))


@scenario("the hub killed between two updates and restarted on its port")
def _(world):
    kill_hub(world, False)


@scenario("the hub killed in mid transfer and restarted on its port")
def _(world):
    kill_hub(world, True)


@scenario("the hub killed between commit and live: the new one lets the replica finish")
def _(world):
    run = world.living()
    since = {at: p.mark() for at, p in run.rollouts.items()}
    version = committed(run, run.hub)
    run.hub.kill(signal.SIGKILL)
    run.hub.ends(2)
    run.order(1, 0, "")
    healthy = [p for p in run.members() if p is not run.hub]
    run.start_hub()
    for rank in range(2):
        process = run.rollouts[1, rank]
        process.says("version %d is live" % version, 10, since[1, rank])
        expect(not process.lines("was aborted", since=since[1, rank]), "%s gave up what was committed: %s" % (
            process.name, process.lines("was aborted", since=since[1, rank])))
    run.all_live(30)
    run.whole(healthy)


# ------------------------------------------------------------------ who may not come in

@scenario("a client with the wrong key file: refused at once, nobody else notices")
def _(world):
    run = world.living()
    key = os.path.join(run.folder, "wrong-key")
    world.inputs.make("keygen", "-o", key)
    Process(run.folder, "wrong", run.rollout_argv(2, 0, key=key)).fails("key", 8)
    run.all_live()


@scenario("two rollouts with the same number: the second one is refused")
def _(world):
    run = world.living()
    Process(run.folder, "second", run.rollout_argv(0, 1)).fails(r"rollout 0\.1", 8)
    run.all_live()


@scenario("two trainers with the same number: the second one is refused")
def _(world):
    run = world.living()
    argv = [a if a != "1000" else "1" for a in run.trainers[1].argv]
    Process(run.folder, "second", argv).fails("trainer 1", 8)
    run.all_live()


@scenario("a rollout whose manifest differs from the others': refused, nobody else notices")
def _(world):
    run = world.living()
    path = changed_manifest(world, world.inputs.rollout, lambda m: m.update(model="another"))
    Process(run.folder, "differs", run.rollout_argv(2, 0, manifest=path)).fails("manifest", 8)
    run.all_live()


@scenario("a trainer's and a rollout's reports agree with status while all is well")
def _(world):
    run = world.living()
    run.all_live()
    status = run.status()
    names = sorted(m["name"] for m in status["members"] if m["in"])
    expect(names == ["rollout 0.0", "rollout 0.1", "rollout 1.0", "rollout 1.1", "trainer 0", "trainer 1"],
           "status says %s" % names)
    expect(status["malformed_frames"] == 0, "malformed frames: %s" % status["malformed_frames"])
    for member in status["members"]:
        expect(member.get("different_bytes", 0) == 0, "different bytes: %s" % member)


@scenario("SIGTERM to all: each ends with one line and not 0")
def _(world):
    run = world.living()
    marks = {p: p.mark() for p in run.members()}
    world.stop_living()
    for process, mark in marks.items():
        said = [line for line in process.complaints() if line in process.lines("", since=mark)]
        expect(process is run.hub or 1 <= len(said) <= 2, "%s says %s" % (process.name, said))
