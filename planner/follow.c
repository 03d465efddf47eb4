/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker's ground: which canonical element lies at a place of a param, found by solving the
 * affine map of its form; and a part followed through the forms of both ends.
 */
#include <stdio.h>

#include "planner/check.h"

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

static int reach_order(const void *a, const void *b)
{
	const struct reach *x = a, *y = b;

	if (x->lo != y->lo)
		return x->lo < y->lo ? -1 : 1;
	return x->piece < y->piece ? -1 : x->piece > y->piece;
}

void account_reach(const struct form *form, struct reach *list)
{
	uint64_t highest = 0;

	for (uint32_t i = 0; i < form->piece_count; i++) {
		struct ladder ladder;
		ladder_make(&ladder, &form->pieces[i]);
		list[i] = (struct reach){.lo = (uint64_t)ladder.base,
					 .hi = (uint64_t)(ladder.base + ladder.reach[0]),
					 .piece = i};
	}
	if (form->piece_count > 0)
		qsort(list, form->piece_count, sizeof(*list), reach_order);
	for (uint32_t i = 0; i < form->piece_count; i++)
		list[i].hi_max = highest = MAX(highest, list[i].hi);
}

/* The piece that has element x: among those that begin before it, from the nearest back. */
const struct piece *account_place(struct spot_param *spot, uint64_t x, uint64_t *at)
{
	const struct form *form = spot->param->form;
	uint32_t lo = 0, hi = form->piece_count;

	if (hi == 0)
		return NULL;
	if (piece_at(&form->pieces[spot->piece], x, at))
		return &form->pieces[spot->piece];
	while (lo < hi) {
		uint32_t middle = (lo + hi) / 2;
		if (spot->reach[middle].lo <= x)
			lo = middle + 1;
		else
			hi = middle;
	}
	for (; lo > 0 && spot->reach[lo - 1].hi_max >= x; lo--) {
		uint32_t piece = spot->reach[lo - 1].piece;
		if (spot->reach[lo - 1].hi < x || !piece_at(&form->pieces[piece], x, at))
			continue;
		spot->piece = piece;
		return &form->pieces[piece];
	}
	return NULL;
}

const struct piece *account_find(struct spot_param *spot, uint64_t x)
{
	uint64_t at[BOX_DIM_MAX];

	return account_place(spot, x, at);
}

struct spot_tensor spot_tensor(const struct spot_param *spot, const struct piece *piece)
{
	struct spot_tensor tensor = {.rule = manifest_tensor(spot->peer->manifest, piece->tensor),
				     .layer = -1,
				     .expert = -1};

	if (spot->names != NULL)
		return spot->names[piece->slot];
	if (tensor.rule->layer_lo >= 0)
		tensor.layer = spot->param->layer;
	if (tensor.rule->expert_lo >= 0)
		tensor.expert = piece->slot < 0
					? spot->param->expert
					: param_expert(spot->peer->manifest, spot->peer->rank,
						       spot->param, piece->slot);
	return tensor;
}

/* Whether two tensors have one name; both names are written out where numbers don't tell. */
static bool same_tensor(const struct spot_tensor *a, const struct spot_tensor *b, char *have,
			char *want, size_t bytes)
{
	if (a->layer == b->layer && a->expert == b->expert &&
	    strcmp(a->rule->name, b->rule->name) == 0)
		return true;
	tensor_name(a->rule, a->layer, a->expert, have, bytes);
	tensor_name(b->rule, b->layer, b->expert, want, bytes);
	return strcmp(have, want) == 0;
}

bool account_same_tensor(const struct spot_param *spot, const struct piece *piece,
			 const struct spot_tensor *other)
{
	const struct spot_tensor tensor = spot_tensor(spot, piece);
	char have[512], want[512];

	return same_tensor(&tensor, other, have, want, sizeof(have));
}

/* What follows one part. */
struct follow {
	struct account *account;
	const struct plan_part *part;
	struct spot_param *source, *target;
	const struct piece *source_piece, *target_piece; /* whose names are known to be equal */
	uint64_t source_at[BOX_DIM_MAX], target_at[BOX_DIM_MAX];
	char *why;
	size_t why_bytes;
};

