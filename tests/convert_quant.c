/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantization against its definition in double arithmetic (a product or quotient of two f32 is
 * rounded rightly by way of a double), and by shards against the whole.  With WS_CONVERT_OUT a
 * folder, only writes tensors and what became of them there, for convert_reference.py; those of
 * the checkpoint WS_CONVERT_WEIGHTS, too.
 */
#include "lib/convert/convert.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "lib/convert/device.h"
#include "tests/convert_tensor_world.h"

/* ---------------------------------------------------------------- the definition */
static double largest_of(enum ws_dtype code)
{
	return code == WS_F8_E4M3 ? 448 : 57344;
}

/* Of a code with the sign bit clear; INFINITY for e5m2's own and beyond, NAN for NaNs. */
static double value_of_code(uint32_t code, enum ws_dtype dtype)
{
	int fraction_bits = dtype == WS_F8_E4M3 ? 3 : 2, bias = dtype == WS_F8_E4M3 ? 7 : 15;
	int exponent = (int)code >> fraction_bits;
	double fraction = (double)(code & ((1u << fraction_bits) - 1)) / (1 << fraction_bits);
	if (dtype == WS_F8_E4M3 ? code == 0x7f : code > 0x7c)
		return NAN;
	if (dtype == WS_F8_E5M2 && code == 0x7c)
		return INFINITY;
	return exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
}

/* By looking at every finite code; of two equally near ones the even one. */
static uint8_t nearest_code(double x, enum ws_dtype dtype)
{
	double size = fabs(x), least = INFINITY;
	uint32_t nearest = 0, sign = signbit(x) ? 0x80 : 0;
	if (isnan(x))
		return 0x7f;
	for (uint32_t code = 0; code < 128 && value_of_code(code, dtype) <= largest_of(dtype);
	     code++) {
		double off = fabs(value_of_code(code, dtype) - MIN(size, largest_of(dtype)));
		if (off < least || (off == least && code % 2 == 0)) {
			nearest = code;
			least = off;
		}
	}
	return (uint8_t)(sign | nearest);
}

/* The scale as stored, and its value. */
static uint32_t define_scale(const struct quant *quant, double maximum, double *value_out)
{
	float scale = (float)(fmax(maximum, quant->eps) / largest_of(quant->code));
	uint32_t bits = bits_of(scale);
	int exponent = 0;
	*value_out = NAN;
	if (isnan(maximum))
		return quant->scale == WS_F32	 ? 0x7fc00000
		       : quant->scale == WS_BF16 ? 0x7fc0
						 : 0xff;
	bool pow2 = quant->pow2 || quant->scale == WS_F8_E8M0;
	if (pow2 && isfinite(scale) && scale > 0) {
		double half = frexp(scale, &exponent);
		scale = (float)ldexp(1, half == 0.5 ? exponent - 1 : exponent);
		bits = bits_of(scale);
	}
	if (quant->scale == WS_F8_E8M0) {
		if (isinf(scale))
			return 0xff;
		*value_out = fmax(scale, 0x1p-127);
		return (uint32_t)(ilogb(*value_out) + 127);
	}
	if (quant->scale == WS_BF16) {
		/* The nearest of the two neighbours, of equally near ones the even one. */
		uint32_t low = bits & 0xffff0000;
		double below = (double)scale - (double)float_of(low),
		       step = (double)float_of(low + 0x10000);
		bool odd = (low >> 16 & 1) != 0;
		if (isfinite(scale) && isfinite(step)) {
			double above = step - (double)scale;
			if (above < below || (above == below && odd))
				low += 0x10000;
		}
		*value_out = float_of(low);
		return low >> 16;
	}
	*value_out = scale;
	return bits;
}

static uint8_t define_code(const struct quant *quant, double x, double scale)
{
	float by = scale == 0 ? INFINITY : (float)scale;
	if (quant->reciprocal)
		by = (float)(1 / (double)by);
	return nearest_code(quant->reciprocal ? (float)(x * (double)by) : (float)(x / (double)by),
			    quant->code);
}

