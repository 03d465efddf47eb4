# SPDX-License-Identifier: Apache-2.0
"""Writes a manifest of explicit rows, as an unknown framework would: no rule, only who holds what.

usage: make_rows.py MANIFEST.json RANKS OUT.json

MANIFEST is any manifest of the model (for its tensors).  Every rank holds a band of rows of each
tensor; tensors of one dim lie whole on rank (number of the tensor) % RANKS.
"""
import json
import sys


def expand(rule):
    layers = range(*rule["layers"]) if "layers" in rule else [None]
    experts = range(*rule["experts"]) if "experts" in rule else [None]
    for layer in layers:
        for expert in experts:
            name = rule["name"]
            if layer is not None:
                name = name.replace("{L}", str(layer))
            if expert is not None:
                name = name.replace("{E}", str(expert))
            yield name, rule


def main(source, ranks, out):
    manifest = json.load(open(source))
    rows = []
    for number, (name, rule) in enumerate(t for r in manifest["tensors"] for t in expand(r)):
        shape = rule["shape"]
        if len(shape) == 1:
            rows.append({"t": name, "rank": number % ranks, "p": name, "dtype": rule["dtype"],
                         "goff": [0], "lshape": shape})
            continue
        for rank in range(ranks):
            # Bands of uneven height: 1/3 and the rest, or thereabouts.
            lo = shape[0] * rank // (ranks + 1) if rank else 0
            hi = shape[0] * (rank + 1) // (ranks + 1) if rank + 1 < ranks else shape[0]
            rows.append({"t": name, "rank": rank, "p": name, "dtype": rule["dtype"],
                         "goff": [lo] + [0] * (len(shape) - 1), "lshape": [hi - lo] + shape[1:]})
    json.dump({"ws_manifest": 1, "side": "trainer", "framework": "unknown", "model": manifest["model"],
               "world": ranks, "tensors": manifest["tensors"], "rows": rows}, open(out, "w"))


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
