#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# weightsync nics on hosts that aren't here: what a person sees, against tests/topologies/*.txt
# (UPDATE=1 writes them anew); and that make.py writes the files beside it.
. "$(dirname "$0")/lib.sh"
cd "$work" || exit 1
unset OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE LOCAL_RANK LOCAL_WORLD_SIZE SLURM_LOCALID SLURM_NODEID

# shows NAME XML OPTIONS..: the table is the one kept as NAME.txt.
shows() {
	name=$1 xml=$2
	shift 2
	"$ws" nics --topology "$tests/topologies/$xml.xml" "$@" >out 2>&1 || echo "status $?" >>out
	[ -z "${UPDATE:-}" ] || cp out "$tests/topologies/$name.txt"
	if diff -u "$tests/topologies/$name.txt" out >diff; then
		passed "nics on $xml $*"
	else
		failed "nics on $xml $*" "differs" diff 40
	fi
}

shows hgx_gpu2 hgx --gpu 2 --transport verbs
shows p5en p5en --transport fabric
shows one_nic one_nic
shows no_gpu no_gpu
shows bond bond --gpu 0000:03:00.0
shows nothing nested --transport ipc

# refuses 'PATTERN' OPTIONS..
refuses() {
	pattern=$1
	shift
	"$ws" nics "$@" >out 2>&1
	got=$?
	[ "$got" = 1 ] && grep -q -e "$pattern" out && passed "nics $*: $pattern" ||
		failed "nics $*" "status $got, expected 1 and '$pattern'" out
}
hgx=$tests/topologies/hgx.xml
refuses "there is no GPU '8': this host has GPUs 0 to 7" --topology "$hgx" --gpu 8
refuses "there is no GPU '0': this host has none" --topology "$tests/topologies/no_gpu.xml" --gpu 0
refuses "gpu local needs a launcher" --topology "$hgx" --gpu local
refuses "no-such.xml" --topology no-such.xml
head -c 5000 "$hgx" >torn.xml
refuses "'torn.xml' isn't a topology that" --topology torn.xml
refuses "no transport is named 'pigeon'" --transport pigeon
refuses "no transport is named 'pigeon'" --transport pigeon --topology "$hgx"

# is_local GPU VARIABLE=VALUE..: the launcher that says so has this GPU's rank here.
is_local() {
	gpu=$1
	shift
	if env "$@" "$ws" nics --topology "$hgx" --gpu local >out 2>&1 && grep -q "used for GPU $gpu\$" out; then
		passed "nics --gpu local, $*: GPU $gpu"
	else
		failed "nics --gpu local, $*" "isn't for GPU $gpu" out
	fi
}
is_local 2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=8
is_local 5 SLURM_LOCALID=5 SLURM_NODEID=1 'SLURM_STEP_TASKS_PER_NODE=8(x2),4'
is_local 1 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1
is_local 3 LOCAL_RANK=8 LOCAL_WORLD_SIZE=8 SLURM_LOCALID=3 SLURM_STEP_TASKS_PER_NODE=4
LOCAL_RANK=one LOCAL_WORLD_SIZE=8
export LOCAL_RANK LOCAL_WORLD_SIZE
refuses "gpu local needs a launcher" --topology "$hgx" --gpu local
unset LOCAL_RANK LOCAL_WORLD_SIZE

# A rank's own number is its GPU's.
if mpi 3 "$ws" nics --topology "$hgx" --gpu local --json >out 2>log &&
	[ "$(grep '"skipped":""' out | grep -o '"device":"mlx5_[^"]*"' | sort | tr -d '\n')" = \
		'"device":"mlx5_0/1""device":"mlx5_1/1""device":"mlx5_2/1"' ]; then
	passed "nics --gpu local under mpirun: each rank has another NIC"
else
	failed "nics --gpu local under mpirun" "not NICs 0, 1 and 2" out
fi

if python3 -c '
import json, sys
lines = [json.loads(line) for line in sys.stdin]
kinds = [line["kind"] for line in lines]
assert kinds[0] == "host" and kinds.count("gpu") == 8 and kinds.count("nic") == 33, kinds
gpu = lines[8]
assert gpu["gpu"] == 7 and [nic["device"] for nic in gpu["nics"]] == [f"efa/rdmap{i}s0-rdm" for i in range(28, 32)] + \
    ["tcp/ens5"], gpu
assert [nic["distance"] for nic in gpu["nics"]] == 4 * ["same switch"] + ["another socket"], gpu
' <<-END 2>log; then
	$("$ws" nics --topology "$tests/topologies/p5.xml" --json)
	END
	passed "nics --json: host, 8 GPUs, 33 NICs, one object a line"
else
	failed "nics --json" "isn't what it should be" log
fi

mkdir made
python3 "$tests/topologies/make.py" made
for file in "$tests"/topologies/*.xml; do
	cmp -s "$file" "made/$(basename "$file")" || echo "$file"
done >log
[ ! -s log ] && [ "$(ls made | wc -l)" = "$(ls "$tests"/topologies/*.xml | wc -l)" ] &&
	passed "make.py writes the topologies that are tested" || failed "make.py" "writes others" log
exit "$failures"
