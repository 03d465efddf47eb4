/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pipeline stage has which layers: each framework's rule for layers that don't divide,
 * virtual stages, custom lists, and where MTP layers go.  All end in one list, the stage of each
 * layer.  Sources: layouts facts 2.3, 3.1, 3.2.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

/* "8:8:5" as numbers; false where it isn't `count` numbers. */
static bool read_list(const char *text, uint32_t *list, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		char *end;
		if (*text < '0' || *text > '9')
			return false;
		unsigned long number = strtoul(text, &end, 10);
		if (number > LAYER_MAX || *end != (i + 1 < count ? ':' : '\0'))
			return false;
		list[i] = (uint32_t)number;
		text = end + 1;
	}
	return true;
}

/* Layers of each entry; entry v * stages + s is chunk v of stage s. */
struct counts {
	uint32_t layers, stages, vpp;
	uint32_t *of;
};

/* Megatron: even; or with fixed numbers on the first and the last stage and the rest even; or the
 * embedding or the loss count as a layer of the first or last entry. */
static void even_counts(struct mesh_text *mesh, const struct counts *counts)
{
	uint32_t first = mesh_size(mesh, "first", 0), last = mesh_size(mesh, "last", 0);
	uint32_t embedding = mesh_size(mesh, "count_embedding", 0);
	uint32_t loss = mesh_size(mesh, "count_loss", 0);
	uint32_t fixed = (first > 0 ? 1u : 0u) + (last > 0 ? 1u : 0u);
	uint32_t entries = counts->stages * counts->vpp;
	if (fixed > 0 &&
	    (counts->vpp > 1 || counts->stages <= fixed || counts->layers < first + last))
		return mesh_fault(
			mesh,
			"first= and last= need vpp=1, more than %u stages, and %u layers to share",
			fixed, counts->layers);
	if (embedding > 1 || loss > 1 || (fixed > 0 && embedding + loss > 0))
		return mesh_fault(mesh, "count_embedding= and count_loss= are 1 or not there, and "
					"don't go with first= and last=");
	uint32_t rest = counts->layers - first - last + embedding + loss, even = entries - fixed;
	if (rest % even != 0)
		return mesh_fault(
			mesh,
			"%u layers don't divide by %u stages; use first=, last= or stages=8:8:5",
			rest, even);
	if (rest / even < MAX(embedding, loss) + (entries == 1 ? MIN(embedding, loss) : 0))
		return mesh_fault(mesh, "the embedding and the loss leave no layer to a stage");
	for (uint32_t i = 0; i < entries; i++)
		counts->of[i] = rest / even;
	if (first > 0)
		counts->of[0] = first;
	if (last > 0)
		counts->of[entries - 1] = last;
	counts->of[0] -= embedding;
	counts->of[entries - 1] -= loss;
}

/* Left-over layers, one each: TensorRT-LLM gives them to the first stages, vLLM to the middle ones
 * from the last but one backwards, SGLang to the last ones. */
static void share_counts(enum left_over left_over, const struct counts *counts)
{
	uint32_t left = counts->layers % counts->stages;
	for (uint32_t i = 0; i < counts->stages; i++)
		counts->of[i] = counts->layers / counts->stages;
	for (uint32_t i = 0; i < left; i++) {
		if (left_over == LEFT_FIRST)
			counts->of[i]++;
		else
			counts->of[counts->stages - 1 - i - (left_over == LEFT_MIDDLE ? 1 : 0)]++;
	}
}

void layout_mtp(struct mesh_text *mesh, uint32_t stages, struct ranks *ranks)
{
	const char *value = mesh_value(mesh, "mtp");
	uint32_t stage = stages - 1;
	if (value != NULL && strcmp(value, "none") == 0)
		ranks->no_mtp = true;
	else if (value != NULL && (!read_list(value, &stage, 1) || stage >= stages))
		mesh_fault(mesh, "'mtp=%s': \"none\" or a stage from 0 to %u belongs there", value,
			   stages - 1);
	ranks->mtp_stage = MIN(stage, stages - 1);
}

static uint32_t sum_of(const struct counts *counts)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < counts->stages * counts->vpp; i++)
		sum += counts->of[i];
	return (uint32_t)MIN(sum, UINT32_MAX);
}

/* Fills `of` of counts by the layout's rule or the list that was typed; false and faults. */
static bool count_layers(struct mesh_text *mesh, enum left_over left_over,
			 const struct counts *counts)
{
	const char *list = mesh_value(mesh, "stages");
	uint32_t entries = counts->stages * counts->vpp, before = mesh->faults;
	if (list != NULL && !read_list(list, counts->of, entries))
		mesh_fault(mesh, "'stages=%s': %u numbers like 8:8:5 belong there", list, entries);
	else if (list == NULL && left_over == LEFT_NOWHERE)
		even_counts(mesh, counts);
	else if (list == NULL)
		share_counts(left_over, counts);
	uint32_t sum = sum_of(counts);
	if (mesh->faults == before && sum != counts->layers)
		mesh_fault(mesh, "'stages=%s' has %u layers, the model %u",
			   list == NULL ? "" : list, sum, counts->layers);
	return mesh->faults == before;
}

int layout_stages(struct mesh_text *mesh, const struct model *model, enum left_over left_over,
		  struct arena *arena, struct ranks *ranks, struct ws_error *err)
{
	uint32_t total = (uint32_t)model->layer_count, layer = 0;
	struct counts counts = {.layers = total, .stages = mesh_size(mesh, "pp", 1)};
	counts.vpp = left_over == LEFT_NOWHERE ? mesh_size(mesh, "vpp", 1) : 1;
	assert(counts.stages > 0 && counts.vpp > 0);
	ranks->stage_count = counts.stages;
	layout_mtp(mesh, counts.stages, ranks);
	for (uint32_t i = 0; i < model->tensor_count; i++)
		total = MAX(total, (uint32_t)MAX(model->tensors[i].layer_hi, 0));
	if (counts.stages > counts.layers || counts.vpp > counts.layers / counts.stages) {
		mesh_fault(mesh, "%u stages of %u chunks are more than %u layers", counts.stages,
			   counts.vpp, counts.layers);
		return 0;
	}
	counts.of = arena_array(arena, (size_t)counts.stages * counts.vpp, sizeof(*counts.of));
	ranks->layer_stage = arena_array(arena, total, sizeof(*ranks->layer_stage));
	if (counts.of == NULL || ranks->layer_stage == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u stages", counts.stages);
	if (!count_layers(mesh, left_over, &counts))
		return 0;
	for (uint32_t i = 0; i < counts.stages * counts.vpp; i++) {
		for (uint32_t n = 0; n < counts.of[i]; n++)
			ranks->layer_stage[layer++] = i % counts.stages;
	}
	while (layer < total)
		ranks->layer_stage[layer++] = ranks->mtp_stage;
	ranks->layer_count = total;
	return 0;
}
