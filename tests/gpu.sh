#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: gpu.sh BUILD_DIR
# Everything that needs a GPU (make check-gpu): the test programs, the kernels under compute-sanitizer, and what
# they make of tensors against independent implementations of the scheme, in PyTorch and in numpy.
set -u
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

# Runs a command line as a test: its log is shown where it fails, its last line where it is skipped.
try() {
	name=$1
	shift
	start=$(date +%s)
	"$@" >"$work/log" 2>&1
	case $? in
	0) echo "ok $name ($(($(date +%s) - start)) s)" ;;
	77) echo "skip $name: $(tail -1 "$work/log")" ;;
	*)
		bad=1
		echo "not ok $name, the end of its log:"
		tail -30 "$work/log" | sed 's/^/    /'
		;;
	esac
}

for program in "$build"/tests/gpu_*; do
	case $program in *.o | *.d) continue ;; esac
	try "$(basename "$program")" timeout 600 "$program"
done

# The sanitizer follows no fork, so that the tests run in one process.
for tool in memcheck racecheck initcheck; do
	for program in gpu_convert gpu_quantize; do
		if command -v compute-sanitizer >/dev/null; then
			try "$tool $program" env CK_FORK=no WS_GPU_FEW=1 timeout 900 \
				compute-sanitizer --tool $tool --error-exitcode 1 "$build/tests/$program"
		else
			echo "skip $tool $program: compute-sanitizer isn't installed"
		fi
	done
done

try "tensors for the references" env "WS_CONVERT_OUT=$work" "$build/tests/gpu_quantize"
if python3 -c 'import torch' 2>/dev/null; then
	try "against PyTorch" python3 tests/gpu_reference.py "$work"
else
	echo "skip against PyTorch: python3 has no torch"
fi
if python3 -c 'import numpy, ml_dtypes' 2>/dev/null; then
	try "against numpy" python3 tests/convert_reference.py "$work"
else
	echo "skip against numpy: python3 has no numpy with ml_dtypes"
fi
exit $bad
