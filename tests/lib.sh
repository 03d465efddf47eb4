# SPDX-License-Identifier: Apache-2.0
# What the test scripts share.  A script is called as `sh tests/NAME.sh BUILD [PATTERN]` and prints
# "ok NAME", "not ok NAME" or "skip NAME: why" for each of its tests; those whose usage says so do only the tests
# whose name contains PATTERN.
# shellcheck shell=sh
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1 PYTHONDONTWRITEBYTECODE=1
build=$(cd "${1:-build}" && pwd)
ws=$build/weightsync
tests=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
# An address of this machine that only this script uses, so that any port of it is free.
own_address=127.$((64 + ($$ >> 16))).$(($$ >> 8 & 255)).$(($$ & 255))
pattern=${2:-}
failures=0

# Ends what still runs, and what that has started: a job's `timeout` passes it on.
end_test() {
	[ ! -e "$work/asked" ] || [ -e "$work/found" ] || echo "skip $0: no test's name contains '$pattern'"
	for job in $(cat "/proc/$$/task/$$/children"); do
		below=$(cat "/proc/$job/task/$job/children")
		# shellcheck disable=SC2086
		kill -9 "$job" && kill $below
	done 2>/dev/null
	rm -rf "$work"
}
trap end_test EXIT
trap 'exit 1' INT TERM

as_root=
[ "$(id -u)" != 0 ] || as_root=--allow-run-as-root
mpi() {
	count=$1
	shift
	# shellcheck disable=SC2086
	timeout -k 5 "${MPI_SECONDS:-120}" mpirun $as_root --oversubscribe --bind-to none -n "$count" "$@"
}

# Whether a test is asked for; its time begins.
wanted() {
	start=$(date +%s)
	: >"$work/asked"
	case $1 in *"$pattern"*) : >"$work/found" ;; *) return 1 ;; esac
}

took() {
	echo "$(($(date +%s) - start)) s"
}

passed() {
	echo "ok $1"
}

# Says it, with the end of a log.
failed() {
	echo "not ok $1: $2"
	failures=$((failures + 1))
	[ -z "${3:-}" ] || tail -n "${4:-12}" "$3" | sed 's/^/    /'
}

# A python with these packages, made once; false where pip can't bring them.
reference_python() {
	python=$tests/../$(cd "$tests/.." && sh tests/venv.sh "$@" 2>"$work/pip.log")
}