/* ---------------------------------------------------------------- single elements */
/* Under a scale of one. */
static uint8_t code_alone(enum ws_dtype code, bool reciprocal, uint32_t bits)
{
	struct quant quant = {.code = code, .scale = WS_F32, .reciprocal = reciprocal};
	uint32_t maximum = bits_of((float)largest_of(code));
	struct blocks blocks = {.quant = &quant, .table = &maximum};
	return (uint8_t)move_one(MOVE_QUANTIZE, &blocks, WS_F32, code, bits);
}

START_TEST(a_code_is_the_nearest_value_and_of_two_the_even_one)
{
	enum ws_dtype dtype = _i == 0 ? WS_F8_E4M3 : WS_F8_E5M2;
	for (uint32_t code = 0; value_of_code(code, dtype) <= largest_of(dtype); code++) {
		double value = value_of_code(code, dtype), next = value_of_code(code + 1, dtype);
		double half = isfinite(next) ? (value + next) / 2 : value * 1.03;
		for (int d = -1; d <= 1; d++) {
			uint32_t near = bits_of((float)value) + (uint32_t)(value == 0 ? 0 : d);
			uint32_t between = bits_of((float)half) + (uint32_t)d;
			must(code_alone(dtype, false, near) == nearest_code(float_of(near), dtype),
			     "%08x", near);
			must(code_alone(dtype, true, between) ==
				     nearest_code(float_of(between), dtype),
			     "%08x", between);
		}
	}
	for (uint32_t i = 0; i < 65536; i++) {
		uint32_t bf16 = i << 16, any = (uint32_t)mix64(i + 1);
		bool odd = (i & 1) != 0;
		must(code_alone(dtype, odd, bf16) == nearest_code(float_of(bf16), dtype), "%08x",
		     bf16);
		must(code_alone(dtype, odd, any) == nearest_code(float_of(any), dtype), "%08x",
		     any);
	}
}
END_TEST

START_TEST(a_scale_is_as_defined)
{
	static const uint32_t edges[] = {
		0,	    1,		2,	    0x1bf,	0x1c0,	    0x1c1,	0x007fffff,
		0x00800000, 0x43e00000, 0x43e00001, 0x43dfffff, 0x7f7fffff, 0x7f800000, 0x7fc00000,
		0x47600000, 0x04600000, 0x04600001, 0x045fffff, 0x38d1b717, 0x3f800000};
	for (uint32_t i = 0; i < 60000; i++) {
		struct quant quant = quant_random(i);
		uint32_t maximum = (uint32_t)mix64(i) & 0x7fffffff;
		double value;
		if (i < 200 * ARRAY_SIZE(edges))
			maximum = edges[i % ARRAY_SIZE(edges)];
		if (maximum > 0x7f800000)
			maximum = 0x7fc00000;
		struct blocks blocks = {.quant = &quant};
		uint32_t want = define_scale(&quant, float_of(maximum), &value);
		uint32_t scale = move_one(MOVE_SCALE, &blocks, WS_U32, quant.scale, maximum);
		must(scale == want, "quant %u, maximum %08x: %08x, not %08x", i, maximum, scale,
		     want);
	}
}
END_TEST

START_TEST(a_value_is_its_code_times_its_scale)
{
	for (uint32_t i = 0; i < 256 * 400; i++) {
		struct quant quant = quant_random(i / 256);
		uint32_t code = i % 256, scale = (uint32_t)mix64(i / 256);
		scale = i / 256 % 5 == 0 ? bits_of(1) : scale;
		if (quant.scale != WS_F32)
			scale >>= quant.scale == WS_BF16 ? 16 : 24;
		double by = float_of(quant.scale == WS_F32 ? scale : scale << 16);
		if (quant.scale == WS_F8_E8M0)
			by = scale == 0xff ? NAN : ldexp(1, (int)scale - 127);
		struct blocks blocks = {.quant = &quant, .table = &scale};
		double value = value_of_code(code & 0x7f, quant.code);
		float want = (float)((code & 0x80 ? -value : value) * by);
		uint32_t bits = move_one(MOVE_DEQUANTIZE, &blocks, quant.code, WS_F32, code);
		must(bits == (isnan(want) ? 0x7fc00000 : bits_of(want)),
		     "code %02x, scale %08x: %08x", code, scale, bits);
		uint32_t narrow = move_one(MOVE_CAST, NULL, WS_F32, WS_BF16, bits);
		must(move_one(MOVE_DEQUANTIZE, &blocks, quant.code, WS_BF16, code) == narrow,
		     "code %02x, scale %08x", code, scale);
	}
}
END_TEST

