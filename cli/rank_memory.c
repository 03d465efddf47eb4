/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a rank's params: one allocation, of the host or of a GPU.
 */
#include <errno.h>
#include <string.h>

#include "cli/roles.h"
#include "lib/cuda/cuda.h"

/* Whether a kind is "cuda" or "cuda:N", or the same of another word. */
static bool names_gpu(const char *kind, const char *word)
{
	size_t length = strlen(word);

	return strncmp(kind, word, length) == 0 && (kind[length] == '\0' || kind[length] == ':');
}

/* The N of "cuda:N". */
static int read_gpu(const char *kind, const char *word, uint64_t *number_out, struct ws_error *err)
{
	*number_out = 0;
	for (const char *at = kind + strlen(word) + 1; *at != '\0' || at[-1] == ':'; at++) {
		if (*at < '0' || *at > '9' || *number_out > 1000)
			return ws_fail(err, -EINVAL, "'%s' names no GPU: %s:N has a number", kind,
				       word);
		*number_out = *number_out * 10 + (uint64_t)(*at - '0');
	}
	return 0;
}

static int find_gpu(const char *kind, const char *word, const struct launch *launch,
		    int *device_out, struct ws_error *err)
{
	bool numbered = strcmp(kind, word) != 0;
	uint64_t number = 0;
	int rc = numbered ? read_gpu(kind, word, &number, err) : 0;

	if (rc != 0)
		return rc;
	int count = cuda_device_count(err);
	if (count == 0)
		return err->code;
	if (!numbered && count > 1 && launch->local_ranks == 0)
		return ws_fail(err, -EINVAL,
			       "'%s' needs a launcher that numbers the ranks of a host, and "
			       "%s doesn't: give the GPU's number, '%s:0' to '%s:%d'",
			       word, launch->source, word, word, count - 1);
	if (numbered && number >= (uint64_t)count)
		return ws_fail(err, -ENODEV, "there is no GPU %u here, they are 0 to %d",
			       (unsigned)number, count - 1);
	*device_out = (int)(numbered ? number : launch->local_rank % (uint32_t)count);
	return 0;
}

static int memory_alloc(struct rank_memory *memory, const char *kind, const struct launch *launch,
			struct ws_error *err)
{
	uint64_t bytes = memory->params.arena_bytes;
	for (uint32_t i = 0; i < memory->steps.derived_count; i++) {
		memory->derived_offset[i] = bytes;
		bytes += align_up(memory->steps.made[i].bytes, ARENA_ALIGN);
	}
	bytes = MAX(bytes, (uint64_t)1);
	int rc = ws_memory_alloc(&memory->host, bytes, err);

	if (rc != 0)
		return rc;
	memory->memory = memory->host;
	if (kind == NULL || strcmp(kind, "host") == 0)
		return 0;
	if (strcmp(kind, "pinned") == 0) {
		if (cuda_device_count(err) == 0)
			return err->code;
		rc = cuda_pin(memory->host.base, memory->host.bytes, err);
		memory->pinned = rc == 0;
		return rc;
	}
	memory->offloaded = names_gpu(kind, "offload");
	if (memory->offloaded)
		return find_gpu(kind, "offload", launch, &memory->offload_device, err);
	if (!names_gpu(kind, "cuda"))
		return ws_fail(err, -EINVAL, "there is no memory '%s': it is %s", kind,
			       TRAINER_MEMORY_KINDS);
	memory->memory = (struct ws_memory){.place = WS_CUDA};
	rc = find_gpu(kind, "cuda", launch, &memory->memory.device, err);
	return rc != 0 ? rc : ws_memory_alloc(&memory->memory, bytes, err);
}

int rank_memory_make(struct rank_memory *memory, const struct manifest *manifest, uint32_t rank,
		     const char *kind, const struct launch *launch, struct ws_error *err)
{
	*memory = (struct rank_memory){0};
	int rc = manifest_params(manifest, rank, &memory->arena, &memory->params, err);
	if (rc == 0)
		rc = manifest_steps(manifest, rank, &memory->params, &memory->arena, &memory->steps,
				    err);
	memory->derived_offset =
		arena_array(&memory->arena, memory->steps.derived_count, sizeof(uint64_t));
	if (rc == 0 && memory->derived_offset == NULL)
		rc = ws_fail(err, -ENOMEM, "no memory for a rank's params");
	if (rc == 0 && kind != NULL && manifest_side(manifest) == SIDE_ROLLOUT &&
	    names_gpu(kind, "offload"))
		rc = ws_fail(err, -EINVAL, "only a trainer's memory can be '%s'; a rollout's is %s",
			     kind, MEMORY_KINDS);
	if (rc == 0)
		rc = memory_alloc(memory, kind, launch, err);
	if (rc != 0)
		rank_memory_release(memory);
	return rc;
}

void rank_memory_release(struct rank_memory *memory)
{
	if (memory->memory.place == WS_CUDA)
		ws_memory_free(&memory->memory);
	if (memory->pinned)
		cuda_unpin(memory->host.base);
	ws_memory_free(&memory->host);
	arena_release(&memory->arena);
	*memory = (struct rank_memory){0};
}

struct ws_memory param_memory(const struct rank_memory *memory, uint32_t index)
{
	const struct param *param = &memory->params.params[index];
	return (struct ws_memory){.base = (char *)memory->memory.base + param->arena_offset,
				  .bytes = param->bytes,
				  .place = memory->memory.place,
				  .device = memory->memory.device};
}

void *param_bytes(const struct rank_memory *memory, uint32_t index)
{
	return (char *)memory->host.base + memory->params.params[index].arena_offset;
}

struct ws_memory derived_memory(const struct rank_memory *memory, uint32_t index)
{
	return (struct ws_memory){.base = (char *)memory->memory.base +
					  memory->derived_offset[index],
				  .bytes = memory->steps.made[index].bytes,
				  .place = memory->memory.place,
				  .device = memory->memory.device};
}

void *derived_bytes(const struct rank_memory *memory, uint32_t index)
{
	return (char *)memory->host.base + memory->derived_offset[index];
}

static int copy_all(const struct rank_memory *memory, void *to, const void *from,
		    struct ws_error *err)
{
	if (memory->memory.place == WS_HOST)
		return 0;
	int rc = cuda_use(memory->memory.device, err);
	if (rc == 0)
		rc = cuda_copy(to, from, memory->host.bytes, NULL, err);
	return rc != 0 ? rc : cuda_stream_wait(NULL, err);
}

int rank_memory_put(const struct rank_memory *memory, struct ws_error *err)
{
	return copy_all(memory, memory->memory.base, memory->host.base, err);
}

int rank_memory_get(const struct rank_memory *memory, struct ws_error *err)
{
	return copy_all(memory, memory->host.base, memory->memory.base, err);
}
