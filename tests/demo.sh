#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: demo.sh BUILD/weightsync [CHECKPOINT]
# make demo: 3 trainer ranks (FSDP2, so uneven shards) to 2 replicas of tensor parallel 2, under
# mpirun on this machine, 3 versions, every byte verified.
set -eu
weightsync=$1
checkpoint=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1

if [ -z "$checkpoint" ]; then
	checkpoint=$work/qwen3-30b-a3b
	"$weightsync" synth --model qwen3-30b-a3b --scale 1/512 -o "$checkpoint"
fi
"$weightsync" manifest --model "$checkpoint" --side trainer --layout fsdp2 --mesh dp=3 -o "$work/T.json"
"$weightsync" manifest --model "$checkpoint" --side rollout --layout vllm --mesh tp=2 -o "$work/R.json"
"$weightsync" plan "$work/T.json" "$work/R.json" --replicas 2
as_root=
[ "$(id -u)" != 0 ] || as_root=--allow-run-as-root
mpirun $as_root --oversubscribe --bind-to none -n 7 "$weightsync" run --trainer "$work/T.json" \
	--rollout "$work/R.json" --replicas 2 --checkpoint "$checkpoint" --updates 3 --verify
