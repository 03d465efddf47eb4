#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# weightsync doctor: the whole output for hosts that are trees of files, against tests/doctor/*.txt
# (UPDATE=1 writes them anew); what must hold on this host, whatever it is; the probe among
# processes, and what it says of what is broken on purpose.
# usage: doctor.sh [BUILD [PATTERN]]      PATTERN: only the tests whose name contains it
. "$(dirname "$0")/lib.sh"
cd "$work" || exit 1
export TMPDIR="$work"

# put TREE PATH TEXT..: a file of that tree, a line for each text.
put() {
	tree=$1 path=$2
	shift 2
	mkdir -p "$tree$(dirname "$path")"
	printf '%s\n' "$@" >"$tree$path"
}

limits() {
	put "$1" /proc/self/limits 'Limit                     Soft Limit           Hard Limit           Units' \
		"Max open files            $2                 $3              files" \
		"Max locked memory         $4             $4             bytes"
}

# What every tree has: a usual server, nothing to complain about.
host() {
	put "$1" /proc/sys/kernel/osrelease 6.1.0-25-amd64
	put "$1" /proc/self/status 'Name:	weightsync' 'CapEff:	0000000000000000' 'Seccomp:	0' 'Cpus_allowed_list:	0-15'
	put "$1" /proc/self/uid_map '         0          0 4294967295'
	put "$1" /proc/self/mounts 'tmpfs /dev/shm tmpfs rw,nosuid,nodev,size=131072000k 0 0'
	put "$1" /sys/kernel/mm/transparent_hugepage/enabled 'always [madvise] never'
	put "$1" /sys/kernel/mm/transparent_hugepage/shmem_enabled 'always within_size [advise] never deny force'
	put "$1" /sys/devices/system/clocksource/clocksource0/current_clocksource tsc
	limits "$1" 65536 65536 unlimited
}

# rdma TREE DEVICE DRIVER FIRMWARE NUMBER: an RDMA device with its file.
rdma() {
	put "$1" "/sys/class/infiniband/$2/fw_ver" "$4"
	mkdir -p "$1/sys/class/infiniband/$2/device" "$1/dev/infiniband"
	ln -s "../../../bus/pci/drivers/$3" "$1/sys/class/infiniband/$2/device/driver"
	: >"$1/dev/infiniband/uverbs$5"
}

card() {
	put "$1" "/sys/bus/pci/devices/$2/vendor" "$3"
	put "$1" "/sys/bus/pci/devices/$2/device" "$4"
	put "$1" "/sys/bus/pci/devices/$2/class" "$5"
}

# A workstation: no RDMA, a distribution's limits.
host plain
limits plain 1024 1048576 8388608
put plain /sys/kernel/mm/transparent_hugepage/shmem_enabled 'always within_size advise [never] deny force'

# A server as it should be: eight GPUs, two NICs.
host server
rdma server mlx5_0 mlx5_core 28.39.1002 0
rdma server mlx5_1 mlx5_core 28.39.1002 1
put server /proc/driver/nvidia/version 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build'
put server /sys/module/mlx5_core/version 24.10-1.1.4
put server /sys/module/nvidia_peermem/version 570.86.15
for gpu in 0 1 2 3 4 5 6 7; do put server "/dev/nvidia$gpu" ''; done

# The same server, seen from a container that was started without thought.
host container
limits container 1024 1024 8388608
put container /proc/self/status 'CapEff:	00000000a80425fb' 'Seccomp:	2' 'Cpus_allowed_list:	3'
put container /proc/self/mounts 'shm /dev/shm tmpfs rw,size=65536k 0 0'
rdma container mlx5_0 mlx5_core 28.39.1002 0
rm -r container/dev/infiniband
put container /proc/driver/nvidia/version 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build'

# An old host whose card's driver isn't loaded.
host old
put old /proc/sys/kernel/osrelease 4.18.0-553.el8.x86_64
put old /sys/devices/system/clocksource/clocksource0/current_clocksource hpet
card old 0000:18:00.0 0x15b3 0x1021 0x020700
card old 0000:00:1f.0 0x8086 0x7a04 0x060100
put old /dev/nvidia0 ''
rm old/sys/kernel/mm/transparent_hugepage/shmem_enabled

# What this build lacks isn't the host's: that finding is taken out of what doctor said, and of its sum.
without_cuda() {
	awk '/^warning  gpu +this build has no CUDA$/ { left = lines = 3 } left-- > 0 { next }
		lines && /^an update would work: 0 problems, [0-9]+ warning/ { n = $7 - 1; print $1, $2, $3, $4, $5, $6, n, "warning" (n == 1 ? "" : "s"); next }
		{ print }'
}

