# SPDX-License-Identifier: Apache-2.0
# What scripts of whole updates share: manifests, a plan, and `run --verify` under mpirun; and tests side by side.
# shellcheck shell=sh
running='' begun=0 ended=0
: "${JOBS:=2}" # they wait for half of their time

# beside COMMAND TITLE ARGUMENTS..: a wanted test in a subshell with a work folder of its own; JOBS of them run
# at once, and what they say comes in the order in which they began.
beside() {
	wanted "$2" || return 0
	[ $((begun - ended)) -lt "$JOBS" ] || end_oldest
	begun=$((begun + 1))
	mkdir "$work/$begun"
	(
		work=$work/$begun failures=0
		"$@"
		exit "$failures"
	) >"$work/$begun/all" 2>&1 &
	running="$running$! "
}

end_oldest() {
	ended=$((ended + 1))
	wait "${running%% *}"
	failures=$((failures + $?))
	running=${running#* }
	cat "$work/$ended/all"
	rm -rf "${work:?}/$ended"
}

end_all() {
	while [ "$ended" -lt "$begun" ]; do
		end_oldest
	done
}

# alone COMMAND TITLE ARGUMENTS..: a wanted test when all that ran beside each other have ended
alone() {
	wanted "$2" || return 0
	end_all
	"$@"
}

# manifests 'NAME' CHECKPOINT 'TRAINER OPTIONS' 'ROLLOUT OPTIONS': T.json and R.json
manifests() {
	name=$1 checkpoint=$2 trainer=$3 rollout=$4
	# shellcheck disable=SC2086
	if ! { "$ws" manifest --model "$checkpoint" --side trainer $trainer -o "$work/T.json" &&
		"$ws" manifest --model "$checkpoint" --side rollout $rollout -o "$work/R.json"; } 2>"$work/log"; then
		failed "$name" "no manifest" "$work/log"
		return 1
	fi
}

# pair NAME CHECKPOINT REPLICAS 'TRAINER OPTIONS' 'ROLLOUT OPTIONS' [RUN OPTIONS..]
pair() {
	name=$1 checkpoint=$2 replicas=$3
	manifests "$1" "$2" "$4" "$5" || return
	shift 5
	run_both "$name" "$checkpoint" "$replicas" "$@"
}

world() {
	sed -n 's/.*"world": *\([0-9]*\).*/\1/p' "$1" | head -1
}

# run_over TITLE CHECKPOINT REPLICAS TRANSPORT RUN OPTIONS..: with the plan at hand
run_over() {
	title=$1 checkpoint=$2 replicas=$3 transport=$4
	shift 4
	ranks=$(($(world "$work/T.json") + replicas * $(world "$work/R.json")))
	if ! mpi "$ranks" "$ws" run --trainer "$work/T.json" --rollout "$work/R.json" --replicas "$replicas" \
		--checkpoint "$checkpoint" --updates 2 --verify --json "$@" >"$work/out" 2>"$work/log"; then
		grep '^weightsync:' "$work/log" >"$work/said"
		failed "$title" "run ended with a failure" "$work/said"
	elif ! python3 "$tests/check_updates.py" "$work/out" 2 "$work/plan" "$transport" 2>"$work/log"; then
		failed "$title" "$(cat "$work/log")"
	else
		passed "$title"
	fi
}

# make_plan NAME REPLICAS: of the manifests at hand
make_plan() {
	"$ws" plan "$work/T.json" "$work/R.json" --replicas "$2" --json >"$work/plan" 2>"$work/log" && return
	failed "$1" "no plan" "$work/log"
	return 1
}

# With the manifests at hand: one NIC, then two; then, if asked for, what is chosen by itself.
run_both() {
	name=$1 checkpoint=$2 replicas=$3
	shift 3
	make_plan "$name" "$replicas" || return
	for nics in 127.0.0.1 127.0.0.1,127.0.0.2; do
		run_over "$name, nics $nics" "$checkpoint" "$replicas" fabric --transport fabric --nics "$nics" "$@"
	done
	[ "${and_auto:-no}" = no ] || run_over "$name, auto" "$checkpoint" "$replicas" ipc "$@"
}

synth() {
	"$ws" synth --model "$1" --scale "$2" -o "$work/$1" 2>"$work/log" || failed "synth $1" "no checkpoint" "$work/log"
}
