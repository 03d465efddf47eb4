#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: convert_reference.sh BUILD_DIR
# Quantization against an independent implementation of the scheme, numpy with ml_dtypes (pip, in a venv under
# build/): scales, codes and values of random, adversarial and weight-like tensors, bit by bit.
set -eu
build=$1
python=$(sh tests/venv.sh numpy ml_dtypes) || {
	echo "skip convert_reference: numpy and ml_dtypes can't be installed (python3-venv and pip are needed)"
	exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
WS_CONVERT_OUT=$work "$build/tests/convert_quant" >"$work/log" || { cat "$work/log" >&2; exit 1; }
"$python" tests/convert_reference.py "$work"
