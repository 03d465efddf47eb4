/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One param of one rank in words: which rows of which canonical tensors lie where in it, in one
 * run or in how many, and what no tensor fills.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

#define GAPS_SHOWN_MAX 4

struct explained {
	const struct manifest *manifest;
	const struct param *param;
	uint32_t rank;
	uint64_t element_bytes;
};

/* A piece as runs: `run` elements in a row, then the next `step` further, `count` times; step 0
 * where they have no one step. */
struct runs {
	uint64_t run, count, step;
};

static struct runs runs_of(const struct piece *piece)
{
	struct runs runs = {.run = 1, .count = 1};
	uint32_t d = piece->dim_count;
	/* Dims of one element are nowhere. */
	for (; d > 0; d--) {
		if (piece->extent[d - 1] != 1 && piece->stride[d - 1] != (int64_t)runs.run)
			break;
		runs.run *= piece->extent[d - 1];
	}
	for (uint32_t outer = 0; d > 0; d--) {
		if (piece->extent[d - 1] == 1)
			continue;
		runs.count *= piece->extent[d - 1];
		runs.step = outer++ == 0 ? (uint64_t)piece->stride[d - 1] : 0;
	}
	return runs;
}

static const char *size_text(uint64_t bytes, char *out, size_t room)
{
	static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
	double value = (double)bytes;
	size_t unit = 0;
	for (; value >= 10000.0 && unit + 1 < ARRAY_SIZE(units); unit++)
		value /= 1000.0;
	snprintf(out, room, value < 100.0 && unit > 0 ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return out;
}

static const char *dims_text(const uint64_t *dim, uint32_t count, char *out, size_t room)
{
	size_t used = (size_t)snprintf(out, room, "[");
	for (uint32_t d = 0; d < count && used < room; d++)
		used += (size_t)snprintf(out + used, room - used, "%s%" PRIu64, d == 0 ? "" : ", ",
					 dim[d]);
	if (used < room)
		snprintf(out + used, room - used, "]");
	return out;
}

/* Where the element lies, as indices of the param's dims. */
static const char *place_text(const struct form *form, uint64_t place, char *out, size_t room)
{
	uint64_t index[LOCAL_DIM_MAX];
	for (uint32_t d = form->dim_count; d > 0; d--) {
		uint64_t dim = MAX(form->dim[d - 1], 1);
		index[d - 1] = place % dim;
		place /= dim;
	}
	return dims_text(index, form->dim_count, out, room);
}

static void put_box(struct writer *out, const struct tensor_rule *tensor, const struct piece *piece)
{
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		uint64_t lo = piece->offset[d], hi = lo + piece->extent[d];
		char dim[16];
		snprintf(dim, sizeof(dim), "dim %u", d);
		const char *what = piece->dim_count == 1  ? "elements"
				   : piece->dim_count > 2 ? dim
				   : d == 0		  ? "rows"
							  : "columns";
		write_format(out, "%s", d == 0 ? "" : ", ");
		if (piece->extent[d] == tensor->dim[d] && piece->dim_count <= 2)
			write_format(out, "all %" PRIu64 " %s", tensor->dim[d], what);
		else
			write_format(out, "%s %" PRIu64 " to %" PRIu64, what, lo, hi - 1);
	}
}

static const char *tensor_text(const struct explained *it, uint32_t tensor, int32_t slot, char *out,
			       size_t room)
{
	tensor_name(manifest_tensor(it->manifest, tensor), it->param->layer,
		    param_expert(it->manifest, it->rank, it->param, slot), out, room);
	return out;
}

/* Of a scale that several weights are under: the next one, from the lead on; UINT32_MAX: no more,
 * or it is of one. */
static uint32_t next_weight(const struct explained *it, const struct piece *piece, uint32_t weight)
{
	const struct tensor_rule *scale = manifest_tensor(it->manifest, piece->tensor);
	uint32_t lead = scale->is_scale ? scale->weight_tensor : UINT32_MAX;
	if (lead == UINT32_MAX || manifest_tensor_fellow(it->manifest, lead) == lead)
		return UINT32_MAX;
	if (weight == UINT32_MAX)
		return lead;
	uint32_t next = manifest_tensor_fellow(it->manifest, weight);
	return next == lead ? UINT32_MAX : next;
}

