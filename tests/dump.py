# SPDX-License-Identifier: Apache-2.0
"""Reads what `serve --dump` wrote with the reference library and compares it with the checkpoint.

usage: dump.py CHECKPOINT DUMP.safetensors: a vLLM-shaped replica of tensor parallel 1 of a dense model, its linear
weights as FP8 with a BF16 scale for each block of 128 x 128: their values are near the checkpoint's.
"""
import glob
import os
import sys

import numpy
import safetensors

# What the 256 codes of F8_E4M3 mean.
CODES = numpy.array([(-1 if code & 128 else 1) * (
    (code & 7) * 2.0**-9 if code & 0x78 == 0 else (8 + (code & 7)) * 2.0**((code >> 3 & 15) - 10))
    for code in range(256)])


def load(path):
    with open(path, "rb") as file:
        return {name: entry for name, entry in safetensors.deserialize(file.read())}


def bf16(raw):
    return (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(float)


def check_codes(name, entry, scale, want):
    """Codes times scales are the values, as near as e4m3 can be; each scale is its block's maximum by 448."""
    rows, columns = entry["shape"]
    if entry["dtype"] != "F8_E4M3" or scale["dtype"] != "BF16":
        sys.exit(f"{name}: dtypes {entry['dtype']} and {scale['dtype']}")
    want = bf16(want).reshape(rows, columns)
    scales = bf16(bytes(scale["data"])).reshape(scale["shape"])
    grown = scales.repeat(128, 0)[:rows].repeat(128, 1)[:, :columns]
    have = CODES[numpy.frombuffer(bytes(entry["data"]), "u1")].reshape(rows, columns) * grown
    if (abs(have - want) > abs(want) / 15 + grown / 1000).any():
        sys.exit(f"{name}: codes are far from the values")
    most = abs(want).reshape(rows // 128, 128, columns // 128, 128).max((1, 3))
    if (abs(scales * 448 / numpy.maximum(most, 1e-4) - 1) > 1 / 250).any():
        sys.exit(f"{name}: scales aren't their blocks' maxima")


def main(checkpoint, dump):
    source = {}
    for path in sorted(glob.glob(os.path.join(checkpoint, "*.safetensors"))):
        source.update(load(path))
    got, checked, coded = load(dump), 0, 0
    for name, entry in got.items():
        if name.endswith("_scale_inv"):
            continue
        stem = name.rsplit(".", 1)[0]
        parts = [name]
        if stem.endswith("qkv_proj"):
            parts = [name.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
        elif stem.endswith("gate_up_proj"):
            parts = [name.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj")]
        want = b"".join(bytes(source[part]["data"]) for part in parts)
        have = bytes(entry["data"])
        checked += len(want)
        if name + "_scale_inv" in got:
            check_codes(name, entry, got[name + "_scale_inv"], want)
            coded += 1
            continue
        if have[:len(want)] != want or any(have[len(want):]):
            sys.exit(f"{name} differs")
        if entry["dtype"] != source[parts[0]]["dtype"]:
            sys.exit(f"{name}: dtype {entry['dtype']}")
    total = sum(len(entry["data"]) for entry in source.values())
    if checked != total:
        sys.exit(f"{checked} of {total} bytes were in the dump")
    if coded < 4:
        sys.exit(f"only {coded} params are FP8")
    print(f"{len(got)} params, {coded} of them FP8, of {checked} bytes")


main(sys.argv[1], sys.argv[2])
