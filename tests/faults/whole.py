# SPDX-License-Identifier: Apache-2.0
"""Scenarios with runs of their own: those that can't start, ctrl-C, mpirun, in place, a full disk."""
import json
import os
import shutil
import signal
import subprocess
import time

from processes import Process, marked, until
from run import LOST_S, PHASE_S, PUSH_S, SLOW
from world import Skip, changed_manifest, command_line, expect, scenario

MIDDLE_S = 0.3  # after one version into the writing of the next, which takes 0.6 s

# ------------------------------------------------------------------ runs that can't start

@scenario("manifests that differ between the trainers: all end, with one line each")
def _(world):
    run = world.fresh()
    path = changed_manifest(world, world.inputs.trainer, lambda m: m.update(model="another"))
    run.start_hub()
    run.start_trainer(0)
    until("trainer 0 is there first", 10, lambda: [m for m in run.status()["members"] if m["name"] == "trainer 0"], 0.1)
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

    def __init__(self, world, name, *more, ranks=range(6)):
        inputs, self.folder = world.inputs, world.folder()
        os.mkdir(self.folder)
        self.world, self.processes = world, []
        for rank in ranks:
            group = self.processes[0].pid if self.processes else 0
            self.processes.append(Process(self.folder, "rank%d" % rank, [
                *self.argv(inputs, *more), "--rank", str(rank), "--world", "6", "--job", name], group))

    @staticmethod
    def argv(inputs, *more):
        return [inputs.weightsync, "run", "--trainer", inputs.trainer, "--rollout", inputs.rollout,
                "--replicas", "2", "--checkpoint", inputs.checkpoint, "--updates", "1000", "--op-bytes", "8K",
                "--transport", "fault", "--nics", "delay=0.9:fabric:tcp/127.0.0.1", "--lost-after",
                "%ds" % LOST_S, "--deadline", "%ds" % PUSH_S, *more]

    def in_update(self, talker=None):
        """Its last rank, a rollout, is stopped, so that the update that is under way, or begins next, doesn't end."""
        (talker or self.processes[0]).says("version 1 ", 30, stream="out")
        self.processes[-1].kill(signal.SIGSTOP)
        time.sleep(0.7)

    def go_on(self):
        self.processes[-1].kill(signal.SIGCONT)

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
    job.in_update()
    os.killpg(job.processes[0].pid, signal.SIGINT)
    job.go_on()
    job.all_end(6)


@scenario("ctrl-C to the whole group while they still meet")
def _(world):
    job = Job(world, "early")
    time.sleep(0.4)
    os.killpg(job.processes[0].pid, signal.SIGINT)
    job.all_end(6)


@scenario("a run that was killed while it met leaves files; the next one of its name isn't led astray")
def _(world):
    job = Job(world, "again", ranks=(0,))
    folder = until("rank 0 writes its hub", 5, lambda: [
        at for at, _, files in os.walk(world.temporary) if "hub" in files])[0]
    job.processes[0].kill(signal.SIGKILL)
    job.processes[0].ends(2)
    expect(os.path.exists(os.path.join(folder, "hub")), "nothing was left, nothing is tested")
    job = Job(world, "again", ranks=(1, 2, 3, 4, 5))
    time.sleep(0.5)
    first = Job(world, "again", ranks=(0,)).processes[0]
    job.in_update(first)  # between two versions the end would be a normal one for the rollouts
    first.kill(signal.SIGINT)
    job.go_on()
    job.processes.append(first)
    job.all_end(PUSH_S)


def interrupt(world, rank):
    job = Job(world, "one%d" % rank)
    job.in_update()
    job.processes[rank].kill(signal.SIGINT)
    job.go_on()
    job.all_end(PUSH_S + 5)


@scenario("ctrl-C to rank 0, where the hub is: all end")
def _(world):
    interrupt(world, 0)


@scenario("ctrl-C to a rollout: all end")
def _(world):
    interrupt(world, 3)


