#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The two examples, together: 2 trainers, 1 replica of 2 ranks, 3 steps.
. "$(dirname "$0")/lib.sh"

name="examples/trainer.c and examples/rollout.c run together"
"$ws" synth --model qwen3-32b --scale 1/8192 -o "$work/model" 2>"$work/log" &&
	"$ws" manifest --model "$work/model" --side trainer --layout fsdp2 --mesh dp=2 -o "$work/T.json" &&
	"$ws" manifest --model "$work/model" --side rollout --layout vllm --mesh tp=2 -o "$work/R.json" &&
	"$ws" keygen -o "$work/key" || {
	failed "$name" "nothing to run" "$work/log"
	exit 1
}
port=$((20000 + $$ % 20000))
hub=tcp://127.0.0.1:$port
for rank in 0 1; do
	timeout 90 "$build/examples/rollout" "$hub" "$work/key" "$work/R.json" 0 $rank 2 >"$work/r$rank" 2>&1 &
done
timeout 90 "$build/examples/trainer" "$hub" "$work/key" "$work/T.json" 1 2 2 3 >"$work/t1" 2>&1 &
if timeout 90 "$build/examples/trainer" "$hub" "$work/key" "$work/T.json" 0 2 2 3 >"$work/t0" 2>&1 && wait &&
	[ "$(grep -c 'version 3: the first weight begins with 3' "$work/r0" "$work/r1" | grep -c ':1$')" = 2 ] &&
	grep -q 'step 3: version 3 is live' "$work/t0"; then
	passed "$name"
else
	cat "$work/t0" "$work/t1" "$work/r0" "$work/r1" >"$work/all"
	failed "$name" "they didn't" "$work/all"
fi
exit "$failures"
