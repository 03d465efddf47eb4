#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whole updates that quantize on the way, over tcp: trainers hold BF16 or F32, rollouts get FP8 codes and
# scales, and `run --verify` compares every byte with what quantizing the whole tensors gives.
# usage: [JOBS=N] quantized.sh [BUILD [PATTERN]]      PATTERN: only the tests whose title contains it
. "$(dirname "$0")/lib.sh"
. "$tests/update_lib.sh"

# fp8 CHECKPOINT LAYOUT MESH DTYPE SCHEME ROLLOUT_LAYOUT ROLLOUT_MESH [RUN OPTIONS..]
fp8() {
	checkpoint=$1 trainer="--layout $2 --mesh $3" rollout="--layout $6 --mesh $7 --quant $5"
	title="$(basename "$1"): $2 $3 $4 to $6 $7 $5"
	# Engines absorb MLA's weights, which they derive from codes.
	case $1 in *kimi*) rollout="$rollout --derived" ;; esac
	# What a model holds in F32 stays so, unless all is F32.
	[ "$4" = bf16 ] || trainer="$trainer --dtype $4" rollout="$rollout --cast $4:bf16"
	shift 7
	beside update "$title${*:+, $*}" "$checkpoint" "$trainer" "$rollout" --transport fabric --nics 127.0.0.1 "$@"
}

# update TITLE CHECKPOINT 'TRAINER OPTIONS' 'ROLLOUT OPTIONS' RUN OPTIONS..
update() {
	title=$1 checkpoint=$2
	manifests "$title" "$checkpoint" "$3" "$4" && make_plan "$title" 1 || return
	shift 4
	run_over "$title" "$checkpoint" 1 fabric "$@"
	phases "$title"
	derived "$title"
}

# quantized TITLE CHECKPOINT 'TRAINER OPTIONS' 'ROLLOUT OPTIONS': of a checkpoint that is quantized already
quantized() {
	python3 "$tests/make_fp8_checkpoint.py" "$2" "$work/fp8" || failed "$1" "no checkpoint"
	manifests "$1" "$work/fp8" "$3" "$4" && make_plan "$1" 1 || return
	run_over "$1" "$work/fp8" 1 ipc
	derived "$1"
}

# refused TITLE CHECKPOINT SENTENCE MANIFEST OPTIONS..
refused() {
	title=$1 checkpoint=$2 sentence=$3
	shift 3
	if "$ws" manifest --model "$checkpoint" --side rollout --layout vllm "$@" >/dev/null 2>"$work/log"; [ $? = 1 ] &&
		grep -q "$sentence" "$work/log"; then
		passed "$title"
	else
		failed "$title" "not what it says" "$work/log"
	fi
}

# unscaled TITLE CHECKPOINT SCALE: one that lacks it
unscaled() {
	python3 "$tests/make_fp8_checkpoint.py" "$2" "$work/fp8" "$3" || failed "$1" "no checkpoint"
	refused "$1" "$work/fp8" "model 'fp8' has no '$3'" --mesh tp=2
}

# Trainer 0 quantized in every update, and says how long.
phases() {
	python3 -c "
import json, sys
lines = [json.loads(line) for line in open('$work/out') if line.startswith('{')]
sys.exit(not lines or any(line['phases']['quantize'] <= 0 for line in lines))" ||
		failed "$1" "no phase 'quantize' in a report" "$work/out"
}

# What is derived was verified beside what was received.
derived() {
	python3 -c "
import json, sys
wanted = 'derived' in json.load(open('$work/R.json'))
lines = [json.loads(line) for line in open('$work/out') if line.startswith('{')]
sys.exit(any((line['verified_bytes'] > line['bytes']) != wanted for line in lines))" ||
		failed "$1" "what is derived wasn't verified" "$work/out"
}

synth qwen3-30b-a3b 1/8192
synth kimi-k2 1/262144
qwen=$work/qwen3-30b-a3b kimi=$work/kimi-k2

fp8 "$qwen" fsdp2 dp=3 bf16 fp8-block vllm tp=2
fp8 "$qwen" megatron tp=2 bf16 fp8-channel sglang tp=2,ep=2
fp8 "$qwen" zero3 dp=3 bf16 fp8-tensor vllm tp=2 --wire-digests
fp8 "$qwen" fsdp2 dp=3 f32 fp8-block sglang tp=2,ep=2 --inplace
fp8 "$qwen" megatron tp=2 f32 fp8-block vllm tp=2
fp8 "$qwen" zero3 dp=3 f32 fp8-block-ue8m0 sglang tp=2,ep=2
fp8 "$kimi" fsdp2 dp=3 bf16 fp8-tensor sglang tp=2,ep=2
fp8 "$kimi" megatron tp=2 bf16 fp8-block vllm tp=2 --inplace --wire-digests
fp8 "$kimi" zero3 dp=3 bf16 fp8-block sglang tp=2,ep=2
fp8 "$kimi" fsdp2 dp=3 f32 fp8-channel vllm tp=2
fp8 "$kimi" megatron tp=2 f32 fp8-block-ue8m0 sglang tp=2,ep=2
fp8 "$kimi" zero3 dp=3 f32 fp8-block vllm tp=2 --staging-bytes 2M --recv-staging-bytes 4M

# Experts of 256 rows have no blocks of 128 at tp=4.
beside refused "a torn block is refused, and what works is named" "$kimi" \
	"axis 'moe_tp' that works is 2, not 4; or declare blocks of 64" --mesh tp=4 --quant fp8-block
fp8 "$kimi" fsdp2 dp=2 bf16 fp8-block:64 vllm tp=4

# NaN, infinities, subnormals, zeros: whole blocks of some of them.
spoiled=$work/spoiled
cp -r "$qwen" "$spoiled"
python3 "$tests/spoil_checkpoint.py" "$spoiled" || failed "spoil the checkpoint" "it isn't"
fp8 "$spoiled" megatron tp=2 f32 fp8-block vllm tp=2
fp8 "$spoiled" zero3 dp=3 bf16 fp8-channel sglang tp=2,ep=2

# What is quantized already goes as it is, its scales with it.
beside quantized "codes and scales of a quantized checkpoint go as they are" "$qwen" \
	"--layout fsdp2 --mesh dp=3" "--layout vllm --mesh tp=2"
beside quantized "any codes and scales of a quantized checkpoint are dequantized for MLA" "$kimi" \
	"--layout fsdp2 --mesh dp=2" "--layout sglang --mesh tp=2 --derived"
for scale in 0.mlp.experts.1.gate_proj 0.self_attn.q_proj; do
	beside unscaled "codes of a checkpoint that lacks their scales are refused: $scale" "$qwen" "model.layers.$scale.weight_scale_inv"
done
end_all
exit "$failures"
