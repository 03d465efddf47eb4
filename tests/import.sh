#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a framework's dump to a verified update: experts dealt over 2 ranks and cut over 2, the rest over 4.
. "$(dirname "$0")/lib.sh"
cd "$work" || exit 1

# What planner/README.md shows is what examples/ has.
python3 - "$tests/.." <<'P' >log 2>&1 && passed "import: the README's Python is the examples'" ||
import re, sys
root = sys.argv[1]
shown = re.findall(r"^```python\n(.*?)^```", open(f"{root}/planner/README.md").read(), re.M | re.S)
files = [open(f"{root}/examples/dump_{name}.py").read() for name in ("dtensor", "megatron")]
assert len(shown) == 2 and all(code in file for code, file in zip(shown, files)), shown
P
	failed "import: the README's Python is the examples'" "no" log

run() {
	"$ws" synth --model qwen3-30b-a3b --scale 1/8192 -o model &&
		python3 - <<'P' &&
import glob, json, struct
shapes = {}
for path in glob.glob("model/*.safetensors"):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    shapes.update({name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"})
params = [{"name": name, "shape": shape, "mesh": 0, "placements": ["Shard(dim=0)"]}
          for name, shape in shapes.items() if ".experts." not in name]
config = json.load(open("model/config.json"))
experts, rows, hidden = (config[key] for key in ("num_experts", "moe_intermediate_size", "hidden_size"))
for layer in range(config["num_hidden_layers"]):
    for name, shape in ("gate_up_proj", [experts, 2 * rows, hidden]), ("down_proj", [experts, hidden, rows]):
        params.append({"name": f"model.layers.{layer}.mlp.experts.{name}", "shape": shape, "mesh": 1,
                       "placements": ["_StridedShard(dim=0, sf=2)", "Shard(dim=0)"]})
for param in params:
    param["dtype"] = "torch.float32"
json.dump({"ws_dump": "dtensor", "world": 4, "params": params,
           "meshes": [{"dims": ["dp"], "ranks": [0, 1, 2, 3]}, {"dims": ["efsdp", "ep"], "ranks": [[0, 1], [2, 3]]}]},
          open("dump.json", "w"))
P
		"$ws" manifest --model model --from dtensor dump.json -o T.json &&
		"$ws" manifest --model model --side rollout --layout vllm --mesh tp=2 --cast f32:bf16 -o R.json &&
		mpi 6 "$ws" run --trainer T.json --rollout R.json --checkpoint model --updates 2 --verify
}
if run >log 2>&1 && grep -q 'every byte verified' log; then
	passed "import: from a DTensor dump to a verified update"
else
	failed "import: from a DTensor dump to a verified update" "no" log
fi
exit "$failures"
