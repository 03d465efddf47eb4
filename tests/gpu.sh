#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What needs a GPU (make check-gpu), but for whole updates: the test programs, the kernels under compute-sanitizer,
# and what they make of tensors against independent implementations of the scheme, in PyTorch and in numpy.
# usage: gpu.sh [BUILD [PATTERN]]      PATTERN: only the tests whose name contains it
. "$(dirname "$0")/lib.sh"

# Runs a command line as a test, if it is asked for.  Where it is skipped its last line says why.
try() {
	name=$1
	shift
	wanted "$name" || return 0
	"$@" >"$work/log" 2>&1
	case $? in
	0)
		passed "$name ($(took))"
		sed -n "s/^. GPUs are needed.*/skip what $name does with more GPUs: &/p" "$work/log"
		;;
	77) echo "skip $name: $(tail -1 "$work/log")" ;;
	*) failed "$name" "the end of its log" "$work/log" 30 ;;
	esac
}

# The sanitizer follows no fork, so that the tests run in one process.
sanitize() {
	if ! command -v compute-sanitizer >/dev/null; then
		echo "compute-sanitizer isn't installed"
		return 77
	fi
	CK_FORK=no WS_GPU_FEW=1 timeout 900 compute-sanitizer --tool "$1" --error-exitcode 1 "$build/tests/$2"
}

# What the GPU makes of tensors, written once, against an implementation.  usage: reference MODULES SCRIPT
reference() {
	python3 -c "import $1" || return 77
	[ -e "$work/tensors.txt" ] || WS_CONVERT_OUT=$work "$build/tests/gpu_quantize" || return
	python3 "$tests/$2" "$work"
}

for program in "$build"/tests/gpu_*; do
	case $program in *.o | *.d) continue ;; esac
	try "$(basename "$program")" timeout 600 "$program"
done
for tool in memcheck racecheck initcheck; do
	for program in convert quantize; do
		try "$tool $program" sanitize $tool gpu_$program
	done
done
try "against PyTorch" reference torch gpu_reference.py
try "against numpy" reference numpy,ml_dtypes convert_reference.py
exit "$failures"
