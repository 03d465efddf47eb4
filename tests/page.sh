#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The page of `weightsync plan --html` in a real browser, headless: for 2 ranks, with fan-out, for 1,536 whose names try to
# break out of it, and for a plan that is refused.  tests/page.py says what must be seen there.
# usage: page.sh [BUILD [PATTERN]]      PATTERN: only the tests whose name contains it
. "$(dirname "$0")/lib.sh"
for chromium in chromium-headless-shell chromium chromium-browser google-chrome ''; do
	[ -z "$chromium" ] || ! command -v "$chromium" >/dev/null || break
done
if [ -z "$chromium" ]; then
	echo "no browser: apt-get install chromium-headless-shell"
	exit 77
fi
cd "$work" || exit 1

# browse PAGE DOM: what the page has become, and in browser.log what its console says.  No name is ever looked up.
browse() {
	sandbox=
	[ "$(id -u)" != 0 ] || sandbox=--no-sandbox
	HOME=$work timeout -k 5 120 "$chromium" --headless $sandbox --disable-gpu --disable-dev-shm-usage \
		--user-data-dir="$work/profile" --host-resolver-rules='MAP * ~NOTFOUND' --window-size=1280,900 \
		--enable-logging=stderr --v=0 --virtual-time-budget=5000 --dump-dom "file://$work/$1" >"$2" 2>browser.all
	rc=$?
	grep CONSOLE browser.all >browser.log # all else is about what a headless machine lacks
	return $rc
}

# shows NAME PLAN_STATUS PLAN ARGUMENTS..: plans, opens the page and works it (tests/page_hands.js), looks at both.
shows() {
	name=$1 status=$2
	shift 2
	wanted "page: $name" || return 0
	"$ws" plan "$@" --html "$name.html" --json >"$name.json" 2>"$name.err"
	got=$?
	[ "$status" = 1 ] || "$ws" simulate "$@" --json >"$name.played" 2>>"$name.err"
	[ $got = "$status" ] || { failed "$name: plan" "status isn't $status" "$name.err"; return; }
	{ cat "$name.html" && echo '<script>' && cat "$tests/page_hands.js" && echo '</script>'; } >worked.html
	if ! browse worked.html "$name.dom"; then
		failed "page: $name" "the browser failed" browser.all
	elif python3 "$tests/page.py" "$name" browser.log >"$name.log" 2>&1; then
		cat "$name.log"
	else
		failed "page: $name" "not as it should be" "$name.log" 30
	fi
}

"$ws" manifest --model qwen3-30b-a3b --side trainer --layout fsdp2 --mesh dp=2 -o T.json &&
	"$ws" manifest --model qwen3-30b-a3b --side rollout --layout vllm --mesh tp=2 -o R.json &&
	python3 "$tests/page.py" manifests 1024 512 || exit 1
shows two_ranks 0 T.json R.json --nics 2
shows fan_out 0 T.json R.json --replicas 3 --fanout replica
shows many_ranks 0 many-T.json many-R.json
shows refused 1 refused-T.json refused-R.json
[ "$(find . -name '*.html' -size +3000k | wc -l)" = 0 ] && passed "page: below 3 MB" || failed "page: size" "$(ls -l ./*.html)"
exit "$failures"
