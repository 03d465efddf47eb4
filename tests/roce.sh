#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real verbs: two hosts with two Soft-RoCE rails each, in two virtual machines (tests/vm/README.md).  The
# transport's tests, whole updates, what breaks, doctor and the bench run there.  No qemu: one skip.
# usage: roce.sh [BUILD [PATTERN]]      PATTERN: only the tests whose name contains it
. "$(dirname "$0")/lib.sh"
boot="sh $tests/vm/boot.sh"
place=$(realpath "$tests/..")/build/vm/roce-$$
asan=$(dirname "$build")/build-address,undefined
export WS_VM="$place/pair" WS_VM_SECONDS=1800

leave() {
	$boot down
	rm -rf "$place"
	end_test
}
trap leave EXIT

# A command on a host that ends with 0; its log stays in $work/HOST.log.  usage: on_host HOST NAME SECONDS COMMAND..
on_host() {
	host=$1 name=$2 seconds=$3 log=$work/$1.log
	shift 3
	$boot on -t "$seconds" "$host" "$@" >"$log" 2>&1
	status=$?
	[ "$status" = 0 ] || failed "$name" "status $status" "$log" 25
	return "$status"
}

# A Check program: one line that says how many checks.  usage: program HOST PATH SECONDS [VARIABLE=VALUE..]
program() {
	host=$1 path=$2 seconds=$3 name="$(basename "$(dirname "$(dirname "$2")")")/$(basename "$2") over verbs"
	shift 3
	wanted "$name" || return 0
	[ -x "$path" ] || { echo "skip $name: it isn't built"; return 0; }
	on_host "$host" "$name" "$seconds" env "$@" "$path" || return 0
	checks=$(sed -n 's/^100%: Checks: \([0-9]*\), Failures: 0, Errors: 0$/\1/p' "$work/$host.log")
	if [ "${checks:-0}" -gt 0 ]; then
		passed "$name: $checks checks ($(took))"
	else
		failed "$name" "no check ran" "$work/$host.log"
	fi
}

# Each of them is within one host, so the two hosts work side by side.
transport_tests() {
	{
		program a "$build/tests/contract" 240 "WS_CONTRACT=verbs:rxe1 rxe2"
		program a "$asan/tests/contract" 400 "WS_CONTRACT=verbs:rxe1 rxe2"
		program a "$build/tests/verbs_faults" 240 WS_VERBS=rxe1 WS_VERBS_NETDEV=eth0
	} >"$work/a.said" &
	(program b "$asan/tests/contract_close" 400 "WS_CONTRACT=verbs:rxe1 rxe2") >"$work/b.said"
	wait
	cat "$work/a.said" "$work/b.said"
	failures=$((failures + $(cat "$work/a.said" "$work/b.said" | grep -c '^not ok')))
}

# The product against ib_write_bw, in turns; the figures are printed, not asserted.
bench() {
	name="bench transfer over verbs beside ib_write_bw" address=10.0.0.2:7300
	wanted "$name" || return 0
	bench="$ws bench transfer --transport verbs --nics rxe1"
	$boot on -t 200 b $bench --listen $address >"$work/b.log" 2>&1 &
	$boot on b sh -c 'until ss -ltn | grep -q :7300; do sleep 0.1; done'
	if $boot on -t 200 a $bench --what stream --op-bytes 1M --bytes 8M --peer $address >"$work/a.log" 2>&1; then
		passed "$name ($(took))"
		sed 's/^/    /' "$work/a.log"
	elif grep -q "couldn't calibrate its clock" "$work/a.log"; then
		echo "skip $name: $(tail -1 "$work/a.log")"
	else
		failed "$name" "no figures" "$work/a.log"
	fi
	wait
}

if [ "$(uname -m)" != x86_64 ] || ! command -v qemu-system-x86_64 >/dev/null; then
	echo "skip EVERYTHING over real verbs (two hosts with Soft-RoCE): there is no qemu-system-x86_64 here"
	exit 0
fi
mkdir -p "$place"
start=$(date +%s)
if ! $boot up >"$work/log" 2>&1; then
	if grep -q "kernel can't be had" "$work/log"; then
		echo "skip EVERYTHING over real verbs (two hosts with Soft-RoCE): $(tail -1 "$work/log")"
		exit 0
	fi
	failed "two hosts boot" "they don't" "$work/log" 40
	exit 1
fi
passed "two hosts with two RoCE rails each boot ($(took))"
transport_tests
. "$tests/vm/doctor.sh"
bench
python3 "$tests/vm/roce.py" "$build" "$place/updates" verbs "$pattern"
failures=$((failures + $?))
[ ! -e "$place/updates/found" ] || : >"$work/found"
exit "$failures"
