#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --transport auto: what joins whom, and that it is said.  Two PID namespaces play two hosts: what
# is in different ones can't be joined over ipc, but over the network.
. "$(dirname "$0")/lib.sh"

"$ws" synth --model qwen3-30b-a3b --scale 1/4096 -o "$work/model" 2>"$work/log" &&
	"$ws" manifest --model "$work/model" --side trainer --layout fsdp2 --mesh dp=2 -o "$work/T.json" &&
	"$ws" manifest --model "$work/model" --side rollout --layout vllm --mesh tp=2 -o "$work/R.json" &&
	"$ws" plan "$work/T.json" "$work/R.json" --json >"$work/plan" &&
	"$ws" keygen -o "$work/key" || {
	failed "auto" "nothing to run" "$work/log"
	exit 1
}
port=20000

# job NAME 'OPTIONS OF TRAINERS' 'OPTIONS OF ROLLOUTS' OPTIONS..: true if all ranks end well; what
# rank N said is in $work/N.  $between: a command in front of rollouts.
job() {
	trainers=$1 rollouts=$2
	shift 2
	port=$((port + 1))
	for rank in 3 2 1 0; do
		mine=$rollouts before=$between
		[ $rank -ge 2 ] || mine=$trainers before=
		# shellcheck disable=SC2086
		RANK=$rank WORLD_SIZE=4 timeout -k 5 120 $before "$ws" run --trainer "$work/T.json" \
			--rollout "$work/R.json" --checkpoint "$work/model" --updates 2 --verify --json \
			--hub "tcp://$own_address:$port" --key "$work/key" $mine "$@" >"$work/$rank.out" 2>"$work/$rank" &
		eval "pid$rank=$!"
	done
	ended=0
	# shellcheck disable=SC2154
	for pid in $pid0 $pid1 $pid2 $pid3; do
		wait "$pid" || ended=1
	done
	cat "$work/0" "$work/1" "$work/2" "$work/3" >"$work/all"
	return $ended
}

# says NAME RANK TEXT..
says() {
	name=$1 said=$work/$2
	shift 2
	for text; do
		grep -qF -- "$text" "$said" || {
			failed "$name" "it doesn't say '$text'" "$said"
			return 1
		}
	done
}

name="auto: bytes stay inside the host, and every rank says so"
between=
if ! job "" "" --nics 127.0.0.1; then
	failed "$name" "a rank failed" "$work/all" 40
elif ! python3 "$tests/check_updates.py" "$work/0.out" 2 "$work/plan" ipc 2>"$work/log"; then
	failed "$name" "$(cat "$work/log")"
elif says "$name" 0 "trainer 0: NICs: ipc host; fabric tcp/127.0.0.1 (as named)" "over ipc host (2 connections)" \
	"0 B over fabric tcp 127.0.0.1 (0 connections)" &&
	says "$name" 3 "rollout 0.1: NICs: ipc host; fabric tcp/127.0.0.1"; then
	passed "$name"
fi

name="two transports with nothing in common are an error that names both"
if job "--transport ipc" "--transport fabric --nics 127.0.0.1"; then
	failed "$name" "the run went well"
elif says "$name" all "no subnet joins this host and" "'ipc host'" "'tcp 127.0.0.1'" "NICs of one transport"; then
	passed "$name"
fi

name="auto: to another host over the network, what is passed on inside it over ipc"
if [ "$(id -u)" != 0 ] || ! unshare --pid --mount-proc --fork true 2>/dev/null; then
	echo "skip $name: no PID namespace can be made here"
	exit "$failures"
fi
unshare --pid --mount-proc --fork sleep 300 2>/dev/null &
outside=$!
host= tries=0
while [ -z "$host" ] && [ $tries -lt 100 ]; do
	sleep 0.1
	read -r host <"/proc/$outside/task/$outside/children"
	tries=$((tries + 1))
done
between="nsenter --target $host --pid --mount"
if ! job "" "" --nics 127.0.0.1 --fanout node; then
	failed "$name" "a rank failed" "$work/all" 40
elif ! python3 "$tests/check_updates.py" "$work/0.out" 2 "$work/plan" fabric 2>"$work/log"; then
	failed "$name" "$(cat "$work/log")"
elif says "$name" 0 "0 B over ipc host (0 connections)" && says "$name" 2 "over ipc host (2 connections), 0 B over fabric tcp 127.0.0.1 (2 connections)"; then
	passed "$name"
fi

name="ipc alone doesn't reach another host, and says what keeps it"
if job "--transport ipc" "--transport ipc"; then
	failed "$name" "the run went well"
elif says "$name" all "no subnet joins this host and" "pid-ns"; then
	passed "$name"
fi
kill -9 "$host" # the first process of a namespace takes no lesser signal
exit "$failures"
