#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: [PARTS=PATTERN] run.sh check|ci      PARTS: only the parts whose title matches (grep -E)
# Runs the tests in parts, prints each part's minutes, what failed and why, and one closing line.  A test program is a
# Check suite (its cases are counted) that exits 77 for a skip; a script prints "ok NAME",
# "not ok NAME" or "skip NAME" lines.
set -u
cd "$(dirname "$0")/.." || exit 1
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66"
logs=${WS_TEST_LOGS:-build/logs}
mkdir -p "$logs"
passed=0 failed=0 skipped=0
minutes= slowest= limit= reasons=

# Counts what a log says; $2 is the exit status of what wrote it.  Nothing said is a failure too.
count() {
	log=$1 status=$2 name=$3 good=0 bad=0
	if [ "$status" = 77 ]; then
		skipped=$((skipped + 1))
		echo "  SKIPPED $name: $(tail -1 "$log")"
		return
	fi
	checks=$(sed -n 's/^.*Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p' "$log" | tail -1)
	if [ -n "$checks" ]; then
		# shellcheck disable=SC2086
		set -- $checks
		bad=$(($2 + $3)) good=$(($1 - $2 - $3)) skips=0
	else
		good=$(grep -c '^ok ' "$log") bad=$(grep -c '^not ok ' "$log") skips=$(grep -c '^skip ' "$log")
		grep '^skip ' "$log" | sed 's/^skip /  SKIPPED /'
	fi
	[ "$status" = 0 ] && [ $((good + bad + skips)) -gt 0 ] || [ "$bad" -gt 0 ] || bad=1
	passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skips))
	[ "$bad" = 0 ] && return
	echo "  FAILED $name (status $status, 124 is out of time), the end of $log:"
	tail -25 "$log" | sed 's/^/    /'
	reasons="$reasons
$name (status $status)
$(grep -E '^not ok |^[^ ]+:[0-9]+:[FE]:|ERROR: .*Sanitizer|WARNING: ThreadSanitizer' "$log" | cut -c 1-1000 | sed 's/^/    /')"
}

log_of() {
	echo "$logs/$(echo "$1" | tr '/ ' '__').log"
}

# Runs it and keeps what it wrote, its status and its seconds.
run_quietly() {
	log=$(log_of "$1")
	shift
	rm -f "$log.end"
	start=$(date +%s)
	timeout -k 5 "${limit:-${TEST_SECONDS:-600}}" "$@" >"$log" 2>&1
	echo "$? $(($(date +%s) - start))" >"$log.end"
}

count_one() {
	log=$(log_of "$1")
	status=1 seconds=0
	[ ! -f "$log.end" ] || read -r status seconds <"$log.end"
	count "$log" "$status" "$1"
	slowest="$slowest
$seconds s  $1"
}

run_one() {
	run_quietly "$@"
	count_one "$1"
}

# verbs_faults needs an RDMA device: roce.sh runs it where there is one.
suites() {
	grep -l '^Suite \*suite(void)' tests/*.c | grep -v '/verbs_faults\.c'
}

# Those that have threads; thread sanitizer has nothing to say of the others.
threaded() {
	# shellcheck disable=SC2046
	grep -lE '<pthread.h>|"lib/(link|transport|engine|hub)/|_side/|tests/(engine|hub|update)_world|tests/link_ends' \
		$(suites)
}

# What takes long under a sanitizer, and has little that it could find: only the whole matrix does that.
heavy='coverage|oracle|oracle_quant|plan_balance|plan_golden|plan_properties|quant|simulate_paper|import|model|safetensors|mem_nth_sides'
heavy="$heavy|update_describe|update_fault|update_quant|engine_fault|link_door"

long_ones() {
	suites | grep -E "/($heavy)\.c"
}

short_ones() {
	suites | grep -vE "/($heavy)\.c"
}

# The test programs of one build folder, as many at once as there are cores: most of them wait.
programs() {
	names=$(${2:-suites} | sed 's,tests/,,; s,\.c$,,')
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
	echo "$title" | grep -qE "${PARTS:-.}" || return 0
	echo "== $title"
	part_start=$(date +%s)
	"$@"
	minutes="$minutes
  $(awk "BEGIN{printf \"%5.1f\", ($(date +%s) - $part_start) / 60}") min  $title"
}

# Scripts of tests/, with a build folder: as many at once as there are cores, since most of them wait.  The
# longest first.
scripts() {
	with=$1
	shift
	for script in "$@"; do
		echo "$script"
	done | xargs -P "$(nproc)" -I NAME sh tests/run.sh script "$with" NAME
	for script in "$@"; do
		count_one "$script $with"
	done
}

# The scripts, then the sanitized programs; beside them these are compiled, and then two virtual machines run.
scripts_and_sanitizer() {
	(
		limit=1800
		run_quietly "compile asan" \
			sh -c "make -s -j$(nproc) SAN=address,undefined all tests && echo 'ok compile asan'"
		run_quietly "roce build" sh tests/roce.sh build
	) &
	scripts build faults updates quantized doctor cli bad_manifests memory auto hosts bench dump page \
		safetensors_reference convert_reference fused_reference topology examples import
	while [ ! -f "$(log_of "compile asan").end" ]; do # ends by its limit
		sleep 1
	done
	programs build-address,undefined short_ones
	wait
	count_one "compile asan"
	count_one "roce build"
}

# One command of the house as one test.
command_passes() {
	name=$1
	shift
	limit=1800
	run_one "$name" sh -c "$* && echo 'ok $name'"
	limit=
}

# Another build of the tests, as one test: it compiles without a warning.
compile() {
	name=$1
	shift
	command_passes "compile $name" make -s "-j$(nproc)" "$@" all tests
}

check() {
	part "layers" command_passes layers sh tests/layers.sh
	part "unit, contract, engine, planner, sides (gcc)" programs build
	part "scripts, and asan+ubsan but for the long ones; beside them real verbs, two virtual machines" scripts_and_sanitizer
	part "corpora of the fuzzers, under asan+ubsan" scripts build-address,undefined fuzz_seeds
}

ci() {
	part "format" command_passes format make -s format-check
	part "man page" command_passes man mandoc -T lint -W warning cli/weightsync.1
	part "compile clang" compile clang CC=clang
	part "the tests, built by clang" programs build-clang
	part "compile tsan" compile tsan SAN=thread
	part "tsan: what has threads" programs build-thread threaded
	part "tsan: the examples" scripts build-thread examples
	part "every nth allocation of starting a side" run_one mem_nth env WS_EVERY_NTH=1 build/tests/mem_nth_sides
	part "asan+ubsan: the long ones" programs build-address,undefined long_ones
	part "asan+ubsan: updates, the command line, the examples" scripts build-address,undefined updates auto cli doctor examples
	part "valgrind" scripts build valgrind
	part "fuzz" scripts build fuzz
	part "tidy" command_passes tidy make -s tidy
}

case ${1:-} in
one)
	run_quietly "$2/$3" "$2/tests/$3"
	exit 0
	;;
script)
	limit=1800
	run_quietly "$3 $2" sh "tests/$3.sh" "$2"
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
echo "$slowest" | grep . | sort -rn | head -12
[ -z "$reasons" ] || echo "== what failed$reasons"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
