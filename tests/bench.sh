#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench transfer: every row over every transport that a machine without a NIC has, also between two
# processes that meet by --listen and --peer; figures are looked at for being there, not for being good.
# usage: bench.sh [BUILD [PATTERN]]      PATTERN: only the tests whose name contains it
. "$(dirname "$0")/lib.sh"
cd "$work" || exit 1

# A client whose host vanished looks like this one: its connection stands, and nothing comes.  It takes a minute.
silent="a listener doesn't wait for ever for a client that is silent"
if wanted "$silent"; then
	timeout -k 5 150 "$ws" bench transfer --listen $own_address:20001 >left 2>&1 &
	left=$!
	timeout 150 python3 -c "
import socket, time
for _ in range(600):
    try: client = socket.create_connection(('$own_address', 20001))
    except ConnectionRefusedError: time.sleep(0.1)
    else: break
client.recv(1)" &
fi

# rows WHAT-IS-EXPECTED: the JSON lines of `log`, one per row.
rows() {
	python3 - "$@" <<'P'
import json, sys
want = int(sys.argv[1])
rows = [json.loads(line) for line in open("log")]
assert len(rows) == want, f"{len(rows)} rows, not {want}"
for row in rows:
    assert abs(sum(nic["share"] for nic in row["nics"]) - 1) < 0.01, row
    assert row["page_bytes"] in (4096, 16384, 65536, 2 << 20), row
    for side in [row] + row["baselines"]:
        key = "p50_us" if row["what"] == "latency" else "gbytes_per_s"
        assert 0 < side[key + "_min"] <= side[key] <= side[key + "_max"], side
        assert row["what"] != "latency" or side["p50_us"] <= side["p99_us"], side
    for side in row["baselines"]:
        assert 0 < side["ratio_min"] <= side["ratio"] <= side["ratio_max"], side
print(" ".join(sorted({side["name"] for row in rows for side in row["baselines"]})))
P
}

# bench NAME ROWS BASELINES OPTIONS..
bench() {
	name=$1 count=$2 against=$3
	shift 3
	wanted "$name" || return 0
	if ! timeout -k 5 100 "$ws" bench transfer --json "$@" >log 2>err; then
		failed "$name" "it failed" err
	elif ! said=$(rows "$count" 2>&1); then
		failed "$name" "$said" log
	elif [ "$said" != "$against" ]; then
		failed "$name" "against '$said', not '$against'" log
	else
		passed "$name"
	fi
}

bench "bench over loop: all rows, against memcpy" 9 memcpy --transport loop --bytes 256K
bench "bench over ipc: a row, against memcpy and libfabric's shm" 1 "fi_writemsg shm memcpy" --transport ipc --what stream --bytes 8M
bench "bench over ipc: process_vm_writev on huge pages" 1 "fi_writemsg shm memcpy" --transport ipc --what stream --bytes 8M --memory 2m
bench "bench over tcp: latency, against bare fi_writemsg" 2 fi_writemsg --what latency --bytes 64K
bench "bench over tcp: mesh over two NICs, 3 senders and 1 receiver" 1 fi_writemsg --what mesh --senders 3 --receivers 1 \
	--nics 127.0.0.1,127.0.0.2 --bytes 4M --op-bytes 64K

if wanted "bench between two hosts: --listen and --peer"; then
	timeout -k 5 150 "$ws" bench transfer --listen $own_address:20000 --nics 127.0.0.2 >other 2>&1 &
	bench "bench between two hosts: --listen and --peer" 1 fi_writemsg --peer $own_address:20000 --what stream --bytes 4M
	wait $! && passed "the listener ends with its client" || failed "the listener ends with its client" "it didn't" other
fi

if wanted "a table for people"; then
	"$ws" bench transfer --transport ipc --what stream --bytes 8M >log 2>err && grep -q '^stream 1x1 1 MiB .*memcpy .* ([0-9.]* to [0-9.]*)$' log &&
		passed "a table for people" || failed "a table for people" "no row" log
fi
for bad in "--what nothing" "--transport pigeon" "--transport ipc --provider tcp" "--memory 3k" "--op-bytes 8"; do
	wanted "bench transfer $bad is refused" || continue
	# shellcheck disable=SC2086
	"$ws" bench transfer $bad >log 2>err
	[ $? = 1 ] && grep -q '^weightsync: .*choose' err && passed "bench transfer $bad is refused" ||
		failed "bench transfer $bad" "was taken" err
done

if wanted "bench convert: every row by every level"; then
	# Rows times levels of this CPU, each with a ratio to memcpy.
	levels=1
	for flag in avx2 avx512bw; do
		grep -qw $flag /proc/cpuinfo && levels=$((levels + 1))
	done
	"$ws" bench convert --bytes 3M --json >log 2>err && python3 -c "
import json
rows = [json.loads(line) for line in open('log')]
assert len({(row['what'], row['level']) for row in rows}) == len(rows) == 6 * $levels, rows
for row in rows:
    assert 0 < row['gbytes_per_s_min'] <= row['gbytes_per_s'] <= row['gbytes_per_s_max'], row
    assert 0 < row['ratio_min'] <= row['ratio'] <= row['ratio_max'], row
" 2>>err && passed "bench convert: every row by every level" || failed "bench convert" "rows are missing" err
fi
for what in transfer convert overhead; do
	wanted "bench $what --rounds 3 is refused" || continue
	"$ws" bench $what --rounds 3 >log 2>err
	[ $? = 2 ] && grep -q -e '^weightsync: --rounds 3 .*choose 7 to 1000' err && passed "bench $what --rounds 3 is refused" ||
		failed "bench $what --rounds 3" "was taken" err
done
if wanted "bench convert --what nothing is refused"; then
	"$ws" bench convert --what nothing >log 2>err
	[ $? = 1 ] && grep -q '^weightsync: .*choose' err && passed "bench convert --what nothing is refused" ||
		failed "bench convert --what nothing" "was taken" err
fi

if wanted "bench overhead: each phase, against a star of TCP"; then
	"$ws" bench overhead --rounds 7 --senders 2 --receivers 3 --json >log 2>err && python3 -c "
import json
rows = [json.loads(line) for line in open('log')]
assert [row['buffers'] for row in rows] == ['inplace', 'double'], rows
for row in rows:
    assert (row['trainers'], row['rollouts']) == (2, 3), row
    for phase in 'begin', 'transfer', 'pause', 'reload', 'total', 'star':
        assert 0 < row[phase + '_p50_us'] <= row[phase + '_p99_us'], row
    assert 0 < row['ratio_min'] <= row['ratio'] <= row['ratio_max'], row
" 2>>err && passed "bench overhead: each phase, against a star of TCP" || failed "bench overhead" "rows are missing" err
fi
if wanted "$silent"; then
	wait $left
	[ $? = 1 ] && grep -q 'the client asked for nothing for 60 s' left && passed "$silent" ||
		failed "$silent" "its listener waits, or doesn't say why it ends" left
fi
exit "$failures"
