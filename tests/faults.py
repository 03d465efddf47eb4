# SPDX-License-Identifier: Apache-2.0
"""What dies and what is bad: every scenario ends within its deadline, with one clear line per
process, old weights whole, and the next version goes live without restarting healthy processes.

usage: faults.py BUILD [PATTERN]; prints "ok NAME", "not ok NAME: why", "skip NAME: why"
Most scenarios hurt one run after the other without ending it; a run that doesn't recover is a
failure, and the next scenario gets a new one.
"""
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults"))
from processes import Process, Wrong, end_marked, everybody, marked, shared_memory, timeline, until  # noqa: E402
from run import LOST_S, PHASE_S, PUSH_S, RELOAD_S, SLOW, Inputs, Run  # noqa: E402

scenarios = []


class Skip(Exception):
    pass


class World:
    """What scenarios share: the inputs and the run that is being hurt."""

    def __init__(self, build, work):
        self.work, self.build = work, build
        self.inputs = Inputs(build, work)
        self.temporary = os.path.join(work, "tmp")
        os.mkdir(self.temporary)
        os.environ["TMPDIR"] = self.temporary
        self.run, self.count = None, 0

    def folder(self):
        self.count += 1
        return os.path.join(self.work, "run%d" % self.count)

    def living(self):
        """The run in which every member is up and a version is live."""
        if self.run is None:
            self.run = Run(self.inputs, self.folder()).start()
            self.run.all_live(40)
        return self.run

    def fresh(self, **how):
        return Run(self.inputs, self.folder(), **how)

    def stop_living(self):
        run, self.run = self.run, None
        if run is not None:
            run.stop()


def scenario(name):
    def register(function):
        scenarios.append((name, function))
        return function
    return register


def expect(true, what):
    if not true:
        raise Wrong(what)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


# ------------------------------------------------------------------ somebody dies in mid transfer

def kill_rollout(world, replica, rank):
    run = world.living()
    run.status()
    victim, sibling = run.rollouts[replica, rank], run.rollouts[replica, 1 - rank]
    other = 1 - replica
    before, since = sibling.mark(), len(run.pushes())
    version = run.mid_transfer((replica, rank))
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
    version = run.mid_transfer()
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

@scenario("a rollout stopped past the deadline and continued: dropped, told so, in again")
def _(world):
    run = world.living()
    victim = run.rollouts[1, 0]
    mark, since = victim.mark(), len(run.pushes())
    version = run.mid_transfer((1, 0))
    victim.kill(signal.SIGSTOP)
    push = run.push("the push of version %d ends" % version, PUSH_S + 2, since,
                    lambda p: p["version"] == version)
    states = {r["replica"]: r for r in push["replicas"]}
    expect(push["ok"] and states[0]["live"] and not states[1]["live"], "replica 0 alone should be live: %s" % push)
    expect("rollout 1.0" in states[1]["error"], "the report doesn't name rollout 1.0: %s" % states[1])
    victim.kill(signal.SIGCONT)
    victim.says("version %d was aborted, the old weights stay: " % version, 5, mark)
    victim.says("is whole", 2, mark)
    run.all_live()


@scenario("a trainer stopped past the deadline and continued: the attempt aborts, late writes change nothing")
def _(world):
    run = world.living()
    victim = run.trainers[1]
    since = {at: p.mark() for at, p in run.rollouts.items()}
    mark = victim.mark()
    version = run.mid_transfer()
    victim.kill(signal.SIGSTOP)
    all_abort(run, version, since, "trainer 1")
    time.sleep(1)
    victim.kill(signal.SIGCONT)
    victim.says("cannot push version %d: " % version, 5, mark)
    run.all_live()


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


