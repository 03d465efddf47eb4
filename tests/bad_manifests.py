# SPDX-License-Identifier: Apache-2.0
"""usage: bad_manifests.py WEIGHTSYNC FOLDER

Manifests that would cost a careless reader its machine: the real command, with 64 MiB of address
space and 1 s, must refuse each with a sentence.  (An expression is a tree of JSON arrays that
names tensors, never params, so it can't have cycles; a param or tensor that is named like what it
reads is the nearest thing.)
"""
import json
import os
import resource
import subprocess
import sys
import time

command, folder = sys.argv[1:3]
MEMORY, SECONDS = 64 << 20, 1.0
failures = 0


def manifest(**changes):
    base = {"ws_manifest": 1, "side": "trainer", "framework": "hand", "model": "hand", "world": 4,
            "tensors": [{"name": "w", "dtype": "bf16", "shape": [8, 4]},
                        {"name": "model.layers.{L}.w", "dtype": "bf16", "shape": [8, 4], "layers": [0, 4]},
                        {"name": "e.{E}.w", "dtype": "bf16", "shape": [8, 4], "experts": [0, 4]}],
            "meshes": {"m": {"axes": [["n", 4]]}},
            "params": [{"p": "w", "x": ["s", ["t", "w"], 0, "n"]}]}
    base.update(changes)
    return json.dumps({key: value for key, value in base.items() if value is not None})


def tensor(**changes):
    return manifest(tensors=[{"name": "w", "dtype": "bf16", "shape": [8, 4], **changes}])


def expression(x, **more):
    return manifest(params=[{"p": "w", "x": x, **more}])


def nested(letters, count, inner='["t","w"]'):
    text = manifest().replace('["s", ["t", "w"], 0, "n"]', "@")
    return text.replace("@", letters[0] * count + inner + letters[1] * count)


def tree(depth, leaf=("t", "w")):
    """A concatenation of two of itself: 2^depth leaves."""
    return ["c", 0, tree(depth - 1, leaf), tree(depth - 1, leaf)] if depth else leaf


def rows(*list_of_rows, **changes):
    base = {"t": "w", "rank": 0, "goff": [0, 0], "lshape": [8, 4]}
    return manifest(params=None, rows=[{**base, **row} for row in list_of_rows], **changes)


