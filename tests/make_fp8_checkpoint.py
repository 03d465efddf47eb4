# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint that is quantized already: make_fp8_checkpoint.py FROM TO [SCALE]

FROM is one of BF16.  Its linear weights become FP8 with BF16 scales by block of 128 x 128, of any bytes; the one that is
named is left out.
"""
import glob
import hashlib
import json
import os
import shutil
import struct
import sys


def random_bytes(name, count):
    return hashlib.shake_128(name.encode()).digest(count)


def main(source, target, missing=None):
    tensors = []
    for path in sorted(glob.glob(os.path.join(source, "*.safetensors"))):
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
            data = file.read()
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            if "_proj.weight" not in name and "_proj_with_mqa.weight" not in name:
                tensors.append((name, entry["dtype"], entry["shape"], data[begin:end]))
                continue
            rows, columns = entry["shape"]
            blocks = [-(-rows // 128), -(-columns // 128)]
            tensors.append((name, "F8_E4M3", [rows, columns], random_bytes(name, rows * columns)))
            scale = name + "_scale_inv"
            if scale != missing:
                tensors.append((scale, "BF16", blocks, random_bytes(scale, 2 * blocks[0] * blocks[1])))
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    os.makedirs(target)
    shutil.copy(os.path.join(source, "config.json"), target)
    with open(os.path.join(target, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in tensors:
            file.write(data)


main(*sys.argv[1:])
