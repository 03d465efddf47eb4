#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whole updates with params on GPUs, or in pinned memory, verified byte for byte.  On a machine without a GPU it fails.
# usage: [JOBS=N] gpu_updates.sh [BUILD [PATTERN]]      PATTERN: only the tests whose title contains it
. "$(dirname "$0")/lib.sh"
: "${JOBS:=6}" # most of a test is CUDA's start
. "$tests/update_lib.sh"

# update TITLE TRAINER ROLLOUT [RUN OPTIONS..]: with the trainer's and the rollout's options
update() {
	title=$1 trainer=$2 rollout=$3
	shift 3
	manifests "$title" "$checkpoint" "$trainer" "$rollout" && make_plan "$title" 1 || return
	run_over "$title" "$checkpoint" 1 ipc "$@"
}

# fails TITLE SENTENCE RUN OPTIONS..: a job that can't be ends soon, and says why
fails() {
	title=$1 sentence=$2
	shift 2
	manifests "$title" "$checkpoint" "$fsdp" "$tp --quant fp8-block" || return
	if mpi 4 "$ws" run --trainer "$work/T.json" --rollout "$work/R.json" --checkpoint "$checkpoint" "$@" >"$work/out" 2>"$work/log"; then
		failed "$title" "it went well"
	elif grep -q "$sentence" "$work/log"; then
		passed "$title"
	else
		failed "$title" "it doesn't say '$sentence'" "$work/log"
	fi
}

# many TITLE [BENCH OPTIONS..]: 1,000 updates, after which a GPU has no more of its memory taken than before
many() {
	title=$1
	shift
	if ! CUDA_VISIBLE_DEVICES=0 timeout 600 "$ws" bench update --alone --shape llama-3-70b --scale 16384 --rounds 1000 --json \
		"$@" >"$work/out" 2>"$work/log"; then
		failed "$title" "the bench failed" "$work/log"
	elif grep -Eq '"gpu_bytes_grown":(-[0-9]+|[0-9]{1,6}),' "$work/out"; then
		passed "$title"
	else
		failed "$title" "GPU memory has grown" "$work/out"
	fi
}

# So many more than there are, in 30 s.
wait_for_versions() {
	wanted=$(($(wc -l <"$work/out") + $1))
	for _ in $(seq 100); do
		[ "$(wc -l <"$work/out")" -lt "$wanted" ] || return 0
		sleep 0.3
	done
	return 1
}

# peer_dies TITLE MEMORY: one of two replicas dies in the middle of many updates, while the trainer has its GPU's
# memory mapped: the other one goes on.
peer_dies() {
	title=$1 memory=$2 endless=100000
	manifests "$title" "$checkpoint" "--layout fsdp2 --mesh dp=1" "--layout vllm --mesh tp=1" && "$ws" keygen -o "$work/key" || return
	"$ws" hub --key "$work/key" --trainers 1 --replica-ranks 1 >"$work/hub" 2>"$work/log" &
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		[ -s "$work/hub" ] && break
		sleep 0.3
	done
	started=$!
	for replica in 0 1; do
		"$ws" serve --hub "$(cat "$work/hub")" --key "$work/key" --rollout "$work/R.json" --replica $replica --rank 0 --world 1 \
			--memory "$memory" 2>"$work/serve$replica" &
		dying=$!
		started="$started $dying"
	done
	: >"$work/out"
	timeout 120 "$ws" push --hub "$(cat "$work/hub")" --key "$work/key" --trainer "$work/T.json" --checkpoint "$checkpoint" \
		--rank 0 --world 1 --memory "$memory" --updates $endless --keep-going --json >"$work/out" 2>"$work/push" &
	pushing=$!
	wait_for_versions 20 && kill -9 "$dying" && wait_for_versions 40
	said=$?
	# shellcheck disable=SC2086
	kill $pushing $started 2>/dev/null
	wait $pushing
	if [ $said != 0 ]; then
		failed "$title" "no further version went live in 30 s" "$work/push"
	else
		passed "$title"
	fi
}

