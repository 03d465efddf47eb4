# SPDX-License-Identifier: Apache-2.0
"""Writes values that are hard to quantize into a checkpoint of BF16: spoil_checkpoint.py DIR

In each 2-D tensor in turn: whole blocks of zeros, of negative zeros, of subnormals, of the largest values; single
NaNs of both signs, infinities and largest values here and there; the first stays as it is.
"""
import glob
import json
import os
import struct
import sys

NAN, MINUS_NAN, INFINITY, LARGEST, SUBNORMAL, MINUS_ZERO, ZERO = 0x7FC0, 0xFFA1, 0x7F80, 0xFF7F, 0x0001, 0x8000, 0


def block(columns, value):
    """The first 128 rows and columns and a bit more."""
    return [(row * columns + column, value) for row in range(130) for column in range(min(columns, 140))]


def kinds(rows, columns):
    last = rows * columns - 1
    return [
        [],
        block(columns, ZERO),
        block(columns, MINUS_ZERO),
        block(columns, SUBNORMAL),
        block(columns, LARGEST),
        [(last // 3, NAN), (last, MINUS_NAN)],
        [(last // 2, INFINITY), (last, INFINITY | 0x8000), (7, LARGEST)],
        [(last // 5, NAN), (last // 5 + 1, INFINITY)] + block(columns, ZERO)[:200],
    ]


def main(folder):
    turn = spoiled = 0
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            for name, entry in sorted(json.loads(file.read(size)).items()):
                if name == "__metadata__" or entry["dtype"] != "BF16" or len(entry["shape"]) != 2:
                    continue
                rows, columns = entry["shape"]
                if rows < 130:
                    continue
                turn += 1
                for element, value in kinds(rows, columns)[turn % 8]:
                    file.seek(8 + size + entry["data_offsets"][0] + 2 * element)
                    file.write(struct.pack("<H", value))
                    spoiled += 1
    if spoiled < 1000:
        sys.exit(f"only {spoiled} elements were spoiled")


main(sys.argv[1])
