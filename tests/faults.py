# SPDX-License-Identifier: Apache-2.0
"""What dies and what is bad: every scenario ends within its deadline, with one clear line per
process, old weights whole, and the next version goes live without restarting healthy processes.

usage: faults.py BUILD [PATTERN]; prints "ok NAME", "not ok NAME: why", "skip NAME: why"
Most scenarios (faults/hurt.py) hurt one run after the other without ending it; a run that doesn't
recover is a failure, and the next scenario gets a new one.  WS_KEEP=1 keeps the logs.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults"))
from processes import Wrong, closing, end_marked, everybody, marked, scenario_fails, shared_memory, until  # noqa: E402
from world import Skip, World, command_line, expect, scenarios  # noqa: E402
import hurt  # noqa: E402, F401  (registers its scenarios)
import whole  # noqa: E402, F401
import same_host  # noqa: E402, F401
import exchange  # noqa: E402, F401


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
        return
    if why is None:
        print("ok %s (%.1f s)" % (name, seconds), flush=True)
        return
    scenario_fails(name, why, seconds, 100)
    world.run = None
    end_marked()
    everybody.clear()
    for left in os.listdir(world.temporary):
        shutil.rmtree(os.path.join(world.temporary, left), ignore_errors=True)


def build_never_steps(world, root):
    libs = subprocess.run(["make", "-s", "-C", root, "libs"], capture_output=True, text=True, check=True).stdout.split()
    # A build with sanitizers is named by them: build-address,undefined.
    sanitizers = ["-fsanitize=" + name for name in os.path.basename(world.build).split("-")[1:] if "undef" in name]
    subprocess.run(["cc", *sanitizers, "-std=c17", "-D_GNU_SOURCE", "-I", root, "-o", os.path.join(world.work, "never_steps"),
                    os.path.join(root, "tests/faults/never_steps.c"), os.path.join(world.build, "libweightsync.a"),
                    *libs], check=True)


def main():
    build = os.path.abspath(sys.argv[1])
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    work = tempfile.mkdtemp(prefix="faults-")
    started, world = time.monotonic(), None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        world = World(build, work)
        build_never_steps(world, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        for name, function in scenarios:
            if pattern in name:
                one(world, name, function)
        if world.run is not None:
            one(world, "the run that was hurt ends", lambda w: w.stop_living())
    except Wrong as wrong:
        scenario_fails("faults", wrong, time.monotonic() - started, 100)
    finally:
        end_marked()
        if os.environ.get("WS_KEEP"):
            print("kept: %s" % work)
        else:
            shutil.rmtree(work, ignore_errors=True)
    return closing()


if __name__ == "__main__":
    sys.exit(main())
