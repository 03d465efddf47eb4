#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh check|ci
# Runs the tests in parts, prints each part's minutes, and one closing line.  A test program is a
# Check suite (its cases are counted) that exits 77 for a skip; a script prints "ok NAME",
# "not ok NAME" or "skip NAME" lines.
set -u
cd "$(dirname "$0")/.." || exit 1
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66"
logs=${WS_TEST_LOGS:-build/logs}
mkdir -p "$logs"
passed=0 failed=0 skipped=0
minutes= slowest=

# Counts what a log says; $2 is the exit status of what wrote it.
count() {
	log=$1 status=$2 name=$3
	if [ "$status" = 77 ]; then
		skipped=$((skipped + 1))
		echo "  SKIPPED $name: $(tail -1 "$log")"
		return
	fi
	checks=$(sed -n 's/^.*Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p' "$log" | tail -1)
	if [ -n "$checks" ]; then
		# shellcheck disable=SC2086
		set -- $checks
		passed=$((passed + $1 - $2 - $3)) failed=$((failed + $2 + $3))
		bad=$(($2 + $3))
	else
		good=$(grep -c '^ok ' "$log") bad=$(grep -c '^not ok ' "$log")
		skips=$(grep -c '^skip ' "$log")
		passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skips))
		grep '^skip ' "$log" | sed 's/^skip /  SKIPPED /'
	fi
	if [ "$status" != 0 ]; then
		[ "$bad" -gt 0 ] || failed=$((failed + 1))
		echo "  FAILED $name (status $status), the end of $log:"
		tail -25 "$log" | sed 's/^/    /'
	fi
}

log_of() {
	echo "$logs/$(echo "$1" | tr '/ ' '__').log"
}

# Runs it and keeps what it wrote, its status and its seconds.
run_quietly() {
	log=$(log_of "$1")
	shift
	start=$(date +%s)
	timeout -k 5 "${TEST_SECONDS:-300}" "$@" >"$log" 2>&1
	echo "$? $(($(date +%s) - start))" >"$log.end"
}

count_one() {
	log=$(log_of "$1")
	read -r status seconds <"$log.end"
	count "$log" "$status" "$1"
	slowest="$slowest
$seconds s  $1"
}

run_one() {
	run_quietly "$@"
	count_one "$1"
}

# The test programs of one build folder, as many at once as there are cores: most of them wait.
programs() {
	names=$(grep -l '^Suite \*suite(void)' tests/*.c | sed 's,tests/,,; s,\.c$,,')
	for name in $names; do
		echo "$name"
	done | xargs -P "$(nproc)" -I NAME sh tests/run.sh one "$1" NAME
	for name in $names; do
		count_one "$1/$name"
	done
}

part() {
	title=$1
	shift
	echo "== $title"
	part_start=$(date +%s)
	"$@"
	minutes="$minutes
  $(awk "BEGIN{printf \"%5.1f\", ($(date +%s) - $part_start) / 60}") min  $title"
}

scripts() {
	for script in "$@"; do
		[ -f "tests/$script.sh" ] && TEST_SECONDS=900 run_one "$script" sh "tests/$script.sh" "${build_dir:-build}"
	done
}

# Another build of the tests, as one test: it compiles without a warning.
compile() {
	name=$1
	shift
	run_one "compile $name" sh -c "make -s -j$(nproc) $* all tests && echo 'ok compiles: $name'"
}

check() {
	part "layers" run_one layers sh -c 'sh tests/layers.sh && echo "ok layers"'
	part "unit, contract, engine, planner, sides (gcc)" programs build
	part "updates: layout pairs over tcp, every byte" scripts updates
	part "faults: what dies and what is bad" scripts faults
	part "the command line, examples, memory, the reference safetensors" scripts cli examples dump memory \
		safetensors_reference
	part "compile asan+ubsan" compile asan SAN=address,undefined
	part "the same under asan+ubsan" programs build-address,undefined
}

ci() {
	part "format" run_one format sh -c 'make -s format-check && echo "ok format"'
	part "clang" compile clang CC=clang
	part "the tests, built by clang" programs build-clang
	part "compile tsan" compile tsan SAN=thread
	part "tsan" programs build-thread
	part "nth allocation, valgrind" scripts valgrind
	part "fuzz" scripts fuzz
	part "tidy" run_one tidy sh -c 'make -s tidy && echo "ok tidy"'
	part "man page" run_one man sh -c 'mandoc -T lint -W warning cli/weightsync.1 && echo "ok man"'
}

case ${1:-} in
one)
	run_quietly "$2/$3" "$2/tests/$3"
	exit 0
	;;
check) check ;;
ci)
	check
	ci
	;;
*)
	echo "usage: run.sh check|ci" >&2
	exit 2
	;;
esac
echo "== minutes$minutes"
echo "== the slowest"
echo "$slowest" | sort -rn | head -8
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
