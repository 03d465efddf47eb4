/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: memory that is registered on every NIC, and what a peer must know to write into it.
 */
#include <errno.h>
#include <string.h>

#include "lib/cuda/cuda.h"
#include "lib/engine/engine_internal.h"

struct region *region_find(const struct engine *engine, uint32_t region)
{
	if (region >= engine->region_count || engine->regions[region] == NULL ||
	    engine->regions[region]->memory.bytes == 0)
		return NULL;
	return engine->regions[region];
}

static void region_dereg(struct engine *engine, struct region *region)
{
	for (uint32_t i = 0; i < region->registered; i++) {
		struct nic *nic = engine->nics[i].nic;
		if (nic != NULL && region->mrs[i].memory.base != NULL)
			nic->transport->dereg(nic, &region->mrs[i]);
		region->mrs[i] = (struct mr){0};
	}
	region->registered = 0;
	region->memory = (struct ws_memory){0};
}

void regions_forget(struct engine *engine, uint32_t index)
{
	for (uint32_t i = 0; i < engine->region_count; i++)
		if (engine->regions[i] != NULL)
			engine->regions[i]->mrs[index] = (struct mr){0};
}

bool nic_reaches_all(const struct engine *engine, uint32_t nic)
{
	if (engine->nics[nic].lost)
		return false;
	for (uint32_t i = 0; i < engine->region_count; i++) {
		const struct region *region = region_find(engine, i);
		if (region != NULL && region->mrs[nic].memory.base == NULL)
			return false;
	}
	return true;
}

#define GPUS_MAX 64 /* bits of flushed_gpus */

/* Memory of a GPU that a NIC writes into; a peer's own GPU or kernel writes in order. */
static int flush_note(struct engine *engine, const struct region *region,
		      const struct ws_memory *memory, struct ws_error *err)
{
	bool by_nic = false, wanted = false;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		by_nic |= region->mrs[i].memory.base != NULL && !engine->nics[i].nic->same_host;
	if (memory->place != WS_CUDA || !by_nic)
		return 0;
	int rc = cuda_flush_wanted(memory->device, &wanted, err);
	if (rc == 0 && wanted && memory->device >= GPUS_MAX)
		rc = ws_fail(err, -ENOTSUP, "GPU %d is above the %d that can be flushed",
			     memory->device, GPUS_MAX);
	if (rc == 0 && wanted)
		engine->flushed_gpus |= UINT64_C(1) << memory->device;
	return rc;
}

int regions_flush(struct engine *engine)
{
	int rc = 0;
	for (int gpu = 0; rc == 0 && gpu < GPUS_MAX; gpu++)
		if ((engine->flushed_gpus >> gpu & 1) != 0)
			rc = cuda_flush(gpu, &engine->no_flush);
	return rc;
}

/*
 * A lost NIC keeps its place, with a key of 0 that no rail leads to.  So does one that can't reach
 * this kind of memory, if another can and no peer is joined over it yet.
 */
static int region_reg(struct engine *engine, struct region *region, const struct ws_memory *memory,
		      struct ws_error *err)
{
	struct ws_error why = {0};
	bool reached = false;
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < engine->nic_count; i++) {
		struct nic *nic = engine->nics[i].nic;
		region->registered = i + 1;
		if (engine->nics[i].lost)
			continue;
		rc = nic->transport->reg(nic, memory, region->use, &region->mrs[i], &why);
		reached |= rc == 0;
		if (rc == 0)
			continue;
		region->mrs[i] = (struct mr){0};
		ws_fail_in(&why, rc, "cannot register %zu bytes on '%s'", memory->bytes, nic->name);
		if (rc == -ENOTSUP && engine->peer_count == 0)
			rc = 0;
	}
	if (rc == 0 && !reached)
		rc = why.code;
	if (rc == 0)
		rc = flush_note(engine, region, memory, &why);
	if (rc != 0) {
		region_dereg(engine, region);
		if (err != NULL)
			*err = why;
		return rc;
	}
	region->memory = *memory;
	return 0;
}

int regions_register(struct engine *engine, uint32_t index, struct ws_error *err)
{
	struct nic *nic = engine->nics[index].nic;
	for (uint32_t i = 0; i < engine->region_count; i++) {
		struct region *region = region_find(engine, i);
		int rc = region == NULL ? 0
					: nic->transport->reg(nic, &region->memory, region->use,
							      &region->mrs[index], err);
		if (rc != 0)
			region->mrs[index] = (struct mr){0};
		/* As at first: it isn't joined with anybody then. */
		if (rc != 0 && rc != -ENOTSUP) {
			size_t bytes = region->memory.bytes;
			regions_forget(engine, index);
			return ws_fail_in(err, rc, "cannot register %zu bytes again", bytes);
		}
	}
	return 0;
}

int regions_renew(struct engine *engine, struct ws_error *err)
{
	for (uint32_t i = 0; i < engine->region_count; i++) {
		struct region *region = region_find(engine, i);
		if (region == NULL)
			continue;
		const struct ws_memory memory = region->memory;
		region_dereg(engine, region);
		int rc = region_reg(engine, region, &memory, err);
		if (rc != 0) {
			region->memory = memory; /* tried again */
			return rc;
		}
	}
	engine->pages_moved = false;
	return 0;
}

void regions_paths(const struct engine *engine, uint32_t nic, char *text_out, size_t bytes)
{
	struct writer text = writer_fixed(text_out, bytes - 1);
	text_out[0] = 0;
	for (uint32_t i = 1; i < engine->region_count; i++) {
		const struct region *region = region_find(engine, i);
		const char *path = region == NULL ? NULL : region->mrs[nic].path;
		if (path == NULL || strstr(text_out, path) != NULL)
			continue;
		write_format(&text, "%s%s", text.count > 0 ? ", " : "", path);
		text_out[text.count] = 0;
	}
}

