/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public check of two manifests: parse, plan for all, check each member.
 */
#include "planner/plan_internal.h"
#include "planner/ws_plan.h"

struct ws_plan {
	struct arena arena;
	struct findings findings;
	struct ws_plan_totals totals;
};

void ws_plan_free(struct ws_plan *plan)
{
	if (plan == NULL)
		return;
	arena_release(&plan->arena);
	mem_free(plan);
}

uint32_t ws_plan_finding_count(const struct ws_plan *plan)
{
	return plan->findings.count;
}

bool ws_plan_finding(const struct ws_plan *plan, uint32_t index, const char **kind_out,
		     const char **where_out, const char **text_out)
{
	const struct finding *finding = plan->findings.first;

	for (uint32_t i = 0; i < index && finding != NULL; i++)
		finding = finding->next;
	if (finding == NULL)
		return false;
	*kind_out = finding->kind;
	*where_out = finding->where;
	*text_out = finding->text;
	return true;
}

void ws_plan_totals(const struct ws_plan *plan, struct ws_plan_totals *totals_out)
{
	*totals_out = plan->totals;
}

static void totals_keep(struct ws_plan_totals *out, const struct plan *all)
{
	const struct plan_totals *totals = plan_totals(all);

	*out = (struct ws_plan_totals){
		.digest = plan_digest(all),
		.bytes = totals->bytes,
		.copies = totals->copies,
		.ops = totals->ops,
		.send_bytes_min = totals->send_min,
		.send_bytes_mean = totals->send_mean,
		.send_bytes_max = totals->send_max,
		.receive_bytes_min = totals->receive_min,
		.receive_bytes_mean = totals->receive_mean,
		.receive_bytes_max = totals->receive_max,
		.trainer_count = all->trainer_count,
		.replica_count = all->input.replica_count,
		.replica_rank_count = all->rollout_count,
		.bucket_count = totals->bucket_count,
		.senders_idle = totals->senders_idle,
	};
}

/* Plans and checks; what is wrong with the manifests is a finding, not an error. */
static int check_pair(struct ws_plan *plan, const struct manifest *trainer,
		      const struct manifest *rollout, uint32_t replica_count, struct ws_error *err)
{
	uint32_t *replicas = arena_array(&plan->arena, replica_count, sizeof(*replicas));
	struct plan_input input = {.trainer = trainer,
				   .rollout = rollout,
				   .replicas = replicas,
				   .replica_count = replica_count,
				   .rules = RULES_DEFAULT};
	struct plan *all = NULL;

	if (replicas == NULL)
		return plan_no_memory(err);
	for (uint32_t i = 0; i < replica_count; i++)
		replicas[i] = i;
	int rc = plan_make(&all, &input, PLAN_ALL, &plan->findings, err);
	if (rc == 0)
		rc = plan_check(all, &plan->findings, err);
	if (rc == 0)
		totals_keep(&plan->totals, all);
	plan_free(all);
	return rc;
}

int ws_plan_check(struct ws_plan **plan_out, const char *trainer_json, size_t trainer_bytes,
		  const char *rollout_json, size_t rollout_bytes, uint32_t replica_count,
		  struct ws_error *err)
{
	struct manifest *trainer = NULL, *rollout = NULL;
	struct ws_error fault = {0};

	*plan_out = NULL;
	if (replica_count == 0 || replica_count > RANKS_MAX)
		return ws_fail(err, -EINVAL, "a plan is for 1 to %d replicas, not %" PRIu32,
			       RANKS_MAX, replica_count);
	struct ws_plan *plan = mem_alloc(sizeof(*plan));
	if (plan == NULL)
		return plan_no_memory(err);
	plan->findings.arena = &plan->arena;
	int faults[3] = {
		manifest_parse_faulty(&trainer, trainer_json, trainer_bytes, &plan->findings,
				      &fault),
		manifest_parse_faulty(&rollout, rollout_json, rollout_bytes, &plan->findings,
				      &fault),
	};
	if (trainer != NULL && rollout != NULL)
		faults[2] = check_pair(plan, trainer, rollout, replica_count, &fault);
	int rc = 0;
	for (size_t i = 0; i < ARRAY_SIZE(faults) && rc != -ENOMEM; i++)
		rc = faults[i] != 0 ? faults[i] : rc;
	manifest_free(trainer);
	manifest_free(rollout);
	if (rc == -ENOMEM) {
		ws_plan_free(plan);
		return ws_fail(err, rc, "%s", fault.text);
	}
	if (rc != 0 && plan->findings.count == 0)
		findings_add(&plan->findings, "manifest", "manifest", "%s", fault.text);
	*plan_out = plan;
	return 0;
}
