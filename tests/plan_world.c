/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random worlds for the planner's property tests: manifests by gen.c, limits so small that every
 * shape of copy occurs.
 */
#include <stdio.h>
#include <string.h>

#include "tests/plan_world.h"
#include "tests/test.h"

static void world_parse(struct world *world, enum gen_side side)
{
	const char *text = gen_manifest(&world->gen, side);
	struct findings findings = {.arena = &world->arena};
	int rc =
		manifest_parse(&world->manifests[side], text, strlen(text), &findings, &world->err);

	ck_assert_msg(rc == 0, "%s",
		      findings.first != NULL ? findings.first->text : world->err.text);
}

/* Small limits, so that every shape of copy occurs in small models. */
static struct rules random_rules(struct gen *gen, uint32_t trainers)
{
	struct rules rules = RULES_DEFAULT;
	static const uint64_t sizes[] = {1, 64, 4096, 1u << 20, 1u << 20};

	rules.op_bytes = 4096;
	rules.staging_bytes = 1u << 20;
	rules.recv_staging_bytes = (uint64_t)trainers * 2 * 4096 * (1 + gen_below(gen, 2));
	rules.run_bytes_min = sizes[gen_below(gen, 5)];
	rules.pack_bytes_max = sizes[gen_below(gen, 5)];
	rules.bucket_bytes = gen_below(gen, 2) == 0 ? 0 : 10000;
	rules.wire_digests = gen_below(gen, 2) == 0;
	return rules;
}

/* Hosts of one to four neighbours; now and then a replica that is spread otherwise. */
static void places_make(struct world *world)
{
	uint32_t each = 2 + gen_below(&world->gen, 3), other = gen_below(&world->gen, 4);

	world->places = arena_array(&world->arena, world->members, sizeof(*world->places));
	for (uint32_t m = 0; m < world->members; m++) {
		struct place *place = &world->places[m];
		uint32_t rank = m - world->trainers, replica = rank / world->ranks;
		place->nic_count = 1;
		if (m < world->trainers)
			snprintf(place->host, sizeof(place->host), "t%u", m);
		else
			snprintf(place->host, sizeof(place->host), "r%u-%u", replica,
				 rank % world->ranks / (replica == other ? 2 : each));
	}
	world->input.places = world->places;
}

void world_open(struct world *world, uint32_t seed)
{
	memset(world, 0, sizeof(*world));
	gen_open(&world->gen, seed);
	world_parse(world, GEN_TRAINER);
	world_parse(world, GEN_ROLLOUT);
	world->trainers = manifest_world(world->manifests[GEN_TRAINER]);
	world->ranks = manifest_world(world->manifests[GEN_ROLLOUT]);
	uint32_t replicas = 1 + gen_below(&world->gen, 3);
	for (uint32_t i = 0; i < replicas; i++)
		world->replicas[i] = 2 * i + 1;
	world->members = world->trainers + replicas * world->ranks;
	world->input = (struct plan_input){.trainer = world->manifests[GEN_TRAINER],
					   .rollout = world->manifests[GEN_ROLLOUT],
					   .replicas = world->replicas,
					   .replica_count = replicas,
					   .rules = random_rules(&world->gen, world->trainers)};
	world->input.rules.fanout = (enum fanout)(seed % 3);
	places_make(world);
	world->plans = arena_array(&world->arena, world->members, sizeof(*world->plans));
	for (uint32_t m = 0; m < world->members; m++)
		ck_ok(plan_make(&world->plans[m], &world->input, m, NULL, &world->err), world->err);
	ck_ok(plan_make(&world->all, &world->input, PLAN_ALL, NULL, &world->err), world->err);
}

void world_release(struct world *world)
{
	for (uint32_t m = 0; m < world->members; m++)
		plan_free(world->plans[m]);
	plan_free(world->all);
	manifest_free(world->manifests[0]);
	manifest_free(world->manifests[1]);
	arena_release(&world->arena);
	gen_close(&world->gen);
}

void world_close(struct world *world)
{
	world_release(world);
	ck_assert_uint_eq(mem_live_count(), 0);
}

static void param_fill(struct world *world, enum gen_side side, uint32_t rank,
		       const struct param *param, uint8_t *memory)
{
	enum ws_dtype dtype;
	uint64_t count, bytes = ws_dtype_bytes(param->dtype);
	const uint32_t *ids = gen_ids(&world->gen, side, rank, param->name, &count, &dtype);

	ck_assert_msg(ids != NULL, "the oracle has no '%s' at rank %u", param->name, rank);
	ck_assert_uint_eq(count, param->form->element_count);
	ck_assert_int_eq(dtype, param->dtype);
	for (uint64_t i = 0; i < count; i++)
		gen_value(ids[i], dtype, memory + i * bytes);
}

void world_params(struct world *world)
{
	world->params = arena_array(&world->arena, world->members, sizeof(*world->params));
	for (uint32_t m = 0; m < world->members; m++) {
		enum gen_side side = m < world->trainers ? GEN_TRAINER : GEN_ROLLOUT;
		uint32_t rank = side == GEN_TRAINER ? m : (m - world->trainers) % world->ranks;
		struct rank_params *params = &world->params[m];
		ck_ok(manifest_params(world->manifests[side], rank, &world->arena, params,
				      &world->err),
		      world->err);
		ck_assert_uint_eq(params->count, gen_param_count(&world->gen, side, rank));
	}
}

/* Trainers' memory holds the ids' values, rollouts' memory poison. */
void world_memory(struct world *world)
{
	world_params(world);
	world->memory = arena_array(&world->arena, world->members, sizeof(*world->memory));
	for (uint32_t m = 0; m < world->members; m++) {
		const struct rank_params *params = &world->params[m];
		world->memory[m] = arena_array(&world->arena, params->count, sizeof(uint8_t *));
		for (uint32_t p = 0; p < params->count; p++) {
			world->memory[m][p] = arena_alloc(&world->arena, params->params[p].bytes);
			memset(world->memory[m][p], POISON, params->params[p].bytes);
			if (m < world->trainers)
				param_fill(world, GEN_TRAINER, m, &params->params[p],
					   world->memory[m][p]);
		}
	}
}
