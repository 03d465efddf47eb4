/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading what commands are given: manifests, and models out of checkpoints or by name.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

#define CONFIG_BYTES_MAX   (4u << 20)
#define MANIFEST_BYTES_MAX (64u << 20)

/* The manifest as by manifest_parse_faulty. */
static int read_manifest(const char *path, enum side side, struct manifest **manifest_out,
			 void **text_out, size_t *bytes_out, struct findings *findings,
			 struct ws_error *err)
{
	void *text = NULL;

	*manifest_out = NULL;
	*text_out = NULL;
	int rc = file_read(path, MANIFEST_BYTES_MAX, &text, bytes_out, err);
	if (rc != 0)
		return rc;
	rc = manifest_parse_faulty(manifest_out, text, *bytes_out, findings, err);
	if (*manifest_out != NULL && manifest_side(*manifest_out) != side) {
		manifest_free(*manifest_out);
		*manifest_out = NULL;
		rc = ws_fail(err, -EINVAL, "it describes the %s's side, not the %s's",
			     side == SIDE_TRAINER ? "rollout" : "trainer",
			     side == SIDE_TRAINER ? "trainer" : "rollout");
	}
	if (rc != 0) {
		mem_free(text);
		text = NULL;
		ws_fail_in(err, rc, "manifest '%s'", path);
	}
	*text_out = text;
	return rc;
}

int load_manifest(const char *path, enum side side, struct manifest **manifest_out, void **text_out,
		  size_t *bytes_out, struct ws_error *err)
{
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	int rc = read_manifest(path, side, manifest_out, text_out, bytes_out, &findings, err);

	if (rc != 0) {
		say_findings(&findings);
		manifest_free(*manifest_out);
		*manifest_out = NULL;
	}
	arena_release(&arena);
	return rc;
}

int pair_read(struct manifest_pair *pair, const char *const files[2], struct findings *findings,
	      struct ws_error *err)
{
	int rc = 0;

	*pair = (struct manifest_pair){0};
	for (int side = 0; side < 2; side++) {
		struct ws_error later = {0};
		size_t bytes;
		int fault =
			read_manifest(files[side], (enum side)side, &pair->sides[side],
				      &pair->texts[side], &bytes, findings, rc == 0 ? err : &later);
		if (rc != 0 && fault != 0)
			say_failure(&later);
		rc = rc != 0 ? rc : fault;
	}
	return rc;
}

void pair_release(struct manifest_pair *pair)
{
	for (int side = 0; side < 2; side++) {
		manifest_free(pair->sides[side]);
		mem_free(pair->texts[side]);
	}
}

/* What the planner wants to know of each tensor. */
static int list_tensors(const struct checkpoint *checkpoint, struct tensor_listing **list_out,
			struct ws_error *err)
{
	struct tensor_listing *list = mem_alloc(checkpoint->tensor_count * sizeof(*list));
	if (list == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u tensors", checkpoint->tensor_count);
	for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
		const struct st_tensor *tensor = &checkpoint->tensors[i];
		if (tensor->dtype == WS_NONE || tensor->dim_count > BOX_DIM_MAX) {
			mem_free(list);
			return ws_fail(err, -ENOTSUP,
				       "tensor '%s' of %u dims and dtype %s can't be moved",
				       tensor->name, tensor->dim_count, tensor->dtype_name);
		}
		list[i] = (struct tensor_listing){.name = tensor->name,
						  .dtype = tensor->dtype,
						  .dim_count = tensor->dim_count};
		for (uint32_t d = 0; d < tensor->dim_count; d++)
			list[i].dim[d] = tensor->dim[d];
	}
	*list_out = list;
	return 0;
}

static int model_of_folder(const char *folder, struct model **model_out, struct ws_error *err)
{
	struct checkpoint checkpoint = {0};
	struct tensor_listing *list = NULL;
	void *config = NULL;
	size_t config_bytes = 0;
	char path[4096];

	snprintf(path, sizeof(path), "%s/config.json", folder);
	int rc = file_read(path, CONFIG_BYTES_MAX, &config, &config_bytes, err);
	if (rc == 0)
		rc = checkpoint_open(&checkpoint, folder, err);
	if (rc == 0)
		rc = list_tensors(&checkpoint, &list, err);
	const char *slash = strrchr(folder, '/');
	if (rc == 0)
		rc = model_from_tensors(model_out,
					slash != NULL && slash[1] != '\0' ? slash + 1 : folder,
					config, config_bytes, list, checkpoint.tensor_count, err);
	mem_free(list);
	mem_free(config);
	checkpoint_close(&checkpoint);
	return rc;
}

int load_model(const char *name_or_folder, struct model **model_out, struct ws_error *err)
{
	struct stat info;
	*model_out = NULL;
	if (stat(name_or_folder, &info) == 0 && S_ISDIR(info.st_mode))
		return model_of_folder(name_or_folder, model_out, err);
	if (strchr(name_or_folder, '/') != NULL)
		return ws_fail(err, -ENOENT, "there is no folder '%s'", name_or_folder);
	int rc = model_builtin(model_out, name_or_folder, err);
	return rc == -ENOENT ? ws_fail_in(err, rc, "there is no folder '%s'", name_or_folder) : rc;
}
