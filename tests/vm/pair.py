# SPDX-License-Identifier: Apache-2.0
"""The two hosts of boot.sh as a script sees them, and a run of weightsync spread over them: hub and
trainers on "a", the rollouts of one replica on "b"."""
import json
import os
import signal
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "faults"))
import processes  # noqa: E402
from processes import Process, Wrong  # noqa: E402
from run import Run  # noqa: E402

processes.PATIENCE = 1  # the seconds given here are a busy machine's

BOOT = ["sh", os.path.join(here, "boot.sh")]
RAILS = ("eth0", "eth1")
CONTROL = "eth2"
HUB_ADDRESS = "10.0.0.1"
NUMBER = {"a": 1, "b": 2}


def on(host, *argv, seconds=120):
    """Runs a command there; what it wrote.  Wrong where it fails."""
    done = subprocess.run([*BOOT, "on", "-t", str(seconds), host, *argv], capture_output=True, text=True)
    if done.returncode != 0:
        raise Wrong("%s on %s ends with %d: %s" % (" ".join(argv), host, done.returncode, done.stderr[-500:]))
    return done.stdout


class Remote(Process):
    """A process on one of the hosts; signals go to it, not to what waits for it here."""

    count = 0

    def __init__(self, host, folder, name, argv):
        Remote.count += 1
        self.host, self.job = host, "%s-%d-%d" % (name, os.getpid(), Remote.count)
        super().__init__(folder, name, [*BOOT, "on", "-t", "600", "-n", self.job, host, *argv])

    def kill(self, number):
        if self.alive():
            subprocess.run([*BOOT, "kill", signal.Signals(number).name[3:], self.host, self.job], check=True)

    def ends(self, seconds):
        """As of a process here: negative is the signal, where a shell says 128 and more."""
        status = super().ends(seconds)
        return 128 - status if status > 128 else status


def host_of(name):
    return "b" if name.startswith("rollout") else "a"


def wires(transport, host, rails, knobs=""):
    """Options for the data plane: the NICs of these rails (1, 2) on that host; knobs are for verbs."""
    kind, _, provider = transport.partition(":")
    if kind == "verbs":
        nics = ["rxe%d%s" % (rail, knobs) for rail in rails]
    else:
        nics = ["10.0.%d.%d" % (rail, NUMBER[host]) for rail in rails]
    return ["--transport", kind, *(["--provider", provider] if provider else []), "--nics", ",".join(nics)]


class PairRun(Run):
    replica_count = 1
    # A busy machine gives the two hosts little: none of it is waited for when all goes well.
    lost_s, push_s, live_s, start_s = 6, 25, 60, 120
    port = 7100

    def __init__(self, inputs, folder, transport, rails=(1, 2), knobs="", **how):
        super().__init__(inputs, folder, **how)
        PairRun.port += 1
        self.transport, self.rails, self.knobs = transport, rails, knobs
        self.endpoint = "tcp://%s:%d" % (HUB_ADDRESS, PairRun.port)

    def process(self, name, argv):
        return Remote(host_of(name), self.folder, name, argv)

    def status(self):
        return json.loads(on("a", self.inputs.weightsync, "status", "--hub", self.endpoint, "--key", self.inputs.key,
                             "--deadline", "60s", "--json"))

    def wires(self, name):
        return wires(self.transport, host_of(name), self.rails, self.knobs)