/* ---------------------------------------------------------------- tensors */
static double element(const struct tensor *tensor, uint64_t row, uint64_t column)
{
	size_t bytes = ws_dtype_bytes(tensor->dtype);
	uint32_t bits = 0;
	memcpy(&bits, tensor->floats + (row * tensor->columns + column) * bytes, bytes);
	return float_of(move_one(MOVE_CAST, NULL, tensor->dtype, WS_F32, bits));
}

/* Every code and the scale of one block. */
static void check_block(const struct tensor *tensor, uint64_t r, uint64_t c, uint64_t seed)
{
	uint64_t row_end = MIN((r + 1) * tensor->block[0], tensor->rows);
	uint64_t column_end = MIN((c + 1) * tensor->block[1], tensor->columns);
	size_t scale_bytes = ws_dtype_bytes(tensor->quant.scale);
	double maximum = 0, scale;
	uint32_t stored = 0;
	for (uint64_t i = r * tensor->block[0]; i < row_end; i++)
		for (uint64_t j = c * tensor->block[1]; j < column_end; j++) {
			double size = fabs(element(tensor, i, j));
			maximum = isnan(size) || isnan(maximum) ? NAN : MAX(maximum, size);
		}
	memcpy(&stored, tensor->scales + (r * tensor->grid[1] + c) * scale_bytes, scale_bytes);
	uint32_t want = define_scale(&tensor->quant, maximum, &scale);
	must(stored == want, "seed %llu: block %llu, %llu has scale %x, not %x",
	     (unsigned long long)seed, (unsigned long long)r, (unsigned long long)c, stored, want);
	for (uint64_t i = r * tensor->block[0]; i < row_end; i++)
		for (uint64_t j = c * tensor->block[1]; j < column_end; j++) {
			uint8_t code = tensor->codes[i * tensor->columns + j];
			must(code == define_code(&tensor->quant, element(tensor, i, j), scale),
			     "seed %llu: element %llu, %llu has code %02x",
			     (unsigned long long)seed, (unsigned long long)i, (unsigned long long)j,
			     code);
		}
}

START_TEST(every_scale_and_code_of_a_tensor_is_as_defined)
{
	for (uint64_t round = 0; round < 4; round++) {
		struct tensor tensor;
		uint64_t seed = (uint64_t)_i * 4 + round;
		tensor_make(&tensor, seed);
		tensor_quantize(&tensor);
		for (uint64_t r = 0; r < tensor.grid[0]; r++)
			for (uint64_t c = 0; c < tensor.grid[1]; c++)
				check_block(&tensor, r, c, seed);
		tensor_release(&tensor);
	}
}
END_TEST

/* ---------------------------------------------------------------- shards */
START_TEST(sixteen_shards_make_the_maxima_scales_and_codes_of_the_whole)
{
	struct tensor whole, cut;
	struct part parts[3];
	uint64_t seed = (uint64_t)_i;
	tensor_make(&whole, seed);
	tensor_make(&cut, seed);
	tensor_quantize(&whole);
	uint64_t entries = whole.grid[0] * whole.grid[1];
	uint32_t *partial = mem_alloc(SHARDS * entries * 4);
	ck_assert_ptr_nonnull(partial);
	memset(partial, 0, SHARDS * entries * 4);
	for (uint64_t shard = 0; shard < SHARDS; shard++) {
		uint32_t count = cut_shard(&cut, (uint32_t)_i % 3, shard, parts);
		for (uint32_t k = 0; k < count; k++)
			move_part(&cut, MOVE_MAXIMA, &parts[k], partial + shard * entries);
	}
	/* Some hear of the others before, some after these have been raised themselves. */
	for (uint64_t shard = 0; shard < SHARDS; shard++)
		for (uint64_t other = 0; other < SHARDS; other++)
			move_raise(&cut, partial + shard * entries,
				   partial + (shard * 7 + other) % SHARDS * entries);
	for (uint64_t shard = 0; shard < SHARDS; shard++) {
		uint32_t *table = partial + shard * entries;
		uint32_t count = cut_shard(&cut, (uint32_t)_i % 3, shard, parts);
		ck_assert_mem_eq(table, whole.table, entries * 4);
		for (uint32_t k = 0; k < count; k++)
			move_part(&cut, MOVE_QUANTIZE, &parts[k], table);
		move_scales(&cut, table);
		ck_assert_mem_eq(cut.scales, whole.scales,
				 entries * ws_dtype_bytes(whole.quant.scale));
	}
	ck_assert_mem_eq(cut.codes, whole.codes, whole.rows * whole.columns);
	mem_free(partial);
	tensor_release(&whole);
	tensor_release(&cut);
}
END_TEST

