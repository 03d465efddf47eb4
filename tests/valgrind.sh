#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The test programs without sockets and threads under valgrind: no invalid access, no use of what was never
# written, no leak.  (asan runs them all; it doesn't see uninitialised memory.)
. "$(dirname "$0")/lib.sh"
for name in error mem bytes digest json safetensors convert expr golden manifest plan engine_cut engine_imm version \
	progress pair; do
	[ -x "$build/tests/$name" ] || continue
	if timeout 900 valgrind -q --trace-children=yes --leak-check=full --errors-for-leak-kinds=definite \
		--error-exitcode=9 --child-silent-after-fork=no "$build/tests/$name" >"$work/log" 2>&1; then
		passed "valgrind $name"
	else
		failed "valgrind $name" "status $?" "$work/log"
	fi
done
exit "$failures"
