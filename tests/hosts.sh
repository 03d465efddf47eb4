#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two hosts with two rails, played by network namespaces: what of a network is wrong before a run begins.
# usage: hosts.sh [BUILD [PATTERN]]      PATTERN: only the scenarios whose name contains it
. "$(dirname "$0")/lib.sh"

if [ -z "${WS_OWN_NET:-}" ]; then
	if ! unshare -n -m mount -t sysfs sysfs /sys 2>/dev/null; then
		echo "skip EVERYTHING between two hosts of namespaces: they need root"
		exit 0
	fi
	trap - EXIT
	rm -rf "$work"
	WS_OWN_NET=1 exec unshare -n -m sh "$0" "$@"
fi

# ---- host a is this process's namespaces, host b those of a process that sleeps
mount -t sysfs sysfs /sys
unshare -n -m sh -c 'mount -t sysfs sysfs /sys && : >"$1" && exec sleep 600' sh "$work/b" &
other=$!
trap 'kill $other; end_test' EXIT
until [ -e "$work/b" ]; do sleep 0.05; done

on() {
	host=$1
	shift
	if [ "$host" = a ]; then "$@"; else nsenter -t $other -n -m "$@"; fi
}

# Rail 1 is a cable; rail 2 has a switch in the middle, whose port to b can be taken out.
ip link add rail1 type veth peer name rail1 netns $other
ip link add switch type bridge
ip link add rail2 type veth peer name port-a
ip link add port-b type veth peer name rail2 netns $other
for link in port-a port-b; do ip link set $link master switch up; done
ip link set switch up
for rail in 1 2; do
	on a ip addr add 10.7.$rail.1/24 dev rail$rail
	on b ip addr add 10.7.$rail.2/24 dev rail$rail
done
for host in a b; do
	for link in lo rail1 rail2; do on $host ip link set $link up; done
	# Docker's bridge and a container's interface: the same addresses on each host.
	on $host ip link add docker0 type bridge
	on $host ip addr add 172.17.0.1/16 dev docker0
	on $host ip link add inside type veth peer name container
	on $host ip link set inside master docker0
	for link in docker0 inside container; do on $host ip link set $link up; done
done

# The kernel may take a second to say that a link is up; a rank that begins before has one rail less.
for host in a b; do
	for rail in 1 2; do
		for _ in $(seq 200); do
			[ "$(on $host cat /sys/class/net/rail$rail/operstate)" != up ] || break
			sleep 0.05
		done
	done
done

"$ws" synth --model qwen3-30b-a3b --scale 1/4096 -o "$work/model" 2>"$work/log" &&
	"$ws" manifest --model "$work/model" --side trainer --layout fsdp2 --mesh dp=2 -o "$work/T.json" &&
	"$ws" manifest --model "$work/model" --side rollout --layout vllm --mesh tp=2 -o "$work/R.json" &&
	"$ws" keygen -o "$work/key" || {
	failed "hosts" "nothing to run" "$work/log"
	exit 1
}

# job OPTIONS..: trainers on a, rollouts on b; true if all end well; what rank N said is in $work/N.
job() {
	pids=
	for rank in 0 1 2 3; do
		if [ $rank -lt 2 ]; then host=a nics=$on_a; else host=b nics=$on_b; fi
		# shellcheck disable=SC2086
		RANK=$rank WORLD_SIZE=4 on $host timeout -k 5 60 "$ws" run --trainer "$work/T.json" --rollout "$work/R.json" \
			--checkpoint "$work/model" --updates 2 --verify --hub tcp://10.7.1.1:7000 --key "$work/key" \
			--transport fabric $nics "$@" >"$work/$rank" 2>&1 &
		pids="$pids $!"
	done
	ended=0
	for pid in $pids; do wait "$pid" || ended=1; done
	cat "$work/0" "$work/1" "$work/2" "$work/3" >"$work/all"
	return $ended
}

# scenario NAME: whether it is asked for; its name is in $name.
scenario() {
	name=$1 on_a= on_b=
	wanted "$name"
}

# says RANK TEXT..
says() {
	said=$work/$1
	shift
	for text; do
		grep -qF -- "$text" "$said" || {
			failed "$name" "rank ${said##*/} doesn't say '$text'" "$work/all" 60
			return 1
		}
	done
}

# ends_well RANK TEXT..: the job that has ended did so, and that rank says these.
ends_well() {
	if [ $ended != 0 ]; then
		failed "$name" "a rank failed" "$work/all" 40
	elif says "$@"; then
		passed "$name"
	fi
}

if scenario "a bridge inside each host, like Docker's, is no rail; rails that aren't joined crosswise are"; then
	job
	ends_well 0 "trainer 0: NICs: fabric tcp/10.7.1.1, tcp/10.7.2.1" "every byte verified" \
		"over fabric tcp 10.7.1.1 (2 connections)" "over fabric tcp 10.7.2.1 (2 connections)"
fi

if scenario "a rail that one host hasn't got: the other one carries everything, and both say what they have"; then
	on b ip addr del 10.7.2.2/24 dev rail2
	job
	ends_well 0 "trainer 0: NICs: fabric tcp/10.7.1.1, tcp/10.7.2.1" "every byte verified" "0 B over fabric tcp 10.7.2.1 (0 connections)" &&
		says 2 "rollout 0.0: NICs: fabric tcp/10.7.1.2"
	on b ip addr add 10.7.2.2/24 dev rail2
fi

if scenario "a switch drops everything and doesn't, in turns, while they meet: every byte arrives"; then
	on_a="--nics 10.7.1.1,10.7.2.1" on_b="--nics 10.7.1.2,10.7.2.2"
	rm -f "$work"/[0-3]
	{
		for _ in $(seq 600); do
			[ "$(grep -ls NICs: "$work"/[0-3] | wc -l)" -lt 4 ] || break
			sleep 0.05
		done
		for _ in 1 2 3 4 5 6 7 8 9 10; do
			ip link set port-b nomaster
			sleep 0.2
			ip link set port-b master switch
			sleep 0.2
		done
	} &
	flaps=$!
	job
	wait $flaps
	ends_well 0 "every byte verified"
fi

if scenario "nobody answers on the only rail: the push ends in time and names who"; then
	on_a="--nics 10.7.2.1" on_b="--nics 10.7.2.2"
	ip neigh replace 10.7.2.2 lladdr 02:00:00:00:00:99 dev rail2 nud permanent # what is sent there is dropped
	if job || grep -q "within 60" "$work/all"; then
		failed "$name" "it didn't end as it should" "$work/all" 40
	elif says 0 "to rollout 0." "nobody answers at its address" && says 2 "nobody answers at its address"; then
		passed "$name"
	fi
	ip neigh del 10.7.2.2 dev rail2
fi
exit "$failures"