/* A free place in the table. */
static int place_make(struct engine *engine, uint32_t *place_out, struct ws_error *err)
{
	uint32_t place = 0;
	while (place < engine->region_count && engine->regions[place] != NULL)
		place++;
	if (place == ENGINE_REGIONS_MAX)
		return ws_fail(err, -ENOSPC,
			       "all %d regions are in use; register fewer, larger stretches",
			       ENGINE_REGIONS_MAX);
	if (place == engine->region_room) {
		uint32_t room = engine->region_room + 16;
		void *grown =
			mem_grow(engine->regions, engine->region_room * sizeof(struct region *),
				 room * sizeof(struct region *));
		if (grown == NULL)
			return ws_fail(err, -ENOMEM, "no memory for a table of %u regions", room);
		engine->regions = grown;
		engine->region_room = room;
	}
	*place_out = place;
	return 0;
}

int engine_region_add(struct engine *engine, const struct ws_memory *memory, enum mr_use use,
		      uint32_t *region_out, struct ws_error *err)
{
	uint32_t place = 0;
	if (memory->base == NULL || memory->bytes == 0)
		return ws_fail(err, -EINVAL, "a region of %zu bytes can't be registered",
			       memory->bytes);
	int rc = place_make(engine, &place, err);
	if (rc != 0)
		return rc;
	struct region *region =
		mem_alloc(sizeof(*region) + engine->nic_count * sizeof(region->mrs[0]));
	if (region == NULL)
		return ws_fail(err, -ENOMEM, "no memory for region %u", place);
	region->use = use;
	rc = region_reg(engine, region, memory, err);
	if (rc != 0) {
		mem_free(region);
		return rc;
	}
	engine->regions[place] = region;
	engine->region_count = MAX(engine->region_count, place + 1);
	*region_out = place;
	return 0;
}

void engine_region_drop(struct engine *engine, uint32_t region)
{
	if (region == 0 || region >= engine->region_count || engine->regions[region] == NULL)
		return;
	region_dereg(engine, engine->regions[region]);
	mem_free(engine->regions[region]);
	engine->regions[region] = NULL;
}

void engine_regions_encode(const struct engine *engine, struct writer *out)
{
	write_u32(out, engine->nic_count);
	write_u32(out, engine->region_count);
	for (uint32_t i = 0; i < engine->region_count; i++) {
		const struct region *region = region_find(engine, i);
		if (region != NULL && region->use == MR_SOURCE)
			region = NULL; /* no peer has any business there */
		write_u64(out, region != NULL ? region->memory.bytes : 0);
		for (uint32_t n = 0; n < engine->nic_count; n++) {
			write_u64(out, region != NULL ? region->mrs[n].key : 0);
			write_u64(out, region != NULL ? region->mrs[n].base : 0);
		}
	}
}

int region_open_own(struct engine *engine, const struct engine_options *options,
		    struct ws_error *err)
{
	uint64_t blocks = options->staging_bytes / engine->op_bytes;
	if (blocks > UINT32_MAX / 2)
		return ws_fail(err, -ENOSPC, "%llu staging blocks are too many; choose larger ops",
			       (unsigned long long)blocks);
	engine->blocks = mem_alloc(blocks * sizeof(*engine->blocks));
	if (engine->blocks == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a table of %llu staging blocks",
			       (unsigned long long)blocks);
	engine->block_count = (uint32_t)blocks;
	engine->block_free = NONE;
	engine->block_free_last = engine->block_count - 1; /* if there are any */
	for (uint32_t i = engine->block_count; i-- > 0;) {
		engine->blocks[i].next = engine->block_free;
		engine->block_free = i;
	}
	struct ws_memory own = {.place = WS_HOST};
	bool apart = options->place != WS_HOST && blocks > 0;
	uint64_t host_blocks = apart ? 0 : blocks;
	int rc = ws_memory_alloc(&own, STAGING_OFFSET + host_blocks * engine->op_bytes, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "cannot allocate %llu bytes of staging",
				  (unsigned long long)options->staging_bytes);
	engine->own = own;
	engine->staging = own;
	engine->staging.base = (uint8_t *)own.base + STAGING_OFFSET;
	rc = engine_region_add(engine, &engine->own, MR_TARGET, &engine->staging_region, err);
	if (rc != 0 || options->place == WS_HOST)
		return rc;
	engine->staging = (struct ws_memory){.place = options->place, .device = options->device};
	if (!apart)
		return 0;
	rc = ws_memory_alloc(&engine->staging, blocks * engine->op_bytes, err);
	if (rc != 0)
		return ws_fail_in(err, rc,
				  "cannot allocate %llu bytes of staging on GPU %d; choose "
				  "less (staging_bytes)",
				  (unsigned long long)options->staging_bytes, options->device);
	return engine_region_add(engine, &engine->staging, MR_TARGET, &engine->staging_region, err);
}

void region_free_all(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->region_count; i++)
		mem_free(engine->regions[i]);
	mem_free(engine->regions);
	engine->regions = NULL;
	engine->region_count = engine->region_room = 0;
	if (engine->staging.place == WS_CUDA)
		ws_memory_free(&engine->staging);
	ws_memory_free(&engine->own);
	mem_free(engine->blocks);
	engine->blocks = NULL;
	engine->block_count = 0;
}