/* Looks at one element of each end: sets the pieces and the steps in them.  0 if they are one. */
static int follow_element(struct follow *follow, uint64_t x, uint64_t y)
{
	char have[512], want[512];
	const struct piece *s = account_place(follow->source, x, follow->source_at);
	const struct piece *t = account_place(follow->target, y, follow->target_at);

	if (s == NULL || t == NULL) {
		const struct spot_param *spot = s == NULL ? follow->source : follow->target;
		snprintf(follow->why, follow->why_bytes,
			 "element %" PRIu64 " of the %s's '%s' is padding", s == NULL ? x : y,
			 s == NULL ? "source" : "target",
			 manifest_rule(spot->peer->manifest, spot->param->rule)->name);
		return 1;
	}
	if (s != follow->source_piece || t != follow->target_piece) {
		const struct spot_tensor from = spot_tensor(follow->source, s);
		const struct spot_tensor to = spot_tensor(follow->target, t);
		if (!same_tensor(&from, &to, have, want, sizeof(have))) {
			snprintf(follow->why, follow->why_bytes, "a place of '%s' gets '%s'", want,
				 have);
			return 1;
		}
		follow->source_piece = s;
		follow->target_piece = t;
	}
	for (uint32_t d = 0; d < s->dim_count; d++) {
		uint64_t from = s->offset[d] + follow->source_at[d],
			 to = t->offset[d] + follow->target_at[d];
		if (from == to)
			continue;
		snprintf(follow->why, follow->why_bytes,
			 "index %" PRIu64 " of dim %" PRIu32 " of '%s' goes to the "
			 "place of index %" PRIu64,
			 from, d, manifest_tensor(follow->target->peer->manifest, t->tensor)->name,
			 to);
		return 1;
	}
	return 0;
}

/*
 * The canonical dim along which both pieces go by these strides for `extent` steps from where
 * they are; BOX_DIM_MAX if there is none.  Where it is found, all those elements are the same at
 * both ends, because places are affine in the steps.
 */
static uint32_t dim_along(const struct follow *follow, int64_t source_stride, int64_t target_stride,
			  uint64_t extent)
{
	const struct piece *s = follow->source_piece, *t = follow->target_piece;

	for (uint32_t d = 0; d < s->dim_count; d++)
		if (s->stride[d] == source_stride && t->stride[d] == target_stride &&
		    extent <= s->extent[d] - follow->source_at[d] &&
		    extent <= t->extent[d] - follow->target_at[d])
			return d;
	return BOX_DIM_MAX;
}

static struct claim claim_here(const struct follow *follow)
{
	struct claim claim = {.param = follow->part->dst_param,
			      .piece = follow->target->piece,
			      .box.dim_count = follow->target_piece->dim_count};

	for (uint32_t d = 0; d < claim.box.dim_count; d++) {
		claim.box.offset[d] = follow->target_at[d];
		claim.box.extent[d] = 1;
	}
	return claim;
}

/* One dim of the part as canonical dims, the fastest first: each but the slowest is whole in both
 * pieces, so that the next one goes on where it ends.  False where it isn't so. */
static bool follow_dim(const struct follow *follow, int64_t from, int64_t to, uint64_t left,
		       struct box *box)
{
	const struct piece *s = follow->source_piece, *t = follow->target_piece;

	for (uint32_t used = 0; left > 1 && used < s->dim_count; used++) {
		uint32_t d = dim_along(follow, from, to, 1);
		if (d == BOX_DIM_MAX || box->extent[d] != 1)
			return false;
		uint64_t here = MIN(s->extent[d] - follow->source_at[d],
				    t->extent[d] - follow->target_at[d]);
		box->extent[d] = MIN(here, left);
		if (here >= left)
			return true;
		if (here != s->extent[d] || here != t->extent[d] || left % here != 0)
			return false;
		left /= here;
		from *= (int64_t)here;
		to *= (int64_t)here;
	}
	return left == 1;
}

/* The whole part at once, where it is a box of the canonical tensor; false where it isn't. */
static bool follow_box(struct follow *follow, int64_t from, int64_t to, int *rc)
{
	const struct plan_part *part = follow->part;
	struct claim claim = claim_here(follow);

	for (uint32_t d = 0; d < part->dim_count; d++) {
		if (part->extent[d] > 1 &&
		    !follow_dim(follow, part->src_stride[d] / from, part->dst_stride[d] / to,
				part->extent[d], &claim.box))
			return false;
	}
	*rc = account_add(follow->account, &claim);
	return true;
}

