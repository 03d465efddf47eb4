# SPDX-License-Identifier: Apache-2.0
"""The reference library's half of tests/safetensors_reference.sh: write DIR | check DIR."""
import os
import sys

import numpy
import safetensors
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32",
          "uint64", "int64", "float64"]
SHAPES = [(), (1,), (0, 4), (3, 5), (2, 3, 4), (129,), (2, 1, 2, 1, 2)]


def make_tensors(seed):
    random = numpy.random.default_rng(seed)
    tensors = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            size = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
            data = random.integers(0, 2 if dtype == "bool" else 256, size, dtype=numpy.uint8)
            name = "%s.%s é\n\"\\" % (dtype, "x".join(map(str, shape)))
            tensors[name] = data.view(dtype).reshape(shape)
    return tensors


def write(folder):
    """Files of the reference."""
    for seed in range(3):
        save_file(make_tensors(seed), f"{folder}/{seed}.safetensors",
                  metadata={"format": "np", "é": "\n"} if seed else None)


def same(left, right):
    return (left.keys() == right.keys() and
            all(left[name].dtype == right[name].dtype and left[name].shape == right[name].shape
                and left[name].tobytes() == right[name].tobytes() for name in left))


def check_copies(work):
    count = 0
    for seed in range(3):
        ours = load_file(f"{work}/ours/{seed}.safetensors")
        if not same(ours, load_file(f"{work}/theirs/{seed}.safetensors")):
            sys.exit(f"what we wrote of file {seed} isn't what the reference wrote")
        if not same(ours, make_tensors(seed)):
            sys.exit(f"file {seed} isn't what was made")
        count += len(ours)
    return count


def accepts(path):
    try:
        with open(path, "rb") as file:
            safetensors.deserialize(file.read())
    except (safetensors.SafetensorError, UnicodeDecodeError):
        return False
    return True


def check_corpus(folder):
    count = 0
    wrong = []
    for line in open(f"{folder}/verdicts.txt", encoding="utf-8"):
        number, ours, relation, name = line.rstrip("\n").split(" ", 3)
        theirs = "accept" if accepts(f"{folder}/{number}.safetensors") else "refuse"
        if (ours == theirs) != (relation == "agrees"):
            wrong.append(f"{name}: we {ours}, the reference does {theirs}, stated: {relation}")
        count += 1
    if wrong:
        sys.exit("\n".join(wrong))
    return count


if sys.argv[1] == "write":
    write(sys.argv[2])
else:
    cases = check_corpus(sys.argv[2] + "/corpus")
    tensors = check_copies(sys.argv[2])
    print(f"ok safetensors {safetensors.__version__}: {cases} verdicts agree or differ as stated, "
          f"{tensors} tensors read and written byte for byte")
