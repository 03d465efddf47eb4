/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker's ground: which canonical element lies at a place of a param, and which bytes of
 * a param have been written.
 */
#include <stdio.h>

#include "planner/check.h"

int account_add(struct account *account, uint32_t param, uint64_t lo, uint64_t hi)
{
	if (account->list.count > 0) {
		struct interval *last =
			(struct interval *)account->list.items + account->list.count - 1;
		if (last->param == param && last->hi == lo) {
			last->hi = hi;
			return 0;
		}
	}
	struct interval *interval = vec_add(&account->list, sizeof(*interval));
	if (interval == NULL)
		return -ENOMEM;
	*interval = (struct interval){param, lo, hi};
	return 0;
}

static int interval_order(const void *a, const void *b)
{
	const struct interval *x = a, *y = b;

	if (x->param != y->param)
		return x->param < y->param ? -1 : 1;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

void account_close(struct account *account, struct interval *twice_out)
{
	struct interval *list = account->list.items;
	size_t kept = 0;

	*twice_out = (struct interval){0};
	if (account->list.count == 0)
		return;
	qsort(list, account->list.count, sizeof(*list), interval_order);
	for (size_t i = 1; i < account->list.count; i++) {
		if (list[i].param == list[kept].param && list[i].lo < list[kept].hi) {
			if (twice_out->hi == 0)
				*twice_out = (struct interval){list[i].param, list[i].lo,
							       MIN(list[i].hi, list[kept].hi)};
			list[kept].hi = MAX(list[kept].hi, list[i].hi);
		} else if (list[i].param == list[kept].param && list[i].lo == list[kept].hi) {
			list[kept].hi = list[i].hi;
		} else {
			list[++kept] = list[i];
		}
	}
	account->list.count = kept + 1;
}

int account_form(struct account *account, uint32_t param, const struct param *of)
{
	uint64_t bytes = ws_dtype_bytes(of->dtype);

	for (uint32_t p = 0; p < of->form->piece_count; p++) {
		const struct piece *piece = &of->form->pieces[p];
		uint64_t at[BOX_DIM_MAX] = {0}, elements = 1;
		for (uint32_t d = 0; d < piece->dim_count; d++)
			elements *= piece->extent[d];
		/* A dense last dim is one step. */
		uint32_t last = piece->dim_count;
		uint64_t line = 1;
		if (last > 0 && piece->stride[last - 1] == 1)
			line = piece->extent[--last];
		for (uint64_t done = 0; done < elements; done += line) {
			int64_t place = (int64_t)piece->place;
			for (uint32_t d = 0; d < last; d++)
				place += (int64_t)at[d] * piece->stride[d];
			int rc = account_add(account, param, (uint64_t)place * bytes,
					     ((uint64_t)place + line) * bytes);
			if (rc != 0)
				return rc;
			for (uint32_t d = last; d > 0; d--) {
				if (++at[d - 1] < piece->extent[d - 1])
					break;
				at[d - 1] = 0;
			}
		}
	}
	return 0;
}

/* A piece's dims from the widest stride down, all counted upwards. */
struct ladder {
	uint32_t dim_count;
	uint32_t dim[BOX_DIM_MAX];
	int64_t base;
	int64_t stride[BOX_DIM_MAX], reach[BOX_DIM_MAX + 1]; /* reach[i]: of dims i.. together */
};

static void ladder_make(struct ladder *ladder, const struct piece *piece)
{
	ladder->dim_count = 0;
	ladder->base = (int64_t)piece->place;
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		int64_t stride = piece->stride[d];
		if (piece->extent[d] == 1)
			continue;
		if (stride < 0) {
			ladder->base += stride * (int64_t)(piece->extent[d] - 1);
			stride = -stride;
		}
		uint32_t i = ladder->dim_count++;
		for (; i > 0 && ladder->stride[i - 1] < stride; i--) {
			ladder->stride[i] = ladder->stride[i - 1];
			ladder->dim[i] = ladder->dim[i - 1];
		}
		ladder->stride[i] = stride;
		ladder->dim[i] = d;
	}
	ladder->reach[ladder->dim_count] = 0;
	for (uint32_t i = ladder->dim_count; i > 0; i--)
		ladder->reach[i - 1] =
			ladder->reach[i] +
			ladder->stride[i - 1] * (int64_t)(piece->extent[ladder->dim[i - 1]] - 1);
}

