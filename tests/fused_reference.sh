#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Per tensor, all that a param fuses is under one scale: what two trainers, each with some rows of every tensor, leave
# with the two ranks of an engine, against numpy with ml_dtypes (pip, in a venv under build/), which knows nothing of
# manifests and plans.
. "$(dirname "$0")/lib.sh"
. "$tests/update_lib.sh"

# prepare MODEL SHARE LAYOUT: a checkpoint, manifests, a key
prepare() {
	"$ws" synth --model "$1" --scale "$2" -o trained &&
		"$python" "$tests/fused_reference.py" unlike . &&
		"$ws" manifest --model trained --side trainer --layout fsdp2 --mesh dp=2 -o T.json &&
		"$ws" manifest --model trained --side rollout --layout "$3" --mesh tp=2 --quant fp8-tensor -o R.json &&
		"$ws" keygen -o key
}

# One version; the engine's ranks write what they have into rank0.safetensors and rank1.safetensors.
push() {
	timeout 60 "$ws" hub --key key --trainers 2 --replica-ranks 2 >hub &
	started=$!
	until [ -s hub ] || ! kill -0 $started; do sleep 0.05; done
	for rank in 0 1; do
		timeout 60 "$ws" serve --hub "$(cat hub)" --key key --rollout R.json --rank $rank --world 2 --dump safetensors &
		started="$started $!"
	done
	for rank in 1 0; do
		timeout 60 "$ws" push --hub "$(cat hub)" --key key --trainer T.json --checkpoint trained --rank $rank --world 2 &
		pushing=$!
	done
	wait $pushing
	status=$?
	# shellcheck disable=SC2086
	kill $started
	return $status
}

# fused TITLE MODEL SHARE LAYOUT
fused() {
	title=$1
	shift
	cd "$work" || exit
	if ! { prepare "$@" && push; } >log 2>&1; then
		failed "$title" "nothing was pushed" log
	elif "$python" "$tests/fused_reference.py" check . >said 2>wrong; then
		passed "$title: $(cat said)"
	else
		failed "$title" "numpy has another result" wrong
	fi
}

if ! reference_python numpy ml_dtypes; then
	echo "skip fused_reference: numpy and ml_dtypes can't be installed (python3-venv and pip are needed)"
	exit 77
fi
beside fused "one scale for what vllm fuses of qwen3-30b-a3b" qwen3-30b-a3b 1/8192 vllm
beside fused "one scale for what sglang fuses of kimi-k2" kimi-k2 1/262144 sglang
end_all
exit "$failures"
