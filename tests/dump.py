# SPDX-License-Identifier: Apache-2.0
"""Reads what `serve --dump` wrote with the reference library and compares it with the checkpoint.

usage: dump.py CHECKPOINT DUMP.safetensors: a vLLM-shaped replica of tensor parallel 1 of a dense model.
"""
import glob
import os
import sys

import safetensors


def load(path):
    with open(path, "rb") as file:
        return {name: entry for name, entry in safetensors.deserialize(file.read())}


def main(checkpoint, dump):
    source = {}
    for path in sorted(glob.glob(os.path.join(checkpoint, "*.safetensors"))):
        source.update(load(path))
    got, checked = load(dump), 0
    for name, entry in got.items():
        stem = name.rsplit(".", 1)[0]
        parts = [name]
        if stem.endswith("qkv_proj"):
            parts = [name.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
        elif stem.endswith("gate_up_proj"):
            parts = [name.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj")]
        want = b"".join(bytes(source[part]["data"]) for part in parts)
        have = bytes(entry["data"])
        if have[:len(want)] != want or any(have[len(want):]):
            sys.exit(f"{name} differs")
        if entry["dtype"] != source[parts[0]]["dtype"]:
            sys.exit(f"{name}: dtype {entry['dtype']}")
        checked += len(want)
    total = sum(len(entry["data"]) for entry in source.values())
    if checked != total:
        sys.exit(f"{checked} of {total} bytes were in the dump")
    print(f"{len(got)} params, {checked} bytes")


main(sys.argv[1], sys.argv[2])
