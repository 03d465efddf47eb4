#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command line as a person meets it: help, usage errors, exit codes, every example of the README.
. "$(dirname "$0")/lib.sh"
cd "$work" || exit 1
PATH=$build:$PATH

# gives STATUS 'PATTERN' COMMAND..: the command ends so, and says so on stdout or stderr.
gives() {
	status=$1 pattern=$2
	shift 2
	timeout 60 "$@" >out 2>&1 </dev/null
	got=$?
	if [ "$got" != "$status" ]; then
		failed "$*" "status $got, expected $status" out
	elif [ -n "$pattern" ] && ! grep -q -e "$pattern" out; then
		failed "$*" "doesn't say '$pattern'" out
	else
		passed "$*: $status, $pattern"
	fi
}

gives 0 'usage: weightsync <command>' weightsync --help
gives 2 'usage: weightsync <command>' weightsync
gives 2 "there is no command 'psuh'" weightsync psuh
for command in keygen synth manifest plan simulate hub push serve run bench nics doctor status; do
	gives 0 "usage: weightsync $command" weightsync "$command" --help
	gives 2 "see weightsync $command --help" weightsync "$command" --no-such-option
	weightsync "$command" --help | awk 'length($0) > 100' >out
	[ ! -s out ] && passed "$command --help: no line above 100 columns" || failed "$command --help: above 100 columns" no out
done
# The manual page has every option, and no other; those that have a letter there by that.
for command in keygen synth manifest plan simulate hub push serve run bench nics doctor status; do
	weightsync "$command" --help
done | sed -n 's/^  \(   \|-., \) *--\([a-z-]*\).*/\2/p' | sed 's/^output$/o/; s/^verbose$/v/' | sort -u >helped
grep -oE 'Fl -?[a-z][a-z-]*' "$tests/../cli/weightsync.1" | sed 's/Fl -*//' | sort -u >paged
diff helped paged >out && [ -s helped ] && passed "the manual page has the options of --help" ||
	failed "the manual page has the options of --help" "no" out
gives 2 "there is no option '-z'" weightsync plan -zo x a b
gives 2 "option '--op-bytes': '3X' is not a size; good ones are 4096, 64K" weightsync plan --op-bytes 3X a b
gives 2 "option '--deadline': '5' is not a time" weightsync status --deadline 5
gives 2 "two manifests are needed" weightsync plan one.json
gives 1 "one.json" weightsync plan one.json two.json
gives 1 "no-such-model" weightsync synth --model no-such-model -o x
gives 1 "no folder 'nothing': no model is named 'nothing'; there are" weightsync manifest --model nothing --side trainer --layout fsdp2 --mesh dp=1
gives 2 "'1/0' is not a share" weightsync synth --model llama-3-70b --scale 1/0 -o x

gives 0 '' weightsync keygen -o key
gives 1 'key' weightsync keygen -o key
[ "$(stat -c %a key)" = 600 ] && passed "keygen: mode 0600" || failed "keygen: mode 0600" "$(stat -c %a key)"
chmod 644 key
gives 1 'key' weightsync status --hub tcp://127.0.0.1:9 --key key
chmod 600 key
gives 1 "127.0.0.1:9' within 0.5 s; is it started" weightsync status --hub tcp://127.0.0.1:9 --key key --deadline 500ms
gives 0 'device' weightsync nics
gives 0 '"device":' weightsync nics --json
gives 2 "it goes with fabric, not 'verbs'" weightsync nics --transport verbs --provider tcp
gives 0 'tcp/127.0.0.1' weightsync nics --transport fabric --provider tcp
gives 0 'tcp/127.0.0.1' weightsync nics --provider tcp

gives 0 'tensors' weightsync synth --model qwen3-30b-a3b --scale 1/4096 -o model
[ -f model/config.json ] && [ -f model/model.safetensors.index.json ] && [ "$(ls model/*.safetensors | wc -l)" -gt 1 ] &&
	passed "synth: shards, an index, a config" || failed "synth: shards, an index, a config" "$(ls model)"
gives 0 '' weightsync manifest --model model --side trainer --layout fsdp2 --mesh dp=3 -o T.json
gives 0 '' weightsync manifest --model model --side rollout --layout vllm --mesh tp=2 -o R.json
gives 0 '' weightsync manifest --model model --side rollout --layout vllm --mesh tp=2 --quant fp8-block -o Q.json
gives 0 'of maxima between' weightsync plan T.json Q.json
gives 1 'layout' weightsync manifest --model model --side trainer --layout fdsp2 --mesh dp=3 -o X.json
gives 1 '' weightsync manifest --model model --side rollout --layout vllm --mesh tp=3 -o X.json
gives 0 'rows 0 to .* of model.layers.0.self_attn.o_proj.weight' weightsync manifest --explain model.layers.0.self_attn.o_proj.weight T.json
gives 0 '"pieces":' weightsync manifest --explain model.layers.0.self_attn.qkv_proj.weight --rank 1 --json R.json
gives 1 "did you mean 'lm_head.weight'" weightsync manifest --explain lm_head.wieght T.json
gives 1 'there is no rank 3' weightsync manifest --explain lm_head.weight --rank 3 T.json
gives 2 'a file is a dump' weightsync manifest T.json
gives 2 'don.t go with it' weightsync manifest --model model --from dtensor --mesh dp=2 T.json
gives 1 "it must be \"dtensor\"" weightsync manifest --model model --from dtensor T.json
gives 0 'sender' weightsync plan T.json R.json --replicas 2
gives 0 '' weightsync plan T.json R.json --replicas 2 --html plan.html
grep -q '<!doctype html>' plan.html && ! grep -q 'https*:' plan.html && passed "plan --html: one page, nothing from elsewhere" ||
	failed "plan --html: one page" "no"
