#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: safetensors_reference.sh BUILD_DIR
# Compares our reader and writer with the reference library (pip, in a venv under build/): it
# must accept and refuse the same files of the corpus, save for the differences that the corpus
# states; and what each of the two writes the other must read back, byte for byte.
set -eu
build=$1
python=$(sh tests/venv.sh numpy safetensors) || {
	echo "skip safetensors_reference: the reference safetensors library can't be installed (python3-venv and pip are needed)"
	exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/corpus" "$work/theirs" "$work/ours"

WS_ST_CORPUS=$work/corpus "$build/tests/safetensors" >"$work/log" || { cat "$work/log" >&2; exit 1; }
"$python" tests/safetensors_reference.py write "$work/theirs"
WS_ST_THEIRS=$work/theirs WS_ST_OURS=$work/ours "$build/tests/checkpoint" >"$work/log" || { cat "$work/log" >&2; exit 1; }
"$python" tests/safetensors_reference.py check "$work"
