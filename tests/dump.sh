#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# hub, push and serve as separate processes: what serve dumps is read back by the reference library, and
# the command it runs on reload finds the version in its environment; status sees everybody.
. "$(dirname "$0")/lib.sh"
name="serve --dump is read back by the reference safetensors library"
reference_python numpy safetensors || {
	echo "skip $name: pip can't install it"
	exit 0
}
"$ws" synth --model qwen3-32b --scale 1/8192 -o "$work/model" 2>"$work/log" &&
	"$ws" manifest --model "$work/model" --side trainer --layout fsdp2 --mesh dp=2 -o "$work/T.json" &&
	"$ws" manifest --model "$work/model" --side rollout --layout vllm --mesh tp=1 --quant fp8-block -o "$work/R.json" &&
	"$ws" keygen -o "$work/key"
"$ws" hub --key "$work/key" --trainers 2 --replica-ranks 1 >"$work/hub" 2>"$work/hub.log" &
hub_pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10; do
	[ -s "$work/hub" ] && break
	sleep 0.3
done
hub=$(cat "$work/hub")
printf '#!/bin/sh\necho "$WEIGHTSYNC_VERSION $WEIGHTSYNC_DIGEST $WEIGHTSYNC_REPLICA.$WEIGHTSYNC_RANK" >>"%s/reloads"\n' "$work" >"$work/reload"
chmod +x "$work/reload"
timeout 60 "$ws" serve --hub "$hub" --key "$work/key" --rollout "$work/R.json" --rank 0 --world 1 \
	--dump "$work/dump.safetensors" --on-reload "exec:$work/reload" 2>"$work/serve.log" &
serve_pid=$!
timeout 60 "$ws" push --hub "$hub" --key "$work/key" --trainer "$work/T.json" --checkpoint "$work/model" \
	--rank 1 --world 2 --version 7 --interval 2s --updates 2 2>"$work/t1.log" &
timeout 60 "$ws" push --hub "$hub" --key "$work/key" --trainer "$work/T.json" --checkpoint "$work/model" \
	--rank 0 --world 2 --version 7 --interval 2s --updates 2 --json >"$work/out" 2>"$work/t0.log" &
push_pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	grep -q '"version":7' "$work/out" && break
	sleep 0.3
done
"$ws" status --hub "$hub" --key "$work/key" --deadline 60s >"$work/status" 2>&1
"$ws" status --hub "$hub" --key "$work/key" --deadline 60s --json >"$work/status.json" 2>&1
wait $push_pid || failed "push" "it failed" "$work/t0.log"
sleep 1
kill $hub_pid
wait $hub_pid
wait $serve_pid
if "$python" "$tests/dump.py" "$work/model" "$work/dump.safetensors" >"$work/log" 2>&1; then
	passed "$name: $(cat "$work/log")"
else
	failed "$name" "$(cat "$work/log")" "$work/serve.log"
fi
grep -q '^7 [0-9a-f]\{16\} 0\.0$' "$work/reloads" && grep -q '^8 ' "$work/reloads" &&
	passed "serve --on-reload exec: found version, digest and rank in its environment" ||
	failed "serve --on-reload exec:" "$(cat "$work/reloads")" "$work/serve.log"
grep -Eq '^trainer 1 +[a-z]+ +[-78] ' "$work/status" && grep -q 'rollout 0.0' "$work/status" && grep -q '"version": *7' "$work/status.json" &&
	passed "status: members and the live version" || failed "status" "it doesn't say" "$work/status"
exit "$failures"
