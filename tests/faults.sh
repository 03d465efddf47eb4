#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What dies and what is bad: real processes, real signals (faults.py has the scenarios).  As root it
# runs in a mount namespace with a /dev/shm of its own, so that a file left there is one of ours.
# usage: faults.sh [BUILD [PATTERN]]      PATTERN: only the scenarios whose name contains it
set -u
build=$(cd "${1:-build}" && pwd) || exit 1
tests=$(cd "$(dirname "$0")" && pwd)
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1 PYTHONDONTWRITEBYTECODE=1
set -- python3 "$tests/faults.py" "$build" "${2:-}"
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
	exec unshare -m sh -c 'mount -t tmpfs tmpfs /dev/shm && WS_OWN_MOUNTS=1 exec "$@"' sh "$@"
fi
exec "$@"
