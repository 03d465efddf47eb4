/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker's account: which elements of a param its form covers, which have been written, and
 * whether these are the same, each once.
 */
#include <stdio.h>

#include "planner/check.h"

static int interval_order(const void *a, const void *b)
{
	const struct interval *x = a, *y = b;

	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* The dims of a piece that have steps, the largest first: a transposed one is as dense as it was.
 */
static uint32_t dims_by_stride(const struct piece *piece, uint32_t *dims)
{
	uint32_t count = 0;

	for (uint32_t d = 0; d < piece->dim_count; d++) {
		uint32_t at = count;
		if (piece->extent[d] == 1)
			continue;
		for (; at > 0 && llabs(piece->stride[dims[at - 1]]) < llabs(piece->stride[d]); at--)
			dims[at] = dims[at - 1];
		dims[at] = d;
		count++;
	}
	return count;
}

/* Adds the stretches of local elements that a piece covers, dense dims taken together. */
static int piece_intervals(struct vec *list, const struct piece *piece)
{
	uint64_t at[BOX_DIM_MAX] = {0}, line = 1, lines = 1;
	uint32_t dims[BOX_DIM_MAX], outer = dims_by_stride(piece, dims);

	while (outer > 0 && piece->stride[dims[outer - 1]] == (int64_t)line)
		line *= piece->extent[dims[--outer]];
	for (uint32_t i = 0; i < outer; i++)
		lines *= piece->extent[dims[i]];
	for (uint64_t n = 0; n < lines; n++) {
		int64_t place = (int64_t)piece->place;
		for (uint32_t i = 0; i < outer; i++)
			place += (int64_t)at[i] * piece->stride[dims[i]];
		struct interval *interval = vec_add(list, sizeof(*interval));
		if (interval == NULL)
			return -ENOMEM;
		*interval = (struct interval){(uint64_t)place, (uint64_t)place + line};
		for (uint32_t i = outer; i > 0; i--) {
			if (++at[i - 1] < piece->extent[dims[i - 1]])
				break;
			at[i - 1] = 0;
		}
	}
	return 0;
}

static int form_intervals(const struct form *form, struct vec *list)
{
	int rc = 0;

	for (uint32_t p = 0; rc == 0 && p < form->piece_count; p++)
		rc = piece_intervals(list, &form->pieces[p]);
	if (rc == 0 && list->count > 0)
		qsort(list->items, list->count, sizeof(struct interval), interval_order);
	return rc;
}

int account_form_overlaps(const struct form *form)
{
	struct vec list = {0};
	int rc = form_intervals(form, &list);
	const struct interval *intervals = list.items;

	for (size_t i = 1; rc == 0 && i < list.count; i++)
		rc = intervals[i].lo < intervals[i - 1].hi;
	vec_release(&list);
	return rc;
}

int account_form_stretches(const struct form *form, struct vec *list)
{
	int rc = form_intervals(form, list);
	struct interval *intervals = list->items;
	size_t count = 0;

	for (size_t i = 0; rc == 0 && i < list->count; i++)
		if (count > 0 && intervals[count - 1].hi == intervals[i].lo)
			intervals[count - 1].hi = intervals[i].hi;
		else
			intervals[count++] = intervals[i];
	list->count = count;
	return rc;
}

/* Joins a claim to the last one where it continues it along one dim. */
static bool claim_join(struct claim *last, const struct claim *claim)
{
	uint32_t along = BOX_DIM_MAX;

	if (last->param != claim->param || last->piece != claim->piece)
		return false;
	for (uint32_t d = 0; d < claim->box.dim_count; d++) {
		bool same = last->box.offset[d] == claim->box.offset[d] &&
			    last->box.extent[d] == claim->box.extent[d];
		if (same)
			continue;
		if (along != BOX_DIM_MAX ||
		    last->box.offset[d] + last->box.extent[d] != claim->box.offset[d])
			return false;
		along = d;
	}
	if (along == BOX_DIM_MAX)
		return false;
	last->box.extent[along] += claim->box.extent[along];
	return true;
}

int account_add(struct account *account, const struct claim *claim)
{
	if (account == NULL)
		return 0;
	if (account->claims.count > 0 &&
	    claim_join((struct claim *)account->claims.items + account->claims.count - 1, claim))
		return 0;
	struct claim *added = vec_add(&account->claims, sizeof(*added));
	if (added == NULL)
		return -ENOMEM;
	*added = *claim;
	return 0;
}

static int claim_order(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;

	if (x->param != y->param)
		return x->param < y->param ? -1 : 1;
	if (x->piece != y->piece)
		return x->piece < y->piece ? -1 : 1;
	for (uint32_t d = 0; d < x->box.dim_count; d++)
		if (x->box.offset[d] != y->box.offset[d])
			return x->box.offset[d] < y->box.offset[d] ? -1 : 1;
	return 0;
}

static uint64_t claim_volume(const struct claim *claim)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < claim->box.dim_count; d++)
		volume *= claim->box.extent[d];
	return volume;
}

