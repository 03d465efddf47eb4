# SPDX-License-Identifier: Apache-2.0
"""How the Megatron dumps here were made: real GPTModels over gloo (torch 2.6.0, megatron-core 0.12.1, CPU).

    python make_megatron.py tp_pp|ep|vpp
"""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../examples"))
jobs = {"tp_pp": {"world": 4, "tp": 2, "pp": 2, "div": 128}, "ep": {"world": 4, "tp": 2, "ep": 2, "etp": 1, "div": 96},
        "vpp": {"world": 4, "pp": 2, "vpp": 2, "ep": 2, "div": 128}}
config = json.load(open(os.path.join(here, "config.json")))


def work(rank, kind):
    job = {"tp": 1, "pp": 1, "ep": 1, "vpp": None, **jobs[kind]}
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    dist.init_process_group("gloo", rank=rank, world_size=job["world"])
    torch.cuda.current_device, torch.cuda.Stream = lambda: "cpu", lambda: None  # no GPU here
    from dump_megatron import dump_megatron
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    etp = job.get("etp", job["tp"])
    ps.initialize_model_parallel(job["tp"], job["pp"], job["vpp"], expert_model_parallel_size=job["ep"],
                                 expert_tensor_parallel_size=etp)
    wanted = TransformerConfig(
        num_layers=config["num_hidden_layers"], hidden_size=config["hidden_size"], kv_channels=config["head_dim"],
        num_attention_heads=config["num_attention_heads"], num_query_groups=config["num_key_value_heads"],
        ffn_hidden_size=config["intermediate_size"], moe_ffn_hidden_size=config["moe_intermediate_size"],
        num_moe_experts=config["num_experts"], tensor_model_parallel_size=job["tp"],
        pipeline_model_parallel_size=job["pp"], virtual_pipeline_model_parallel_size=job["vpp"],
        expert_model_parallel_size=job["ep"], expert_tensor_parallel_size=etp, sequence_parallel=job["tp"] > 1,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        normalization="RMSNorm", qk_layernorm=True, use_cpu_initialization=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, bf16=True, moe_token_dispatcher_type="alltoall")
    wanted.sequence_parallel = False  # torch's own norm, in Apex's place, doesn't take it
    rows = job["div"] * job["tp"]
    chunks = []
    for chunk in range(job["vpp"] or 1):
        if job["vpp"]:
            ps.set_virtual_pipeline_model_parallel_rank(chunk)
        chunks.append(GPTModel(
            wanted, get_gpt_layer_local_spec(config["num_experts"], False, True), -(-config["vocab_size"] // rows) * rows,
            64, ps.is_pipeline_first_stage(), ps.is_pipeline_last_stage(), position_embedding_type="rope"))
    dump_megatron(chunks, os.path.join(here, f"megatron_{kind}.json"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=jobs[sys.argv[1]]["world"])