static void put_piece(const struct explained *it, const struct piece *piece, struct writer *out)
{
	const struct tensor_rule *tensor = manifest_tensor(it->manifest, piece->tensor);
	struct runs runs = runs_of(piece);
	char name[NAME_BYTES_MAX + 64], at[160], shape[160], size[32], run[32], step[32];
	write_format(out, "  at %s: ", place_text(it->param->form, piece->place, at, sizeof(at)));
	put_box(out, tensor, piece);
	write_format(out, " of %s %s\n",
		     tensor_text(it, piece->tensor, piece->slot, name, sizeof(name)),
		     dims_text(tensor->dim, tensor->dim_count, shape, sizeof(shape)));
	for (uint32_t w = UINT32_MAX; (w = next_weight(it, piece, w)) != UINT32_MAX;)
		write_format(out, "      under it: %s\n",
			     tensor_text(it, w, piece->slot, name, sizeof(name)));
	size_text(runs.run * runs.count * it->element_bytes, size, sizeof(size));
	size_text(runs.run * it->element_bytes, run, sizeof(run));
	size_text(runs.step * it->element_bytes, step, sizeof(step));
	write_format(out, "      %s from byte %" PRIu64 ", ", size,
		     piece->place * it->element_bytes);
	if (runs.count == 1)
		write_format(out, "contiguous\n");
	else
		write_format(out, "strided: %" PRIu64 " runs of %s%s%s\n", runs.count, run,
			     runs.step > 0 ? ", one every " : "", runs.step > 0 ? step : "");
}

static int compare_places(const void *left, const void *right)
{
	const struct piece *a = *(const struct piece *const *)left;
	const struct piece *b = *(const struct piece *const *)right;
	return a->place < b->place ? -1 : a->place > b->place;
}

/* What no piece covers; with its ranges where all pieces are contiguous. */
static void put_zeroes(const struct explained *it, const struct piece *const *sorted,
		       struct writer *out)
{
	const struct form *form = it->param->form;
	uint64_t zero = form->element_count - form->covered_count, end = 0;
	char size[32];
	uint32_t shown = 0;
	bool contiguous = true;
	if (zero == 0)
		return;
	write_format(out, "  zero fill: %s that no tensor covers",
		     size_text(zero * it->element_bytes, size, sizeof(size)));
	for (uint32_t i = 0; i < form->piece_count; i++)
		contiguous = contiguous && runs_of(sorted[i]).count == 1;
	for (uint32_t i = 0; contiguous && i <= form->piece_count; i++) {
		uint64_t next = i < form->piece_count ? sorted[i]->place : form->element_count;
		if (next > end && shown++ < GAPS_SHOWN_MAX)
			write_format(out, "%s bytes %" PRIu64 " to %" PRIu64,
				     shown == 1 ? ":" : ",", end * it->element_bytes,
				     next * it->element_bytes - 1);
		if (i < form->piece_count)
			end = next + runs_of(sorted[i]).run;
	}
	write_format(out, "%s\n", shown > GAPS_SHOWN_MAX ? ", .." : "");
}

static void put_words(const struct explained *it, const struct piece *const *sorted,
		      struct writer *out)
{
	const struct param *param = it->param;
	const struct rule *rule = &it->manifest->rules[param->rule];
	char shape[160], size[32];
	write_format(out, "%s\n  rank %u of the %s: %s %s, %s", param->name, it->rank,
		     it->manifest->side == SIDE_TRAINER ? "trainer" : "rollout",
		     ws_dtype_name(param->dtype),
		     dims_text(param->form->dim, param->form->dim_count, shape, sizeof(shape)),
		     size_text(param->bytes, size, sizeof(size)));
	for (uint32_t a = 0; a < rule->axis_count; a++)
		write_format(out, "%s %s %u of %u", a == 0 ? "; at" : ",", rule->axes[a]->name,
			     axis_index(rule->axes[a], it->rank), rule->axes[a]->size);
	if (rule->expert_axis != NULL && rule->expert_axis->size > 1)
		write_format(out, "; experts by %s %u of %u", rule->expert_axis->name,
			     axis_index(rule->expert_axis, it->rank), rule->expert_axis->size);
	write_format(out, "\n");
	if (!rule->view.inplace)
		write_format(out, "  staged: it doesn't land in the engine's own memory%s%s\n",
			     rule->view.post != NULL ? ", but becomes it by post step " : "",
			     rule->view.post != NULL ? rule->view.post : "");
	if (param->form->element_count == 0)
		write_format(out, "  nothing: this rank's shard is empty\n");
	for (uint32_t i = 0; i < param->form->piece_count; i++)
		put_piece(it, sorted[i], out);
	put_zeroes(it, sorted, out);
}

