# SPDX-License-Identifier: Apache-2.0
"""Processes of a run as faults.py starts, watches, kills and counts them.

Everything started here has MARK in its environment, so that what is left over is found even where
it is nobody's child any more.  Only such processes are ever signalled, by their ids.
"""
import array
import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import termios
import threading
import time

MARK = "WEIGHTSYNC_FAULTS=%d" % os.getpid()
PR_SET_PDEATHSIG = 1
# Seconds that scenarios give are an idle machine's.  On a busy one what must come may take so many times as long.
PATIENCE = 5
libc = ctypes.CDLL(None)
everybody = []  # processes of the scenarios so far, for a timeline
failures = []   # scenarios so far that failed, each with its reason


class Wrong(Exception):
    """A claim that doesn't hold; the text says which."""


def until(what, seconds, look, step=0.01):
    """Calls look until it gives something true; Wrong(what) after so many seconds, or rather PATIENCE times as many."""
    seconds *= PATIENCE
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise Wrong("%s: not within %g s" % (what, seconds))
        time.sleep(step)


def unread(pipe):
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class Process:
    def __init__(self, folder, name, argv, group=0, environment=None):
        self.name, self.argv = name, argv
        number = 0
        while os.path.exists(os.path.join(folder, "%s-%d.err" % (name, number))):
            number += 1
        self.base = os.path.join(folder, "%s-%d" % (name, number))
        env = dict(os.environ, **(environment or {}))
        env[MARK.split("=")[0]] = MARK.split("=")[1]
        for launcher in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "RANK", "WORLD_SIZE",
                         "SLURM_PROCID", "SLURM_NTASKS"):
            env.pop(launcher, None)
        self.child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
            process_group=group, preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        self.pid = self.child.pid
        self.said = {"out": [], "err": []}  # (time, line)
        self.readers = [threading.Thread(target=self.read, args=at, daemon=True) for at in
                        (("out", self.child.stdout), ("err", self.child.stderr))]
        for reader in self.readers:
            reader.start()
        everybody.append(self)

    def read(self, stream, pipe):
        with open(self.base + "." + stream, "w") as file:
            for line in pipe:
                line = line.decode(errors="replace")
                file.write(line)
                self.said[stream].append((time.monotonic(), line.rstrip("\n")))
        pipe.close()

    def lines(self, pattern="", stream="err", since=0):
        """Lines that match, from the since-th of the stream on."""
        return [line for _, line in self.said[stream][since:] if re.search(pattern, line)]

    def mark(self, stream="err"):
        return len(self.said[stream])

    def says(self, pattern, seconds, since=0, stream="err"):
        """The first matching line."""
        def look():
            if not self.alive() and not self.lines(pattern, stream, since):
                raise Wrong("%s ended with %s and never said '%s'; its last line: %s" % (
                    self.name, self.child.returncode, pattern, (self.lines() or ["none"])[-1]))
            return self.lines(pattern, stream, since)
        try:
            return until("", seconds, look)[0]
        except Wrong as wrong:
            if str(wrong).startswith(":"):
                wrong = Wrong("%s didn't say '%s' within %g s; its last line: %s" % (
                    self.name, pattern, PATIENCE * seconds, (self.lines() or ["none"])[-1]))
            raise wrong from None

    def heard_out(self):
        """Returns when all that it has written so far has been read; for one that is stopped."""
        pipes = [pipe for pipe in (self.child.stdout, self.child.stderr) if not pipe.closed]
        until("%s is heard out" % self.name, 5, lambda: not any(unread(pipe) for pipe in pipes))
        time.sleep(0.05)

    def alive(self):
        return self.child.poll() is None

    def kill(self, number):
        if self.alive():
            os.kill(self.pid, number)

    def ends(self, seconds):
        """Its exit status; negative: the signal."""
        until("%s ends" % self.name, seconds, lambda: not self.alive())
        for reader in self.readers:
            reader.join(5)
        return self.child.returncode

    def complaints(self):
        """What it said of failures: its lines without what it says of its NICs, and the progress that -v asks for."""
        talk = r": (version \d+ (begins|has landed|is live|is whole)|(memory is reached by|NICs:|sent .* over) .*)$"
        return [line for line in self.lines() if not re.search(talk, line)]

    def fails(self, pattern, seconds, status=1, lines=1):
        """Ends so, with so many lines, one of them matching."""
        got = self.ends(seconds)
        said = self.complaints()
        if got != status:
            raise Wrong("%s ended with %s instead of %d: %s" % (self.name, got, status, said))
        if not any(re.search(pattern, line) for line in said):
            raise Wrong("%s doesn't say '%s': %s" % (self.name, pattern, said))
        if len(said) != lines:
            raise Wrong("%s says %d lines, not %d: %s" % (self.name, len(said), lines, said))

    def objects(self):
        return [json.loads(line) for line in self.lines("", "out")]


def timeline(count):
    """The last lines that anybody said on stderr, or a trainer of its pushes, in order of time."""
    said = [(at, process, line) for process in everybody for at, line in process.said["err"]]
    for process in everybody:
        for at, line in process.said["out"]:
            said.append((at, process, re.sub(r'"(bytes|nics|phases)":.*?"replicas"', '.. "replicas"', line)))
    said.sort(key=lambda entry: entry[0])
    return ["%7.2f %s(%d): %s" % (at - said[-1][0], process.name, process.pid, line)
            for at, process, line in said[-count:]]


def scenario_fails(name, why, seconds, count):
    """Says it, with a timeline of so many lines."""
    failures.append("%s: %s (%.1f s)" % (name, " ".join(str(why).split())[:1500], seconds))
    print("not ok " + failures[-1])
    for line in timeline(count):
        print("    " + line[:600])
    print("    (times are seconds before the last line; 'kill' and the like aren't shown)", flush=True)


def closing():
    """The last words of a script, since timelines hide what failed; its exit status."""
    for failure in failures:
        print("failed: " + failure)
    return min(len(failures), 99)


def marked():
    """Ids of living processes with our mark, this one excepted."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % entry, "rb") as file:
                if MARK.encode() in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            pass
    return found


def end_marked():
    """For the end of a scenario that failed: nothing of it may disturb the next one."""
    for pid in marked():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    until("killed processes are gone", 10, lambda: not marked())


def shared_memory():
    return set(os.listdir("/dev/shm")) if os.environ.get("WS_OWN_MOUNTS") else set()
