/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-phase maxima: what trainers find, tell and raise gives the codes and scales of the whole
 * tensor, for random layouts and for those of frameworks; and nothing more is told than that
 * takes.
 */
#include <stdio.h>
#include <string.h>

#include "tests/maxima_world.h"
#include "tests/plan_pair.h"
#include "tests/test.h"

#define SEEDS 120

/* ---- Random layouts, by hand. */

struct random_world {
	struct arena arena;
	uint64_t state;
	struct manifest *manifests[2];
	struct place places[64];
	uint32_t replicas[3];
	struct plan_input input;
	uint32_t a, b, ranks, block[2];
	struct ws_error err;
};

static uint32_t below(struct random_world *random, uint32_t limit)
{
	random->state = mix64(random->state + 0x9e3779b97f4a7c15ull);
	return (uint32_t)(random->state % limit);
}

/* How trainers may hold a tensor "w" (and "v"), over axes a and b. */
static const char *const held[] = {
	"[\"s\",[\"t\",\"%s\"],0,\"a\",{\"mode\":\"chunk\"}]", /* HSDP where b > 1 */
	"[\"s\",[\"t\",\"%s\"],1,\"b\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"s\",[\"t\",\"%s\"],0,\"b\",{\"mode\":\"chunk\"}],0,\"a\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"s\",[\"t\",\"%s\"],0,\"a\",{\"mode\":\"chunk\"}],1,\"b\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"fl\",[\"t\",\"%s\"]],0,\"a\",{\"mode\":\"chunk\"}]", /* ZeRO-3 */
	"[\"s\",[\"fl\",[\"t\",\"%s\"]],0,\"b\",{\"mode\":\"chunk\"}]",
	"[\"t\",\"%s\"]",
	"[\"s\",[\"x\",[\"t\",\"%s\"],[1,0]],0,\"a\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"il\",[\"t\",\"%s\"],0,1,2,$h],0,\"a\",{\"mode\":\"chunk\"}]",
};

static void put_held(struct random_world *random, struct writer *out, const char *name,
		     uint32_t rows)
{
	const char *form = held[below(random, ARRAY_SIZE(held))];
	char text[256], number[16];

	snprintf(text, sizeof(text), form[0] == '[' ? "%s" : "", form);
	for (const char *at = text; *at != '\0'; at++)
		if (at[0] == '%' && at[1] == 's') {
			write_format(out, "%s", name);
			at++;
		} else if (at[0] == '$' && at[1] == 'h') {
			snprintf(number, sizeof(number), "%" PRIu32, rows / 2);
			write_format(out, "%s", number);
			at++;
		} else {
			write_format(out, "%c", *at);
		}
}

static void put_scheme(struct random_world *random, struct writer *out)
{
	static const char *const kinds[] = {"block", "block", "block", "channel", "tensor"};
	const char *kind = kinds[below(random, ARRAY_SIZE(kinds))];

	write_format(out, "\"schemes\":{\"q\":{\"kind\":\"%s\",", kind);
	if (strcmp(kind, "block") == 0)
		write_format(out, "\"block\":[%" PRIu32 ",%" PRIu32 "],", random->block[0],
			     random->block[1]);
	write_format(
		out, "\"fmt\":\"e4m3\",\"scale\":\"%s\",\"eps\":0.0001,\"pow2\":%s,\"recip\":%s}},",
		below(random, 3) == 0 ? "bf16" : "f32", below(random, 2) == 0 ? "true" : "false",
		below(random, 2) == 0 ? "true" : "false");
}

/* A cut of rows, one of columns, whole, or two in one param. */
static void put_wanted(struct random_world *random, struct writer *out, uint32_t shape)
{
	const char *rest = "\"dtype\":\"f8e4m3\",\"q\":\"q\"";

	if (shape == 0) {
		write_format(out, "{\"p\":\"wv\",%s,\"x\":[\"c\",0,[\"t\",\"w\"],[\"t\",\"v\"]]}",
			     rest);
		return;
	}
	for (int i = 0; i < 2; i++) {
		const char *name = i == 0 ? "w" : "v";
		uint32_t dim = below(random, 2);
		write_format(out, "%s{\"p\":\"%s\",%s,\"x\":", i == 0 ? "" : ",", name, rest);
		if (shape == 1)
			write_format(out, "[\"t\",\"%s\"]}", name);
		else
			write_format(out,
				     "[\"s\",[\"t\",\"%s\"],%" PRIu32
				     ",\"n\",{\"mode\":\"chunk\",\"unit\":%" PRIu32 "}]}",
				     name, dim, random->block[dim]);
	}
}

