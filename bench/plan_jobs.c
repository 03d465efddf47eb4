/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifests of planning jobs.  Most come from a layout's name; stacked experts of FSDP2 with
 * expert parallelism are written here, one rule per tensor.
 */
#include "bench/plan_jobs.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "planner/describe.h"

static void put_axis(struct json_writer *json, const char *name, uint32_t size)
{
	json_begin_array(json, NULL);
	json_put_text(json, NULL, name);
	json_put_u64(json, NULL, size);
	json_end_array(json);
}

static void put_meshes(struct json_writer *json, const struct plan_job *job)
{
	json_begin_object(json, "meshes");
	json_begin_object(json, "dense");
	json_begin_array(json, "axes");
	put_axis(json, "dp", job->expert_ranks * job->fsdp_ranks);
	json_end_array(json);
	json_end_object(json);
	json_begin_object(json, "experts");
	json_begin_array(json, "axes");
	put_axis(json, "fsdp", job->fsdp_ranks);
	put_axis(json, "ep", job->expert_ranks);
	json_end_array(json);
	json_end_object(json);
	json_end_object(json);
	json_begin_object(json, "experts");
	json_put_text(json, "axis", "ep");
	json_end_object(json);
}

static void put_range(struct json_writer *json, const char *key, int32_t lo, int32_t hi)
{
	json_begin_array(json, key);
	json_put_integer(json, NULL, lo);
	json_put_integer(json, NULL, hi);
	json_end_array(json);
}

static void put_tensor(struct json_writer *json, const char *name)
{
	json_begin_array(json, NULL);
	json_put_text(json, NULL, "t");
	json_put_text(json, NULL, name);
	json_end_array(json);
}

/* One param of one tensor, or of the two in names[], cut on `dim` over an axis. */
static void put_param(struct json_writer *json, const struct tensor_rule *rule,
		      const char *const *names, uint32_t dim, const char *axis)
{
	bool expert = rule->expert_lo >= 0;
	char name[256];
	struct writer text = writer_fixed(name, sizeof(name));

	/* A stack has its tensor's name without the expert. */
	for (const char *at = names[0]; *at != '\0'; at++)
		if (strncmp(at, ".{E}", 4) == 0)
			at += 3;
		else
			write_u8(&text, (uint8_t)*at);
	write_u8(&text, 0);
	json_begin_object(json, NULL);
	json_put_text(json, "p", name);
	json_put_text(json, "mesh", expert ? "experts" : "dense");
	if (rule->layer_lo >= 0) {
		json_begin_object(json, "each");
		put_range(json, "L", rule->layer_lo, rule->layer_hi);
		json_end_object(json);
	}
	json_begin_array(json, "x");
	json_put_text(json, NULL, "s");
	if (expert) {
		json_begin_array(json, NULL);
		json_put_text(json, NULL, "k");
		json_put_text(json, NULL, "E");
	}
	if (names[1] != NULL) {
		json_begin_array(json, NULL);
		json_put_text(json, NULL, "c");
		json_put_u64(json, NULL, 0);
		put_tensor(json, names[0]);
		put_tensor(json, names[1]);
		json_end_array(json);
	} else {
		put_tensor(json, names[0]);
	}
	if (expert)
		json_end_array(json);
	json_put_u64(json, NULL, dim);
	json_put_text(json, NULL, axis);
	json_begin_object(json, NULL);
	json_put_text(json, "mode", "chunk");
	json_end_object(json);
	json_end_array(json);
	json_end_object(json);
}

static void put_params(struct json_writer *json, const struct model *model,
		       enum job_experts experts)
{
	json_begin_array(json, "params");
	for (uint32_t i = 0; i < model_tensor_count(model); i++) {
		const struct tensor_rule *rule = model_tensor(model, i);
		const char *names[2] = {rule->name};
		char gate[256];
		bool rows = experts == JOB_STACKED_ROWS;
		const char *up = strstr(rule->name, "up_proj");
		if (rule->expert_lo < 0) {
			put_param(json, rule, names, 0, "dp");
			continue;
		}
		if (rows && strstr(rule->name, "gate_proj") != NULL)
			continue; /* with its up_proj */
		if (rows && up != NULL) {
			struct writer text = writer_fixed(gate, sizeof(gate));
			write_format(&text, "%.*sgate%s%c", (int)(up - rule->name), rule->name,
				     up + 2, 0);
			names[0] = gate;
			names[1] = rule->name;
		}
		put_param(json, rule, names, rows ? 1 : 0, "fsdp");
	}
	json_end_array(json);
}

static void put_stacked(const struct plan_job *job, const struct model *model, struct writer *out)
{
	struct json_writer json = {.out = out};

	json_begin_object(&json, NULL);
	json_put_u64(&json, "ws_manifest", 1);
	json_put_text(&json, "side", "trainer");
	json_put_text(&json, "framework", "fsdp2");
	json_put_text(&json, "model", model_name(model));
	json_put_u64(&json, "world", (uint64_t)job->expert_ranks * job->fsdp_ranks);
	make_put_tensors(&json, model);
	put_meshes(&json, job);
	put_params(&json, model, job->experts);
	json_end_object(&json);
}

int plan_job_manifest(const struct plan_job *job, enum side side, struct writer *out,
		      struct findings *findings, struct ws_error *err)
{
	bool trainer = side == SIDE_TRAINER;
	struct manifest_options options = {
		.side = side,
		.layout = trainer ? job->trainer : job->rollout,
		.mesh = trainer ? job->trainer_mesh : job->rollout_mesh,
		.quant = trainer ? NULL : job->quant,
	};
	struct model *model = NULL;
	int rc = model_builtin(&model, job->model, err);

	if (rc == 0 && trainer && job->experts != JOB_LAYOUT)
		put_stacked(job, model, out);
	else if (rc == 0)
		rc = manifest_make(model, &options, out, findings, err);
	if (rc == 0 && out->failed)
		rc = ws_fail(err, -ENOMEM, "no memory for the manifest of job '%s'", job->name);
	model_free(model);
	return rc;
}
