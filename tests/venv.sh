#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: venv.sh PACKAGE..
# Prints the path of a Python that has these packages, from pip in a venv under build/; fails if they can't be
# installed.  Scripts that run at the same time wait for each other.
set -eu
venv=build/venv
mkdir -p build
exec 9>build/venv.lock
flock 9
imports=$(echo "$*" | tr ' ' ',')
if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c "import $imports" 2>/dev/null; then
	{ python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --timeout 20 --retries 1 "$@"; } >&2
fi
echo "$venv/bin/python"