/* Solves rest = sum of steps of the rungs from i on; at most BOX_DIM_MAX deep. */
static bool ladder_solve(const struct ladder *ladder, const struct piece *piece, uint32_t i,
			 int64_t rest, uint64_t *at)
{
	if (i == ladder->dim_count)
		return rest == 0;
	uint32_t dim = ladder->dim[i];
	int64_t stride = ladder->stride[i], tail = ladder->reach[i + 1];
	if (rest < 0 || rest > ladder->reach[i])
		return false;
	if (stride == 0)
		return false;
	int64_t low = rest > tail ? (rest - tail + stride - 1) / stride : 0;
	int64_t high = MIN(rest / stride, (int64_t)piece->extent[dim] - 1);
	for (int64_t q = high; q >= low; q--) {
		at[dim] = (uint64_t)(piece->stride[dim] < 0 ? (int64_t)piece->extent[dim] - 1 - q
							    : q);
		if (ladder_solve(ladder, piece, i + 1, rest - q * stride, at))
			return true;
	}
	return false;
}

/* Whether local element x lies in the piece, and at which of its steps. */
static bool piece_at(const struct piece *piece, uint64_t x, uint64_t *at)
{
	struct ladder ladder;

	ladder_make(&ladder, piece);
	memset(at, 0, BOX_DIM_MAX * sizeof(*at));
	return ladder_solve(&ladder, piece, 0, (int64_t)x - ladder.base, at);
}

static const struct piece *spot_find(struct spot_param *spot, uint64_t x, uint64_t *at)
{
	const struct form *form = spot->param->form;

	for (uint32_t i = 0; i < form->piece_count; i++) {
		uint32_t index = spot->piece + i;
		if (index >= form->piece_count)
			index -= form->piece_count;
		if (piece_at(&form->pieces[index], x, at)) {
			spot->piece = index;
			return &form->pieces[index];
		}
	}
	return NULL;
}

static void spot_name(const struct spot_param *spot, const struct piece *piece, char *out,
		      size_t bytes)
{
	const struct tensor_rule *rule = manifest_tensor(spot->manifest, piece->tensor);
	int32_t expert = spot->param->expert;

	if (piece->slot >= 0)
		expert = param_expert(spot->manifest, spot->rank, spot->param, piece->slot);
	tensor_name(rule, rule->layer_lo < 0 ? -1 : spot->param->layer,
		    rule->expert_lo < 0 ? -1 : expert, out, bytes);
}

/* A line of elements, equally far apart at both ends. */
struct line {
	struct spot_param *source, *target;
	uint64_t source_at, target_at; /* local elements */
	int64_t source_stride, target_stride;
	uint64_t count;
	const struct piece *source_piece, *target_piece; /* whose names are known to be equal */
};

/* How many elements from here on stay on the same canonical dim in both pieces. */
static uint64_t line_stretch(const struct line *line, const struct piece *s, const struct piece *t,
			     const uint64_t *s_at, const uint64_t *t_at)
{
	for (uint32_t d = 0; d < s->dim_count; d++) {
		if (s->stride[d] != line->source_stride || t->stride[d] != line->target_stride)
			continue;
		uint64_t steps = MIN(s->extent[d] - s_at[d], t->extent[d] - t_at[d]);
		bool whole_rows = d > 0 && s_at[d] == 0 && t_at[d] == 0 &&
				  s->extent[d] == t->extent[d] &&
				  s->stride[d - 1] == s->stride[d] * (int64_t)s->extent[d] &&
				  t->stride[d - 1] == t->stride[d] * (int64_t)t->extent[d];
		if (whole_rows)
			steps *=
				MIN(s->extent[d - 1] - s_at[d - 1], t->extent[d - 1] - t_at[d - 1]);
		return steps;
	}
	return 1;
}