HUGE = 10 ** 15
BAD = {
    "a billion ranks": (manifest(world=10 ** 9, meshes={"m": {"axes": [["n", 10 ** 9]]}}), "1 to 65536 ranks"),
    "no rank": (manifest(world=0), "1 to 65536 ranks"),
    "axes that make more ranks than 64 bits": (manifest(meshes={"m": {"axes": [[f"a{i}", 65536] for i in range(16)]}}),
                                               "and the world has 4"),
    "an empty mesh": (manifest(meshes={"m": {"axes": []}}), "its axes make 1 ranks, and the world has 4"),
    "no mesh": (manifest(meshes={}), 'it needs "mesh"'),
    "a mesh that is no object": (manifest(meshes={"m": 7}), "expected an object"),
    "an axis of nothing": (manifest(meshes={"m": {"axes": [["n", 0]]}}), "size from 1"),
    "an axis of minus one": (manifest(meshes={"m": {"axes": [["n", -1]]}}), "size from 1"),
    "a negative dim": (tensor(shape=[-8, 4]), "dims must be integers from 1 on"),
    "a dim of nothing": (tensor(shape=[0, 4]), "dims must be integers from 1 on"),
    "dims whose product overflows": (tensor(shape=[2 ** 40, 2 ** 40]), "at most 2^56 elements"),
    "a dim beyond 64 bits": (tensor(shape=[8, 4]).replace("[8, 4]", "[184467440737095516160, 4]"), "dims must be integers"),
    "a dim with a fraction": (tensor(shape=[8.5, 4]), "dims must be integers"),
    "five dims": (tensor(shape=[1, 1, 1, 1, 1]), "1 to 4 dims"),
    "no dims": (tensor(shape=[]), "1 to 4 dims"),
    "a huge range of layers": (manifest(tensors=[{"name": "{L}.w", "dtype": "bf16", "shape": [8], "layers": [0, HUGE]}],
                                        params=[{"p": "{L}.w", "each": {"L": [0, HUGE]}, "x": ["t", "{L}.w"]}]),
                               "from 0 to 65536"),
    "layers that go backwards": (manifest(layers={"all": [4, 0]}), "[first, behind the last]"),
    "layers that overlap": (manifest(layers={"all": [[0, 3], [2, 4]]}), "must ascend without overlap"),
    "a huge range of experts": (manifest(tensors=[{"name": "{E}.w", "dtype": "bf16", "shape": [8], "experts": [0, HUGE]}]),
                                "from 0 to 65536"),
    "padding upon padding": (expression(["p", ["p", ["t", "w"], 1, 2 ** 40], 0, 2 ** 40]), "more than 2^56 elements"),
    "a symbol times an axis that overflows": (manifest(sym={"x": 2 ** 53 - 1}, params=[
        {"p": "w", "x": ["p", ["p", ["t", "w"], 0, "$x*n"], 1, "$x*n"]}]), "more than 2^56 elements"),
    "a negative symbol": (manifest(sym={"x": -1}), "an integer from 0 on"),
    "rows beyond the tensor": (expression(["r", ["t", "w"], 0, 0, 9]), "passes the 8 rows of dim 0"),
    "rows that go backwards": (expression(["r", ["t", "w"], 0, 5, 2]), "is empty or reversed"),
    "a depth bomb of arrays": (nested(("[", "]"), 5_000_000, ""), "too deeply nested"),
    "a depth bomb of objects": (nested(('{"a":', "}"), 2_000_000, "1"), "too deeply nested"),
    "a depth bomb of splits": (nested(('["fl",', "]"), 60), "32 deep"),
    "an expression like a full tree": (expression(tree(13)), "more than 4096 nodes"),
    "a tree of splits at each of 65536 ranks": (manifest(world=65536, meshes={"m": {"axes": [["n", 65536]]}}, params=[
        {"p": name, "x": tree(9, ["s", ["t", "w"], 0, "n", {"mode": "chunk"}])} for name in "wvw"]),
                                                "rank 0 has two params of this name"),
    "thousands of params on 65536 ranks": (manifest(world=65536, meshes={"m": {"axes": [["n", 65536]]}}, params=[
        *({"p": f"p{i}", "x": ["t", "w"]} for i in range(4000)), {"p": "w", "x": ["t", "v"]}]), "\"tensors\" has no 'v'"),
    "thousands of parts of each of many params": (manifest(params=[
        *({"p": f"p{i}", "x": ["c", 0] + [["t", "w"]] * 4000} for i in range(16)), {"p": "w", "x": ["t", "v"]}]), "\"tensors\" has no 'v'"),
    "thousands of params of all layers": (manifest(layers={"a": [0, 65536]}, tensors=[
        {"name": "{L}.w", "dtype": "bf16", "shape": [8], "layers": [0, 65536]}], params=[
            {"p": "p%d.{L}" % i, "each": {"L": "a"}, "x": ["t", "{L}.w"]} for i in range(200)]), "too many params times layers"),
    "thousands of tensors of one name": (manifest(tensors=[{"name": "w", "dtype": "bf16", "shape": [8]}] * 20_000), "listed twice"),
    "ten thousand symbols": (manifest(sym={f"s{i}": 1 for i in range(10_000)}, params=[
        {"p": "w", "x": ["r", ["t", "w"], 0, "$no", "$s9999"]}] * 10_000), "at most 1024 names"),
    "ten thousand sets of layers": (manifest(layers={f"s{i}": [0, 1] for i in range(10_000)}, params=[
        {"p": "w", "each": {"L": "s9999"}, "x": ["t", "w"]}] * 10_000), "at most 1024 names"),
    "a long map and thousands of stacks": (manifest(
        experts={"axis": "n", "map_layers": [0, 16], "map": [[[c] * 2048 for c in range(4)]] * 16},
        tensors=[{"name": "{L}.{E}.w", "dtype": "bf16", "shape": [8], "layers": [0, 16], "experts": [0, 4]}],
        params=[{"p": "p%d.{L}" % i, "each": {"L": [0, 16]}, "x": ["k", "E", ["t", "{L}.{E}.w"]]} for i in range(4000)]),
                                           "too many params times layers or experts"),
    "a map of many layers that aren't there": (manifest(
        experts={"axis": "n", "map_layers": [0, 60000], "map": [[list(range(10_000)), [], [], []]] + [0] * 59_999}),
                                               "too many params times layers or experts"),
    "many things derived of many params": (manifest(side="rollout", params=[{"p": f"p{i}", "x": ["t", "w"]} for i in range(20_000)], derived=[
        {"post": "s", "from": ["p19999"] * 16, "makes": [{"p": f"m{j}.{k}", "dtype": "bf16", "shape": [1]} for k in range(16)]}
        for j in range(256)]), "too many params times layers"),
    "a param that reads itself": (manifest(params=[{"p": "me", "x": ["t", "me"]}]), "\"tensors\" has no 'me'"),
    "two params of one name": (manifest(params=[{"p": "w", "x": ["t", "w"]}] * 2), "rank 0 has two params of this name"),
    "ten thousand params of one name": (manifest(params=[{"p": "w", "x": ["t", "w"]}] * 10_000), "more alike"),
    "rows that overlap": (rows({}, {"goff": [0, 0], "lshape": [4, 4]}), "two of its rows hold local element 0"),
    "strides that overlap": (rows({"lstride": [1, 1]}), "two of its rows hold local element 1"),
    "rows of a rank that isn't there": (rows({"rank": 10 ** 9}), '"rank" below 4'),
    "rows beyond 64 bits": (rows({"loff": 2 ** 53 - 1, "lstride": [2 ** 53 - 1, 2 ** 53 - 1]}), "lead too far"),
    "rows at a negative place": (rows({"goff": [-1, 0]}), "integers from 0 on"),
    "a stage that isn't there": (manifest(stages={"axis": "n", "of": [0, 1, 2, 7]}), "a stage must be from 0 to 3"),
    "a map of experts that isn't there": (manifest(experts={"axis": "n", "map_layers": [0, 1], "map": [[[HUGE], [], [], []]]},
                                                   params=[{"p": "e", "each": {"E": "n"}, "x": ["t", "e.{E}.w"]}]), "an expert must be an integer"),
    "blocks of quantization of nothing": (manifest(schemes={"q": {"kind": "block", "block": [0, 0], "fmt": "e4m3"}}), "two integers from 1 on"),
    "two megabytes of one name": (manifest(params=[{"p": "w" * 2_000_000, "x": ["t", "w"]}]), "1 to 1023 bytes"),
    "a number beyond all": (manifest().replace('"world": 4', '"world": 1e999'), "beyond every double"),
    "half a text": (manifest()[:-20], "the text ends inside a string"),
    "the same key twice": (manifest().replace('"world": 4', '"world": 4, "world": 5'), "the key 'world' twice"),
    "nothing": ("", "the text is empty"),
}


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def say(name, fault):
    global failures
    failures += fault is not None
    print(f"not ok {name}: {fault}" if fault else f"ok {name}", flush=True)


for name, (text, sentence) in BAD.items():
    path = os.path.join(folder, "bad.json")
    with open(path, "w") as file:
        file.write(text)
    for how in (["manifest", "--explain", "w", path], ["plan", path, path]):
        title, start = f"{name}: {how[0]}", time.monotonic()
        try:
            run = subprocess.run([command, *how], capture_output=True, text=True, preexec_fn=limit, timeout=30)
        except subprocess.TimeoutExpired:
            say(title, "30 s weren't enough")
            continue
        # Two cores may be busy with others: the processor's own seconds are what counts.
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = used.ru_utime + used.ru_stime - getattr(say, "before", 0.0)
        say.before = used.ru_utime + used.ru_stime
        told = run.stderr.strip()
        if run.returncode != 1:
            say(title, f"status {run.returncode}: {told[-200:]}")
        elif sentence not in told or "out of memory" in told:
            say(title, f"doesn't say '{sentence}': {told[-300:]}")
        elif seconds > SECONDS:
            say(title, f"took {seconds:.2f} s of processor time, {time.monotonic() - start:.2f} s in all")
        else:
            say(title, None)
sys.exit(failures > 0)