def command_line(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read()
    except OSError:
        return b""


# ------------------------------------------------------------------ the hub

def kill_hub(world, in_transfer):
    run = world.living()
    since = {at: p.mark() for at, p in run.rollouts.items()}
    if in_transfer:
        run.mid_transfer()
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


def changed_manifest(world, path, change):
    with open(path) as file:
        manifest = json.load(file)
    change(manifest)
    changed = path.replace(".json", "-changed.json")
    with open(changed, "w") as file:
        json.dump(manifest, file)
    return changed


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


# ------------------------------------------------------------------ runs that can't start

@scenario("manifests that differ between the trainers: all end, with one line each")
def _(world):
    run = world.fresh()
    path = changed_manifest(world, world.inputs.trainer, lambda m: m.update(model="another"))
    run.start_hub()
    run.start_trainer(0)
    time.sleep(0.5)
    run.start_trainer(1, manifest=path)
    for process in (*run.trainers, run.hub):
        process.fails("trainer 1 brings another manifest", 8)


@scenario("a source that doesn't cover the target: all end, naming the tensor")
def _(world):
    run = world.fresh(min_replicas=2)
    gone = "model.norm.weight"

    def drop(manifest):
        text = json.dumps(manifest)
        expect(gone in text, "there is no %s" % gone)
        manifest["tensors"] = [t for t in manifest["tensors"] if t["name"] != gone]
        manifest["params"] = [p for p in manifest["params"] if gone not in json.dumps(p)]
    path = changed_manifest(world, world.inputs.trainer, drop)
    run.start_hub()
    for rank in range(2):
        run.start_trainer(rank, manifest=path)
    for replica in range(2):
        for rank in range(2):
            argv = run.rollout_argv(replica, rank)
            for option in ("--verify", "-v"):
                argv.remove(option)
            run.start_rollout(replica, rank, argv)
    for process in [*run.trainers, *run.rollouts.values()]:
        process.fails(gone, 20)
    run.hub.fails(gone, 5)


@scenario("no launcher's environment: exit 2, one line")
def _(world):
    inputs = world.inputs
    for argv in (["run", "--trainer", inputs.trainer, "--rollout", inputs.rollout, "--replicas", "2"],
                 ["push", "--trainer", inputs.trainer, "--hub", "tcp://127.0.0.1:9", "--key", inputs.key]):
        Process(world.work, "nobody", [inputs.weightsync, *argv, "--checkpoint", inputs.checkpoint]).fails(
            "no launcher tells this process its rank", 5, status=2)


@scenario("nobody comes: a trainer alone ends at its start deadline and names who is missing")
def _(world):
    run = world.fresh()
    run.start_hub("--join-deadline", "3s")
    run.start_trainer(0).fails("didn't start within 3 s.*trainer 1", 10)
    run.hub.fails("didn't start within 3 s.*trainer 1", 2)


# ------------------------------------------------------------------ `run` without a launcher

class Job:
    """2 trainers and 2 replicas of 2 ranks under `run --rank --world`, one process group."""

    def __init__(self, world, name, *more):
        inputs, self.folder = world.inputs, world.folder()
        os.mkdir(self.folder)
        self.world, self.processes = world, []
        for rank in range(6):
            group = 0 if rank == 0 else self.processes[0].pid
            self.processes.append(Process(self.folder, "rank%d" % rank, [
                *self.argv(inputs, *more), "--rank", str(rank), "--world", "6", "--job", name], group))

    @staticmethod
    def argv(inputs, *more):
        return [inputs.weightsync, "run", "--trainer", inputs.trainer, "--rollout", inputs.rollout,
                "--replicas", "2", "--checkpoint", inputs.checkpoint, "--updates", "1000", "--op-bytes", "8K",
                "--transport", "fault", "--nics", "delay=0.9:fabric:tcp/127.0.0.1", "--lost-after",
                "%ds" % LOST_S, "--deadline", "%ds" % PUSH_S, *more]

    def in_second_update(self):
        self.processes[0].says("version 1 ", 30, stream="out")
        time.sleep(0.7)

    def all_end(self, seconds, also=()):
        for process in self.processes:
            status = process.ends(seconds)
            expect(status != 0, "%s ended with 0" % process.name)
            said = process.complaints()
            expect(status < 0 or 1 <= len(said) <= 2, "%s says %s" % (process.name, said))
        left = os.listdir(self.world.temporary)
        expect(not left, "left behind: %s" % left)


@scenario("ctrl-C to the whole group: all end with one line, nothing is left")
def _(world):
    job = Job(world, "group")
    job.in_second_update()
    os.killpg(job.processes[0].pid, signal.SIGINT)
    job.all_end(6)


@scenario("ctrl-C to the whole group while they still meet")
def _(world):
    job = Job(world, "early")
    time.sleep(0.4)
    os.killpg(job.processes[0].pid, signal.SIGINT)
    job.all_end(6)


def interrupt(world, rank):
    job = Job(world, "one%d" % rank)
    job.in_second_update()
    job.processes[rank].kill(signal.SIGINT)
    job.all_end(PUSH_S + 5)


@scenario("ctrl-C to rank 0, where the hub is: all end")
def _(world):
    interrupt(world, 0)


@scenario("ctrl-C to a rollout: all end")
def _(world):
    interrupt(world, 3)


def kill_under_mpirun(world, rank):
    if shutil.which("mpirun") is None:
        raise Skip("there is no mpirun")
    folder = world.folder()
    os.mkdir(folder)
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    mpirun = Process(folder, "mpirun", ["mpirun", *as_root, "--oversubscribe", "--bind-to", "none", "-n", "6",
                                        *Job.argv(world.inputs, "-v")])
    mpirun.says("version 1 ", 40, stream="out")
    time.sleep(0.7)
    want = ("OMPI_COMM_WORLD_RANK=%d" % rank).encode()

    def is_victim(pid):
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                return want in file.read().split(b"\0") and b"weightsync" in command_line(pid)
        except OSError:
            return False
    victims = [pid for pid in marked() if is_victim(pid)]
    expect(len(victims) == 1, "rank %d is %s" % (rank, victims))
    os.kill(victims[0], signal.SIGKILL)
    killed = time.monotonic()
    expect(mpirun.ends(6) != 0, "mpirun ended with 0")
    until("no process is left", 5 - min(4.9, time.monotonic() - killed), lambda: not marked())
    left = [name for name in os.listdir(world.temporary) if name.startswith("weightsync")]
    expect(not left, "left behind: %s" % left)


for _rank, _what in ((0, "a trainer, with the hub"), (1, "a trainer"), (4, "a rollout")):
    scenario("under mpirun, SIGKILL of rank %d (%s): all end within 5 s, not with 0" % (_rank, _what))(
        lambda world, rank=_rank: kill_under_mpirun(world, rank))


# ------------------------------------------------------------------ other ways to live

@scenario("in place: a trainer killed in mid transfer poisons every rollout until it is pushed again")
def _(world):
    run = world.fresh(inplace=True).start()
    run.all_live(40)
    since = {at: p.mark() for at, p in run.rollouts.items()}
    version = run.mid_transfer()
    run.trainers[1].kill(signal.SIGKILL)
    for at, process in run.rollouts.items():
        process.says("version %d was aborted, the memory is poisoned.*trainer 1" % version, LOST_S + 3, since[at])
    run.start_trainer(1, version)
    run.all_live()
    run.stop()


@scenario("a full disk under --dump: said, the dump before stays, the other replica goes on")
def _(world):
    if os.getuid() != 0 or not os.environ.get("WS_OWN_MOUNTS"):
        raise Skip("needs root and a mount namespace for a small tmpfs")
    run = world.fresh()
    small = os.path.join(world.work, "small")
    os.mkdir(small)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        run.start_hub()
        for rank in range(2):
            run.start_trainer(rank)
        for at in ((0, 0), (0, 1), (1, 0)):
            run.start_rollout(*at)
        argv = run.rollout_argv(1, 1)
        argv[argv.index("--dump") + 1] = os.path.join(small, "dump.safetensors")
        victim = run.start_rollout(1, 1, argv)
        victim.says("version 1 has landed", 30)
        victim.fails("No space left on device", 10)
        run.push("replica 0 goes on", 20, len(run.pushes()), lambda p: p["ok"] and any(
            r["replica"] == 0 and r["live"] for r in p["replicas"]))
        expect(os.listdir(small) == [], "half a dump: %s" % os.listdir(small))
        run.stop()
    finally:
        until("nobody holds the tmpfs", 5, lambda: subprocess.run(
            ["umount", small], capture_output=True, check=False).returncode == 0, 0.2)


@scenario("a run that ends well: trainers, rollouts and hub end with 0")
def _(world):
    run = world.fresh(updates=2, slow=False).start()
    for process in [*run.trainers, *run.rollouts.values()]:
        expect(process.ends(30) == 0, "%s ended with %s: %s" % (
            process.name, process.child.returncode, process.lines()[-2:]))
    expect([p["version"] for p in run.pushes()] == [1, 2], "pushes: %s" % run.pushes())
    run.hub.kill(signal.SIGTERM)
    expect(run.hub.ends(5) == 0, "the hub: %s" % run.hub.lines())


# ------------------------------------------------------------------ running them

def show_logs():
    for line in timeline(100):
        print("    " + line[:500])
    print("    (times are seconds before the last line; 'kill' and the like aren't shown)")


def clean(world, shm):
    """I6, when no run is alive: no process, folder or shared memory of ours is left."""
    until("no process is left: %s" % [command_line(p)[:80] for p in marked()], 3, lambda: not marked())
    left = [name for name in os.listdir(world.temporary)]
    expect(not left, "left in TMPDIR: %s" % left)
    expect(shared_memory() <= shm, "left in /dev/shm: %s" % (shared_memory() - shm))


def one(world, name, function):
    shm, started = shared_memory(), time.monotonic()
    why = skip = None
    try:
        function(world)
        if world.run is None:
            clean(world, shm)
    except Skip as reason:
        skip = reason
    except (Wrong, subprocess.SubprocessError, OSError, KeyError, ValueError) as wrong:
        why = wrong
    seconds = time.monotonic() - started
    if skip is not None:
        print("skip %s: %s" % (name, skip), flush=True)
        return 0
    if why is None:
        print("ok %s (%.1f s)" % (name, seconds), flush=True)
        return 0
    print("not ok %s: %s (%.1f s)" % (name, str(why)[:1500], seconds), flush=True)
    show_logs()
    world.run = None
    end_marked()
    everybody.clear()
    for left in os.listdir(world.temporary):
        shutil.rmtree(os.path.join(world.temporary, left), ignore_errors=True)
    return 1


def build_never_steps(world, root):
    libs = subprocess.run(["pkg-config", "--libs", "libfabric", "libzmq", "libcjson", "libxxhash"],
                          capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-I", root, "-o", os.path.join(world.work, "never_steps"),
                    os.path.join(root, "tests/faults/never_steps.c"), os.path.join(world.build, "libweightsync.a"),
                    *libs, "-lm", "-pthread"], check=True)


def main():
    build = os.path.abspath(sys.argv[1])
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    work = tempfile.mkdtemp(prefix="faults-")
    failures, world = 0, None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        world = World(build, work)
        build_never_steps(world, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        for name, function in scenarios:
            if pattern in name:
                failures += one(world, name, function)
        if world.run is not None:
            failures += one(world, "the run that was hurt ends", lambda w: w.stop_living())
    except Wrong as wrong:
        print("not ok faults: %s" % wrong)
        failures += 1
    finally:
        end_marked()
        if os.environ.get("WS_KEEP"):
            print("kept: %s" % work)
        else:
            shutil.rmtree(work, ignore_errors=True)
    return min(failures, 99)


if __name__ == "__main__":
    sys.exit(main())