gives 0 'predicted .* receive floor' weightsync simulate T.json R.json --replicas 2 --nic-gbps 400
awk 'length($0) > 80' out >wide
[ ! -s wide ] && passed "simulate: no line above 80 columns" || failed "simulate: no line above 80 columns" "no" wide
gives 0 'without the change .* with it' weightsync simulate T.json R.json --replicas 2 --bandwidth 50%
gives 0 'without the change' weightsync simulate T.json R.json --replicas 2 --slow r1.0=1/2 --nics 2 --without-nic t0
gives 0 'without the change' weightsync simulate T.json R.json --join --join-late 200ms
gives 0 'forward' weightsync simulate T.json R.json --replicas 2 --fanout replica
gives 0 'load' weightsync simulate T.json R.json --offloaded
gives 1 "'t0' has one NIC and can't take part without it" weightsync simulate T.json R.json --without-nic t0
gives 1 "'t3' is no member: t0 to t2, r0.0 to r0.1" weightsync simulate T.json R.json --slow t3=1/2
gives 1 "'2' is not a share" weightsync simulate T.json R.json --bandwidth 2
gives 2 "fan-out is none, node or replica" weightsync simulate T.json R.json --fanout nodes
gives 2 "two manifests are needed" weightsync simulate T.json
gives 2 "replicas is from 1 to 4096" weightsync plan T.json R.json --replicas 5000
gives 2 "nic-gbps and --depth begin at 1" weightsync simulate T.json R.json --nic-gbps 0
gives 2 "join-late goes with --join" weightsync simulate T.json R.json --join-late 1s
gives 0 '"write_latency_ns"' weightsync simulate --print-constants
echo '{"nic_gbps": 100}' >constants.json
gives 0 'predicted' weightsync simulate T.json R.json --constants constants.json --trace trace.json
echo '{"nic_gbs": 100}' >constants.json
gives 1 "constants 'constants.json': no constant is named 'nic_gbs'" weightsync simulate T.json R.json --constants constants.json
gives 0 'predicted' weightsync simulate --paper qwen3-235b
weightsync simulate T.json R.json --json >simulated.json 2>out &&
	python3 - simulated.json trace.json 2>>out <<'P' && passed "simulate --json and --trace have their keys" || failed "simulate --json and --trace have their keys" "no" out
import json, sys
simulated = json.loads(open(sys.argv[1]).read())
for key in ("predicted_s", "receive_floor_s", "send_floor_s", "ratio"):
    assert simulated[key] > 0, key
assert simulated["predicted_s"] >= simulated["receive_floor_s"] and simulated["ratio"] >= 1
bars = [e for e in json.load(open(sys.argv[2]))["traceEvents"] if e["ph"] == "X"]
assert {"write", "receive"} <= {bar["cat"] for bar in bars}
P
gives 1 "rollout's side" weightsync plan R.json T.json
sed 's/{E}.down_proj/{E}.dwn_proj/g' T.json >B.json
gives 1 "did it mean 'model.layers.{L}.mlp.experts.{E}.dwn_proj.weight'?" weightsync plan B.json R.json
gives 1 '^  missing  model.layers.0.mlp.experts.0.down_proj.weight  *rollout rank 0' weightsync plan B.json R.json
gives 1 '^{"ok":false,"count":.*"kind":"missing"' weightsync plan --json B.json R.json
sed 's/"bf16"/"bf61"/' T.json >BT.json
sed '0,/"bf16"/s//"b16"/' R.json >BR.json
for form in "" --json; do
	weightsync plan $form BT.json BR.json >planned 2>&1
	if weightsync simulate $form BT.json BR.json >played 2>&1; [ $? = 1 ] && cmp -s planned played &&
		grep -q "BR.json.*'b16'" played && grep -q "BT.json.*'bf61'" played; then
		passed "simulate $form lists what plan does, of both files"
	else
		failed "simulate $form lists what plan does, of both files" "it doesn't" played
	fi
done
weightsync plan T.json R.json --replicas 2 --json >plan.json 2>out &&
	python3 - plan.json 2>>out <<'P' && passed "plan --json has its keys" || failed "plan --json has its keys" "no" out
import json, sys
plan = json.loads(open(sys.argv[1]).read())
for key in ("digest total_bytes boxes runs copies ops classes senders receivers plan_seconds").split():
    assert key in plan, key
