# SPDX-License-Identifier: Apache-2.0
"""Checks what `run --json` printed.  usage: check_updates.py FILE UPDATES PLAN.json: exits 1
with a sentence.  The plan (of `plan --json`) says how many bytes the params are that tensors fill."""
import json
import sys


def main(path, updates, plan):
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
    versions = [line["version"] for line in lines]
    if versions != sorted(set(versions)):
        sys.exit(f"versions don't rise: {versions}")


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
