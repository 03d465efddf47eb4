/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `bench update` compares, without a GPU: from two manifests alone it must come to every byte
 * that the rollout has, once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/update.h"
#include "tests/test.h"

static struct ws_error error;

static const char *const schemes[] = {NULL, "fp8-block", "fp8-block-ue8m0", "fp8-channel"};

static struct manifest *manifest_of(const struct model *model, enum side side, const char *quant)
{
	const struct manifest_options wanted = {
		.side = side,
		.layout = side == SIDE_TRAINER ? "fsdp2" : "vllm",
		.mesh = side == SIDE_TRAINER ? "dp=1" : "tp=1",
		.quant = quant,
	};
	struct writer text = WRITER_INIT(64u << 20);
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct manifest *manifest;

	ck_ok(manifest_make(model, &wanted, &text, &findings, &error), error);
	ck_ok(manifest_parse(&manifest, text.bytes, text.count, &findings, &error), error);
	writer_release(&text);
	arena_release(&arena);
	return manifest;
}

static void rank_make(struct update_job *job, struct update_rank *rank, const char *quant)
{
	struct model *model;

	ck_ok(model_builtin(&model, "qwen3-30b-a3b", &error), error);
	*rank = (struct update_rank){.job = job};
	for (int side = 0; side < 2; side++) {
		job->manifest[side] =
			manifest_of(model, (enum side)side, side == SIDE_ROLLOUT ? quant : NULL);
		ck_ok(manifest_params(job->manifest[side], 0, &rank->arena, &rank->params[side],
				      &error),
		      error);
	}
	model_free(model);
}

static void rank_free(struct update_job *job, struct update_rank *rank)
{
	arena_release(&rank->arena);
	for (int side = 0; side < 2; side++)
		manifest_free(job->manifest[side]);
}

struct stretch {
	uint64_t from, end;
};

static int by_from(const void *a, const void *b)
{
	const struct stretch *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

/* Sorted by where they begin, none reaches into the next; returns their bytes. */
static uint64_t apart(struct stretch *stretches, size_t count)
{
	uint64_t bytes = 0;

	qsort(stretches, count, sizeof(*stretches), by_from);
	for (size_t i = 0; i < count; i++) {
		bytes += stretches[i].end - stretches[i].from;
		ck_assert(i == 0 || stretches[i - 1].end <= stretches[i].from);
	}
	return bytes;
}

START_TEST(every_byte_of_the_rollouts_is_compared_once)
{
	struct update_job job = {0};
	struct update_rank rank;
	size_t count = 0;

	rank_make(&job, &rank, schemes[_i]);
	ck_ok(update_runs_make(&rank, &error), error);
	ck_assert_int_eq(rank.weight_count > 0, schemes[_i] != NULL);
	struct stretch *stretches =
		calloc(rank.run_count + 2 * (size_t)rank.weight_count, sizeof(*stretches));
	ck_assert_ptr_nonnull(stretches);
	for (uint32_t i = 0; i < rank.run_count; i++) {
		const struct run *run = &rank.runs[i];
		ck_assert(run->from + run->bytes <= rank.params[SIDE_TRAINER].arena_bytes);
		stretches[count++] = (struct stretch){run->to, run->to + run->bytes};
	}
	for (uint32_t i = 0; i < rank.weight_count; i++) {
		const struct weight *weight = &rank.weights[i];
		uint64_t scales = weight->grid[0] * weight->grid[1];
		uint64_t codes = weight->extent[0] * weight->extent[1];
		for (uint32_t d = 0; d < 2; d++)
			ck_assert_uint_eq(weight->grid[d], (weight->extent[d] + weight->each[d] -
							    1) / weight->each[d]);
		ck_assert(weight->from + codes * 2 <= rank.params[SIDE_TRAINER].arena_bytes);
		stretches[count++] = (struct stretch){weight->codes, weight->codes + codes};
		stretches[count++] = (struct stretch){
			weight->scales,
			weight->scales + scales * ws_dtype_bytes(weight->quant.scale)};
	}
	ck_assert_uint_eq(apart(stretches, count), rank.params[SIDE_ROLLOUT].bytes);
	free(stretches);
	rank_free(&job, &rank);
}
END_TEST

START_TEST(one_scale_for_several_weights_is_refused)
{
	struct update_job job = {0};
	struct update_rank rank;

	rank_make(&job, &rank, "fp8-tensor");
	ck_fails(update_runs_make(&rank, &error), -ENOTSUP, error);
	ck_assert_ptr_nonnull(strstr(error.text, "by block or channel"));
	rank_free(&job, &rank);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("what bench update compares");
	TCase *tcase = tcase_create("runs");
	tcase_set_timeout(tcase, 120);
	suite_add_tcase(s, tcase);
	tcase_add_loop_test(tcase, every_byte_of_the_rollouts_is_compared_once, 0,
			    (int)ARRAY_SIZE(schemes));
	tcase_add_test(tcase, one_scale_for_several_weights_is_refused);
	return s;
}
