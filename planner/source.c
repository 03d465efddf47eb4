/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides do with the planner when they are wired: parse, plan, check. */
#include <errno.h>
#include <string.h>

#include "planner/source.h"

int plan_source_take(struct plan_source *source, enum side side, const void *text, size_t bytes,
		     struct ws_error *err)
{
	uint64_t digest = digest_bytes(text, bytes, 0);

	if (source->manifest[side] != NULL && source->text_digest[side] == digest)
		return 0;
	plan_free(source->plan);
	source->plan = NULL;
	manifest_free(source->manifest[side]);
	source->manifest[side] = NULL;

	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct manifest *manifest = NULL;
	int rc = manifest_parse(&manifest, text, bytes, &findings, err);
	if (rc != 0 && findings.count > 0)
		rc = findings_fail(&findings, rc, err);
	arena_release(&arena);
	if (rc != 0)
		return ws_fail_in(err, rc, "the %s's manifest",
				  side == SIDE_TRAINER ? "trainer" : "rollout");
	if (manifest_side(manifest) != side) {
		manifest_free(manifest);
		return ws_fail(err, -EINVAL, "a %s's manifest was given where a %s's must be",
			       side == SIDE_TRAINER ? "rollout" : "trainer",
			       side == SIDE_TRAINER ? "trainer" : "rollout");
	}
	source->manifest[side] = manifest;
	source->text_digest[side] = digest;
	return 0;
}

/* Places, and all that the sides keep by member, are as many as the hub's roster has. */
static int roster_check(const struct plan_source *source, const struct plan_input *input,
			uint32_t roster_count, struct ws_error *err)
{
	uint32_t trainers = manifest_world(source->manifest[SIDE_TRAINER]);
	uint32_t ranks = manifest_world(source->manifest[SIDE_ROLLOUT]);

	if (roster_count == trainers + (uint64_t)ranks * input->replica_count)
		return 0;
	return ws_fail(err, -EPROTO,
		       "the hub's roster has %u members, and by the manifests %u trainers and %u "
		       "replicas of %u ranks are in the run: start each side with as many ranks as "
		       "its manifest says",
		       roster_count, trainers, input->replica_count, ranks);
}

int plan_source_make(struct plan_source *source, const struct plan_input *input,
		     uint32_t roster_count, uint32_t self, struct ws_error *err)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct plan_input whole = *input;

	/* The old one goes first: a rank's memory has room for one. */
	plan_free(source->plan);
	source->plan = NULL;
	whole.trainer = source->manifest[SIDE_TRAINER];
	whole.rollout = source->manifest[SIDE_ROLLOUT];
	int rc = input->places == NULL ? 0 : roster_check(source, input, roster_count, err);
	if (rc == 0)
		rc = plan_make(&source->plan, &whole, self, &findings, err);
	if (rc == 0)
		rc = plan_check(source->plan, &findings, err);
	if (rc != 0) {
		if (findings.count > 0)
			rc = findings_fail(&findings, rc, err);
		plan_free(source->plan);
		source->plan = NULL;
	}
	source->self = self;
	arena_release(&arena);
	return rc;
}

void plan_source_release(struct plan_source *source)
{
	plan_free(source->plan);
	manifest_free(source->manifest[SIDE_TRAINER]);
	manifest_free(source->manifest[SIDE_ROLLOUT]);
	memset(source, 0, sizeof(*source));
}
