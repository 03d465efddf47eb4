#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Manifests that would cost a careless reader its machine end in a sentence, within 1 s and 64 MiB.
. "$(dirname "$0")/lib.sh"
python3 "$tests/bad_manifests.py" "$ws" "$work"
