#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make layers: an #include is written from the root and points only to its own folder or a lower
# floor; each foreign header has one home (design: two pillars and a roof).
set -eu
cd "$(dirname "$0")/.."

floor_of() {
	case $1 in
	lib/ws_error.h | lib/ws_memory.h | lib/ws_nic.h) echo 0 ;;
	lib/base/* | lib/cuda/*) echo 1 ;;
	planner/* | lib/transport/* | lib/convert/* | lib/link/*) echo 2 ;;
	lib/engine/* | lib/hub/*) echo 3 ;;
	trainer_side/* | rollout_side/*) echo 4 ;;
	bench/* | examples/*) echo 5 ;;
	cli/*) echo 6 ;;
	tests/fuzz/*) echo 8 ;;
	tests/*) echo 7 ;;
	*) echo unknown ;;
	esac
}

# Which folders may include a foreign header.  bench/ holds baselines, tests/ play the foreign peer.
home_of() {
	case $1 in
	rdma/* | infiniband/*) echo lib/transport ;;
	zmq.h) echo lib/link ;;
	cjson/*) echo lib/base ;;
	xxhash.h) echo lib/base ;;
	cuda*.h | nvml.h) echo lib/cuda ;;
	hwloc.h) echo lib/transport ;;
	curl/*) echo cli ;;
	check.h) echo tests ;;
	*) echo any ;;
	esac
}

status=0
complain() {
	echo "$1" >&2
	status=1
}

for file in $(find lib planner trainer_side rollout_side cli tests bench examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'); do
	folder=$(dirname "$file")
	floor=$(floor_of "$file")
	[ "$floor" != unknown ] || complain "$file: this folder isn't in the tree of design.md"
	head -1 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || complain "$file: no SPDX line"
	for include in $(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$file"); do
		[ -f "$include" ] || { complain "$file: \"$include\" isn't a path from the root"; continue; }
		[ "$(dirname "$include")" = "$folder" ] && continue
		other=$(floor_of "$include")
		[ "$other" -lt "$floor" ] || complain "$file (floor $floor) includes $include (floor $other)"
		case $file:$include in
		planner/*:lib/ws_* | planner/*:lib/base/*) ;;
		planner/*:lib/*) complain "$file: the planner includes $include" ;;
		lib/*:planner/*) complain "$file: lib/ includes $include" ;;
		esac
	done
	for include in $(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*<\([^>]*\)>.*/\1/p' "$file"); do
		home=$(home_of "$include")
		# A kernel is written in CUDA's language, headers and all.
		case $file:$include in *.cu*:cuda*) continue ;; esac
		case $folder in
		"$home" | bench | tests | tests/fuzz) ;;
		*) [ "$home" = any ] || complain "$file: <$include> has its home in $home" ;;
		esac
	done
	lines=$(wc -l <"$file")
	[ "$lines" -le 600 ] || complain "$file: $lines lines, more than 600: split it"
done
# A foreign header has one file of its home, but for a folder's own private headers.
[ "$status" = 0 ] && echo "layers: every include points down"
exit "$status"
