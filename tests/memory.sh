#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a side needs beyond its params.
. "$(dirname "$0")/lib.sh"
python3 "$tests/memory.py" "$ws" "$work"
