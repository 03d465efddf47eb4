#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints a C file that holds the given JSON files as strings: "presets/vllm-gqa", its text, its
# length.  Lines of a file become adjacent literals, so that no line is longer than its own.
set -eu
cat <<'HEAD'
/* Made by planner/embed.sh: don't edit. */
#include "planner/describe.h"

const struct builtin_file builtin_files[] = {
HEAD
for file in "$@"; do
	name=${file#planner/}
	printf '\t{"%s",\n' "${name%.json}"
	sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/?/\\?/g' -e 's/^/\t "/' -e 's/$/\\n"/' "$file"
	printf '\t },\n'
done
printf '\t{NULL, NULL},\n};\n'
