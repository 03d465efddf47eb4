# SPDX-License-Identifier: Apache-2.0
# The doctor on the two hosts: part of roce.sh, which sources it.
# shellcheck shell=sh disable=SC2154

# What another day or machine would say otherwise becomes N: versions and measures.  Left out are the clock (tsc is a
# matter of the mood), cores and slow pairs.  usage: normal <FILE
normal() {
	awk '
		/^[a-z]/ { shown = $2 != "clock" && $2 != "cores" && $2 != "speed" }
		!shown { next }
		{ gsub(/0000:00:[0-9a-f]+\.[0-9]/, "PCI") }
		$2 == "kernel" { gsub(/6\.[0-9a-z.-]+/, "N") }
		/^  *[0-9]+ / {
			row = " " $1
			for (i = 2; i <= NF; i++)
				row = row " " ($i ~ /[0-9]/ ? "N" : $i)
			$0 = row
		}
		/^  from/ { gsub(/  +/, " ") }
		/^an update/ { sub(/[0-9]+ warnings?/, "N warnings") }
		{ print }'
}

# Both ends of the probe; here is what the one says that listens.
name="doctor between two hosts over verbs: to the letter"
if wanted "$name"; then
	"$ws" keygen -o "$place/doctor.key"
	$boot on -t 60 a "$ws" doctor --listen 10.0.0.1:7009 --key "$place/doctor.key" --transport verbs >"$work/there" 2>&1 &
	there=$!
	$boot on -t 60 b "$ws" doctor --peer 10.0.0.1:7009 --key "$place/doctor.key" --transport verbs >"$work/log" 2>&1
	here=$?
	wait "$there"
	got="$? $here"
	normal <"$work/there" >"$work/two_hosts.txt"
	[ -z "${UPDATE:-}" ] || cp "$work/two_hosts.txt" "$tests/doctor/two_hosts.txt"
	if [ "$got" != "0 0" ]; then
		cat "$work/there" >>"$work/log"
		failed "$name" "status $got" "$work/log" 60
	elif diff -u "$tests/doctor/two_hosts.txt" "$work/two_hosts.txt" >"$work/log"; then
		passed "$name ($(took))"
	else
		failed "$name" "differs" "$work/log" 60
	fi
fi

# doctor_says NAME STATUS PATTERN COMMAND..: on host b; sentences are folded there.
doctor_says() {
	name=$1 want=$2 says=$3
	shift 3
	wanted "$name" || return 0
	$boot on -t 60 b "$@" >"$work/log" 2>&1
	got=$?
	if [ "$got" = "$want" ] && tr -s ' \n' ' ' <"$work/log" | grep -q -e "$says"; then
		passed "$name ($(took))"
	else
		failed "$name" "status $got, expected $want and '$says'" "$work/log" 40
	fi
}

doctor_says "doctor: 8 MiB of memlock are a problem with RDMA devices" 1 "problem memlock only 8 MiB of memory may be locked" \
	setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit --memlock=8388608 "$ws" doctor
$boot on b ip link set eth0 down
doctor_says "doctor: a rail that is down is a warning, the other one is used" 0 \
	"warning nic verbs rxe1/1: .*an update would use ipc host; verbs rxe2/1" "$ws" doctor
$boot on b ip link set eth0 up
