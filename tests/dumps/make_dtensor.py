# SPDX-License-Identifier: Apache-2.0
"""How the dumps here were made: real FSDP2, HSDP, TP, EP and a pipeline over gloo (torch 2.6.0, CPU).

    python make_dtensor.py fsdp2|hsdp|tp|ep|pp

Each element is a number that says which canonical element it is: its index in its tensor, or for
an expert's, expert * elements + index (gate and up of one expert: 2 * expert + which).  VALUES has
the first, the last and the sum of what each rank really holds.
"""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../examples"))
from dump_dtensor import dump_dtensor  # noqa: E402

config = json.load(open(os.path.join(here, "config.json")))
H, I, E, V = (config[k] for k in ("hidden_size", "moe_intermediate_size", "num_experts", "vocab_size"))
Q, K, D = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]


def ids(*shape, first=0):
    return nn.Parameter(torch.arange(first, first + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape))


def leaf(**params):
    module = nn.Module()
    for name, param in params.items():
        setattr(module, name, param)
    return module


def linear(rows, columns):
    module = nn.Linear(columns, rows, bias=False)
    module.weight = ids(rows, columns)
    return module


def build(stacked):
    model = leaf(model=leaf(embed_tokens=leaf(weight=ids(V, H)), norm=leaf(weight=ids(H)), layers=nn.ModuleDict()),
                 lm_head=leaf(weight=ids(V, H)))
    for index in range(config["num_hidden_layers"]):
        if stacked:
            experts = leaf(gate_up_proj=ids(E, 2 * I, H), down_proj=ids(E, H, I))
        else:
            experts = nn.ModuleList(leaf(gate_proj=linear(I, H), up_proj=linear(I, H), down_proj=linear(H, I))
                                    for _ in range(E))
            for e, expert in enumerate(experts):
                expert.gate_proj.weight = ids(I, H, first=2 * e * I * H)
                expert.up_proj.weight = ids(I, H, first=(2 * e + 1) * I * H)
                expert.down_proj.weight = ids(H, I, first=e * I * H)
        model.model.layers[str(index)] = leaf(
            input_layernorm=leaf(weight=ids(H)), post_attention_layernorm=leaf(weight=ids(H)),
            self_attn=leaf(q_proj=linear(Q * D, H), k_proj=linear(K * D, H), v_proj=linear(K * D, H),
                           o_proj=linear(H, Q * D), q_norm=leaf(weight=ids(D)), k_norm=leaf(weight=ids(D))),
            mlp=leaf(gate=linear(E, H), experts=experts))
    return model


def shard(kind, world):
    def mesh(sizes, names):
        return init_device_mesh("cpu", sizes, mesh_dim_names=names)

    model = build(kind == "ep")
    outer = mesh((world,), ("dp",))
    if kind == "pp":
        both = mesh((2, world // 2), ("pp", "dp"))
        outer, stage = both["dp"], both.get_local_rank("pp")
        for index in range(config["num_hidden_layers"]):
            if index // 2 != stage:
                del model.model.layers[str(index)]
        if stage == 0:
            del model.model.norm, model.lm_head
        else:
            del model.model.embed_tokens
    layers = list(model.model.layers.values())
    if kind == "hsdp":
        outer = mesh((2, world // 2), ("rep", "dp"))
    if kind == "tp":
        both = mesh((world // 2, 2), ("dp", "tp"))
        outer = both["dp"]
        rows, columns = ("o_proj", "down_proj"), ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
        for layer in layers:
            for name, _ in list(layer.named_modules()):
                last = name.rsplit(".", 1)[-1]
                if last in rows + columns:
                    parallelize_module(layer, both["tp"],
                                       {name: ColwiseParallel() if last in columns else RowwiseParallel()})
        for top in (model.model.embed_tokens, model.lm_head):
            top.weight = nn.Parameter(distribute_tensor(top.weight.data, both["tp"], [Shard(0)]))
    if kind == "ep":
        both = mesh((world // 2, 2), ("efsdp", "ep"))
        for layer in layers:
            experts = layer.mlp.experts
            for name, param in list(experts.named_parameters()):
                setattr(experts, name, nn.Parameter(distribute_tensor(param.data, both["ep"], [Shard(0)])))
            fully_shard(experts, mesh=both["efsdp"])
    for layer in layers:
        fully_shard(layer, mesh=outer)
    fully_shard(model, mesh=outer)
    return model


def work(rank, world, kind):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = shard(kind, world)
    mine = {}
    for name, param in model.state_dict().items():
        local = param.to_local().flatten().double()
        mine[name] = [int(local[0]), int(local[-1]), int(local.sum())] if local.numel() > 0 else []
    every = [None] * world
    dist.all_gather_object(every, mine)
    path = os.path.join(here, f"dtensor_{kind}.json")
    stages = [0, world // 2] if kind == "pp" else [0]
    if rank in stages:
        dump_dtensor(model, path if len(stages) == 1 else f"{path}.{rank}", rank, world)
    dist.barrier()
    if rank == 0:
        if len(stages) > 1:
            with open(path, "w") as file:
                json.dump({"ws_dump": "dtensor", "world": world, "ranks": [json.load(open(f"{path}.{r}")) for r in stages]},
                          file)
            for stage in stages:
                os.unlink(f"{path}.{stage}")
        with open(os.path.join(here, f"dtensor_{kind}_values.json"), "w") as file:
            json.dump({"torch": torch.__version__, "ranks": every}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    world = {"fsdp2": 3, "hsdp": 6, "tp": 4, "ep": 4, "pp": 4}[sys.argv[1]]
    mp.spawn(work, args=(world, sys.argv[1]), nprocs=world)