/* ---------------------------------------------------------------- the rest */
START_TEST(rounding_and_flushing_of_the_program_around_do_not_matter)
{
	static const uint8_t canary = 0x5a;
	for (uint64_t seed = 0; seed < 40; seed++) {
		struct tensor calm, rough;
		tensor_make(&calm, seed);
		tensor_make(&rough, seed);
		memset(rough.codes, canary, rough.rows * rough.columns);
		tensor_quantize(&calm);
		ck_assert_int_eq(fesetround(FE_UPWARD), 0);
#ifdef __x86_64__
		_mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zeros */
		unsigned csr = _mm_getcsr() & 0xffc0u;
#endif
		tensor_quantize(&rough);
		ck_assert_int_eq(fegetround(), FE_UPWARD);
#ifdef __x86_64__
		ck_assert_uint_eq(_mm_getcsr() & 0xffc0u, csr);
#endif
		fesetenv(FE_DFL_ENV);
		ck_assert_mem_eq(calm.codes, rough.codes, calm.rows * calm.columns);
		ck_assert_mem_eq(calm.scales, rough.scales,
				 calm.grid[0] * calm.grid[1] * ws_dtype_bytes(calm.quant.scale));
		tensor_release(&calm);
		tensor_release(&rough);
	}
}
END_TEST

START_TEST(what_is_no_quantization_is_refused)
{
	struct quant quant = {.code = WS_F8_E4M3, .scale = WS_F32, .eps = 1e-4F};
	struct blocks blocks = {.quant = &quant};
	struct move move = {.kind = MOVE_QUANTIZE, .from = WS_BF16, .to = WS_F8_E4M3};
	ck_assert(!convert_can(&move));
	move.blocks = &blocks;
	ck_assert(convert_can(&move));
	move.dim_count = MOVE_DIM_MAX + 1;
	ck_assert(!convert_can(&move));
	move.dim_count = 0;
	move.to = WS_F8_E5M2;
	ck_assert(!convert_can(&move));
	move.to = WS_F8_E4M3;
	quant.eps = -1;
	ck_assert(!convert_can(&move));
	quant.eps = NAN;
	ck_assert(!convert_can(&move));
	quant.eps = 0;
	quant.scale = WS_F16;
	ck_assert(!convert_can(&move));
	quant.scale = WS_BF16;
	move.from = WS_F64;
	ck_assert(!convert_can(&move));
	move = (struct move){.kind = MOVE_SCALE, .blocks = &blocks, .from = WS_U32, .to = WS_BF16};
	ck_assert(convert_can(&move));
	move.to = WS_F32;
	ck_assert(!convert_can(&move));
	move.kind = MOVE_RAISE;
	ck_assert(!convert_can(&move));
	move.to = WS_U32;
	ck_assert(convert_can(&move));
	/* Maxima have no scheme, but a table. */
	move = (struct move){.kind = MOVE_MAXIMA, .from = WS_BF16};
	ck_assert(!convert_can(&move));
	blocks.quant = NULL;
	move.blocks = &blocks;
	ck_assert(convert_can(&move));
	blocks.quant = &quant;
	move = (struct move){
		.kind = MOVE_DEQUANTIZE, .blocks = &blocks, .from = WS_F8_E4M3, .to = WS_F8_E4M3};
	ck_assert(!convert_can(&move));
}
END_TEST

