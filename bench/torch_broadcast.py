#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What RL frameworks do today, in PyTorch over NCCL: a trainer's GPU 0 brings the weights of Qwen3-30B-A3B, tensor by
tensor as Hugging Face names them, to a rollout's GPU 1 that has an engine's stacked tensors (w13, w2, qkv).

Rows, in turns; the first turn isn't counted:
  per-tensor  a broadcast of each tensor, straight into the stacked tensor's rows
  bucketed    buckets of 512 MiB: torch.cat, one broadcast, then split and copied into the stacked tensors
  one-by-one  the same, but a bucket ends at both before the next begins, as where each is a request to the engine
              (slime, SGLang's flattened buckets: views of bytes, made anew each time); a barrier here, no request
  quantized   FP8 e4m3 by blocks of 128 x 128 in eager PyTorch, tensor by tensor; a broadcast of codes, one of scales

Seconds are from a barrier until both ends have synchronized.  Where a tensor goes is known beforehand: an engine's
load_weights, which finds that out by name each time, isn't part of it.  In the end each row runs once more, into
zeroed memory, and every byte is compared with what the rollout makes of the trainer's seeds.

usage: torch_broadcast.py [--rows per-tensor,bucketed,..] [--rounds 5] [--scale N] [--json] [--file-init PATH]
"""
import argparse
import datetime
import json
import os
import socket
import statistics
import sys
import time
import typing

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    sys.exit(f"torch_broadcast.py: {error}: run it by a python3 that has PyTorch with CUDA, on a machine with two GPUs")

LAYERS, EXPERTS, HIDDEN, EXPERT, VOCABULARY = 48, 128, 2048, 768, 151936
BLOCK, LARGEST, EPS = 128, 448.0, 1e-4
BUCKET_BYTES = 512 << 20
TRAINER, ROLLOUT = 0, 1


class Piece(typing.NamedTuple):
    """A tensor, and which rows of which tensor of the engine's it becomes."""
    name: str
    rows: int
    columns: int
    home: str
    row: int = 0
    quantized: bool = False


def layer_pieces(at, experts):
    attention, mlp = at + "self_attn.", at + "mlp."
    for name in "input_layernorm", "post_attention_layernorm":
        yield Piece(f"{at}{name}.weight", 1, HIDDEN, f"{at}{name}.weight")
    for name in "q_norm", "k_norm":
        yield Piece(f"{attention}{name}.weight", 1, 128, f"{attention}{name}.weight")
    for name, rows, row in ("q", 4096, 0), ("k", 512, 4096), ("v", 512, 4608):
        yield Piece(f"{attention}{name}_proj.weight", rows, HIDDEN, attention + "qkv_proj.weight", row, True)
    yield Piece(attention + "o_proj.weight", HIDDEN, 4096, attention + "o_proj.weight", 0, True)
    yield Piece(mlp + "gate.weight", experts, HIDDEN, mlp + "gate.weight")
    for e in range(experts):
        of, w13 = f"{mlp}experts.{e}.", mlp + "experts.w13_weight"
        yield Piece(of + "gate_proj.weight", EXPERT, HIDDEN, w13, 2 * EXPERT * e, True)
        yield Piece(of + "up_proj.weight", EXPERT, HIDDEN, w13, 2 * EXPERT * e + EXPERT, True)
        yield Piece(of + "down_proj.weight", HIDDEN, EXPERT, mlp + "experts.w2_weight", HIDDEN * e, True)


def model_pieces(scale):
    """1/scale of the model: fewer layers, and when one is left fewer experts and words."""
    layers, rest = max(1, LAYERS // scale), max(1, scale // LAYERS)
    vocabulary = VOCABULARY // rest
    pieces = [Piece("model.embed_tokens.weight", vocabulary, HIDDEN, "model.embed_tokens.weight")]
    for layer in range(layers):
        pieces += layer_pieces(f"model.layers.{layer}.", max(1, EXPERTS // rest))
    pieces.append(Piece("model.norm.weight", 1, HIDDEN, "model.norm.weight"))
    pieces.append(Piece("lm_head.weight", vocabulary, HIDDEN, "lm_head.weight"))
    return pieces


def quantize(weight):
    """Codes as bytes, and scales."""
    rows, columns = weight.shape
    blocks = weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK).float()
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=EPS) / LARGEST
    codes = (blocks / scales[:, None, :, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes.view(rows, columns).view(torch.uint8), scales


def stacked(pieces, device, dtype, unit=1):
    """The engine's tensors, and the rows of them that are each piece's.  A stack is all experts' rows: the same bytes
    as in [experts, rows, columns]."""
    rows = {}
    for piece in pieces:
        rows[piece.home] = max(rows.get(piece.home, 0), piece.row + piece.rows)
    columns = {piece.home: piece.columns for piece in pieces}
    homes = {home: torch.zeros(rows[home] // unit, columns[home] // unit, dtype=dtype, device=device) for home in rows}
    return [homes[p.home][p.row // unit:(p.row + p.rows) // unit] for p in pieces], list(homes.values())


def bucket_runs(weights):
    """Runs of weights that fit a bucket; one that is larger has its own."""
    run, filled = [], 0
    for weight in weights:
        if run and filled + weight.nbytes > BUCKET_BYTES:
            yield run
            run, filled = [], 0
        run.append(weight)
        filled += weight.nbytes
    yield run


class End:
    """A trainer with its tensors, or a rollout with its views of the engine's."""

    def __init__(self, rank, device, pieces, quantizes):
        self.trains, self.device, self.pieces = rank == TRAINER, device, pieces
        self.generator = torch.Generator(device)
        self.codes, self.scales = {}, {}
        if self.trains:
            self.weights, self.memory = [self.source(i) for i in range(len(pieces))], []
        else:
            self.weights, self.memory = stacked(pieces, device, torch.bfloat16)
        self.buckets = [([weight.view(-1) for weight in run], [weight.numel() for weight in run])
                        for run in bucket_runs(self.weights)]
        if not self.trains:
            largest = max(sum(sizes) for _, sizes in self.buckets)
            self.bucket = torch.empty(largest, dtype=torch.bfloat16, device=device)
        if quantizes and not self.trains:
            which = [i for i, piece in enumerate(pieces) if piece.quantized]
            for into, dtype, unit in (self.codes, torch.uint8, 1), (self.scales, torch.float32, BLOCK):
                views, memory = stacked([pieces[i] for i in which], device, dtype, unit)
                into.update(zip(which, views))
                self.memory += memory

    def source(self, i):
        """The trainer's tensor; the same on a GPU of the same kind."""
        weight = torch.empty(self.pieces[i].rows, self.pieces[i].columns, dtype=torch.bfloat16, device=self.device)
        return weight.normal_(0, 0.02, generator=self.generator.manual_seed(i))

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def per_tensor(end):
    for weight in end.weights:
        dist.broadcast(weight, TRAINER)


def bucketed(end):
    for weights, sizes in end.buckets:
        bucket = torch.cat(weights) if end.trains else end.bucket[:sum(sizes)]
        dist.broadcast(bucket, TRAINER)
        if not end.trains:
            for weight, part in zip(weights, bucket.split(sizes)):
                weight.copy_(part)


def one_by_one(end):
    for weights, _ in end.buckets:
        if end.trains:
            bucket = torch.cat([weight.flatten().view(torch.uint8) for weight in weights])
        else:
            bucket = torch.empty(sum(weight.nbytes for weight in weights), dtype=torch.uint8, device=end.device)
        dist.broadcast(bucket, TRAINER)
        first = 0
        for weight in [] if end.trains else weights:
            weight.copy_(bucket[first:first + weight.nbytes].view(weight.dtype).reshape(weight.shape))
            first += weight.nbytes
        end.synchronize()
        dist.barrier()


def quantized(end):
    for i, piece in enumerate(end.pieces):
        if not piece.quantized:
            dist.broadcast(end.weights[i], TRAINER)
            continue
        codes, scales = quantize(end.weights[i]) if end.trains else (end.codes[i], end.scales[i])
        dist.broadcast(codes, TRAINER)
        dist.broadcast(scales, TRAINER)


ROWS = {"per-tensor": per_tensor, "bucketed": bucketed, "one-by-one": one_by_one, "quantized": quantized}


def row_bytes(row, pieces):
    counts = [(p.rows * p.columns, row == "quantized" and p.quantized) for p in pieces]
    return sum(count + 4 * count // BLOCK ** 2 if coded else 2 * count for count, coded in counts)


def seconds_of(row, end):
    end.synchronize()
    dist.barrier()
    end.synchronize()
    begun = time.perf_counter()
    ROWS[row](end)
    end.synchronize()
    # the clock is the host's, both processes have it
    times = torch.tensor([-begun, time.perf_counter()], dtype=torch.float64, device=end.device)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.sum().item()


def different_bytes(row, end):
    """How many bytes of a run into zeroed memory aren't what they should be; the rollout compares."""
    for memory in end.memory:
        memory.zero_()
    ROWS[row](end)
    wrong = torch.zeros((), dtype=torch.int64, device=end.device)
    for i, piece in enumerate([] if end.trains else end.pieces):
        want, got = [end.source(i)], [end.weights[i]]
        if row == "quantized" and piece.quantized:
            want, got = quantize(want[0]), (end.codes[i], end.scales[i])
        for a, b in zip(want, got):
            wrong += (a.view(torch.uint8) != b.view(torch.uint8)).sum()
    dist.all_reduce(wrong)
    return wrong.item()


def report(options, row, seconds, pieces, wrong):
    median, moved = statistics.median(seconds), row_bytes(row, pieces)
    figures = {"row": row, "tensors": len(pieces), "bytes": moved, "rounds": len(seconds), "seconds": median,
               "seconds_least": min(seconds), "seconds_most": max(seconds), "gb_per_second": moved / median / 1e9,
               "different_bytes": wrong, "torch": torch.__version__,
               "nccl": None if options.cpu else ".".join(map(str, torch.cuda.nccl.version())),
               "device": "cpu" if options.cpu else torch.cuda.get_device_name(0)}
    if options.json:
        print(json.dumps(figures), flush=True)
    else:
        print(f"{row:<11} {median:8.4f} s ({min(seconds):.4f} to {max(seconds):.4f} in {len(seconds)} rounds), "
              f"{moved / 1e9:6.2f} GB, {moved / median / 1e9:6.1f} GB/s, "
              f"{wrong or 'no'} bytes differ", flush=True)


def work(rank, options, meet):
    device = torch.device("cpu") if options.cpu else torch.device("cuda", rank)
    if not options.cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if options.cpu else "nccl", init_method=meet, rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=120), device_id=None if options.cpu else device)
    pieces = model_pieces(options.scale)
    end = End(rank, device, pieces, "quantized" in options.rows)
    seconds = {row: [] for row in options.rows}
    for _ in range(1 + options.rounds):
        for row in options.rows:
            seconds[row].append(seconds_of(row, end))
    wrong = {row: different_bytes(row, end) for row in options.rows}
    if end.trains:
        for row in options.rows:
            report(options, row, seconds[row][1:], pieces, wrong[row])
    dist.destroy_process_group()
    if end.trains and any(wrong.values()):
        sys.exit(1)


def meeting_place(path):
    if path is not None:
        return "file://" + os.path.abspath(path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "tcp://127.0.0.1:%d" % free.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description="Broadcasts of Qwen3-30B-A3B's weights in PyTorch from GPU 0 to GPU 1")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help=",".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5, help="counted turns (5)")
    parser.add_argument("--scale", type=int, default=1, help="1/SCALE of the model: fewer layers")
    parser.add_argument("--json", action="store_true", help="an object a line")
    parser.add_argument("--file-init", metavar="PATH", help="meet by this new file, not by a port of 127.0.0.1")
    parser.add_argument("--cpu", action="store_true", help="host memory over gloo: to try this script")
    options = parser.parse_args()
    if not set(options.rows) <= set(ROWS) or options.rounds < 1 or options.scale < 1:
        parser.error("rows are %s; rounds and scale are at least 1" % ",".join(ROWS))
    if not options.cpu and torch.cuda.device_count() < 2:
        sys.exit("torch_broadcast.py: 2 GPUs are needed, and PyTorch finds %d" % torch.cuda.device_count())
    try:
        torch.multiprocessing.spawn(work, (options, meeting_place(options.file_init)), nprocs=2)
    except torch.multiprocessing.ProcessExitedException as failed:
        sys.exit("torch_broadcast.py: %s" % failed)


if __name__ == "__main__":
    main()
