#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Process 1 of a machine once its root stands: makes it a host with two RoCE cards, then does what
# the bell says, a line each: "run JOB" or "kill JOB SIGNAL".  A job is JOB.sh in the folder of this host;
# its output, pid and status lie beside it.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1
mine=$ws_pair/$ws_host

mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
ln -sf /proc/self/fd /dev/fd
ulimit -l unlimited -n 65536 -c 0
hostname "$ws_host"
printf '127.0.0.1 localhost\n10.0.0.1 a\n10.0.0.2 b\n' >/etc/hosts
rm -rf /lib/modules
ln -s "$ws_modules/lib/modules" /lib/modules
ip link set lo up
modprobe -a virtio_net crc32_generic rdma_rxe ib_uverbs rdma_ucm
ip link set eth2 up
ip addr add "10.0.0.$ws_number/24" dev eth2
for rail in 1 2; do
	ip link set "eth$((rail - 1))" up
	ip addr add "10.0.$rail.$ws_number/24" dev "eth$((rail - 1))"
	rdma link add "rxe$rail" type rxe netdev "eth$((rail - 1))"
done
for port in /sys/class/virtio-ports/*; do
	[ "$(cat "$port/name")" = bell ] && ln -s "/dev/${port##*/}" /dev/bell
done
rdma link show >"$mine/up.new"
mv "$mine/up.new" "$mine/up"

# Jobs that poll must not keep the bell from being heard.
renice -n -10 $$ >/dev/null
run() {
	setsid nice -n 10 bash "$1.sh" </dev/null >>"$1.out" 2>>"$1.err" &
	echo $! >"$1.pid"
	wait $!
	echo $? >"$1.status.new"
	mv "$1.status.new" "$1.status"
}

while read -r verb job signal; do
	case $verb in
	run) run "$mine/$job" & ;;
	kill) read -r pid <"$mine/$job.pid" && kill "-$signal" -- "-$pid" ;;
	esac
done </dev/bell
echo "the bell is gone" >/dev/console
sleep 1