static bool claims_meet(const struct box *a, const struct box *b)
{
	for (uint32_t d = 0; d < a->dim_count; d++)
		if (a->offset[d] >= b->offset[d] + b->extent[d] ||
		    b->offset[d] >= a->offset[d] + a->extent[d])
			return false;
	return true;
}

/* The claims of one piece, sorted: disjoint, and together as large as the piece. */
static const char *piece_fault(const struct claim *claims, size_t count, const struct piece *piece,
			       struct claim *at_out)
{
	uint64_t volume = 0, needed = 1;

	for (uint32_t d = 0; d < piece->dim_count; d++)
		needed *= piece->extent[d];
	for (size_t i = 0; i < count; i++) {
		const struct box *box = &claims[i].box;
		volume += claim_volume(&claims[i]);
		for (size_t j = i + 1; j < count; j++) {
			if (box->dim_count > 0 &&
			    claims[j].box.offset[0] >= box->offset[0] + box->extent[0])
				break;
			if (!claims_meet(box, &claims[j].box))
				continue;
			*at_out = claims[j];
			return "is written twice";
		}
	}
	return volume == needed ? NULL : "isn't all written";
}

const char *account_fault(struct account *account, const struct peer *mine, struct claim *at_out)
{
	struct claim *claims = account->claims.items;
	size_t count = account->claims.count, i = 0;

	if (count > 0)
		qsort(claims, count, sizeof(*claims), claim_order);
	for (uint32_t p = 0; p < mine->count; p++) {
		const struct form *form = mine->params[p].form;
		for (uint32_t s = 0; mine->kind[p] != 0 && s < form->piece_count; s++) {
			size_t first = i;
			while (i < count && claims[i].param == p && claims[i].piece == s)
				i++;
			*at_out = (struct claim){.param = p, .piece = s};
			const char *fault =
				piece_fault(claims + first, i - first, &form->pieces[s], at_out);
			if (fault != NULL)
				return fault;
		}
	}
	return NULL; /* a claim is always of a piece that some kind touches, so none is left */
}

static uint64_t common_volume(const struct box *a, const struct box *b)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < a->dim_count; d++) {
		uint64_t lo = MAX(a->offset[d], b->offset[d]);
		uint64_t hi = MIN(a->offset[d] + a->extent[d], b->offset[d] + b->extent[d]);
		volume *= hi > lo ? hi - lo : 0;
	}
	return volume;
}

const struct claim *account_uncovered(const struct account *inside, struct account *of)
{
	const struct claim *claims = inside->claims.items, *have = of->claims.items;
	size_t count = of->claims.count;

	if (count > 0)
		qsort(of->claims.items, count, sizeof(*have), claim_order);
	for (size_t i = 0; i < inside->claims.count; i++) {
		const struct claim *claim = &claims[i];
		uint64_t covered = 0;
		size_t lo = 0, hi = count;
		while (lo < hi) {
			size_t middle = (lo + hi) / 2;
			const struct claim *at = &have[middle];
			if (at->param < claim->param ||
			    (at->param == claim->param && at->piece < claim->piece))
				lo = middle + 1;
			else
				hi = middle;
		}
		for (;
		     lo < count && have[lo].param == claim->param && have[lo].piece == claim->piece;
		     lo++)
			covered += common_volume(&have[lo].box, &claim->box);
		if (covered != claim_volume(claim))
			return claim;
	}
	return NULL;
}