/* Larger than what is made at once: the first blocks' codes are there before the last maxima. */
START_TEST(whole_blocks_give_the_maxima_and_codes_of_two_passes)
{
	static const uint64_t sizes[][2] = {
		{128, 128}, {1, 4000}, {100, 72}, {700, 7}, {700, 4000}};
	const uint64_t *size = sizes[_i / 2 % 5];
	struct tensor tensor = {.dtype = _i % 2 == 0 ? WS_BF16 : WS_F32,
				.quant = quant_random((uint64_t)_i),
				.rows = 650,
				.columns = 1500,
				.block = {size[0], size[1]},
				.grid = {(649 + size[0]) / size[0], (1499 + size[1]) / size[1]}};
	const struct part all = {.rows = tensor.rows, .columns = tensor.columns};
	uint64_t count = tensor.rows * tensor.columns, entries = tensor.grid[0] * tensor.grid[1];
	size_t bytes = entries * sizeof(uint32_t);
	tensor.floats = mem_alloc(count * ws_dtype_bytes(tensor.dtype));
	uint8_t *codes[2] = {mem_alloc(count), mem_alloc(count)};
	uint32_t *tables[2] = {mem_alloc(bytes), mem_alloc(bytes)};
	floats_fill(tensor.floats, count, tensor.dtype, (uint64_t)_i);
	for (int k = 0; k < 2; k++) {
		memset(tables[k], 0, bytes);
		tensor.codes = codes[k];
		if (k == 0)
			move_part(&tensor, MOVE_MAXIMA, &all, tables[k]);
		move_part(&tensor, k == 0 ? MOVE_QUANTIZE : MOVE_QUANTIZE_WHOLE, &all, tables[k]);
	}
	ck_assert_int_eq(memcmp(tables[0], tables[1], bytes), 0);
	ck_assert_int_eq(memcmp(codes[0], codes[1], count), 0);
	/* By another send of the same blocks. */
	move_part(&tensor, MOVE_QUANTIZE_WHOLE, &all, tables[0]);
	ck_assert_int_eq(memcmp(tables[0], tables[1], bytes), 0);
	ck_assert_int_eq(memcmp(codes[0], codes[1], count), 0);
	for (int k = 0; k < 2; k++) {
		mem_free(codes[k]);
		mem_free(tables[k]);
	}
	mem_free(tensor.floats);
}
END_TEST

/* Whether all blocks that the first so many elements of a move touch end there. */
static bool ends_block(const struct move *move, uint64_t count)
{
	const struct blocks *blocks = move->blocks;
	int8_t side[512]; /* by entry: where its elements are: -1 before, 1 behind, 0 none seen */
	memset(side, 0, sizeof(side));
	for (uint64_t i = 0; i < move_element_count(move); i++) {
		uint64_t rest = i, entry = 0;
		for (uint32_t d = move->dim_count; d-- > 0;) {
			entry += (blocks->first[d] + rest % move->extent[d]) / blocks->each[d] *
				 (uint64_t)blocks->stride[d];
			rest /= move->extent[d];
		}
		int8_t here = i < count ? -1 : 1;
		if (side[entry] == -here)
			return false;
		side[entry] = here;
	}
	return true;
}

START_TEST(a_move_may_be_cut_between_blocks_and_nowhere_else)
{
	static const uint64_t sizes[] = {1, 2, 3, 4, 7, 100};
	uint32_t cuts = 0;
	for (uint64_t seed = 0; seed < 300; seed++) {
		uint64_t x = mix64(seed), entries = 1;
		struct blocks blocks = {0};
		struct move move = {.kind = MOVE_QUANTIZE_WHOLE, .blocks = &blocks};
		move.dim_count = (uint32_t)(x % 4);
		for (uint32_t d = move.dim_count; d-- > 0;) {
			x = mix64(x);
			move.extent[d] = 1 + x % 7;
			blocks.each[d] = sizes[x / 8 % ARRAY_SIZE(sizes)];
			blocks.stride[d] = x / 64 % 4 == 0 ? 0 : (int64_t)entries;
			entries *= (move.extent[d] - 1) / blocks.each[d] + 1;
		}
		for (uint64_t count = 0; count <= move_element_count(&move); count++) {
			bool can = ends_block(&move, count),
			     says = convert_ends_block(&move, count);
			must(can || !says, "seed %llu, %llu", (unsigned long long)seed,
			     (unsigned long long)count);
			/* Rows of blocks are what a copy is cut at. */
			uint64_t row = move.dim_count == 0 ? 1 : blocks.each[0];
			for (uint32_t d = 1; d < move.dim_count; d++)
				row *= move.extent[d];
			if (move.dim_count > 0 && blocks.stride[0] != 0 && count % row == 0)
				must(says, "seed %llu, %llu", (unsigned long long)seed,
				     (unsigned long long)count);
			cuts += says;
		}
	}
	ck_assert_uint_gt(cuts, 500);
}
END_TEST