synth qwen3-30b-a3b 1/512
synth kimi-k2 1/262144
checkpoint=$work/qwen3-30b-a3b
fsdp="--layout fsdp2 --mesh dp=2" tp="--layout vllm --mesh tp=2"
beside update "bf16, GPU to GPU, double" "$fsdp" "$tp" --trainer-memory cuda --rollout-memory cuda
beside update "bf16, GPU to GPU, in place" "$fsdp" "$tp" --trainer-memory cuda --rollout-memory cuda --inplace
beside update "bf16, all on one GPU" "$fsdp" "$tp" --trainer-memory cuda:0 --rollout-memory cuda:0
beside update "bf16, host to GPU" "$fsdp" "$tp" --rollout-memory cuda
beside update "bf16, pinned host to GPU" "$fsdp" "$tp" --trainer-memory pinned --rollout-memory cuda --inplace
beside update "bf16, offloaded to GPU" "$fsdp" "$tp" --trainer-memory offload --rollout-memory cuda --inplace
beside update "f32 cast to bf16, offloaded" "$fsdp --dtype f32" "$tp --cast f32:bf16" --trainer-memory offload --rollout-memory cuda
beside update "f32 cast to bf16, offloaded, small ring" "$fsdp --dtype f32" "$tp --cast f32:bf16" --trainer-memory offload \
	--offload-bytes 256K --rollout-memory cuda
beside update "bf16, GPU to host" "$fsdp" "$tp" --trainer-memory cuda
beside update "f32 cast to bf16 on a GPU" "$fsdp --dtype f32" "$tp --cast f32:bf16" --trainer-memory cuda --rollout-memory cuda
for scheme in fp8-block fp8-block-ue8m0 fp8-channel fp8-tensor; do
	beside update "$scheme, GPU to GPU" "$fsdp" "$tp --quant $scheme" --trainer-memory cuda --rollout-memory cuda
	beside update "$scheme, offloaded" "$fsdp" "$tp --quant $scheme" --trainer-memory offload --rollout-memory cuda
done
beside update "fp8-block of flat ranges, in place" "--layout zero3 --mesh dp=3" "$tp --quant fp8-block" \
	--trainer-memory cuda --rollout-memory cuda --inplace
beside update "fp8-block, small staging" "--layout megatron --mesh tp=2" "--layout sglang --mesh tp=2,ep=2 --quant fp8-block" \
	--trainer-memory cuda --rollout-memory cuda --staging-bytes 2M --recv-staging-bytes 4M
beside update "fp8-block, offloaded, to hosts" "--layout zero3 --mesh dp=3" "$tp --quant fp8-block" --trainer-memory offload --offload-bytes 1M
checkpoint=$work/kimi-k2
for quant in "" "--quant fp8-block"; do
	beside update "MLA absorbed by a post step${quant:+, of FP8}" "$fsdp" "$tp --derived $quant" --trainer-memory cuda --rollout-memory cuda
	beside update "MLA absorbed by a post step, in place${quant:+, of FP8}" "$fsdp" "--layout sglang --mesh tp=2 --derived $quant" \
		--trainer-memory cuda --rollout-memory cuda --inplace
done
checkpoint=$work/qwen3-30b-a3b
beside fails "staging that no GPU has is refused" 'no [0-9]* bytes on GPU' --trainer-memory cuda --rollout-memory cuda --staging-bytes 900G
beside fails "a ring that no GPU has is refused" 'no [0-9]* bytes on GPU' --trainer-memory offload --offload-bytes 900G --rollout-memory cuda
alone many "1,000 updates leave a GPU's memory as it was, BF16"
alone many "1,000 updates leave a GPU's memory as it was, offloaded to FP8" --offload --quant fp8-block
alone peer_dies "a replica on a GPU dies, the other goes on" cuda:0
end_all
exit "$failures"
