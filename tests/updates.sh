#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Layout pairs that verify byte for byte under `run --verify` over tcp, with 1 and 2 NICs per rank,
# and some of them over what `--transport auto` chooses: here ipc.
# usage: [JOBS=N] updates.sh [BUILD [PATTERN]]      PATTERN: only the tests whose title contains it
. "$(dirname "$0")/lib.sh"
. "$tests/update_lib.sh"

# rows TITLE CHECKPOINT
rows() {
	if "$ws" manifest --model "$2" --side rollout --layout vllm --mesh tp=2 -o "$work/R.json" 2>"$work/log" &&
		python3 "$tests/make_rows.py" "$work/R.json" 2 "$work/T.json" 2>>"$work/log"; then
		run_both "$1" "$2" 1 --recv-staging-bytes 1M
	else
		failed "$1" "no manifests" "$work/log"
	fi
}

# tied TITLE
tied() {
	if reference_python numpy safetensors; then
		"$python" "$tests/make_checkpoint.py" "$work/tied"
		pair "$1" "$work/tied" 1 "--layout megatron --mesh tp=3" "--layout vllm --mesh tp=2"
	else
		echo "skip $1: pip can't install the reference safetensors library"
	fi
}

synth llama-3-70b 1/8192
synth qwen3-32b 1/4096
synth qwen3-30b-a3b 1/2048
synth deepseek-v3 1/16384
synth gpt-oss-120b 1/4096

and_auto=yes
beside pair "fsdp2 dp=3 to vllm tp=2 (llama)" "$work/llama-3-70b" 1 \
	"--layout fsdp2 --mesh dp=3" "--layout vllm --mesh tp=2"
and_auto=no
beside pair "fsdp2 dp=2,tp=2 to vllm tp=4 with replicated kv heads (qwen3 moe)" "$work/qwen3-30b-a3b" 1 \
	"--layout fsdp2 --mesh dp=2,tp=2" "--layout vllm --mesh tp=4"
beside pair "hsdp 2x2 to two replicas of tp=1 (qwen3)" "$work/qwen3-32b" 2 \
	"--layout fsdp2 --mesh rep=2,dp=2" "--layout vllm --mesh tp=1"
beside pair "megatron tp=2,pp=2,ep=2 (uneven stages) to sglang tp=2,ep=2 (qwen3 moe)" "$work/qwen3-30b-a3b" 1 \
	"--layout megatron --mesh tp=2,pp=2,ep=2,first=1" "--layout sglang --mesh tp=2,ep=2"
beside pair "megatron tp=2 to vllm tp=2 (deepseek: mla, shared experts, f32 bias)" "$work/deepseek-v3" 1 \
	"--layout megatron --mesh tp=2" "--layout vllm --mesh tp=2 --derived"
and_auto=yes
beside pair "float32 masters cast to bf16, inplace, wire digests" "$work/qwen3-30b-a3b" 1 \
	"--layout fsdp2 --mesh dp=3 --dtype f32" "--layout vllm --mesh tp=2 --cast f32:bf16" --inplace --wire-digests
beside pair "fan-out node: what four ranks of a host hold alike arrives once (deepseek)" "$work/deepseek-v3" 1 \
	"--layout fsdp2 --mesh dp=2" "--layout vllm --mesh dp=2,tp=2,ep=4 --derived" --fanout node --ranks-per-node 4 --wire-digests
beside pair "fan-out replica: a chain of three, inplace (qwen3 moe)" "$work/qwen3-30b-a3b" 3 \
	"--layout fsdp2 --mesh dp=2" "--layout vllm --mesh tp=2" --fanout replica --inplace
and_auto=no

beside pair "torchtitan dp=2,ep=2 to sglang with its shared expert in the stack (deepseek)" "$work/deepseek-v3" 1 \
	"--layout torchtitan --mesh dp=2,ep=2" "--layout sglang --mesh tp=2,fuse_shared=1,mtp=none --derived"
beside pair "veomni's fused stacks to tensorrt-llm, up before gate (qwen3 moe)" "$work/qwen3-30b-a3b" 1 \
	"--layout veomni --mesh dp=4,ep=2,fused=1" "--layout trtllm --mesh tp=2"
beside pair "zero3 dp=3 to vllm tp=2, transposed experts in units of 32 (gpt-oss)" "$work/gpt-oss-120b" 1 \
	"--layout zero3 --mesh dp=3" "--layout vllm --mesh tp=2"
python3 -c "
import json
config = json.load(open('$work/qwen3-30b-a3b/config.json'))
experts = config['num_experts']
slots = [[*range(experts), layer % experts, 3] for layer in range(config['num_hidden_layers'])]
json.dump({'map_version': 1, 'physical_to_logical_map': slots}, open('$work/eplb.json', 'w'))"
beside pair "megatron to vllm with redundant experts (qwen3 moe)" "$work/qwen3-30b-a3b" 1 \
	"--layout megatron --mesh tp=1,ep=2" "--layout vllm --mesh tp=2,ep=2 --eplb $work/eplb.json"

beside rows "explicit rows of an unknown framework to vllm tp=2 (qwen3)" "$work/qwen3-32b"
beside tied "row-parallel tp=3 to tp=2, tied embeddings, padded vocabulary (reference safetensors)"
end_all
exit "$failures"