/* Whole rows of dim d - 1 that lie one behind the other at both ends, `count` elements at most. */
static uint64_t rows_here(const struct follow *follow, uint32_t d, uint64_t count)
{
	const struct piece *s = follow->source_piece, *t = follow->target_piece;

	if (d == 0 || follow->source_at[d] != 0 || follow->target_at[d] != 0 ||
	    s->extent[d] != t->extent[d] ||
	    s->stride[d - 1] != s->stride[d] * (int64_t)s->extent[d] ||
	    t->stride[d - 1] != t->stride[d] * (int64_t)t->extent[d])
		return 0;
	uint64_t rows = MIN(s->extent[d - 1] - follow->source_at[d - 1],
			    t->extent[d - 1] - follow->target_at[d - 1]);
	return MIN(rows, count / s->extent[d]);
}

/* A line of elements, stretch by stretch. */
static int follow_line(struct follow *follow, uint64_t x, uint64_t y, int64_t source_stride,
		       int64_t target_stride, uint64_t count)
{
	for (uint64_t done = 0, steps; done < count; done += steps) {
		int rc = follow_element(follow, x + done * (uint64_t)source_stride,
					y + done * (uint64_t)target_stride);
		if (rc != 0)
			return rc;
		struct claim claim = claim_here(follow);
		uint32_t d = dim_along(follow, source_stride, target_stride, 1);
		steps = 1;
		if (d != BOX_DIM_MAX) {
			uint64_t rows = rows_here(follow, d, count - done);
			steps = MIN(follow->source_piece->extent[d] - follow->source_at[d],
				    follow->target_piece->extent[d] - follow->target_at[d]);
			steps = MIN(steps, count - done);
			claim.box.extent[d] = steps;
			if (rows > 1) {
				claim.box.extent[d - 1] = rows;
				steps *= rows;
			}
		}
		rc = account_add(follow->account, &claim);
		if (rc != 0)
			return rc;
	}
	return 0;
}

static int follow_lines(struct follow *follow, int64_t from, int64_t to)
{
	const struct plan_part *part = follow->part;
	uint32_t last = part->dim_count - 1;
	uint64_t at[BOX_DIM_MAX] = {0}, lines = 1;

	for (uint32_t d = 0; d < last; d++)
		lines *= part->extent[d];
	for (uint64_t i = 0; i < lines; i++) {
		int64_t src = (int64_t)part->src_offset, dst = (int64_t)part->dst_offset;
		for (uint32_t d = 0; d < last; d++) {
			src += (int64_t)at[d] * part->src_stride[d];
			dst += (int64_t)at[d] * part->dst_stride[d];
		}
		int rc = follow_line(follow, (uint64_t)(src / from), (uint64_t)(dst / to),
				     part->src_stride[last] / from, part->dst_stride[last] / to,
				     part->extent[last]);
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

static bool whole_elements(const struct plan_part *part, int64_t from, int64_t to)
{
	bool whole = part->src_offset % (uint64_t)from == 0 && part->dst_offset % (uint64_t)to == 0;

	for (uint32_t d = 0; d < part->dim_count; d++)
		whole = whole && part->src_stride[d] % from == 0 && part->dst_stride[d] % to == 0;
	return whole;
}

int account_part(struct account *account, const struct plan_part *part, struct spot_param *source,
		 struct spot_param *target, char *why, size_t why_bytes)
{
	int64_t from = (int64_t)ws_dtype_bytes(part->from), to = (int64_t)ws_dtype_bytes(part->to);
	struct follow follow = {.account = account,
				.part = part,
				.source = source,
				.target = target,
				.why = why,
				.why_bytes = why_bytes};

	if (!whole_elements(part, from, to)) {
		snprintf(why, why_bytes, "a place in bytes isn't a multiple of its dtype's size");
		return 1;
	}
	int rc = follow_element(&follow, part->src_offset / (uint64_t)from,
				part->dst_offset / (uint64_t)to);
	if (rc != 0 || follow_box(&follow, from, to, &rc))
		return rc;
	return follow_lines(&follow, from, to);
}
