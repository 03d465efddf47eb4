# SPDX-License-Identifier: Apache-2.0
"""What a side needs beyond its params, measured.

usage: memory.py WEIGHTSYNC WORKDIR

Two FSDP2 trainers push 400 MB into one in-place replica of two ranks.  A trainer stays under
--staging-bytes + 64 MiB, an in-place rollout under --recv-staging-bytes + 64 MiB (64 MiB each):
over tcp by each process's peak RSS.  Over ipc a process's RSS counts what it has mapped of the
others too, so there all four together stay under four times that, by their shares (PSS).
"""
import os
import subprocess
import sys
import time

MIB = 1 << 20
BUDGET = (64 + 64) * MIB


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder) if f.endswith(".safetensors"))


def make(weightsync, work):
    model = os.path.join(work, "model")
    subprocess.run([weightsync, "synth", "--model", "qwen3-30b-a3b", "--scale", "1/150", "-o", model], check=True)
    manifests = []
    for side, layout, mesh in (("trainer", "fsdp2", "dp=2"), ("rollout", "vllm", "tp=2")):
        manifests.append(os.path.join(work, side + ".json"))
        subprocess.run([weightsync, "manifest", "--model", model, "--side", side, "--layout", layout, "--mesh",
                        mesh, "-o", manifests[-1]], check=True)
    return model, manifests


def start(weightsync, model, manifests, transport):
    """rank by pid"""
    pids = {}
    for rank in range(4):
        command = [weightsync, "run", "--trainer", manifests[0], "--rollout", manifests[1], "--checkpoint", model,
                   "--updates", "3", "--inplace", "--transport", transport, "--rank", str(rank), "--world", "4",
                   "--job", f"memory-{os.getpid()}"]
        pids[subprocess.Popen(command, stdout=subprocess.DEVNULL).pid] = rank
    return pids


def say(good, line):
    print(("ok " if good else "not ok ") + line)
    return not good


def over_tcp(pids, params):
    bad = 0
    for _ in range(4):
        pid, status, usage = os.wait4(-1, 0)
        rank = pids[pid]
        who = f"trainer {rank}" if rank < 2 else f"in-place rollout {rank - 2}"
        extra = usage.ru_maxrss * 1024 - params
        bad += say(status == 0 and extra <= BUDGET,
                   f"{who} needs {extra / MIB:.0f} MiB beyond its {params / MIB:.0f} MiB of params over tcp, at most "
                   f"{BUDGET // MIB}" + (f"; it ended with {status}" if status else ""))
    return bad


def share(pid):
    """of all that is resident, what each of its users has an equal part of"""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    except (OSError, ProcessLookupError):
        return 0


def over_ipc(pids):
    """The most that they ever had together, and whether anything is wrong.  Each look is at one moment."""
    most, bad, left = 0, 0, dict(pids)
    while left:
        most = max(most, sum(share(pid) for pid in left))
        time.sleep(0.05)
        pid, status, _ = os.wait4(-1, os.WNOHANG)
        if pid:
            rank = left.pop(pid)
            bad += status != 0 and say(False, f"rank {rank} ended with {status}")
    return most, bad


def all_over_ipc(begin, params):
    for _ in range(5):
        most, bad = over_ipc(begin())
        if bad or most > 4 * params:  # else they had their time while this process had none
            break
    extra = most - 4 * params
    return bad + say(most > 4 * params and extra <= 4 * BUDGET,
                     f"four ranks need {extra / MIB:.0f} MiB beyond their {4 * params / MIB:.0f} MiB of params over ipc, "
                     f"at most {4 * BUDGET // MIB}")


def main(weightsync, work):
    model, manifests = make(weightsync, work)
    # Both sides halve everything but norms and routers, which count against the budget here.
    params = folder_bytes(model) // 2
    bad = over_tcp(start(weightsync, model, manifests, "fabric"), params)
    return bad + all_over_ipc(lambda: start(weightsync, model, manifests, "ipc"), params)


sys.exit(main(sys.argv[1], sys.argv[2]))
