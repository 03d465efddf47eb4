#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One trainer rank's share of the reference job (Kimi-K2, FSDP 16 x PP 2 x EP 8, to FP8 by blocks), as a job of
two ranks that two GPUs can run: `weightsync bench update --trainer T.json --rollout R.json`.

What the rank holds of each tensor becomes a tensor of its own, cut from the manifests that weightsync
makes: 31 of 61 layers, 1/128 of the rows of what is dense, 48 of 384 experts and of those, which FSDP
shards by expert, 3.  Same as in the job: the rank's params, their shapes, dtypes and bytes, the engine's
stacked w13 and w2.  Not the same: one receiver for what goes to many; each piece has its own grid of scales,
so no maxima are exchanged, and pieces of 4 to 144 rows have a few scales more; nothing is fused but experts,
since blocks of a fused param would lie across pieces.

usage: replay.py WEIGHTSYNC FOLDER      writes FOLDER/T.json and FOLDER/R.json
"""
import json
import os
import subprocess
import sys

FSDP, EP, DENSE, LAYERS, EXPERTS = 16, 8, 128, 31, 384
MESHES = {
    "trainer": ("torchtitan", "pp=2,dp=128,ep=8,stages=31:30"),
    "rollout": ("sglang", "tp=1,dp=1,ep=1,shared_tp=1,moe_dense_tp=1,dp_lm_head=1"),
}
OF_THE_LAST_STAGE = ("lm_head.weight", "model.norm.weight")
SCHEME = "fp8-block"


def manifest(weightsync, folder, side):
    path = os.path.join(folder, side + ".whole.json")
    layout, mesh = MESHES[side]
    quant = ["--quant", SCHEME] if side == "rollout" else []
    subprocess.run([weightsync, "manifest", "--model", "kimi-k2", "--side", side, "--layout", layout, "--mesh", mesh,
                    *quant, "-o", path], check=True)
    with open(path) as file:
        whole = json.load(file)
    os.unlink(path)
    return whole


def of_the_rank(tensor):
    """The rank's part of a tensor; None: it holds nothing of it."""
    if tensor["name"] in OF_THE_LAST_STAGE:
        return None
    part = dict(tensor)
    if "experts" in part:
        part["experts"] = [0, EXPERTS // EP // FSDP]
    elif not part["name"].endswith("e_score_correction_bias"):  # a buffer: every rank has it whole
        part["shape"] = [-(-part["shape"][0] // DENSE), *part["shape"][1:]]
    if "layers" in part:
        part["layers"] = [part["layers"][0], min(LAYERS, part["layers"][1])]
    return part


def layers_of(whole):
    return {name: [[first, min(end, LAYERS)] for first, end in runs] for name, runs in whole["layers"].items()}


def tensors_in(x):
    """The names of all tensors that an expression speaks of."""
    if x[0] == "t":
        return [x[1]]
    return [name for part in x[1:] if isinstance(part, list) for name in tensors_in(part)]


def trainer(whole, tensors):
    there = {tensor["name"] for tensor in tensors}
    one = {name: {"axes": [[axis, 1] for axis, _ in mesh["axes"]]} for name, mesh in whole["meshes"].items()}
    return dict(whole, world=1, tensors=tensors, meshes=one, layers=layers_of(whole),
                stages=dict(whole["stages"], of=[0] * LAYERS),
                params=[param for param in whole["params"] if set(tensors_in(param["x"])) <= there])


def rollout(whole, trained, tensors):
    """Experts as the engine stacks them, all else piece by piece; quantized where the engine does."""
    params = []
    quantized = {name for param in whole["params"] if "q" in param for name in tensors_in(param["x"])}
    for param in whole["params"]:
        if ".experts." in param["p"]:
            params.append(param)
    for tensor in tensors:
        name = tensor["name"]
        if "experts" in tensor:
            continue
        param = {"p": name, "mesh": "dense", "x": ["t", name]}
        if "layers" in tensor:
            param["each"] = {"L": next(of for of, runs in layers_of(whole).items() if runs == [tensor["layers"]])}
        if name in quantized:
            param.update({"dtype": "f8e4m3", "q": SCHEME, "scale": name + "_scale_inv"})
        elif tensor["dtype"] != "bf16":
            param["dtype"] = tensor["dtype"]
        params.append(param)
    return dict(whole, tensors=tensors, layers=trained["layers"], params=params)


def main(weightsync, folder):
    of_trainer, of_rollout = (manifest(weightsync, folder, side) for side in ("trainer", "rollout"))
    tensors = [part for part in map(of_the_rank, of_trainer["tensors"]) if part is not None]
    trained = trainer(of_trainer, tensors)
    for name, made in (("T.json", trained), ("R.json", rollout(of_rollout, trained, tensors))):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(made, file)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: replay.py WEIGHTSYNC FOLDER")
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)  # it has said why
    except OSError as failed:
        sys.exit("replay.py: %s" % failed)
