#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples: the two loops together, 2 trainers, 1 replica of 2 ranks, 3 steps; a post step; a manifest that is missing.
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

name="examples/post.c: a step of the user's own runs in each version"
"$ws" manifest --model "$work/model" --side rollout --layout vllm --mesh tp=1 -o "$work/R.json" && python3 -c "
import json
manifest = json.load(open('$work/R.json'))
rows = next(t['shape'][0] for t in manifest['tensors'] if t['name'].endswith('.o_proj.weight'))
manifest['derived'] = [{'post': 'row_sums', 'each': {'L': 'all'}, 'mesh': 'dense',
    'from': ['model.layers.{L}.self_attn.o_proj.weight'],
    'makes': [{'p': 'o_proj_sums.{L}', 'dtype': 'f32', 'shape': [rows]}]}]
json.dump(manifest, open('$work/R.json', 'w'))" || failed "$name" "no manifest"
port=$((port + 1))
hub=tcp://127.0.0.1:$port
timeout 90 "$build/examples/post" "$hub" "$work/key" "$work/R.json" >"$work/r0" 2>&1 &
timeout 90 "$build/examples/trainer" "$hub" "$work/key" "$work/T.json" 1 2 1 3 >"$work/t1" 2>&1 &
if timeout 90 "$build/examples/trainer" "$hub" "$work/key" "$work/T.json" 0 2 1 3 >"$work/t0" 2>&1 && wait &&
	python3 -c "
import json, struct
single = lambda x: struct.unpack('f', struct.pack('f', x))[0]
columns = next(t['shape'][1] for t in json.load(open('$work/R.json'))['tensors'] if t['name'].endswith('.o_proj.weight'))
lines = open('$work/r0').read().splitlines()
assert len(lines) == 3, lines
for step in 1, 2, 3:
    value, total = struct.unpack('f', bytes([0, 0, step, step]))[0], 0.0
    for _ in range(columns):
        total = single(total + value)
    assert float.fromhex(lines[step - 1].split()[-1]) == total > 0, (lines, step, total)" 2>"$work/log"; then
	passed "$name"
else
	cat "$work/t0" "$work/t1" "$work/r0" "$work/log" >"$work/all"
	failed "$name" "it doesn't" "$work/all"
fi

name="a manifest that isn't there is named by every example"
for example in "trainer $hub $work/key $work/none 0 1 1 1" "rollout $hub $work/key $work/none 0 0 1" "post $hub $work/key $work/none"; do
	"$build/examples/"$example
done 2>"$work/log"
[ "$(grep -c "cannot open '$work/none': No such file" "$work/log")" = 3 ] && passed "$name" || failed "$name" "it isn't" "$work/log"
exit "$failures"
