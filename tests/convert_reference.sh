#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: convert_reference.sh BUILD_DIR
# Quantization against an independent implementation of the scheme, numpy with ml_dtypes (pip, in a venv under
# build/): scales, codes and values of random and adversarial tensors and of a small model's trained weights, bit by bit.
set -eu
build=$1
python=$(sh tests/venv.sh numpy ml_dtypes) || {
	echo "skip convert_reference: numpy and ml_dtypes can't be installed (python3-venv and pip are needed)"
	exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A speech detector of 310,000 weights in a safetensors file of its package; what it needs to run isn't needed.
weights=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/silero_vad/data/silero_vad_16k.safetensors
if ! [ -f "$weights" ] &&
	! flock build/venv.lock "$python" -m pip install --quiet --timeout 20 --retries 1 --no-deps silero-vad >&2; then
	echo "skip convert_reference of trained weights: silero-vad can't be installed"
	weights=
fi
WS_CONVERT_OUT=$work WS_CONVERT_WEIGHTS=$weights "$build/tests/convert_quant" >"$work/log" || { cat "$work/log" >&2; exit 1; }
"$python" tests/convert_reference.py "$work"