@scenario("run --verify: a verdict may take longer than a phase; a rollout killed before its own ends the run, named")
def _(world):
    job = Job(world, "verdict", "--verify", "--deadline", "10m", "--phase-deadline", "%ds" % PHASE_S, ranks=range(5))
    folder = until("rank 0 writes its hub", 5, lambda: [
        at for at, _, files in os.walk(world.temporary) if "hub" in files])[0]
    with open(os.path.join(folder, "hub")) as file:
        endpoint = file.read().split()[0]
    # The last rank doesn't look at what it got, so that it is surely killed before it has said.
    victim = Process(job.folder, "mute", [
        world.inputs.weightsync, "serve", "--rollout", world.inputs.rollout, "--replica", "1", "--rank", "1", "--world", "2",
        "-v", "--hub", endpoint, "--key", os.path.join(folder, "key"), *SLOW])
    victim.says("version 1 is live", 30)
    time.sleep(PHASE_S + 1)
    for process in job.processes:
        expect(process.alive(), "%s didn't wait for the verdict: %s" % (process.name, process.lines()[-1:]))
    victim.kill(signal.SIGKILL)
    for trainer in job.processes[:2]:
        trainer.says("only [0-3] of 4 rollout ranks have said what they found in version 1: replica 1 .*rollout 1.1|the run ended",
                     LOST_S + 3)
        expect(trainer.ends(5) == 1, "%s ended with %s" % (trainer.name, trainer.child.returncode))
    for process in job.processes[2:]:
        process.ends(5)


def kill_under_mpirun(world, rank):
    if shutil.which("mpirun") is None:
        raise Skip("there is no mpirun")
    folder = world.folder()
    os.mkdir(folder)
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    mpirun = Process(folder, "mpirun", ["mpirun", *as_root, "--oversubscribe", "--bind-to", "none", "-n", "6",
                                        *Job.argv(world.inputs, "-v")])
    mpirun.says("version 1 ", 40, stream="out")
    time.sleep(MIDDLE_S)
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


# ------------------------------------------------------------------ rollouts that forward

@scenario("fan-out: a rollout killed in mid transfer takes the replica that it forwards to along")
def _(world):
    run = world.fresh(fanout="replica").start()
    run.all_live(40)
    since, pushes = {at: p.mark() for at, p in run.rollouts.items()}, len(run.pushes())
    version = run.mid_transfer((0, 0), 0.15, hold=run.rollouts[0, 0])
    run.rollouts[0, 0].kill(signal.SIGKILL)
    push = run.push("the push of version %d fails" % version, PUSH_S + 2, pushes,
                    lambda p: p["version"] == version and not p["ok"])
    expect("rollout 0.0" in push["error"], "the push doesn't name rollout 0.0: %s" % push["error"])
    for at in ((0, 1), (1, 0), (1, 1)):
        why = "rollout 0.0" if at[0] == 0 else "replica 1 gets its weights from replica 0: .*rollout 0.0"
        run.rollouts[at].says("version %d was aborted, the old weights stay: .*%s" % (version, why), LOST_S + 3, since[at])
    run.start_rollout(0, 0)
    run.all_live(40)
    run.stop()


@scenario("fan-out in place: the last replica of the chain is killed, the one before goes on without it")
def _(world):
    run = world.fresh(inplace=True, fanout="replica").start()
    run.all_live(40)
    pushes = len(run.pushes())
    version = run.mid_transfer((1, 1), 0.15, hold=run.rollouts[1, 1])
    run.rollouts[1, 1].kill(signal.SIGKILL)
    push = run.push("the push of version %d ends" % version, PUSH_S + 2, pushes,
                    lambda p: p["version"] == version)
    states = {r["replica"]: r for r in push["replicas"]}
    expect(push["ok"] and states[0]["live"], "replica 0 should have version %d: %s" % (version, push))
    expect("rollout 1.1" in states[1]["error"], "the report doesn't name rollout 1.1: %s" % push["replicas"])
    run.start_rollout(1, 1)
    run.all_live(40)
    run.stop()


# ------------------------------------------------------------------ other ways to live

@scenario("in place: a trainer killed in mid transfer poisons every rollout until it is pushed again")
def _(world):
    run = world.fresh(inplace=True).start()
    run.all_live(40)
    since = {at: p.mark() for at, p in run.rollouts.items()}
    version = run.mid_transfer(hold=run.trainers[1])
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
