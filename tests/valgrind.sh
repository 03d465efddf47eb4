#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The test programs without sockets and threads under valgrind: no invalid access, no use of what was never
# written, no leak.  (asan runs them all; it doesn't see uninitialised memory.)
. "$(dirname "$0")/lib.sh"

# usage: valgrind.sh BUILD NAME, by the loop below
if [ $# = 2 ]; then
	if timeout 900 valgrind -q --trace-children=yes --leak-check=full --errors-for-leak-kinds=definite \
		--error-exitcode=9 --child-silent-after-fork=no "$build/tests/$2" >"$work/log" 2>&1; then
		passed "valgrind $2"
	else
		failed "valgrind $2" "status $?" "$work/log" >"$work/said"
		cat "$work/said"
	fi
	exit "$failures"
fi

# The long ones first, as many at once as there are cores.
for name in safetensors progress plan convert expr json version manifest manifest_faults golden engine_cut engine_imm \
	pair error mem bytes digest; do
	[ ! -x "$build/tests/$name" ] || echo "$name"
done | xargs -P "$(nproc)" -I NAME sh "$tests/valgrind.sh" "$build" NAME
