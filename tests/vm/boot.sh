#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two virtual machines, "a" and "b", joined by two links: two hosts with two RoCE rails (README.md).
# usage: boot.sh up                               boots both, comes back when commands run there
#        boot.sh on [-t SECONDS] [-n NAME] a|b COMMAND...
#                                                 runs it there; here are its output and its status (124: out of time)
#        boot.sh kill SIGNAL a|b NAME             to the process group of a command that has a name
#        boot.sh down                             stops both
# WS_VM names the folder that the pair lives in (build/vm/pair): one pair per folder.
set -u
PATH=$PATH:/usr/sbin:/sbin
cd_to=$PWD
here=$(cd "$(dirname "$0")" && pwd) || exit 1
repo=$(cd "$here/../.." && pwd) || exit 1
cache=$repo/build/vm
pair=$(realpath -m "${WS_VM:-$cache/pair}") || exit 1
memory_mib=${WS_VM_MIB:-1280} cpus=${WS_VM_CPUS:-1}
life_seconds=${WS_VM_SECONDS:-3600} boot_seconds=240

die() {
	echo "boot.sh: $*" >&2
	exit 1
}

# The newest kernel that apt knows, else one that was fetched before.
kernel_name() {
	apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | grep . ||
		find "$cache" -maxdepth 1 -name 'linux-image-*.unpacked' -printf '%f\n' 2>/dev/null | sed 's/\.unpacked$//' | grep .
}

# Debian's kernel and its modules, fetched once; nothing is installed.  Prints the folder.
kernel() {
	name=$(kernel_name | tail -1)
	[ -d "$cache/$name.unpacked" ] && [ -n "$name" ] && { echo "$cache/$name.unpacked"; return; }
	mkdir -p "$cache/fetch.$$" && cd "$cache/fetch.$$" || return 1
	if ! apt-get download -q "$name" >&2; then
		apt-get update -qq >&2 # lists may be older than the archive
		name=$(kernel_name | tail -1)
		apt-get download -q "$name" >&2
	fi
	dpkg-deb -x "$name"_*.deb tree && depmod -b tree "${name#linux-image-}" &&
		{ mv -T tree "$cache/$name.unpacked" 2>/dev/null || [ -d "$cache/$name.unpacked" ]; }
	status=$?
	cd "$repo" && rm -rf "$cache/fetch.$$"
	[ "$status" = 0 ] && echo "$cache/$name.unpacked"
}

# What mounts the root: busybox, five modules and what they need.
initramfs() {
	folder=$1 version=$2
	tree=$pair/initramfs
	mkdir -p "$tree/bin" "$tree/modules" "$tree/proc" "$tree/root"
	cp "$(command -v busybox)" "$tree/bin/busybox" && cp "$here/init" "$tree/init" && chmod 755 "$tree/init" || return 1
	for module in virtio_pci 9pnet_virtio 9p overlay virtio_console; do
		modprobe -d "$folder" -S "$version" --show-depends "$module"
	done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$pair/modules"
	number=100
	while read -r file; do
		cp "$file" "$tree/modules/$number.ko" || return 1
		number=$((number + 1))
	done <"$pair/modules"
	(cd "$tree" && find . | cpio -o -H newc --quiet) >"$pair/initramfs.cpio"
}

# A network card and its wire, a stream socket in the pair's folder: "a" listens.  The last isn't a rail.
# usage: wire NAME NUMBER MTU
wire() {
	echo "-netdev stream,id=$1,server=$server,addr.type=unix,addr.path=$1.sock" \
		"-device virtio-net-pci,netdev=$1,host_mtu=$3,mac=52:54:00:00:$2:0$number"
}

# qemu for one host.
# usage: machine HOST NUMBER LISTENS
machine() {
	host=$1 number=$2 server=$3
	mkdir -p "$pair/$host" && mkfifo "$pair/$host.bell" || return 1
	cd "$pair" || return 1
	setsid timeout -k 1 "$life_seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory_mib" \
		-nodefaults -no-user-config -display none -no-reboot -serial "file:$host.console" \
		-kernel "$folder/boot/vmlinuz-$version" -initrd initramfs.cpio \
		-append "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 ws_host=$host ws_number=$number ws_repo=$repo ws_pair=$pair ws_modules=$folder" \
		-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
		-virtfs "local,path=$repo,mount_tag=repo,security_model=none,multidevs=remap" \
		-virtfs "local,path=$pair,mount_tag=pair,security_model=none,multidevs=remap" \
		$(wire rail1 01 9000) $(wire rail2 02 9000) $(wire control 00 1500) \
		-device virtio-rng-pci -device virtio-serial-pci \
		-chardev "pipe,id=bell,path=$host.bell" -device virtserialport,chardev=bell,name=bell \
		</dev/null >"$host.qemu" 2>&1 &
	echo $! >"$host.pid"
	cd "$repo" || return 1
}