static void put_side(struct random_world *random, struct writer *out, enum side side,
		     const uint32_t rows[2], const uint32_t columns[2], uint32_t shape)
{
	bool trains = side == SIDE_TRAINER;
	const char *dtype = below(random, 3) == 0 ? "f32" : "bf16";

	write_format(out,
		     "{\"ws_manifest\":1,\"side\":\"%s\",\"framework\":\"hand\",\"model\":\"hand\","
		     "\"world\":%" PRIu32 ",\"tensors\":[",
		     trains ? "trainer" : "rollout",
		     trains ? random->a * random->b : random->ranks);
	for (int i = 0; i < 2; i++)
		write_format(out,
			     "%s{\"name\":\"%s\",\"dtype\":\"bf16\",\"shape\":[%" PRIu32 ",%" PRIu32
			     "]}",
			     i == 0 ? "" : ",", i == 0 ? "w" : "v", rows[i], columns[i]);
	if (!trains) {
		write_format(out, "],\"meshes\":{\"m\":{\"axes\":[[\"n\",%" PRIu32 "]]}},",
			     random->ranks);
		put_scheme(random, out);
		write_format(out, "\"params\":[");
		put_wanted(random, out, shape);
		write_format(out, "]}");
		return;
	}
	write_format(out,
		     "],\"meshes\":{\"m\":{\"axes\":[[\"a\",%" PRIu32 "],[\"b\",%" PRIu32
		     "]]}},\"params\":[",
		     random->a, random->b);
	for (int i = 0; i < 2; i++) {
		const char *name = i == 0 ? "w" : "v";
		write_format(out, "%s{\"p\":\"%s\",\"dtype\":\"%s\",\"x\":", i == 0 ? "" : ",",
			     name, dtype);
		put_held(random, out, name, rows[i]);
		write_format(out, "}");
	}
	write_format(out, "]}");
}

/* Small limits, so that every shape of copy occurs. */
static struct rules random_rules(struct random_world *random)
{
	static const uint64_t sizes[] = {1, 64, 1024, 1u << 20};
	struct rules rules = RULES_DEFAULT;

	rules.op_bytes = 4096;
	rules.staging_bytes = 1u << 20;
	rules.recv_staging_bytes =
		(uint64_t)random->a * random->b * 2 * 4096 * (1 + below(random, 2));
	rules.run_bytes_min = sizes[below(random, 4)];
	rules.pack_bytes_max = sizes[below(random, 4)];
	rules.bucket_bytes = below(random, 2) == 0 ? 0 : 10000;
	rules.wire_digests = below(random, 2) == 0;
	rules.fanout = (enum fanout)below(random, 3);
	return rules;
}

static void random_open(struct random_world *random, uint32_t seed)
{
	struct findings findings = {.arena = &random->arena};

	memset(random, 0, sizeof(*random));
	random->state = seed;
	random->a = 1 + below(random, 5);
	random->b = 1 + below(random, 3);
	random->ranks = 1 + below(random, 2);
	random->block[0] = 1u << (2 + below(random, 3));
	random->block[1] = 1u << (2 + below(random, 4));
	uint32_t shape = below(random, 3), rows[2], columns[2];
	for (int i = 0; i < 2; i++) {
		rows[i] = 2 * (1 + below(random, 60));
		columns[i] = 1 + below(random, 90);
	}
	/* What a part of another stands behind begins with a block. */
	if (shape == 0) {
		columns[1] = columns[0];
		rows[0] = random->block[0] * (1 + below(random, 5));
	}
	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(1u << 20);
		put_side(random, &out, (enum side)side, rows, columns, shape);
		ck_assert(!out.failed);
		int rc = manifest_parse(&random->manifests[side], out.bytes, out.count, &findings,
					&random->err);
		ck_assert_msg(rc == 0, "%.*s: %s", (int)out.count, (char *)out.bytes,
			      findings.first != NULL ? findings.first->text : random->err.text);
		writer_release(&out);
	}
	uint32_t replicas = 1 + below(random, 3);
	for (uint32_t r = 0; r < replicas; r++)
		random->replicas[r] = r;
	for (uint32_t m = 0; m < ARRAY_SIZE(random->places); m++) {
		bool trains = m < random->a * random->b;
		random->places[m].nic_count = 1;
		snprintf(random->places[m].host, sizeof(random->places[m].host), "%c%u",
			 trains ? 't' : 'r', trains ? m : (m - random->a * random->b) / 2);
	}
	random->input = (struct plan_input){.trainer = random->manifests[0],
					    .rollout = random->manifests[1],
					    .replicas = random->replicas,
					    .replica_count = replicas,
					    .places = random->places,
					    .rules = random_rules(random)};
}

