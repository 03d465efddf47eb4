# SPDX-License-Identifier: Apache-2.0
"""What the scenarios stand on: the inputs, the run that is being hurt, and how they are named."""
import json
import os

from processes import Wrong
from run import Inputs, Run

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


def command_line(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read()
    except OSError:
        return b""


def changed_manifest(world, path, change):
    with open(path) as file:
        manifest = json.load(file)
    change(manifest)
    changed = path.replace(".json", "-changed.json")
    with open(changed, "w") as file:
        json.dump(manifest, file)
    return changed
