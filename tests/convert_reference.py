# SPDX-License-Identifier: Apache-2.0
"""The scheme of lib/convert/convert.h once more, in numpy with ml_dtypes: convert_reference.py DIR
recomputes what tests/convert_quant.c wrote there and compares every bit."""
import collections
import sys

import ml_dtypes
import numpy

FLOATS = {"f32": numpy.float32, "f16": numpy.float16, "bf16": ml_dtypes.bfloat16}
CODES = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
numpy.seterr(all="ignore")
MADE = 300  # tensors; behind them are those of a checkpoint
Tensor = collections.namedtuple(
    "Tensor", "seed dtype rows columns block_rows block_columns code scale eps pow2 reciprocal")


def read_tensors(folder):
    for line in open(f"{folder}/tensors.txt", encoding="ascii"):
        seed, dtype, rows, columns, block_rows, block_columns, code, scale, eps, pow2, recip = line.split()
        yield Tensor(int(seed), FLOATS[dtype], int(rows), int(columns), int(block_rows),
                     int(block_columns), CODES[code], scale,
                     numpy.uint32(int(eps, 16)).view(numpy.float32), pow2 == "1", recip == "1")


def largest(tensor):
    return numpy.float32(ml_dtypes.finfo(tensor.code).max)


def by_block(tensor, values):
    """A value of each block, repeated for its elements."""
    values = numpy.repeat(values, tensor.block_rows, axis=0)[:tensor.rows]
    return numpy.repeat(values, tensor.block_columns, axis=1)[:, :tensor.columns]


def quantize(tensor, x):
    """Scales as stored (unsigned integers), their values, and codes."""
    size = numpy.abs(x)
    size = numpy.maximum.reduceat(size, range(0, tensor.rows, tensor.block_rows), axis=0)
    size = numpy.maximum.reduceat(size, range(0, tensor.columns, tensor.block_columns), axis=1)
    scale = numpy.maximum(size, tensor.eps) / largest(tensor)
    if tensor.pow2 or tensor.scale == "f8e8m0":
        half, exponent = numpy.frexp(scale)
        above = numpy.ldexp(numpy.float32(1), exponent - (half == 0.5))
        scale = numpy.where(numpy.isfinite(scale) & (scale > 0), above, scale)
    if tensor.scale == "f32":
        stored = scale
    elif tensor.scale == "bf16":
        stored = scale.astype(ml_dtypes.bfloat16)
    else:
        scale = numpy.where(numpy.isinf(scale), numpy.float32("nan"), scale)
        stored = numpy.maximum(scale, numpy.float32(2) ** -127).astype(ml_dtypes.float8_e8m0fnu)
    value = stored.astype(numpy.float32)
    by = numpy.where(value == 0, numpy.float32("inf"), value)
    by = by_block(tensor, numpy.float32(1) / by if tensor.reciprocal else by)
    scaled = x * by if tensor.reciprocal else x / by
    codes = numpy.clip(scaled, -largest(tensor), largest(tensor)).astype(tensor.code)
    codes = numpy.where(numpy.isnan(scaled), numpy.uint8(0x7f), codes.view(numpy.uint8))
    assert scale.dtype == by.dtype == scaled.dtype == numpy.float32
    return canonical(stored), value, codes


def canonical(values):
    """As unsigned integers, NaNs positive, quiet and without a payload."""
    bits = values.view({1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32}[values.itemsize])
    nan = {1: 0xff, 2: 0x7fc0, 4: 0x7fc00000}[values.itemsize]
    return numpy.where(numpy.isnan(values.astype(numpy.float32)), bits.dtype.type(nan), bits)


def dequantize(tensor, codes, value):
    values = codes.view(tensor.code).astype(numpy.float32) * by_block(tensor, value)
    return canonical(values.astype(ml_dtypes.bfloat16))


def check(folder, tensor):
    def read(kind, dtype):
        return numpy.fromfile(f"{folder}/{tensor.seed}.{kind}", dtype=dtype)

    def compare(kind, want):
        ours = read(kind, want.dtype).reshape(want.shape)
        wrong = numpy.argwhere(ours != want)
        if len(wrong):
            at = tuple(wrong[0])
            sys.exit(f"{tensor}: {len(wrong)} {kind} differ, at {at} ours is {ours[at]:#x}, "
                     f"the reference's {want[at]:#x}")

    x = read("floats", tensor.dtype).reshape(tensor.rows, tensor.columns).astype(numpy.float32)
    scales, value, codes = quantize(tensor, x)
    compare("scales", scales)
    compare("codes", codes)
    compare("values", dequantize(tensor, codes, value))
    return codes.size, int(numpy.isnan(x).sum())


def main(folder):
    tensors = list(read_tensors(folder))
    counts = [check(folder, tensor) for tensor in tensors]
    schemes = {tensor[6:] for tensor in tensors}
    elements, nans = map(sum, zip(*counts))
    if len(schemes) < 50 or nans == 0:
        sys.exit(f"only {len(schemes)} schemes and {nans} NaNs were compared")
    trained = sum(count for tensor, (count, _) in zip(tensors, counts) if tensor.seed >= MADE)
    print(f"ok ml_dtypes {ml_dtypes.__version__}, numpy {numpy.__version__}: {len(tensors)} tensors in "
          f"{len(schemes)} schemes, {elements} elements of which {nans} are NaN and {trained} trained weights, "
          "alike bit by bit")


if __name__ == "__main__":
    main(sys.argv[1])
