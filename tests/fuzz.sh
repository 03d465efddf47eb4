#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every libFuzzer target in tests/fuzz/ for FUZZ_SECONDS (default 30) on top of its seeds, under asan+ubsan.
. "$(dirname "$0")/lib.sh"
fuzz=build-clang-address,undefined
cd "$tests/.." || exit 1
mkdir -p "$build/logs"
make -s -j"$(nproc)" CC=clang SAN=address,undefined OPT="-O1 -g -fsanitize=fuzzer-no-link" \
	$fuzz/internal.a $fuzz/commands.a >"$work/log" 2>&1 || {
	failed "fuzz: build" "make failed" "$work/log"
	exit 1
}
libs=$(pkg-config --libs libfabric libzmq libcjson libxxhash)
for target in tests/fuzz/*.c; do
	name=$(basename "$target" .c)
	mkdir -p "$work/$name" "tests/fuzz/seeds/$name"
	# shellcheck disable=SC2086
	if ! clang -std=c17 -O1 -g -D_GNU_SOURCE -I. -fsanitize=fuzzer,address,undefined "$target" $fuzz/commands.a \
		$fuzz/internal.a $libs -lm -pthread -o "$work/fuzz-$name" >"$work/log" 2>&1; then
		failed "fuzz $name" "it doesn't compile" "$work/log"
	elif ! "$work/fuzz-$name" -max_total_time="${FUZZ_SECONDS:-30}" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
		-artifact_prefix="$build/logs/" "$work/$name" "tests/fuzz/seeds/$name" >"$work/log" 2>&1; then
		failed "fuzz $name" "it found something, see build/logs" "$work/log"
	else
		passed "fuzz $name: $(grep -c . "$work/log") lines, $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$work/log") runs"
	fi
done
exit "$failures"
