# SPDX-License-Identifier: Apache-2.0
"""The scheme of lib/convert/convert.h once more, in PyTorch on a GPU: gpu_reference.py DIR recomputes
what tests/gpu_quantize.c made its kernels write there, and compares every bit."""
import sys

import numpy
import torch

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CODES = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
SCALE_NAN = {"f32": 0x7fc00000, "bf16": 0x7fc0, "f8e8m0": 0xff}


def read(path, dtype):
    return torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8)).cuda().view(dtype)


def block_maxima(size, rows, columns):
    """The largest of each block; a NaN is larger than all."""
    pad = torch.nn.functional.pad(size, (0, -size.shape[1] % columns, 0, -size.shape[0] % rows))
    grid = pad.reshape(pad.shape[0] // rows, rows, pad.shape[1] // columns, columns)
    return grid.amax(dim=(1, 3))


def power_of_two(scale):
    """Not below scale; doubles hold every power of two that an f32 has, subnormal or not."""
    above = torch.exp2(torch.ceil(torch.log2(scale.double())))
    # log2 is off by its last bit at most: the neighbours settle it
    above = torch.where(above / 2 >= scale.double(), above / 2, above)
    above = torch.where(above < scale.double(), above * 2, above)
    return torch.where(torch.isfinite(scale) & (scale > 0), above.float(), scale)


def stored_scale(scale, dtype):
    """As integers, and as the values that they stand for."""
    if dtype == "f8e8m0":
        exponent = torch.frexp(scale.double())[1] - 1
        bits = (exponent + 127).clamp(0, 254).to(torch.uint8)
        bits = torch.where(scale == 0, torch.zeros_like(bits), bits)
        bits = torch.where(torch.isfinite(scale), bits, torch.full_like(bits, 0xff))
        value = torch.exp2(bits.double() - 127).float()
        return bits, torch.where(bits == 0xff, torch.full_like(value, float("nan")), value)
    narrow = scale.to(FLOATS[dtype])
    bits = narrow.view(INTEGERS[narrow.itemsize]).clone()
    bits[torch.isnan(narrow)] = SCALE_NAN[dtype]
    return bits, narrow.float()


def quantize(x, rows, columns, code, scale_dtype, eps, pow2, reciprocal):
    largest = torch.finfo(code).max
    maximum = block_maxima(x.abs(), rows, columns)
    scale = torch.maximum(maximum, eps) / torch.full_like(maximum, largest)
    if pow2 or scale_dtype == "f8e8m0":
        scale = power_of_two(scale)
    bits, value = stored_scale(scale, scale_dtype)
    by = torch.where(value == 0, torch.full_like(value, float("inf")), value)
    by = torch.ones_like(by) / by if reciprocal else by
    by = by.repeat_interleave(rows, 0)[:x.shape[0]].repeat_interleave(columns, 1)[:, :x.shape[1]]
    scaled = x * by if reciprocal else x / by
    codes = scaled.clamp(-largest, largest).to(code).view(torch.uint8)
    return bits, torch.where(torch.isnan(scaled), torch.full_like(codes, 0x7f), codes)


def check(folder, line):
    seed, dtype, rows, columns, block_rows, block_columns, code, scale, eps, pow2, recip = line.split()
    rows, columns, block_rows, block_columns = map(int, (rows, columns, block_rows, block_columns))
    eps = torch.tensor(int(eps, 16), dtype=torch.int32, device="cuda").view(torch.float32)
    x = read(f"{folder}/{seed}.floats", FLOATS[dtype]).reshape(rows, columns).float()
    scales, codes = quantize(x, block_rows, block_columns, CODES[code], scale, eps, pow2 == "1",
                             recip == "1")
    for kind, want in ("scales", scales), ("codes", codes):
        ours = read(f"{folder}/{seed}.{kind}", want.dtype).reshape(want.shape)
        wrong = (ours != want).nonzero()
        if len(wrong):
            at = tuple(wrong[0].tolist())
            sys.exit(f"{line.strip()}: {len(wrong)} {kind} differ, at {at} ours is "
                     f"{ours[at].item():#x}, the reference's {want[at].item():#x}")
    return codes.numel(), int(torch.isnan(x).sum()), (code, scale, eps.item(), pow2, recip)


if not torch.cuda.is_available():
    print("skip gpu_reference: PyTorch finds no GPU")
    sys.exit(77)
with open(f"{sys.argv[1]}/tensors.txt", encoding="ascii") as tensors:
    counts = [check(sys.argv[1], line) for line in tensors]
elements, nans, schemes = (sum(c[0] for c in counts), sum(c[1] for c in counts), {c[2] for c in counts})
if len(schemes) < 50 or nans == 0:
    sys.exit(f"only {len(schemes)} schemes and {nans} NaNs were compared")
print(f"ok torch {torch.__version__}: {len(counts)} tensors in {len(schemes)} schemes, "
      f"{elements} elements of which {nans} are NaN, alike bit by bit")
