# SPDX-License-Identifier: Apache-2.0
"""Writes what `weightsync manifest --from megatron` reads; every rank calls it with its model chunks."""
import json

import torch.distributed as dist
from megatron.core import parallel_state as ps


def dump_megatron(chunks, path):
    groups = {"tp": ps.get_tensor_model_parallel_group(), "cp": ps.get_context_parallel_group(),
              "dp": ps.get_data_parallel_group(), "pp": ps.get_pipeline_model_parallel_group(),
              "etp": ps.get_expert_tensor_parallel_group(), "ep": ps.get_expert_model_parallel_group(),
              "edp": ps.get_expert_data_parallel_group()}
    marks = ("tensor_model_parallel", "partition_dim", "partition_stride")
    mine = {"rank": dist.get_rank(), "groups": {k: dist.get_process_group_ranks(g) for k, g in groups.items()}, "chunks": [
        {"layers": [layer.layer_number - 1 for layer in chunk.decoder.layers], "params": [
            {"name": name, "shape": list(p.shape), "dtype": str(p.dtype), "expert": not getattr(p, "allreduce", True),
             **{m: getattr(p, m) for m in marks if hasattr(p, m)}}
            for name, p in [*chunk.named_parameters(), *chunk.named_buffers()]]} for chunk in chunks]}
    first = all(dist.get_rank(g) == 0 for k, g in groups.items() if k != "pp")  # of its pipeline stage
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine if first else None)
    if dist.get_rank() == 0:
        with open(path, "w") as file:
            json.dump({"ws_dump": "megatron", "world": len(ranks), "ranks": [r for r in ranks if r]}, file)
