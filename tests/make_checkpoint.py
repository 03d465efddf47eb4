# SPDX-License-Identifier: Apache-2.0
"""Writes a small checkpoint with the reference safetensors library.

usage: make_checkpoint.py DIR

A llama whose sizes no power of two divides (so that tensor parallel 3 meets 2 strided on both
sides), a vocabulary that both sides pad, and tied embeddings (no lm_head.weight).
"""
import ctypes
import hashlib
import json
import os
import sys

import safetensors

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER, LAYERS, VOCAB = 192, 6, 6, 32, 384, 2, 1000


def bf16(name, count):
    """Finite bf16 values that differ from name to name and element to element."""
    raw = bytearray(hashlib.shake_128(name.encode()).digest(2 * count))
    for i in range(1, 2 * count, 2):
        raw[i] = (raw[i] & 0x80) | (0x3B + (raw[i] & 3))
    return bytes(raw)


def main(folder):
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = [HIDDEN]
        shapes[at + "post_attention_layernorm.weight"] = [HIDDEN]
        shapes[at + "self_attn.q_proj.weight"] = [HEADS * HEAD_DIM, HIDDEN]
        shapes[at + "self_attn.k_proj.weight"] = [KV_HEADS * HEAD_DIM, HIDDEN]
        shapes[at + "self_attn.v_proj.weight"] = [KV_HEADS * HEAD_DIM, HIDDEN]
        shapes[at + "self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD_DIM]
        shapes[at + "mlp.gate_proj.weight"] = [INTER, HIDDEN]
        shapes[at + "mlp.up_proj.weight"] = [INTER, HIDDEN]
        shapes[at + "mlp.down_proj.weight"] = [HIDDEN, INTER]
    os.makedirs(folder, exist_ok=True)
    tensors, buffers = {}, []
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        data = bf16(name, count)
        if hasattr(safetensors, "TensorSpec"):  # 0.8 on: addresses instead of bytes
            buffers.append(ctypes.create_string_buffer(data, len(data)))
            tensors[name] = safetensors.TensorSpec(dtype="bfloat16", shape=shape, data_len=len(data),
                                                   data_ptr=ctypes.addressof(buffers[-1]))
        else:
            tensors[name] = {"dtype": "bfloat16", "shape": shape, "data": data}
    safetensors.serialize_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
            "intermediate_size": INTER, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16"}, out)


main(sys.argv[1])
