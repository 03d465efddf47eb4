#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: simulate.sh [BUILD]
# Does `simulate` predict what `run` then does?  Measures this machine's constants by `bench transfer`,
# predicts plans that differ by 1.5 and more, runs each, and prints both.  Status 1 if the order differs.
set -eu
cd "$(dirname "$0")/.."
build=$PWD/${1:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1
PATH=$build:$PATH
cd "$work"

# The best of seven turns, as the best of five updates is what is compared with; two pairs of processes
# share the machine in each run below, so each has half of what one pair gets.
measure() {
	weightsync bench transfer --json "$@"
}
measure --what stream --bytes 128M >large
measure --what stream --op-bytes 16K --bytes 32M >small
measure --what stream --op-bytes 4K --depth 1 --bytes 2M >single
python3 - >constants.json <<'P'
import json
rate = lambda name: json.load(open(name))["gbytes_per_s_max"] / 2
print(json.dumps({
    "nic_gbps": 8 * rate("large"), "nic_efficiency": 1, "op_ns": 16384 / rate("small"),
    "write_latency_ns": 4096 / rate("single"), "launch_ns": 20000, "hbm_gbytes_s": 4, "control_ns": 2e6}))
P
echo "constants: $(cat constants.json)"

weightsync synth --model llama-3-70b --scale 1/512 -o once >/dev/null 2>&1
weightsync synth --model llama-3-70b --scale 1/128 -o more >/dev/null 2>&1
for model in once more; do
	weightsync manifest --model $model --side trainer --layout megatron --mesh tp=2 -o $model.T2.json
	weightsync manifest --model $model --side rollout --layout vllm --mesh tp=2 -o $model.R2.json
done

# plan NAME MODEL OPTIONS..: the least of five updates, the first one (pages are touched) not counted.
plan() {
	name=$1 model=$2
	shift 2
	predicted=$(weightsync simulate $model.T2.json $model.R2.json --constants constants.json --ranks-per-node 1 --json "$@" |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["predicted_s"])')
	mpirun --allow-run-as-root --oversubscribe -n 4 weightsync run --trainer $model.T2.json --rollout $model.R2.json \
		--checkpoint $model --updates 6 --json "$@" >log 2>err || { cat err; exit 1; }
	measured=$(python3 -c '
import json
print(min(json.loads(line)["phases"]["landed"] for line in open("log") if line.startswith("{") and "\"version\":1," not in line))')
	printf '%s %s %s\n' "$predicted" "$measured" "$name" >>results
}
plan "222 MB in writes of 1 MiB" once
plan "889 MB in writes of 1 MiB" more
plan "222 MB in writes of 8 KiB" once --op-bytes 8K

python3 - <<'P'
rows = [line.rstrip("\n").split(" ", 2) for line in open("results")]
rows = sorted((float(predicted), float(measured), name) for predicted, measured, name in rows)
print(f"{'predicted s':>12} {'measured s':>11} {'ratio':>6}  plan")
for predicted, measured, name in rows:
    print(f"{predicted:12.3f} {measured:11.3f} {predicted / measured:6.2f}  {name}")
far = all(b[0] >= 1.5 * a[0] for a, b in zip(rows, rows[1:]))
same = all(b[1] > a[1] for a, b in zip(rows, rows[1:]))
print("predictions differ by 1.5 and more:", far, " the same order when run:", same)
raise SystemExit(0 if far and same else 1)
P
