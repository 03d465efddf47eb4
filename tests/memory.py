# SPDX-License-Identifier: Apache-2.0
"""What a side needs beyond its params, measured: peak RSS of each process minus its params.

usage: memory.py WEIGHTSYNC WORKDIR

Two FSDP2 trainers push 400 MB into one in-place replica of two ranks, three times.  A trainer stays
under --staging-bytes + 64 MiB, an in-place rollout under --recv-staging-bytes + 64 MiB (64 MiB each).
"""
import os
import subprocess
import sys

MIB = 1 << 20
BUDGET = (64 + 64) * MIB


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder) if f.endswith(".safetensors"))


def main(weightsync, work):
    model = os.path.join(work, "model")
    subprocess.run([weightsync, "synth", "--model", "qwen3-30b-a3b", "--scale", "1/150", "-o", model], check=True)
    manifests = []
    for side, layout, mesh in (("trainer", "fsdp2", "dp=2"), ("rollout", "vllm", "tp=2")):
        manifests.append(os.path.join(work, side + ".json"))
        subprocess.run([weightsync, "manifest", "--model", model, "--side", side, "--layout", layout, "--mesh",
                        mesh, "-o", manifests[-1]], check=True)
    # Both sides halve everything but norms and routers, which count against the budget here.
    params = folder_bytes(model) // 2
    pids = {}
    for rank in range(4):
        command = [weightsync, "run", "--trainer", manifests[0], "--rollout", manifests[1], "--checkpoint", model,
                   "--updates", "3", "--inplace", "--rank", str(rank), "--world", "4", "--job", f"memory-{os.getpid()}"]
        pids[subprocess.Popen(command, stdout=subprocess.DEVNULL).pid] = rank
    bad = 0
    for _ in range(4):
        pid, status, usage = os.wait4(-1, 0)
        rank = pids[pid]
        who = f"trainer {rank}" if rank < 2 else f"in-place rollout {rank - 2}"
        extra = usage.ru_maxrss * 1024 - params
        line = f"{who} needs {extra / MIB:.0f} MiB beyond its {params / MIB:.0f} MiB of params, at most {BUDGET // MIB}"
        good = status == 0 and extra <= BUDGET
        print(("ok " if good else "not ok ") + line + ("" if status == 0 else f"; it ended with {status}"))
        bad += not good
    return bad


sys.exit(main(sys.argv[1], sys.argv[2]))