/* What is looked at is the shape: no GPU is asked. */
START_TEST(what_a_gpu_quantizes_at_once_is_told_by_the_shape)
{
	static const struct {
		enum ws_dtype from;
		uint64_t rows, columns, block[2], first;
		int64_t step; /* from one element of a row to the next */
		uintptr_t src;
		bool can;
	} cases[] = {
		{WS_BF16, 768, 2048, {128, 128}, 0, 2, 0, true},
		{WS_BF16, 700, 2000, {128, 128}, 0, 2, 16, true},
		{WS_F32, 768, 2048, {128, 128}, 0, 4, 0, true},
		{WS_BF16, 768, 16384, {1, 16384}, 0, 2, 0, true},
		{WS_BF16, 768, 16392, {1, 16392}, 0, 2, 0, false},   /* a block of too many */
		{WS_BF16, 768, 2052, {128, 128}, 0, 2, 0, false},    /* rows begin anywhere */
		{WS_BF16, 768, 2048, {128, 128}, 0, 2, 8, false},    /* so does the first */
		{WS_BF16, 768, 2048, {128, 128}, 64, 2, 0, false},   /* half a block */
		{WS_BF16, 768, 2048, {128, 128}, 0, 1536, 0, false}, /* a transposition */
		{WS_BF16, 768, 2048, {128, 100}, 0, 2, 0, false},
	};
	struct quant quant = {.code = WS_F8_E4M3, .scale = WS_F32};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		int64_t bytes = (int64_t)ws_dtype_bytes(cases[i].from);
		int64_t row = (int64_t)cases[i].columns;
		const struct blocks blocks = {.quant = &quant,
					      .each = {cases[i].block[0], cases[i].block[1]},
					      .first = {cases[i].first},
					      .stride = {32, 1}};
		const struct move move = {
			.kind = MOVE_QUANTIZE_WHOLE,
			.blocks = &blocks,
			.src = (const void *)cases[i].src,
			.dim_count = 2,
			.extent = {cases[i].rows, cases[i].columns},
			.src_stride = {cases[i].step == bytes ? row * bytes : 2, cases[i].step},
			.dst_stride = {row, 1},
			.from = cases[i].from,
			.to = WS_F8_E4M3};
		must(device_can_whole(&move) == cases[i].can, "case %zu", i);
	}
}
END_TEST

START_TEST(tensors_and_what_became_of_them_are_written)
{
	const char *weights = getenv("WS_CONVERT_WEIGHTS");
	tensors_write(getenv("WS_CONVERT_OUT"), weights != NULL && *weights != 0 ? weights : NULL);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("quantization");
	TCase *tcase = tcase_create("definition");
	tcase_set_timeout(tcase, 120);
	if (getenv("WS_CONVERT_OUT") != NULL) {
		tcase_add_test(tcase, tensors_and_what_became_of_them_are_written);
		suite_add_tcase(s, tcase);
		return s;
	}
	tcase_add_loop_test(tcase, a_code_is_the_nearest_value_and_of_two_the_even_one, 0, 2);
	tcase_add_test(tcase, a_scale_is_as_defined);
	tcase_add_test(tcase, a_value_is_its_code_times_its_scale);
	tcase_add_loop_test(tcase, every_scale_and_code_of_a_tensor_is_as_defined, 0, 20);
	tcase_add_loop_test(tcase, sixteen_shards_make_the_maxima_scales_and_codes_of_the_whole, 0,
			    60);
	tcase_add_test(tcase, rounding_and_flushing_of_the_program_around_do_not_matter);
	tcase_add_test(tcase, what_is_no_quantization_is_refused);
	tcase_add_loop_test(tcase, whole_blocks_give_the_maxima_and_codes_of_two_passes, 0, 10);
	tcase_add_test(tcase, a_move_may_be_cut_between_blocks_and_nowhere_else);
	tcase_add_test(tcase, what_a_gpu_quantizes_at_once_is_told_by_the_shape);
	suite_add_tcase(s, tcase);
	return s;
}
