/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifests' texts at the hub: each once, by digest, as long as some member has it.  The
 * trainers have one; the rollouts may have several while they describe themselves again, and of
 * those progress.c says which one is the roster's.
 */
#include <errno.h>
#include <string.h>

#include "lib/hub/hub_inside.h"

#define EXCERPT_BYTES 48

const struct manifest_text *hub_manifest(const struct hub *hub, enum member_role role,
					 uint64_t digest)
{
	for (uint32_t i = 0; i < hub->manifest_count; i++)
		if (hub->manifests[i].role == role && hub->manifests[i].digest == digest)
			return &hub->manifests[i];
	return NULL;
}

/* Printable and short, from a line of JSON. */
static void excerpt(char out[EXCERPT_BYTES], const uint8_t *text, uint32_t bytes, uint32_t at)
{
	size_t count = 0;
	for (uint32_t i = at > 12 ? at - 12 : 0; i < bytes && count < EXCERPT_BYTES - 1; i++)
		if (text[i] >= 0x20 && text[i] < 0x7f)
			out[count++] = (char)text[i];
	out[count] = '\0';
}

/* Where the manifest of a joining member differs from the one its side has. */
static void differ_text(const struct manifest_text *mine, const struct join *join,
			struct ws_error *err)
{
	const uint8_t *a = mine->text, *b = join->manifest;
	uint32_t both = MIN(mine->bytes, join->manifest_bytes), at = 0, line = 1;
	char name[MEMBER_NAME_BYTES], here[EXCERPT_BYTES], there[EXCERPT_BYTES];
	for (; at < both && a[at] == b[at]; at++)
		line += a[at] == '\n';
	excerpt(here, a, mine->bytes, at);
	excerpt(there, b, join->manifest_bytes, at);
	member_name(member_id(join->role, join->replica, join->rank), name);
	ws_fail(err, -ESTALE,
		"%s brings another manifest (digest %016llx) than its side has (%016llx); they "
		"differ at byte %u, line %u: '%s' against '%s'; give all ranks of a side the same file",
		name, (unsigned long long)join->manifest_digest, (unsigned long long)mine->digest,
		at, line, there, here);
}

/* The one that a member of that side should bring; NULL: it is the first. */
static const struct manifest_text *manifest_of_side(const struct hub *hub, enum member_role role)
{
	const struct manifest_text *run = NULL;
	if (role == ROLE_ROLLOUT)
		run = hub_manifest(hub, role, hub->progress.manifest_digest);
	for (uint32_t i = 0; i < hub->manifest_count && run == NULL; i++)
		if (hub->manifests[i].role == role)
			run = &hub->manifests[i];
	return run;
}

static bool is_needed(const struct progress *progress, const struct manifest_text *manifest)
{
	if (manifest->role == ROLE_TRAINER || manifest->digest == progress->manifest_digest)
		return true;
	for (uint32_t i = progress->options.trainer_count; i < progress_seat_count(progress); i++)
		if (progress->seats[i].joined != 0 &&
		    progress->seats[i].info.manifest_digest == manifest->digest)
			return true;
	return false;
}

static void manifests_sweep(struct hub *hub)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < hub->manifest_count; i++) {
		if (is_needed(&hub->progress, &hub->manifests[i]))
			hub->manifests[kept++] = hub->manifests[i];
		else
			mem_free(hub->manifests[i].text);
	}
	hub->manifest_count = kept;
}

static int manifest_keep(struct hub *hub, const struct join *join, struct ws_error *err)
{
	size_t bytes = sizeof(*hub->manifests);
	manifests_sweep(hub);
	struct manifest_text *grown = mem_grow(hub->manifests, bytes * hub->manifest_count,
					       bytes * (hub->manifest_count + 1));
	void *copy = mem_alloc(join->manifest_bytes);
	if (grown != NULL)
		hub->manifests = grown;
	if (grown == NULL || copy == NULL) {
		mem_free(copy);
		return ws_fail(err, -ENOMEM, "the hub has no memory for a manifest of %u bytes",
			       join->manifest_bytes);
	}
	memcpy(copy, join->manifest, join->manifest_bytes);
	hub->manifests[hub->manifest_count++] =
		(struct manifest_text){.role = join->role,
				       .text = copy,
				       .bytes = join->manifest_bytes,
				       .digest = join->manifest_digest};
	return 0;
}

int hub_manifest_take(struct hub *hub, const struct join *join, struct ws_error *err)
{
	const struct manifest_text *side = manifest_of_side(hub, join->role);
	/* Rollouts that were in the run may have moved on from it, or be still behind it. */
	bool may_differ = join->role == ROLE_ROLLOUT && (join->history != 0 || join->admitted);
	if (hub_manifest(hub, join->role, join->manifest_digest) != NULL)
		return 0;
	if (join->manifest == NULL)
		return -EAGAIN;
	if (side == NULL || may_differ)
		return manifest_keep(hub, join, err);
	differ_text(side, join, err);
	return err->code;
}

void hub_manifests_release(struct hub *hub)
{
	for (uint32_t i = 0; i < hub->manifest_count; i++)
		mem_free(hub->manifests[i].text);
	mem_free(hub->manifests);
	hub->manifests = NULL;
	hub->manifest_count = 0;
}