static void random_close(struct random_world *random)
{
	manifest_free(random->manifests[0]);
	manifest_free(random->manifests[1]);
	arena_release(&random->arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}

START_TEST(shards_of_any_kind_give_the_codes_of_the_whole)
{
	struct random_world random;
	struct maxima_world world;

	random_open(&random, (uint32_t)_i);
	maxima_open(&world, &random.input, (uint32_t)_i);
	maxima_run(&world);
	maxima_compare(&world);
	maxima_lean(&world);
	maxima_close(&world);
	random_close(&random);
}
END_TEST

/* ---- Layouts of frameworks, models scaled down. */
static const struct real_job {
	const char *model, *trainer, *trainer_mesh, *rollout, *rollout_mesh, *quant;
	uint32_t replicas, scale;
	bool tells; /* somebody must tell somebody something */
} real_jobs[] = {
	{"qwen3-30b-a3b", "fsdp2", "dp=3", "vllm", "tp=2", "fp8-block", 1, 16000, true},
	{"qwen3-30b-a3b", "fsdp2", "rep=2,dp=3", "sglang", "tp=2,ep=2", "fp8-block", 2, 16000,
	 true},
	{"qwen3-30b-a3b", "fsdp2", "dp=3,stacked=1", "vllm", "tp=2,ep=2", "fp8-channel", 1, 16000,
	 false},
	{"qwen3-30b-a3b", "zero3", "dp=3", "vllm", "tp=2", "fp8-block", 1, 16000, true},
	{"qwen3-30b-a3b", "zero3", "dp=5", "sglang", "tp=2,ep=2", "fp8-channel", 1, 16000, true},
	{"qwen3-30b-a3b", "megatron", "tp=2", "vllm", "tp=2", "fp8-block", 1, 16000, false},
	{"qwen3-30b-a3b", "megatron", "tp=2,dp=2,ep=2,etp=1", "vllm", "tp=2", "fp8-channel", 2,
	 16000, true},
	{"qwen3-30b-a3b", "fsdp2", "dp=2,tp=2", "vllm", "tp=2", "fp8-tensor", 1, 16000, true},
	{"kimi-k2", "fsdp2", "dp=3", "sglang", "tp=2,ep=2", "fp8-block", 1, 400000, true},
	{"kimi-k2", "veomni", "dp=4,ep=2", "vllm", "tp=2", "fp8-block", 1, 400000, true},
	{"kimi-k2", "megatron", "tp=2,pp=2,ep=2,etp=1", "sglang", "tp=2,dp=2,ep=2",
	 "fp8-block-ue8m0", 1, 400000, false},
	{"kimi-k2", "zero3", "dp=3,stacked=1", "vllm", "tp=2,ep=2", "fp8-tensor", 2, 400000, true},
};

static void real_open(struct pair_world *pair, const struct real_job *job)
{
	struct model *whole, *model;

	memset(pair, 0, sizeof(*pair));
	pair->findings.arena = &pair->arena;
	ck_ok(model_builtin(&whole, job->model, &pair->err), pair->err);
	ck_ok(model_scale(&model, whole, 1, job->scale, &pair->err), pair->err);
	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(16u << 20);
		bool trains = side == SIDE_TRAINER;
		struct manifest_options options = {.side = (enum side)side,
						   .layout = trains ? job->trainer : job->rollout,
						   .mesh = trains ? job->trainer_mesh
								  : job->rollout_mesh,
						   .quant = trains ? NULL : job->quant};
		ck_ok(manifest_make(model, &options, &out, &pair->findings, &pair->err), pair->err);
		ck_ok(manifest_parse(&pair->manifests[side], out.bytes, out.count, &pair->findings,
				     &pair->err),
		      pair->err);
		writer_release(&out);
	}
	for (uint32_t r = 0; r < job->replicas; r++)
		pair->replicas[r] = r;
	pair->input = (struct plan_input){.trainer = pair->manifests[0],
					  .rollout = pair->manifests[1],
					  .replicas = pair->replicas,
					  .replica_count = job->replicas,
					  .rules = RULES_DEFAULT};
	model_free(whole);
	model_free(model);
}

START_TEST(shards_of_frameworks_give_the_codes_of_the_whole)
{
	const struct real_job *job = &real_jobs[_i];
	struct pair_world pair;
	struct maxima_world world;

	real_open(&pair, job);
	maxima_open(&world, &pair.input, (uint32_t)_i);
	maxima_run(&world);
	maxima_compare(&world);
	maxima_lean(&world);
	ck_assert_int_eq(world.told_bytes > 0, job->tells);
	ck_assert_uint_eq(plan_totals(world.all)->maxima_bytes, world.told_bytes);
	maxima_close(&world);
	pair_close(&pair);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_maxima");
	TCase *random = tcase_create("random layouts"), *real = tcase_create("frameworks");

	tcase_set_timeout(random, 120);
	tcase_add_loop_test(random, shards_of_any_kind_give_the_codes_of_the_whole, 0, SEEDS);
	suite_add_tcase(tests, random);
	tcase_set_timeout(real, 300);
	tcase_add_loop_test(real, shards_of_frameworks_give_the_codes_of_the_whole, 0,
			    (int)ARRAY_SIZE(real_jobs));
	suite_add_tcase(tests, real);
	return tests;
}
