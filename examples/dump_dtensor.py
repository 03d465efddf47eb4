# SPDX-License-Identifier: Apache-2.0
"""Writes what `weightsync manifest --from dtensor` reads; rank 0 is enough (FSDP2, HSDP, TP, EP)."""
import json


def dump_dtensor(model, path, rank, world):
    meshes, params = {}, []
    for name, t in model.state_dict().items():
        one = {"name": name, "shape": list(t.shape), "dtype": str(t.dtype)}
        if hasattr(t, "placements"):
            one["mesh"] = meshes.setdefault(t.device_mesh, len(meshes))
            one["placements"] = [repr(p) for p in t.placements]
            one["local"] = list(t.to_local().shape)
        params.append(one)
    meshes = [{"dims": m.mesh_dim_names, "ranks": m.mesh.tolist()} for m in meshes]
    with open(path, "w") as file:
        json.dump({"ws_dump": "dtensor", "world": world, "rank": rank, "meshes": meshes, "params": params}, file)