for side in ("senders", "receivers"):
    for key in ("bytes_min", "bytes_mean", "bytes_max"):
        assert key in plan[side], (side, key)
assert plan["total_bytes"] > 0 and plan["senders"]["bytes_max"] >= plan["senders"]["bytes_min"]
P

# Who am I?
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE RANK WORLD_SIZE SLURM_PROCID SLURM_NTASKS
run="weightsync run --trainer T.json --rollout R.json --replicas 2 --checkpoint model"
gives 2 'no launcher tells this process its rank' $run
gives 2 '3 trainer ranks and 2 replicas of 2 ranks need 7 processes, not 5' $run --rank 0 --world 5
gives 2 'rank 9 of a world of 7' $run --rank 9 --world 7
gives 2 '--rank and --world go together' $run --rank 1
gives 2 'says rank 1 of 7, but .* says rank 2 of 7' env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=7 RANK=2 WORLD_SIZE=7 $run
gives 2 "RANK is 'one'" env RANK=one WORLD_SIZE=7 $run
gives 1 "'cuda:x' names no GPU: cuda:N has a number" $run --rank 0 --world 7 --job memory --trainer-memory cuda:x
gives 1 "'offload:x' names no GPU: offload:N has a number" $run --rank 0 --world 7 --job memory --trainer-memory offload:x
gives 1 "no memory 'gpu': it is host" $run --rank 0 --world 7 --job memory --trainer-memory gpu
gives 2 "updates begin at 1" $run --rank 0 --world 7 --updates 0
gives 2 "offload-bytes begins at 4096" $run --rank 0 --world 7 --offload-bytes 0
gives 1 "only a trainer's memory can be 'offload'; a rollout's is host" weightsync serve --hub tcp://127.0.0.1:9 --key key \
	--rollout R.json --rank 0 --world 2 --memory offload
gives 1 "transport 'fabric' by provider 'pigeon' has no NIC on this host" $run --rank 0 --world 7 --job provider --provider pigeon
gives 1 'no-such-folder' weightsync run --trainer T.json --rollout R.json --replicas 2 --checkpoint no-such-folder --rank 0 --world 7

# Who doesn't come is said, also where nobody answers.
serve="weightsync serve --key key --rollout R.json --rank 0 --world 2 --start-deadline 1s"
gives 1 "rollout 0.0: no hub answered at 'tcp://127.0.0.1:9' within 1 s" $serve --hub tcp://127.0.0.1:9
gives 1 "'tcp://127.0.0.1' isn't an address of a hub" $serve --hub tcp://127.0.0.1
weightsync hub --key key --trainers 1 --replica-ranks 2 >hub 2>&1 &
until [ -s hub ]; do sleep 0.1; done
gives 1 "rollout 0.0: .* not there: trainer 0, rollout 0.1" $serve --hub "$(cat hub)"
kill $!
gives 1 "give an address of this host and a free port" weightsync hub --key key --trainers 1 --replica-ranks 2 --bind tcp://198.51.100.1:7000

# A run that doesn't come about leaves nothing, though its launcher kills it before the hub is closed.
mkdir tmp
export TMPDIR=$work/tmp
$run --rank 0 --world 7 --job twice --start-deadline 4s >kills 2>&1 &
until grep -q "tcp://" tmp/*/hub 2>/dev/null; do sleep 0.02; done
gives 1 "another run of this name is starting" $run --rank 0 --world 7 --job twice
until grep -q "run didn't start" kills; do sleep 0.02; done
kill -9 $!
unset TMPDIR
[ -z "$(ls tmp)" ] && passed "run: killed after its start failed, it leaves nothing" ||
	failed "run: killed after its start failed, it leaves nothing" "$(ls tmp)" out

# Output that can't be written is a failure.
gives 1 'cannot write' sh -c 'weightsync plan T.json R.json >/dev/full'

# What `make install` installs is enough to build a program (with the sanitizers of a build that has some).
case $build in
*build-address,undefined | *build-thread) sanitizers=-fsanitize=${build##*build-} ;;
*) sanitizers= ;;
esac
installed_is_enough() {
	make -s -C "$tests/.." install BUILD="$build" DESTDIR="$work/root" PREFIX=/usr || return 1
	[ -x root/usr/bin/weightsync ] && sed -i "s|^prefix=|&$work/root|" root/usr/lib/pkgconfig/weightsync.pc || return 1
	flags=$(PKG_CONFIG_PATH=$work/root/usr/lib/pkgconfig pkg-config --cflags --libs weightsync) || return 1
	for example in trainer rollout post; do
		# shellcheck disable=SC2086
		cc $sanitizers "$tests/../examples/$example.c" $flags -o "$example" || return 1
		"./$example" 2>&1 | grep -q "usage: $example" || return 1
	done
}
installed_is_enough >out 2>&1 && passed "make install: the examples build with what it installs" ||
	failed "make install: the examples build with what it installs" "they don't" out
exit "$failures"