# snapshot STATUS TREE [OPTION..]: the whole output, to the letter.
snapshot() {
	want=$1 tree=$2 name=$2${3:+.${3#--}}
	shift
	shift
	wanted "doctor of $name" || return 0
	env -i "$ws" doctor --root "$tree" "$@" >said 2>&1
	got=$?
	without_cuda <said >"$name.txt"
	[ -z "${UPDATE:-}" ] || cp "$name.txt" "$tests/doctor/$name.txt"
	if [ "$got" != "$want" ]; then
		failed "doctor of $name" "status $got, expected $want" "$name.txt"
	elif diff -u "$tests/doctor/$name.txt" "$name.txt" >diff 2>&1; then
		passed "doctor of $name: to the letter, status $want"
	else
		failed "doctor of $name" "differs" diff 40
	fi
}

snapshot 0 plain
snapshot 0 server
snapshot 1 container
snapshot 1 container --json
snapshot 0 old

# says STATUS 'SENTENCE' COMMAND..: the command ends so, and says so.
says() {
	want=$1 sentence=$2
	shift 2
	wanted "$*" || return 0
	timeout 100 "$@" >out 2>&1 </dev/null
	got=$?
	if [ "$got" != "$want" ]; then
		failed "$*" "status $got, expected $want" out 30
	elif ! grep -q -e "$sentence" out; then
		failed "$*" "doesn't say '$sentence'" out 30
	else
		passed "$*: $want, $sentence"
	fi
}

says 2 "go together" "$ws" doctor --rank 1
says 2 "listen is for one host" "$ws" doctor --listen a:1 --peer b:1 --key k
says 2 "key is needed: make one with keygen" "$ws" doctor --peer 127.0.0.1:1
says 2 "looks at files only" "$ws" doctor --root plain --rank 0 --world 2
says 2 "there is no /nowhere/proc" "$ws" doctor --root /nowhere
says 2 "gpu local needs a launcher .* and this shell doesn't" "$ws" doctor --gpu local
says 1 "no transport is named 'vebs'" "$ws" doctor --transport vebs
says 1 "no interface of this host" "$ws" doctor --nics 203.0.113.7
says 0 "ok *launcher *torchrun: 1 rank$" env RANK=0 WORLD_SIZE=1 "$ws" doctor --nics 127.0.0.1
says 0 "warning *launcher *RANK is set, but WORLD_SIZE isn't" env RANK=0 "$ws" doctor --nics 127.0.0.1
says 1 "problem *launcher .*torchrun says rank 1 of 2" env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3 RANK=1 \
	WORLD_SIZE=2 "$ws" doctor --nics 127.0.0.1

# This host, whatever it is: an update over loopback works here, or these tests wouldn't.
if wanted "doctor --json here"; then
	"$ws" doctor --nics 127.0.0.1 --json >live.json 2>out &&
		python3 - live.json 2>>out <<'P' && passed "doctor --json here: each area, each finding whole" ||
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
findings = [line for line in lines if line["kind"] == "finding"]
areas = {finding["area"] for finding in findings}
assert {"kernel", "cores", "memlock", "files", "hugepages", "shm", "rdma", "gpu", "cma", "launcher", "nic",
        "transport"} <= areas, areas
for finding in findings:
    assert finding["level"] in ("ok", "note", "warning"), finding
    assert finding["what"], finding
    assert (finding["level"] == "ok") == (not finding["why"]) == (not finding["fix"]), finding
assert lines[-1] == {"kind": "verdict", "update_would_work": True, "problems": 0,
                     "warnings": sum(finding["level"] == "warning" for finding in findings)}, lines[-1]
P
		failed "doctor --json here" "no" out
fi

# Among processes of this host.
probe() {
	wanted "doctor $2 among $1" || return 0
	mpi "$1" "$ws" doctor --json --start-deadline 20s $2 >probe.json 2>out
	got=$?
	[ "$got" = 0 ] && python3 - probe.json "$1" "$3" 2>>out <<'P' && passed "doctor $2 among $1: every pair, $3 rails" ||
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
world, rails = int(sys.argv[2]), int(sys.argv[3])
pairs = {(line["from"], line["to"], line["rail"]): line for line in lines if line["kind"] == "pair"}
assert set(pairs) == {(a, b, r) for a in range(world) for b in range(world) for r in range(rails) if a != b}, pairs
for pair in pairs.values():
    assert pair["good"] and 0 < pair["p50_us"] <= pair["p99_us"] and pair["gb_per_s"] > 0, pair
ranks = [line for line in lines if line["kind"] == "rank"]
assert [rank["rank"] for rank in ranks] == list(range(world))
if world > 2:
    assert all(rank["all_to_all_gb_per_s"] > 0 and rank["incast_gb_per_s"] > 0 for rank in ranks), ranks
assert lines[-1]["update_would_work"]
P
		failed "doctor $2 among $1" "status $got" out 20
}

probe 2 "--transport fabric --nics 127.0.0.1,127.0.0.2" 2
probe 3 "--transport fabric --nics 127.0.0.1" 1
probe 3 "--nics 127.0.0.1" 1

# Two hosts, as it were; one of them is broken by a rule.
"$ws" keygen -o key
port=20000
broken() {
	name=$1 rule=$2 sentence=$3 deadline=$4 port=$((port + 1))
	wanted "doctor finds a NIC that $name" || return 0
	timeout 60 "$ws" doctor --listen "$own_address:$port" --key key --transport fault --deadline "$deadline" \
		--nics "$rule:fabric:tcp/127.0.0.1" >there 2>&1 &
	there=$!
	timeout 60 "$ws" doctor --peer "$own_address:$port" --key key --transport fault --deadline "$deadline" \
		--nics ":fabric:tcp/127.0.0.1" >here 2>&1
	here=$?
	wait "$there"
	got=$?
	# Sentences are folded.
	if [ "$here $got" = "1 1" ] && tr -s ' \n' ' ' <there | grep -q -e "problem probe rank 0 .* to rank 1 .*: $sentence"; then
		passed "doctor finds a NIC that $name"
	else
		failed "doctor finds a NIC that $name" "status $here here, $got there" there 40
	fi
}
broken "loses a write" drop_nth=2 "the answer .* in time; there: a write .* in time" 4s
broken "changes a byte" corrupt_nth=3 "a write of 65536 bytes has other content from byte" 30s
broken "writes a half only" cut_nth=4 "a write of 1048576 bytes has other content from byte 524288" 30s
broken "fails" fail_nth=9 "a write on .* failed: " 30s
broken "gives an immediate twice" dup_nth=2 "immediate 0x80000001 came" 30s

if wanted "doctor names the rank that doesn't come"; then
	timeout 60 "$ws" doctor --listen "$own_address:$port" --key key --nics 127.0.0.1 --start-deadline 1s >there 2>&1
	[ $? = 1 ] && tr -s ' \n' ' ' <there | grep -q "of 2 ranks these haven't come: 1; do they run" &&
		passed "doctor names the rank that doesn't come" || failed "doctor names the rank that doesn't come" "no" there
fi
if wanted "doctor says that the key is another"; then
	"$ws" keygen -o other
	"$ws" doctor --listen "$own_address:$port" --key key --nics 127.0.0.1 --start-deadline 60s >there 2>&1 &
	there=$!
	timeout 60 "$ws" doctor --peer "$own_address:$port" --key other --nics 127.0.0.1 --start-deadline 50s >here 2>&1
	[ $? = 1 ] && grep -q "key" here && passed "doctor says that the key is another" ||
		failed "doctor says that the key is another" "no" here
	kill "$there"
	wait
fi

# A rank that dies in mid probe: the others say who, in time.  A write that is lost holds the first step up meanwhile.
if wanted "doctor names the rank that died"; then
	for rank in 0 1 2; do
		rule=
		[ "$rank" != 0 ] || rule=drop_nth=1
		"$ws" doctor --rank "$rank" --world 3 --job dies --transport fault --nics "$rule:fabric:tcp/127.0.0.1" \
			--start-deadline 20s --deadline 8s >"rank$rank" 2>&1 &
		eval "pid$rank=$!"
	done
	for _ in $(seq 300); do
		! ls "$work"/weightsync-*dies/hub >/dev/null 2>&1 || break
		sleep 0.1
	done
	sleep 1
	# shellcheck disable=SC2154
	kill -9 "$pid2"
	# shellcheck disable=SC2154
	wait "$pid0"
	[ $? = 1 ] && tr -s ' \n' ' ' <rank0 | grep -q -E "of 3 ranks these (said nothing any more|haven't come): 2;" &&
		passed "doctor names the rank that died" || failed "doctor names the rank that died" "no" rank0 30
	wait
fi

# catches PID: whether it has a handler for SIGTERM; a shell that is about to become it has one, too.
catches() {
	[ "$(cat "/proc/$1/comm")" = weightsync ] || return 1
	mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status")
	[ $((0x${mask:-0} >> 14 & 1)) = 1 ]
}

# A signal while it waits for others: rank 0 has a folder to remove, the others none.
for rank in 0 1; do
	wanted "doctor ends by a signal, rank $rank" || continue
	"$ws" doctor --rank "$rank" --world 3 --job "signal$rank" --nics 127.0.0.1 --start-deadline 60s >there 2>&1 &
	signalled=$!
	for _ in $(seq 300); do
		if catches $signalled && { [ $rank = 1 ] || ls "$work"/weightsync-*signal0/hub >/dev/null 2>&1; }; then break; fi
		sleep 0.1
	done
	kill "$signalled"
	wait "$signalled"
	[ $? = 1 ] && grep -q "stopped by a signal" there && passed "doctor ends by a signal, rank $rank" ||
		failed "doctor ends by a signal, rank $rank" "no" there
done
if wanted "doctor leaves no folder behind"; then
	[ -z "$(ls -d "$work"/weightsync-* 2>/dev/null)" ] && passed "doctor leaves no folder behind" ||
		failed "doctor leaves no folder behind" "$(ls -d "$work"/weightsync-*)"
fi
[ "$failures" = 0 ]
