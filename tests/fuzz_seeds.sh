#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every fuzz target over the corpus kept in tests/fuzz/seeds, built by gcc with the sanitizers of BUILD.
. "$(dirname "$0")/lib.sh"
cd "$tests/.." || exit 1
case $build in
*-address,undefined) sanitize=-fsanitize=address,undefined ;;
*) sanitize= ;;
esac
libs=$(make -s libs)
for folder in tests/fuzz/seeds/*; do
	name=$(basename "$folder")
	# shellcheck disable=SC2086
	if ! gcc -std=c17 -O1 -g -D_GNU_SOURCE -I. $sanitize "tests/fuzz/$name.c" tests/fuzz/replay/main.c \
		"$build/commands.a" "$build/internal.a" $libs -o "$work/$name" >"$work/log" 2>&1; then
		failed "corpus of $name" "it doesn't compile" "$work/log"
	elif ! "$work/$name" "$folder"/* >"$work/log" 2>&1; then
		failed "corpus of $name" "it found something" "$work/log" 40
	else
		passed "corpus of $name: $(tail -1 "$work/log")"
	fi
done
exit "$failures"
