# SPDX-License-Identifier: Apache-2.0
"""Checks what `run --json` printed.  usage: check_updates.py FILE UPDATES PLAN.json [TRANSPORT]: exits 1
with a sentence.  The plan (of `plan --json`) says how many bytes the params are that tensors fill.
TRANSPORT: peers of trainer 0 are joined over that alone, and bytes went over it."""
import json
import sys


def check_nics(line, transport):
    for nic in line["nics"]:
        if (nic["peers"] > 0) != (nic["transport"] == transport) or (nic["bytes_sent"] > 0 and nic["peers"] == 0):
            sys.exit(f"not all bytes went over {transport}: {line['nics']}")
    if sum(nic["bytes_sent"] for nic in line["nics"]) == 0:
        sys.exit(f"no byte was sent: {line['nics']}")
    if f"{transport} " not in line["nics_chosen"]:
        sys.exit(f"{transport} isn't what was chosen: {line['nics_chosen']}")


def main(path, updates, plan, transport=None):
    total = json.load(open(plan))["total_bytes"]
    lines = [json.loads(line) for line in open(path) if line.startswith("{")]
    if len(lines) != updates:
        sys.exit(f"{len(lines)} objects, expected {updates}")
    for line in lines:
        for key in ("version", "ok", "seconds", "bytes", "verified_bytes", "phases", "nics"):
            if key not in line:
                sys.exit(f"no key {key}: {line}")
        if not line["ok"] or line["bytes"] <= 0:
            sys.exit(f"not ok: {line}")
        if line["verified_bytes"] < total:
            sys.exit(f"fewer bytes verified than the {total} that the plan moves: {line}")
        if line["bytes"] < total:
            sys.exit(f"fewer bytes received than the {total} that the plan moves: {line}")
        if line["different_bytes"] != 0:
            sys.exit(f"bytes differ: {line}")
        if not line["nics"]:
            sys.exit(f"no nics: {line}")
        if transport is not None:
            check_nics(line, transport)
    versions = [line["version"] for line in lines]
    if versions != sorted(set(versions)):
        sys.exit(f"versions don't rise: {versions}")


main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
