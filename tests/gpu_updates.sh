#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whole updates with params on GPUs, or in pinned memory, verified byte for byte.  On a machine without a GPU it fails.
. "$(dirname "$0")/lib.sh"
. "$tests/update_lib.sh"

# update TITLE TRAINER ROLLOUT [RUN OPTIONS..]: with the trainer's and the rollout's options
update() {
	title=$1 trainer=$2 rollout=$3
	shift 3
	manifests "$title" "$checkpoint" "$trainer" "$rollout" && make_plan "$title" 1 || return
	run_over "$title" "$checkpoint" 1 ipc "$@"
}

synth qwen3-30b-a3b 1/512
synth kimi-k2 1/262144
checkpoint=$work/qwen3-30b-a3b
fsdp="--layout fsdp2 --mesh dp=2" tp="--layout vllm --mesh tp=2"
update "bf16, GPU to GPU, double" "$fsdp" "$tp" --trainer-memory cuda --rollout-memory cuda
update "bf16, GPU to GPU, in place" "$fsdp" "$tp" --trainer-memory cuda --rollout-memory cuda --inplace
update "bf16, all on one GPU" "$fsdp" "$tp" --trainer-memory cuda:0 --rollout-memory cuda:0
update "bf16, host to GPU" "$fsdp" "$tp" --rollout-memory cuda
update "bf16, pinned host to GPU" "$fsdp" "$tp" --trainer-memory pinned --rollout-memory cuda --inplace
update "bf16, offloaded to GPU" "$fsdp" "$tp" --trainer-memory offload --rollout-memory cuda --inplace
update "f32 cast to bf16, offloaded" "$fsdp --dtype f32" "$tp --cast f32:bf16" --trainer-memory offload --rollout-memory cuda
update "f32 cast to bf16, offloaded, small ring" "$fsdp --dtype f32" "$tp --cast f32:bf16" --trainer-memory offload \
	--offload-bytes 256K --rollout-memory cuda
update "bf16, GPU to host" "$fsdp" "$tp" --trainer-memory cuda
update "f32 cast to bf16 on a GPU" "$fsdp --dtype f32" "$tp --cast f32:bf16" --trainer-memory cuda --rollout-memory cuda
for scheme in fp8-block fp8-block-ue8m0 fp8-channel fp8-tensor; do
	update "$scheme, GPU to GPU" "$fsdp" "$tp --quant $scheme" --trainer-memory cuda --rollout-memory cuda
	update "$scheme, offloaded" "$fsdp" "$tp --quant $scheme" --trainer-memory offload --rollout-memory cuda
done
update "fp8-block of flat ranges, in place" "--layout zero3 --mesh dp=3" "$tp --quant fp8-block" \
	--trainer-memory cuda --rollout-memory cuda --inplace
update "fp8-block, small staging" "--layout megatron --mesh tp=2" "--layout sglang --mesh tp=2,ep=2 --quant fp8-block" \
	--trainer-memory cuda --rollout-memory cuda --staging-bytes 2M --recv-staging-bytes 4M
update "fp8-block, offloaded, to hosts" "--layout zero3 --mesh dp=3" "$tp --quant fp8-block" --trainer-memory offload --offload-bytes 1M
checkpoint=$work/kimi-k2
for quant in "" "--quant fp8-block"; do
	update "MLA absorbed by a post step${quant:+, of FP8}" "$fsdp" "$tp --derived $quant" --trainer-memory cuda --rollout-memory cuda
	update "MLA absorbed by a post step, in place${quant:+, of FP8}" "$fsdp" "--layout sglang --mesh tp=2 --derived $quant" \
		--trainer-memory cuda --rollout-memory cuda --inplace
done
exit "$failures"
