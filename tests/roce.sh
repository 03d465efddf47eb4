#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real verbs: two hosts with two Soft-RoCE rails each, in two virtual machines (tests/vm/README.md).  The
# contract test, whole updates, faults and the bench run there.  No qemu or kernel: one skip.
# usage: roce.sh [BUILD [PATTERN]]      PATTERN: only the tests whose name contains it
. "$(dirname "$0")/lib.sh"
pattern=${2:-}
boot="sh $tests/vm/boot.sh"
place=$tests/../build/vm/roce-$$
export WS_VM="$place/pair"

leave() {
	$boot down
	rm -rf "$place"
	end_test
}
trap leave EXIT

now() {
	date +%s
}

wanted() {
	case $1 in *"$pattern"*) ;; *) return 1 ;; esac
	start=$(now)
}

# A Check program on host a: one line, with how many checks.  usage: program NAME SECONDS PATH [VARIABLE=VALUE..]
program() {
	name=$1 seconds=$2 path=$3
	shift 3
	wanted "$name" || return 0
	[ -x "$path" ] || { echo "skip $name: $path isn't built"; return; }
	$boot on -t "$seconds" a env "$@" CK_DEFAULT_TIMEOUT=120 "$path" >"$work/log" 2>&1
	status=$?
	checks=$(sed -n 's/^100%: Checks: \([0-9]*\), Failures: 0, Errors: 0$/\1/p' "$work/log")
	if [ "$status" = 0 ] && [ "${checks:-0}" -gt 0 ]; then
		passed "$name: $checks checks ($(($(now) - start)) s)"
	else
		failed "$name" "status $status" "$work/log" 25
	fi
}

if [ "$(uname -m)" != x86_64 ] || ! command -v qemu-system-x86_64 >/dev/null; then
	echo "skip EVERYTHING over real verbs (two hosts, RoCE): there is no qemu-system-x86_64 here"
	exit 0
fi
mkdir -p "$place"
start=$(now)
if ! $boot up >"$work/log" 2>&1; then
	if grep -q "kernel can't be had" "$work/log"; then
		echo "skip EVERYTHING over real verbs (two hosts, RoCE): Debian's kernel can't be had: $(head -1 "$work/log")"
		exit 0
	fi
	failed "two hosts boot" "they don't" "$work/log" 40
	exit 1
fi
passed "two hosts with two RoCE rails each boot ($(($(now) - start)) s)"

asan=$(dirname "$build")/build-address,undefined
program "the transport contract over verbs" 120 "$build/tests/contract" "WS_CONTRACT=verbs:rxe1 rxe2"
program "the fence's contract over verbs" 120 "$build/tests/contract_close" "WS_CONTRACT=verbs:rxe1 rxe2"
program "what goes wrong on an RDMA device" 120 "$build/tests/verbs_faults" WS_VERBS=rxe1/1 WS_VERBS_NETDEV=eth0
program "the transport contract over verbs, asan+ubsan" 240 "$asan/tests/contract" "WS_CONTRACT=verbs:rxe1 rxe2"

. "$tests/vm/doctor.sh"
python3 "$tests/vm/roce.py" "$build" "$place/updates" verbs "$pattern"
failures=$((failures + $?))
exit "$failures"