static void put_numbers(struct json_writer *json, const char *key, const uint64_t *number,
			uint32_t count)
{
	json_begin_array(json, key);
	for (uint32_t d = 0; d < count; d++)
		json_put_u64(json, NULL, number[d]);
	json_end_array(json);
}

static void put_piece_json(const struct explained *it, const struct piece *piece,
			   struct json_writer *json)
{
	const struct tensor_rule *tensor = manifest_tensor(it->manifest, piece->tensor);
	struct runs runs = runs_of(piece);
	char name[NAME_BYTES_MAX + 64];
	json_begin_object(json, NULL);
	json_put_text(json, "tensor",
		      tensor_text(it, piece->tensor, piece->slot, name, sizeof(name)));
	if (next_weight(it, piece, UINT32_MAX) != UINT32_MAX) {
		json_begin_array(json, "weights");
		for (uint32_t w = UINT32_MAX; (w = next_weight(it, piece, w)) != UINT32_MAX;)
			json_put_text(json, NULL,
				      tensor_text(it, w, piece->slot, name, sizeof(name)));
		json_end_array(json);
	}
	put_numbers(json, "tensor_shape", tensor->dim, tensor->dim_count);
	put_numbers(json, "offset", piece->offset, piece->dim_count);
	put_numbers(json, "extent", piece->extent, piece->dim_count);
	json_put_u64(json, "byte", piece->place * it->element_bytes);
	json_put_u64(json, "bytes", runs.run * runs.count * it->element_bytes);
	json_begin_array(json, "strides");
	for (uint32_t d = 0; d < piece->dim_count; d++)
		json_put_integer(json, NULL, piece->stride[d]);
	json_end_array(json);
	json_put_u64(json, "runs", runs.count);
	json_put_u64(json, "run_bytes", runs.run * it->element_bytes);
	json_end_object(json);
}

static void put_json(const struct explained *it, const struct piece *const *sorted,
		     struct writer *out)
{
	struct json_writer writer = {.out = out}, *json = &writer;
	const struct param *param = it->param;
	const struct rule *rule = &it->manifest->rules[param->rule];
	json_begin_object(json, NULL);
	json_put_text(json, "param", param->name);
	json_put_u64(json, "rank", it->rank);
	json_put_text(json, "dtype", ws_dtype_name(param->dtype));
	put_numbers(json, "shape", param->form->dim, param->form->dim_count);
	json_put_u64(json, "bytes", param->bytes);
	json_put_bool(json, "inplace", rule->view.inplace);
	if (rule->view.post != NULL)
		json_put_text(json, "post", rule->view.post);
	json_put_u64(json, "zero_bytes",
		     (param->form->element_count - param->form->covered_count) * it->element_bytes);
	json_begin_array(json, "pieces");
	for (uint32_t i = 0; i < param->form->piece_count; i++)
		put_piece_json(it, sorted[i], json);
	json_end_array(json);
	json_end_object(json);
	write_bytes(out, "\n", 1);
}

/* What a post step makes, and of which params. */
static void put_made(const struct step_call *call, const struct step_made *made,
		     const struct rank_params *params, uint32_t rank, struct writer *out)
{
	char shape[160], size[32];
	write_format(out, "%s\n  rank %u of the rollout: %s %s, %s\n  made by post step %s of",
		     made->name, rank, ws_dtype_name(made->dtype),
		     dims_text(made->dim, made->dim_count, shape, sizeof(shape)),
		     size_text(made->bytes, size, sizeof(size)), call->step);
	for (uint32_t i = 0; i < call->from_count; i++)
		write_format(out, "%s %s", i == 0 ? "" : ",", params->params[call->from[i]].name);
	write_format(out, "\n");
}

static void put_made_json(const struct step_call *call, const struct step_made *made,
			  const struct rank_params *params, uint32_t rank, struct writer *out)
{
	struct json_writer writer = {.out = out}, *json = &writer;
	json_begin_object(json, NULL);
	json_put_text(json, "derived", made->name);
	json_put_u64(json, "rank", rank);
	json_put_text(json, "dtype", ws_dtype_name(made->dtype));
	put_numbers(json, "shape", made->dim, made->dim_count);
	json_put_u64(json, "bytes", made->bytes);
	json_put_text(json, "post", call->step);
	json_begin_array(json, "from");
	for (uint32_t i = 0; i < call->from_count; i++)
		json_put_text(json, NULL, params->params[call->from[i]].name);
	json_end_array(json);
	json_end_object(json);
	write_bytes(out, "\n", 1);
}