alive() {
	grep -q "ws_pair=$pair" "/proc/$(cat "$pair/$1.pid" 2>/dev/null)/cmdline" 2>/dev/null
}

# usage: wait_for SECONDS FILE HOST    until it is there, while the host lives
wait_for() {
	polls=$(($1 * 50))
	while [ ! -e "$2" ]; do
		polls=$((polls - 1))
		[ "$polls" -gt 0 ] || return 124
		[ $((polls % 50)) != 0 ] || alive "$3" || return 1
		sleep 0.02
	done
}

up() {
	! alive a && ! alive b || die "a pair lives in $pair already: boot.sh down"
	for tool in qemu-system-x86_64 busybox cpio modprobe; do
		command -v "$tool" >/dev/null || die "$tool is not installed: apt-get install qemu-system-x86 busybox-static cpio kmod"
	done
	rm -rf "$pair" && mkdir -p "$pair" || exit 1
	folder=$(kernel) || die "Debian's kernel can't be had"
	version=$(basename "$folder" .unpacked) version=${version#linux-image-}
	initramfs "$folder" "$version" || die "the initramfs can't be made"
	machine a 1 on && wait_for 60 "$pair/control.sock" a && machine b 2 off || die "qemu doesn't start: $(cat "$pair"/*.qemu)"
	for host in a b; do
		wait_for "$boot_seconds" "$pair/$host/up" "$host" && continue
		tail -20 "$pair/$host.qemu" "$pair/$host.console" >&2
		down
		die "host $host doesn't come up; its last words are above"
	done
}

# Says a line to a host's agent; a host that is gone must not block us.
ring() {
	alive "$1" || return 1
	timeout 60 sh -c 'echo "$1" >"$2"' sh "$2" "$pair/$1.bell"
}

quoted() {
	for word in "$@"; do
		printf " '%s'" "$(printf %s "$word" | sed "s/'/'\\\\''/g")"
	done
}

# Kills what `on` started, and waits until it is gone.
slay() {
	ring "$host" "kill $job KILL"
	wait_for 60 "$files.status" "$host"
}

on() {
	seconds=120 job=
	while getopts t:n: option; do
		case $option in
		t) seconds=$OPTARG ;;
		n) job=$OPTARG ;;
		*) exit 2 ;;
		esac
	done
	shift $((OPTIND - 1))
	[ $# -ge 2 ] || die "usage: boot.sh on [-t SECONDS] [-n NAME] a|b COMMAND..."
	host=$1
	shift
	alive "$host" || die "no host '$host' is up in $pair: boot.sh up"
	[ -n "$job" ] || job=$(basename "$(mktemp -u "$pair/$host/XXXXXX")")
	files=$pair/$host/$job
	rm -f "$files".*
	printf 'cd %s && exec %s\n' "$(quoted "$cd_to")" "$(quoted "$@")" >"$files.sh"
	: >"$files.out" && : >"$files.err"
	ring "$host" "run $job" || die "host '$host' doesn't listen"
	wait_for "$seconds" "$files.status" "$host" &
	watch=$!
	trap 'slay; kill $watch 2>/dev/null; rm -f "$files".*; exit 143' TERM INT HUP
	tail -n +1 -s 0.05 -f --pid=$watch "$files.out" &
	tail -n +1 -s 0.05 -f --pid=$watch "$files.err" >&2 &
	wait $watch
	status=$?
	[ "$status" != 124 ] || slay
	wait
	case $status in
	0) status=$(cat "$files.status") ;;
	124) echo "boot.sh: not done within $seconds s on $host, killed: $*" >&2 ;;
	*) echo "boot.sh: host $host is gone: $pair/$host.qemu, $pair/$host.console" >&2 ;;
	esac
	rm -f "$files".*
	exit "$status"
}

down() {
	for host in a b; do
		alive "$host" || continue
		pid=$(cat "$pair/$host.pid")
		kill "$pid"
		polls=100
		while alive "$host" && [ "$polls" -gt 0 ]; do
			polls=$((polls - 1))
			sleep 0.05
		done
		! alive "$host" || kill -KILL -- "-$pid"
	done
}

verb=${1:-}
[ $# = 0 ] || shift
case $verb in
up | down) "$verb" ;;
on) on "$@" ;;
kill) ring "$2" "kill $3 $1" ;;
*)
	sed -n '/^# usage/,/^# WS_VM/s/^# //p; /^set/q' "$0" >&2
	exit 2
	;;
esac
