/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What quantizing must give, element by element and block by block, from the whole canonical
 * tensor.  Arithmetic is in double where that is exact or rounds to f32 once (a product of two
 * f32 is exact, a quotient's second rounding changes nothing); codes are looked up in the list of
 * all values.  Shares no code with lib/convert or the planner.
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "cli/oracle.h"

#define CODE_NAN 0x7f

/* ---------------------------------------------------------------- values */

static uint32_t bits_of(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static float float_of(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

float oracle_value(enum ws_dtype dtype, uint32_t bits)
{
	if (dtype != WS_F16)
		return float_of(dtype == WS_BF16 ? bits << 16 : bits);
	int exponent = (int)(bits >> 10 & 0x1f), part = (int)(bits & 0x3ff);
	float value = exponent == 0    ? ldexpf((float)part, -24)
		      : exponent == 31 ? (part == 0 ? INFINITY : NAN)
				       : ldexpf((float)(part + 1024), exponent - 25);
	return (bits & 0x8000) != 0 ? -value : value;
}

/* Of a code without its sign. */
static double code_value(enum ws_dtype dtype, uint32_t code)
{
	int fraction = dtype == WS_F8_E4M3 ? 3 : 2, bias = dtype == WS_F8_E4M3 ? 7 : 15;
	int exponent = (int)code >> fraction, part = (int)code & ((1 << fraction) - 1);

	return exponent == 0 ? ldexp(part, 1 - bias - fraction)
			     : ldexp(part + (1 << fraction), exponent - bias - fraction);
}

static uint32_t code_largest(enum ws_dtype dtype)
{
	return dtype == WS_F8_E4M3 ? 0x7e : 0x7b;
}

/* The code whose value is nearest; of two the even one; beyond the largest, the largest. */
static uint8_t code_nearest(const struct scheme *scheme, double value)
{
	const double *values = scheme->values;
	uint32_t low = 0, high = code_largest(scheme->code);
	uint8_t sign = signbit(value) ? 0x80 : 0;

	if (isnan(value))
		return CODE_NAN;
	value = fabs(value);
	if (value >= values[high])
		return (uint8_t)(sign | high);
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;
		if (values[middle] <= value)
			low = middle;
		else
			high = middle;
	}
	double up = values[high] - value, down = value - values[low];
	bool is_high = up < down || (up == down && high % 2 == 0);
	return (uint8_t)(sign | (is_high ? high : low));
}

/* ---------------------------------------------------------------- the scheme */

int oracle_find(const struct spot *spot, struct scheme *scheme_out, struct ws_error *err)
{
	const char *name = json_text(spot->param, "q", "");
	const struct json *json = json_get(json_get(spot->manifest, "schemes"), name);
	const char *kind = json_text(json, "kind", ""), *scale = json_text(json, "scale", "f32");
	const struct json *block = json_get(json, "block"), *eps = json_get(json, "eps");

	*scheme_out = (struct scheme){
		.code = strcmp(json_text(json, "fmt", ""), "e5m2") == 0 ? WS_F8_E5M2 : WS_F8_E4M3,
		.scale = strcmp(scale, "ue8m0") == 0 ? WS_F8_E8M0 : ws_dtype_parse(scale),
		.whole = strcmp(kind, "tensor") == 0,
		.eps = eps == NULL ? 0 : (float)eps->number,
		.pow2 = json_true(json, "pow2"),
		.reciprocal = json_true(json, "recip"),
	};
	for (uint32_t code = 0; code <= code_largest(scheme_out->code); code++)
		scheme_out->values[code] = code_value(scheme_out->code, code);
	scheme_out->suffix =
		json_text(json, "suffix", strcmp(kind, "block") == 0 ? "_scale_inv" : "_scale");
	if (strcmp(kind, "channel") == 0)
		scheme_out->block[0] = 1;
	else if (strcmp(kind, "block") == 0 && block != NULL && block->count == 2)
		for (uint32_t side = 0; side < 2; side++)
			scheme_out->block[side] = (uint64_t)json_at(block, side)->integer;
	else if (!scheme_out->whole)
		return ws_fail(err, -EINVAL, "oracle: no scheme '%s'", name);
	return 0;
}

uint64_t oracle_each(const struct scheme *scheme, const struct tree *leaf, uint32_t dim)
{
	if (scheme->whole)
		return leaf->shape[dim];
	if (dim + 2 < leaf->dim_count)
		return 1;
	uint64_t block = scheme->block[dim + 2 - leaf->dim_count];
	return block == 0 ? leaf->shape[dim] : block;
}

uint64_t oracle_block(const struct scheme *scheme, const struct tree *leaf, uint64_t element)
{
	uint64_t block = 0, below = 1;
	for (uint32_t d = leaf->dim_count; d-- > 0;) {
		uint64_t each = oracle_each(scheme, leaf, d);
		block += element % leaf->shape[d] / each * below;
		below *= (leaf->shape[d] + each - 1) / each;
		element /= leaf->shape[d];
	}
	return block;
}

/* ---------------------------------------------------------------- scales */

/* The smallest power of two that isn't below. */
static float power_above(float value)
{
	int exponent;
	if (value == 0 || isinf(value) || isnan(value))
		return value;
	float part = frexpf(value, &exponent); /* in [0.5, 1) */
	return part == 0.5f ? value : ldexpf(1, exponent);
}

/* To nearest even; not for NaN. */
static uint32_t bf16_of(float value)
{
	uint32_t bits = bits_of(value), low = bits & 0xffff;
	return (bits >> 16) + (low > 0x8000 || (low == 0x8000 && (bits >> 16 & 1) != 0));
}

uint32_t oracle_scale_bits(const struct scheme *scheme, float scale)
{
	if (isnan(scale))
		return scheme->scale == WS_F32	  ? 0x7fc00000
		       : scheme->scale == WS_BF16 ? 0x7fc0
						  : 0xff;
	if (scheme->scale == WS_F8_E8M0)
		return isinf(scale)		  ? 0xff
		       : scale <= ldexpf(1, -127) ? 0
						  : (uint32_t)(127 + ilogbf(scale));
	return scheme->scale == WS_F32 ? bits_of(scale) : bf16_of(scale);
}

/* What the stored bits mean. */
static float scale_value(const struct scheme *scheme, uint32_t bits)
{
	if (scheme->scale == WS_F8_E8M0)
		return bits == 0xff ? NAN : ldexpf(1, (int)bits - 127);
	return float_of(scheme->scale == WS_BF16 ? bits << 16 : bits);
}

static float scale_of(const struct scheme *scheme, double maximum)
{
	if (isnan(maximum))
		return NAN;
	double most = scheme->values[code_largest(scheme->code)];
	float scale = (float)(fmax(maximum, (double)scheme->eps) / most);
	if (scheme->pow2 || scheme->scale == WS_F8_E8M0)
		scale = power_above(scale);
	return scale_value(scheme, oracle_scale_bits(scheme, scale));
}

static float leaf_value(const struct tree *leaf, uint64_t element, uint64_t version)
{
	size_t each = ws_dtype_bytes(leaf->trained);
	uint32_t bits = 0;
	memcpy(&bits, leaf->data + element * each, each);
	return oracle_value(leaf->trained,
			    bits ^ change_mask(leaf->trained, bits, leaf->hash, element, version));
}

int oracle_scales(const struct scheme *scheme, struct tree *leaf, uint64_t version,
		  struct ws_error *err)
{
	uint64_t elements = 1, blocks = 1;
	for (uint32_t d = 0; d < leaf->dim_count; d++) {
		uint64_t each = oracle_each(scheme, leaf, d);
		elements *= leaf->shape[d];
		blocks *= (leaf->shape[d] + each - 1) / each;
	}
	double *maxima = mem_alloc(blocks * sizeof(*maxima));
	leaf->scales = mem_alloc(blocks * sizeof(*leaf->scales));
	if (maxima == NULL || leaf->scales == NULL) {
		mem_free(maxima);
		return ws_fail(err, -ENOMEM, "oracle: no memory for the scales of a tensor");
	}
	for (uint64_t i = 0; i < elements; i++) {
		double *most = &maxima[oracle_block(scheme, leaf, i)];
		double value = fabs((double)leaf_value(leaf, i, version));
		if (isnan(value) || value > *most)
			*most = value;
	}
	for (uint64_t i = 0; i < blocks; i++)
		leaf->scales[i] = scale_of(scheme, maxima[i]);
	mem_free(maxima);
	return 0;
}

uint8_t oracle_code(const struct scheme *scheme, const struct tree *leaf, uint64_t element,
		    uint64_t version)
{
	double value = (double)leaf_value(leaf, element, version);
	float scale = leaf->scales[oracle_block(scheme, leaf, element)];

	if (scale == 0)
		scale = INFINITY;
	if (scheme->reciprocal)
		value *= (double)(float)(1 / (double)scale);
	else
		value /= (double)scale;
	return code_nearest(scheme, (double)(float)value);
}

uint16_t oracle_decode(const struct scheme *scheme, uint32_t code, float scale)
{
	uint32_t size = code & 0x7f, largest = code_largest(scheme->code);
	bool infinite = scheme->code == WS_F8_E5M2 && size == largest + 1;
	double value = infinite		? (double)INFINITY
		       : size > largest ? (double)NAN
					: scheme->values[size];
	float product = (float)((code & 0x80 ? -value : value) * (double)scale);

	return isnan(product) ? 0x7fc0 : (uint16_t)bf16_of(product);
}
