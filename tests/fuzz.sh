#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every libFuzzer target in tests/fuzz/ for FUZZ_SECONDS (default 30) on top of its seeds, under asan+ubsan.  What
# it finds stays in BUILD/corpus for the next run.
. "$(dirname "$0")/lib.sh"
fuzz=build-clang-address,undefined
cd "$tests/.." || exit 1
mkdir -p "$build/logs"

# usage: fuzz.sh BUILD NAME, by the loop below
if [ $# = 2 ]; then
	name=$2 seeds=
	[ ! -d "tests/fuzz/seeds/$name" ] || seeds=tests/fuzz/seeds/$name
	found=$build/corpus/$name
	mkdir -p "$found"
	libs=$(make -s libs)
	# shellcheck disable=SC2086
	if ! clang -std=c17 -O1 -g -D_GNU_SOURCE -I. -fsanitize=fuzzer,address,undefined "tests/fuzz/$name.c" \
		$fuzz/commands.a $fuzz/internal.a $libs -o "$work/fuzz-$name" >"$work/log" 2>&1; then
		failed "fuzz $name" "it doesn't compile" "$work/log" >"$work/said"
	elif ! "$work/fuzz-$name" -max_total_time="${FUZZ_SECONDS:-30}" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
		-artifact_prefix="$build/logs/" "$found" $seeds >"$work/log" 2>&1; then
		failed "fuzz $name" "it found something, see $build/logs" "$work/log" 40 >"$work/said"
	else
		passed "fuzz $name: $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$work/log") runs" >"$work/said"
	fi
	cat "$work/said"
	exit "$failures"
fi

make -s -j"$(nproc)" CC=clang SAN=address,undefined OPT="-O1 -g -fsanitize=fuzzer-no-link" \
	$fuzz/internal.a $fuzz/commands.a >"$work/log" 2>&1 || {
	failed "fuzz: build" "make failed" "$work/log"
	exit 1
}
# As many at once as there are cores.
for target in tests/fuzz/*.c; do
	basename "$target" .c
done | xargs -P "$(nproc)" -I NAME sh tests/fuzz.sh "$build" NAME
