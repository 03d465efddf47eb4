/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs of manifests for the planner's tests by hand and on real models.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tests/plan_pair.h"
#include "tests/test.h"

static void input_make(struct pair_world *pair, uint32_t replicas)
{
	for (uint32_t i = 0; i < replicas; i++)
		pair->replicas[i] = i;
	pair->input = (struct plan_input){.trainer = pair->manifests[SIDE_TRAINER],
					  .rollout = pair->manifests[SIDE_ROLLOUT],
					  .replicas = pair->replicas,
					  .replica_count = replicas,
					  .rules = RULES_DEFAULT};
}

static void parse(struct pair_world *pair, enum side side, const void *text, size_t bytes)
{
	int rc = manifest_parse(&pair->manifests[side], text, bytes, &pair->findings, &pair->err);

	ck_assert_msg(rc == 0, "%s",
		      pair->findings.first != NULL ? pair->findings.first->text : pair->err.text);
}

void pair_open(struct pair_world *pair, const char *tensors, uint32_t trainers, const char *source,
	       uint32_t ranks, const char *target)
{
	memset(pair, 0, sizeof(*pair));
	pair->findings.arena = &pair->arena;
	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(1u << 20);
		uint32_t world = side == SIDE_TRAINER ? trainers : ranks;
		write_format(
			&out,
			"{\"ws_manifest\":1,\"side\":\"%s\",\"framework\":\"hand\",\"model\":\"hand\","
			"\"world\":%" PRIu32
			",\"tensors\":[%s],\"meshes\":{\"m\":{\"axes\":[[\"n\",%" PRIu32 "]]}},%s}",
			side == SIDE_TRAINER ? "trainer" : "rollout", world, tensors, world,
			side == SIDE_TRAINER ? source : target);
		ck_assert(!out.failed);
		parse(pair, (enum side)side, out.bytes, out.count);
		writer_release(&out);
	}
	input_make(pair, 1);
}

void pair_open_quant(struct pair_world *pair, const char *model_name, uint32_t scale,
		     const char *trainer, const char *trainer_mesh, const char *rollout,
		     const char *rollout_mesh, const char *quant, uint32_t replicas)
{
	struct model *whole = NULL, *model = NULL;

	memset(pair, 0, sizeof(*pair));
	pair->findings.arena = &pair->arena;
	ck_ok(model_builtin(&whole, model_name, &pair->err), pair->err);
	ck_ok(model_scale(&model, whole, 1, scale, &pair->err), pair->err);
	model_free(whole);
	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(16u << 20);
		struct manifest_options options = {
			.side = (enum side)side,
			.layout = side == SIDE_TRAINER ? trainer : rollout,
			.mesh = side == SIDE_TRAINER ? trainer_mesh : rollout_mesh,
			.quant = side == SIDE_TRAINER ? NULL : quant};
		ck_ok(manifest_make(model, &options, &out, &pair->findings, &pair->err), pair->err);
		parse(pair, (enum side)side, out.bytes, out.count);
		writer_release(&out);
	}
	model_free(model);
	input_make(pair, replicas);
}

void pair_open_model(struct pair_world *pair, const char *model_name, const char *trainer,
		     const char *trainer_mesh, const char *rollout, const char *rollout_mesh,
		     uint32_t replicas)
{
	pair_open_quant(pair, model_name, 1, trainer, trainer_mesh, rollout, rollout_mesh, NULL,
			replicas);
}

void pair_close(struct pair_world *pair)
{
	manifest_free(pair->manifests[0]);
	manifest_free(pair->manifests[1]);
	arena_release(&pair->arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}

struct plan *pair_plan(struct pair_world *pair, uint32_t self)
{
	struct plan *plan = NULL;
	int rc = plan_make(&plan, &pair->input, self, &pair->findings, &pair->err);

	ck_assert_msg(rc == 0, "%s", pair->err.text);
	return plan;
}

const char *pair_refused(struct pair_world *pair, const char *kind)
{
	struct plan *plan = NULL;

	ck_assert_int_eq(plan_make(&plan, &pair->input, PLAN_ALL, &pair->findings, &pair->err),
			 -EINVAL);
	ck_assert_ptr_null(plan);
	ck_assert_ptr_nonnull(pair->findings.first);
	ck_assert_str_eq(pair->findings.first->kind, kind);
	return pair->findings.first->text;
}