/* -ENOENT, and no sentence yet: nothing of that name is derived. */
static int explain_derived(const struct manifest *manifest, const char *name, uint32_t rank,
			   const struct rank_params *params, bool as_json, struct arena *arena,
			   struct writer *out, struct ws_error *err)
{
	struct rank_steps steps;
	int rc = manifest_steps(manifest, rank, params, arena, &steps, err);
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < steps.call_count; i++) {
		const struct step_call *call = &steps.calls[i];
		uint32_t end = MIN(call->made_first + call->made_count, steps.derived_count);
		for (uint32_t m = call->made_first; m < end; m++) {
			if (strcmp(steps.made[m].name, name) != 0)
				continue;
			if (as_json)
				put_made_json(call, &steps.made[m], params, rank, out);
			else
				put_made(call, &steps.made[m], params, rank, out);
			return 0;
		}
	}
	return -ENOENT;
}

/* The first rank that has it, or the nearest name of this one. */
static int no_such_param(const struct manifest *manifest, const char *name, uint32_t rank,
			 const struct rank_params *params, struct ws_error *err)
{
	struct nearest nearest = {.name = name};
	uint32_t other = 0;
	for (uint32_t i = 0; i < params->count; i++)
		nearest_try(&nearest, params->params[i].name);
	for (; other < manifest->world; other++) {
		struct arena arena = {0};
		struct rank_params theirs;
		int rc = manifest_params(manifest, other, &arena, &theirs, err);
		bool found = rc == 0 && rank_params_find(&theirs, name) >= 0;
		arena_release(&arena);
		if (rc != 0)
			return rc;
		if (found)
			break;
	}
	if (other < manifest->world)
		return ws_fail(err, -ENOENT,
			       "rank %u has no '%s'; the first that has it is rank %u", rank, name,
			       other);
	if (nearest.best != NULL)
		return ws_fail(err, -ENOENT, "no rank has a param '%s'; did you mean '%s'?", name,
			       nearest.best);
	return ws_fail(err, -ENOENT, "no rank has a param '%s'; rank %u's first is '%s'", name,
		       rank, params->count > 0 ? params->params[0].name : "");
}

/* Pieces in the order in which they lie in the param. */
static int explain(const struct manifest *manifest, const struct param *param, uint32_t rank,
		   bool as_json, struct arena *arena, struct writer *out, struct ws_error *err)
{
	struct explained it = {.manifest = manifest,
			       .param = param,
			       .rank = rank,
			       .element_bytes = ws_dtype_bytes(param->dtype)};
	uint32_t count = param->form->piece_count;
	const struct piece **sorted = arena_array(arena, count + 1, sizeof(*sorted));
	if (sorted == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the explanation");
	for (uint32_t i = 0; i < count; i++)
		sorted[i] = &param->form->pieces[i];
	qsort(sorted, count, sizeof(*sorted), compare_places);
	if (as_json)
		put_json(&it, sorted, out);
	else
		put_words(&it, sorted, out);
	return 0;
}

int manifest_explain(const struct manifest *manifest, const char *name, uint32_t rank, bool as_json,
		     struct writer *out, struct ws_error *err)
{
	struct arena arena = {0};
	struct rank_params params;
	if (rank >= manifest->world)
		return ws_fail(err, -EINVAL, "there is no rank %u; the manifest has ranks 0 to %u",
			       rank, manifest->world - 1);
	int rc = manifest_params(manifest, rank, &arena, &params, err);
	int64_t index = rc == 0 ? rank_params_find(&params, name) : -1;
	if (rc == 0 && index < 0) {
		rc = explain_derived(manifest, name, rank, &params, as_json, &arena, out, err);
		if (rc == -ENOENT)
			rc = no_such_param(manifest, name, rank, &params, err);
	} else if (rc == 0) {
		rc = explain(manifest, &params.params[index], rank, as_json, &arena, out, err);
	}
	if (rc == 0 && out->failed)
		rc = ws_fail(err, -ENOMEM, "out of memory for the explanation");
	arena_release(&arena);
	return rc;
}