static int line_follow(struct line *line, char *why, size_t why_bytes)
{
	char have[512], want[512];
	uint64_t s_at[BOX_DIM_MAX], t_at[BOX_DIM_MAX];

	for (uint64_t done = 0, steps; done < line->count; done += steps) {
		uint64_t x = line->source_at + done * (uint64_t)line->source_stride;
		uint64_t y = line->target_at + done * (uint64_t)line->target_stride;
		const struct piece *s = spot_find(line->source, x, s_at);
		const struct piece *t = spot_find(line->target, y, t_at);
		if (s == NULL || t == NULL) {
			snprintf(why, why_bytes, "element %" PRIu64 " of '%s' is padding at the %s",
				 s == NULL ? x : y,
				 (s == NULL ? line->source : line->target)->param->name,
				 s == NULL ? "source" : "target");
			return 1;
		}
		if (s != line->source_piece || t != line->target_piece) {
			spot_name(line->source, s, have, sizeof(have));
			spot_name(line->target, t, want, sizeof(want));
			if (strcmp(have, want) != 0) {
				snprintf(why, why_bytes, "a place of '%s' gets '%s'", want, have);
				return 1;
			}
			line->source_piece = s;
			line->target_piece = t;
		}
		for (uint32_t d = 0; d < s->dim_count; d++)
			if (s->offset[d] + s_at[d] != t->offset[d] + t_at[d]) {
				snprintf(why, why_bytes,
					 "index %" PRIu64 " of dim %" PRIu32 " of a tensor goes "
					 "to the place of index %" PRIu64,
					 s->offset[d] + s_at[d], d, t->offset[d] + t_at[d]);
				return 1;
			}
		steps = MIN(line->count - done, line_stretch(line, s, t, s_at, t_at));
	}
	return 0;
}

static int line_account(struct account *account, const struct plan_part *part, uint64_t dst,
			int64_t stride, uint64_t count)
{
	uint64_t bytes = ws_dtype_bytes(part->to);
	int rc = 0;

	if (account == NULL)
		return 0;
	if ((uint64_t)stride == bytes)
		return account_add(account, part->dst_param, dst, dst + count * bytes);
	for (uint64_t i = 0; rc == 0 && i < count; i++, dst += (uint64_t)stride)
		rc = account_add(account, part->dst_param, dst, dst + bytes);
	return rc;
}

int account_part(struct account *account, const struct plan_part *part, struct spot_param *source,
		 struct spot_param *target, char *why, size_t why_bytes)
{
	uint32_t last = part->dim_count - 1;
	int64_t from = (int64_t)ws_dtype_bytes(part->from), to = (int64_t)ws_dtype_bytes(part->to);
	struct line line = {.source = source,
			    .target = target,
			    .count = part->extent[last],
			    .source_stride = part->src_stride[last] / from,
			    .target_stride = part->dst_stride[last] / to};
	uint64_t at[BOX_DIM_MAX] = {0}, lines = 1;

	for (uint32_t d = 0; d < last; d++)
		lines *= part->extent[d];
	for (uint64_t i = 0; i < lines; i++) {
		int64_t src = (int64_t)part->src_offset, dst = (int64_t)part->dst_offset;
		for (uint32_t d = 0; d < last; d++) {
			src += (int64_t)at[d] * part->src_stride[d];
			dst += (int64_t)at[d] * part->dst_stride[d];
		}
		if (src % from != 0 || dst % to != 0 || part->src_stride[last] % from != 0 ||
		    part->dst_stride[last] % to != 0) {
			snprintf(why, why_bytes,
				 "a byte place isn't a multiple of its dtype's size");
			return 1;
		}
		line.source_at = (uint64_t)(src / from);
		line.target_at = (uint64_t)(dst / to);
		int rc = line_follow(&line, why, why_bytes);
		if (rc == 0)
			rc = line_account(account, part, (uint64_t)dst, part->dst_stride[last],
					  line.count);
		if (rc != 0)
			return rc;
		for (uint32_t d = last; d > 0; d--) {
			if (++at[d - 1] < part->extent[d - 1])
				break;
			at[d - 1] = 0;
		}
	}
	return 0;
}
