# SPDX-License-Identifier: Apache-2.0
"""What an engine fuses under one scale, in numpy.  fused_reference.py unlike DIR: gives the tensors in DIR/trained
unlike maxima.  fused_reference.py check DIR: holds codes and scales of DIR's rank0.safetensors and rank1.safetensors
against them, bit by bit.

Engines have one scale for a param: q, k and v are quantized as if they were one tensor, and so are gate and up; in a
stack, those of each expert.  The same on every rank, whatever it has of them.
"""
import glob
import json
import os
import sys

import ml_dtypes
import numpy

import convert_reference as reference

RANKS = 2
DTYPES = {"BF16": ml_dtypes.bfloat16, "F32": numpy.uint32, "F8_E4M3": numpy.uint8}
FUSED = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "fused_qkv_a_proj_with_mqa": ["q_a_proj", "kv_a_proj_with_mqa"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}
STACKED = {"w13_weight": ["gate_proj", "up_proj"], "w2_weight": ["down_proj"]}


def map_tensors(*paths):
    """What is written to them is written to the files."""
    tensors = {}
    for path in paths:
        file = numpy.memmap(path, numpy.uint8)
        header = 8 + int(file[:8].view(numpy.uint64)[0])
        for name, entry in json.loads(file[8:header].tobytes()).items():
            if name != "__metadata__":
                begin, end = (header + offset for offset in entry["data_offsets"])
                tensors[name] = file[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def map_trained(folder):
    return map_tensors(*sorted(glob.glob(os.path.join(folder, "trained", "*.safetensors"))))


def make_unlike(folder):
    for i, tensor in enumerate(map_trained(folder).values()):
        if tensor.dtype == ml_dtypes.bfloat16:
            tensor *= ml_dtypes.bfloat16((1 + i * 5 % 13) / 8)


def matrices(name, count):
    """The tensors that each matrix of a param is made of: those of one expert, or all."""
    at, last = name.removesuffix(".weight").rsplit(".", 1)
    if last in STACKED:
        return [[f"{at}.{expert}.{part}.weight" for part in STACKED[last]] for expert in range(count)]
    return [[f"{at}.{part}.weight" for part in FUSED.get(last, [last])]]


def of_rank(rank, parts, shape):
    """Of all columns some, of each part's rows some, or all."""
    whole = numpy.concatenate(parts)
    if shape[1] < whole.shape[1]:
        return numpy.split(whole, RANKS, axis=1)[rank]
    if shape[0] < whole.shape[0]:
        return numpy.concatenate([numpy.split(part, RANKS)[rank] for part in parts])
    return whole


def check_matrix(scheme, what, parts, ranks):
    """ranks: codes and the scale that each has."""
    x = numpy.concatenate(parts).astype(numpy.float32)
    whole = reference.Tensor(what, "", *x.shape, *x.shape, ml_dtypes.float8_e4m3fn, scheme["scale"],
                             numpy.float32(scheme["eps"]), scheme["pow2"], scheme["recip"])
    scale, _, codes = reference.quantize(whole, x)
    codes = numpy.split(codes, numpy.cumsum([len(part) for part in parts])[:-1])
    for rank, (its_codes, its_scale) in enumerate(ranks):
        if its_scale != scale[0, 0]:
            sys.exit(f"{what}: rank {rank} has the scale {its_scale:#x}, the reference's is {scale[0, 0]:#x}")
        wrong = numpy.argwhere(its_codes != of_rank(rank, codes, its_codes.shape))
        if len(wrong):
            sys.exit(f"{what}: {len(wrong)} codes of rank {rank} differ, the first at {tuple(wrong[0])}")
    return len({numpy.abs(part.astype(numpy.float32)).max() for part in parts}) > 1


def check(folder):
    with open(os.path.join(folder, "R.json"), encoding="ascii") as file:
        scheme, = json.load(file)["schemes"].values()
    trained = map_trained(folder)
    ranks = [map_tensors(os.path.join(folder, f"rank{rank}.safetensors")) for rank in range(RANKS)]
    made = fused = 0
    for name in [name for name in ranks[0] if name + scheme["suffix"] in ranks[0]]:
        stacks = [rank[name].reshape(-1, *rank[name].shape[-2:]) for rank in ranks]
        scales = [rank[name + scheme["suffix"]].ravel() for rank in ranks]
        for i, names in enumerate(matrices(name, len(stacks[0]))):
            parts = [trained[part] for part in names]
            fused += check_matrix(scheme, f"{name} of {' '.join(names)}", parts,
                                  [(stack[i], scale[i]) for stack, scale in zip(stacks, scales)])
            made += len(parts)
    coded = {name for name, tensor in trained.items() if tensor.ndim == 2 and "_proj" in name}
    if made != len(coded) or fused == 0:
        sys.exit(f"{made} of {len(coded)} tensors were compared, and {fused} scales of unlike ones")
    print(f"{made} tensors, {fused} scales that are of several with unlike maxima")


{"unlike": make_unlike, "check": check}[sys.argv[1]](sys.argv[2])
