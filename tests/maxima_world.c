/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized updates in memory; see the header. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/maxima_world.h"
#include "tests/test.h"

#define POISON	  0xee
#define WHOLE_MAX 4096

static uint64_t next_random(struct maxima_world *world)
{
	return world->random = mix64(world->random + 0x9e3779b97f4a7c15ull);
}

/* ---- Whole tensors. */

/* Mostly numbers of all sizes; now and then what isn't one, and stretches of zeros. */
static void whole_fill(struct maxima_world *world, struct whole *whole)
{
	struct move cast = {.dim_count = 0, .from = WS_F32, .to = whole->trained};
	bool odd = next_random(world) % 4 == 0;
	uint64_t bytes = ws_dtype_bytes(whole->trained);

	for (uint64_t i = 0; i < whole->element_count; i++) {
		uint64_t random = next_random(world);
		float value = ldexpf((float)(int32_t)(random & 0xffff) - 32768.0f,
				     (int)(random >> 16 & 15) - 20);
		if (odd && (random >> 40) % 1999 == 1)
			value = NAN;
		else if (odd && (random >> 52) % 1009 == 7)
			value = INFINITY;
		else if (i / 300 % 5 == 0)
			value = 0;
		cast.src = &value;
		cast.dst = (uint8_t *)whole->data + i * bytes;
		convert_move(&cast);
	}
}

/* What trainers hold it as; found by its name. */
static enum ws_dtype trained_dtype(const struct maxima_world *world, const char *name)
{
	const struct manifest *manifest = world->input.trainer;
	char own[256];

	for (uint32_t t = 0; t < world->trainers; t++)
		for (uint32_t p = 0; p < world->params[t].count; p++) {
			const struct param *param = &world->params[t].params[p];
			for (uint32_t i = 0; i < param->form->piece_count; i++) {
				const struct piece *piece = &param->form->pieces[i];
				int32_t expert = piece->slot < 0 ? param->expert
								 : param_expert(manifest, t, param,
										piece->slot);
				tensor_name(manifest_tensor(manifest, piece->tensor), param->layer,
					    expert, own, sizeof(own));
				if (strcmp(own, name) == 0)
					return param->dtype;
			}
		}
	ck_abort_msg("no trainer holds '%s'", name);
	return WS_NONE;
}

static struct whole *whole_find(struct maxima_world *world, const struct tensor_rule *rule,
				int32_t layer, int32_t expert, uint32_t tensor)
{
	char name[256];

	tensor_name(rule, layer, expert, name, sizeof(name));
	for (uint32_t i = world->whole_count; i > 0; i--)
		if (strcmp(world->wholes[i - 1].name, name) == 0)
			return &world->wholes[i - 1].whole;
	ck_assert_uint_lt(world->whole_count, WHOLE_MAX);
	struct maxima_whole *added = &world->wholes[world->whole_count++];
	memcpy(added->name, name, sizeof(name));
	whole_open(&added->whole, rule, trained_dtype(world, name),
		   manifest_tensor_scheme(world->input.rollout, tensor));
	whole_fill(world, &added->whole);
	if (added->whole.is_quantized)
		whole_find_maxima(&added->whole);
	return &added->whole;
}

/* The whole tensor that a rollout's piece is of; of a scale, its weight's. */
static struct whole *piece_whole(struct maxima_world *world, uint32_t rank,
				 const struct param *param, const struct piece *piece)
{
	const struct manifest *manifest = world->input.rollout;
	const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
	uint32_t tensor = rule->is_scale ? rule->weight_tensor : piece->tensor;
	int32_t expert = param->expert;

	if (piece->slot >= 0)
		expert = param_expert(manifest, rank, param, piece->slot);
	return whole_find(world, manifest_tensor(manifest, tensor), param->layer, expert, tensor);
}

/* What is under one scale with a rollout's piece: each gets the largest maximum. */
static void piece_share(struct maxima_world *world, uint32_t rank, const struct param *param,
			const struct piece *piece)
{
	const struct manifest *manifest = world->input.rollout;
	const struct tensor_rule *rules[FELLOWS_MAX];
	uint32_t count = whole_fellows(manifest, rank, param, piece, rules);
	struct whole *own = piece_whole(world, rank, param, piece);
	int32_t expert = param->expert;

	if (piece->slot >= 0)
		expert = param_expert(manifest, rank, param, piece->slot);
	for (uint32_t i = 1; i < count; i++)
		whole_share(own, whole_find(world, rules[i], param->layer, expert, 0));
}

/* A trainer's piece of a tensor that some rollout has; found by its name. */
static void piece_fill(struct maxima_world *world, uint32_t rank, const struct param *param,
		       const struct piece *piece, uint8_t *memory)
{
	const struct manifest *manifest = world->input.trainer;
	const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
	int64_t bytes = (int64_t)ws_dtype_bytes(param->dtype), stride = bytes;
	int32_t expert = param->expert;
	char name[256];
	uint32_t i = 0;

	if (piece->slot >= 0)
		expert = param_expert(manifest, rank, param, piece->slot);
	tensor_name(rule, param->layer, expert, name, sizeof(name));
	while (i < world->whole_count && strcmp(world->wholes[i].name, name) != 0)
		i++;
	if (i == world->whole_count)
		return;
	struct move move = {.dst = memory + piece->place * (uint64_t)bytes,
			    .dim_count = piece->dim_count,
			    .from = param->dtype,
			    .to = param->dtype};
	const uint8_t *src = world->wholes[i].whole.data;
	for (uint32_t d = piece->dim_count; d > 0; d--) {
		move.extent[d - 1] = piece->extent[d - 1];
		move.src_stride[d - 1] = stride;
		move.dst_stride[d - 1] = piece->stride[d - 1] * bytes;
		src += piece->offset[d - 1] * (uint64_t)stride;
		stride *= (int64_t)rule->dim[d - 1];
	}
	move.src = src;
	convert_move(&move);
}

static const struct manifest *side_of(const struct maxima_world *world, uint32_t member,
				      uint32_t *rank_out)
{
	bool trains = member < world->trainers;

	*rank_out = trains ? member : (member - world->trainers) % world->ranks;
	return trains ? world->input.trainer : world->input.rollout;
}

static void memory_make(struct maxima_world *world)
{
	for (uint32_t m = 0; m < world->members; m++) {
		uint32_t rank;
		const struct manifest *manifest = side_of(world, m, &rank);
		struct rank_params *params = &world->params[m];
		ck_ok(manifest_params(manifest, rank, &world->arena, params, &world->err),
		      world->err);
		world->memory[m] = arena_array(&world->arena, params->count, sizeof(uint8_t *));
		for (uint32_t p = 0; p < params->count; p++) {
			world->memory[m][p] = arena_alloc(&world->arena, params->params[p].bytes);
			memset(world->memory[m][p], POISON, params->params[p].bytes);
		}
	}
}

/* Rollouts' tensors first, since they know the schemes; then all are there, and may share. */
static void memory_fill(struct maxima_world *world)
{
	for (uint32_t at = 0; at < 2 * world->members; at++) {
		uint32_t m = (at + world->trainers) % world->members, rank;
		bool again = at >= world->members;
		side_of(world, m, &rank);
		for (uint32_t p = 0; p < world->params[m].count; p++) {
			const struct param *param = &world->params[m].params[p];
			for (uint32_t i = 0; i < param->form->piece_count; i++)
				if (m >= world->trainers && again)
					piece_share(world, rank, param, &param->form->pieces[i]);
				else if (m >= world->trainers)
					piece_whole(world, rank, param, &param->form->pieces[i]);
				else if (!again)
					piece_fill(world, rank, param, &param->form->pieces[i],
						   world->memory[m][p]);
		}
	}
}

void maxima_open(struct maxima_world *world, const struct plan_input *input, uint64_t seed)
{
	struct findings findings;

	memset(world, 0, sizeof(*world));
	world->input = *input;
	world->random = seed;
	world->trainers = manifest_world(input->trainer);
	world->ranks = manifest_world(input->rollout);
	world->members = world->trainers + world->ranks * input->replica_count;
	world->plans = arena_array(&world->arena, world->members, sizeof(*world->plans));
	world->params = arena_array(&world->arena, world->members, sizeof(*world->params));
	world->memory = arena_array(&world->arena, world->members, sizeof(*world->memory));
	world->tables = arena_array(&world->arena, world->trainers, sizeof(*world->tables));
	world->wholes = arena_array(&world->arena, WHOLE_MAX, sizeof(*world->wholes));
	for (uint32_t m = 0; m <= world->members; m++) {
		bool all = m == world->members;
		struct plan **plan = all ? &world->all : &world->plans[m];
		findings = (struct findings){.arena = &world->arena};
		int rc = plan_make(plan, input, all ? PLAN_ALL : m, &findings, &world->err);
		ck_assert_msg(rc == 0, "%s", world->err.text);
		rc = plan_check(*plan, &findings, &world->err);
		ck_assert_msg(rc == 0, "member %u: %s", m, world->err.text);
	}
	memory_make(world);
	memory_fill(world);
	for (uint32_t t = 0; t < world->trainers; t++)
		world->tables[t] =
			arena_alloc(&world->arena, plan_tables_bytes(world->plans[t]) + 1);
}

void maxima_close(struct maxima_world *world)
{
	for (uint32_t m = 0; m < world->members; m++)
		plan_free(world->plans[m]);
	plan_free(world->all);
	for (uint32_t i = 0; i < world->whole_count; i++)
		whole_close(&world->wholes[i].whole);
	arena_release(&world->arena);
}

/* ---- Carrying it out.  (An assertion is a write to a file: not one for each move.) */
static void do_move(const struct move *move)
{
	if (!convert_can(move))
		ck_abort_msg("a move of kind %d can't be done", (int)move->kind);
	convert_move(move);
}

static struct blocks move_blocks(const struct maxima_world *world, uint32_t trainer,
				 const struct plan_blocks *from, uint32_t dim_count,
				 const struct quant *quant)
{
	struct blocks blocks = {.quant = quant,
				.table = world->tables[trainer] + from->table_offset};

	if (from->table_offset >= plan_tables_bytes(world->plans[trainer]))
		ck_abort_msg("trainer %u has no such maxima", trainer);
	for (uint32_t d = 0; d < dim_count; d++) {
		blocks.each[d] = from->each[d];
		blocks.first[d] = from->first[d];
		blocks.stride[d] = from->stride[d];
	}
	return blocks;
}

static void run_locals(struct maxima_world *world, uint32_t trainer, uint32_t bucket)
{
	struct plan_cursor cursor = {.bucket = bucket};
	struct plan_local local;

	while (plan_next_local(world->plans[trainer], &cursor, &local) && local.bucket == bucket) {
		struct blocks blocks =
			move_blocks(world, trainer, &local.blocks, local.dim_count, NULL);
		struct move move = {.kind = MOVE_MAXIMA,
				    .blocks = &blocks,
				    .src = world->memory[trainer][local.param] + local.src_offset,
				    .dim_count = local.dim_count,
				    .from = local.from};
		memcpy(move.extent, local.extent, sizeof(local.extent));
		memcpy(move.src_stride, local.src_stride, sizeof(local.src_stride));
		do_move(&move);
	}
}

static struct move part_move(const struct plan_part *part)
{
	struct move move = {.dim_count = part->dim_count, .from = part->from, .to = part->to};

	memcpy(move.extent, part->extent, sizeof(part->extent));
	memcpy(move.src_stride, part->src_stride, sizeof(part->src_stride));
	memcpy(move.dst_stride, part->dst_stride, sizeof(part->dst_stride));
	return move;
}

/* Row-major, as a part lies on the wire. */
static void dense_strides(const struct plan_part *part, int64_t *stride_out)
{
	int64_t stride = (int64_t)ws_dtype_bytes(part->to);

	for (uint32_t d = part->dim_count; d > 0; d--) {
		stride_out[d - 1] = stride;
		stride *= (int64_t)part->extent[d - 1];
	}
}

/* A bucket's maxima to one receiver: gathered from the sender's table as its plan says, raised in
 * the receiver's as its own plan says. */
static void run_told(struct maxima_world *world, const struct plan_copy *sent, uint8_t *wire)
{
	struct plan_cursor cursor = {0};
	struct plan_copy copy;

	for (uint32_t i = 0; i < sent->part_count; i++) {
		const struct plan_part *part = &sent->parts[i];
		struct move move = part_move(part);
		move.src = world->tables[sent->sender] + part->src_offset;
		move.dst = wire + part->wire_offset;
		dense_strides(part, move.dst_stride);
		convert_move(&move);
		world->told_bytes += move_element_count(&move) * 4;
	}
	while (plan_next_receive(world->plans[sent->receiver], &cursor, &copy))
		if (copy.sender == sent->sender && copy.bucket == sent->bucket)
			break;
	ck_assert_uint_eq(copy.sender, sent->sender);
	ck_assert_uint_eq(copy.bytes, sent->bytes);
	ck_assert_uint_eq(copy.inbox_offset, sent->inbox_offset);
	for (uint32_t i = 0; i < copy.part_count; i++) {
		const struct plan_part *part = &copy.parts[i];
		struct move move = part_move(part);
		move.kind = MOVE_RAISE;
		move.src = wire + part->wire_offset;
		move.dst = world->tables[sent->receiver] + part->dst_offset;
		dense_strides(part, move.src_stride);
		do_move(&move);
	}
}

static void run_part(struct maxima_world *world, const struct plan_copy *copy,
		     const struct plan_part *part)
{
	struct move move = part_move(part);
	const struct quant_scheme *scheme = part->scheme;
	struct blocks blocks = {0};
	struct quant quant = {0};

	move.dst = world->memory[copy->receiver][part->dst_param] + part->dst_offset;
	if (part->kind != PART_SCALES)
		move.src = world->memory[copy->sender][part->src_param] + part->src_offset;
	else
		move.src = world->tables[copy->sender] + part->src_offset;
	if (scheme != NULL)
		quant = quant_of(scheme);
	if (part->kind == PART_CODES) {
		move.kind = MOVE_QUANTIZE;
		blocks = move_blocks(world, copy->sender, part->blocks, part->dim_count, &quant);
		move.blocks = &blocks;
	} else if (part->kind == PART_SCALES) {
		move.kind = MOVE_SCALE;
		blocks.quant = &quant;
		move.blocks = &blocks;
	}
	do_move(&move);
}

static void run_sends(struct maxima_world *world, uint32_t member, uint32_t bucket, bool told)
{
	struct plan_cursor cursor = {.bucket = bucket};
	struct plan_copy copy;

	while (plan_next_send(world->plans[member], &cursor, &copy) && copy.bucket == bucket) {
		bool tells = copy.receiver < world->trainers;
		uint8_t *wire = tells && told ? mem_alloc(copy.bytes) : NULL;
		if (tells && told)
			run_told(world, &copy, wire);
		for (uint32_t i = 0; !tells && !told && i < copy.part_count; i++)
			run_part(world, &copy, &copy.parts[i]);
		mem_free(wire);
	}
}

void maxima_run(struct maxima_world *world)
{
	for (uint32_t b = 0; b < plan_bucket_count(world->all); b++) {
		for (uint32_t t = 0; t < world->trainers; t++)
			run_locals(world, t, b);
		for (uint32_t t = 0; t < world->trainers; t++)
			run_sends(world, t, b, true);
		for (uint32_t m = 0; m < world->members; m++)
			run_sends(world, m, b, false);
	}
}

void maxima_compare(struct maxima_world *world)
{
	for (uint32_t m = world->trainers; m < world->members; m++) {
		uint32_t rank;
		const struct manifest *manifest = side_of(world, m, &rank);
		for (uint32_t p = 0; p < world->params[m].count; p++) {
			const struct param *param = &world->params[m].params[p];
			uint8_t *want = mem_alloc(param->bytes + 1);
			memset(want, POISON, param->bytes);
			for (uint32_t i = 0; i < param->form->piece_count; i++) {
				const struct piece *piece = &param->form->pieces[i];
				whole_put(piece_whole(world, rank, param, piece), param->dtype,
					  piece, manifest_tensor(manifest, piece->tensor)->is_scale,
					  want);
			}
			uint64_t at = 0;
			while (at < param->bytes && world->memory[m][p][at] == want[at])
				at++;
			if (at < param->bytes)
				ck_abort_msg("byte %" PRIu64 " of '%s' at member %u is %02x, "
					     "not %02x",
					     at, param->name, m, world->memory[m][p][at], want[at]);
			mem_free(want);
		}
	}
}

/* ---- What is told is needed. */

/* Marks the entries that a box of maxima has. */
static void mark_box(uint8_t *marks, const struct plan_part *part, uint64_t offset,
		     const int64_t *stride, uint8_t mark)
{
	uint64_t at[BOX_DIM_MAX] = {0};
	bool more = true;

	while (more) {
		uint64_t entry = offset;
		for (uint32_t d = 0; d < part->dim_count; d++)
			entry += at[d] * (uint64_t)stride[d];
		marks[entry / 4] |= mark;
		more = false;
		for (uint32_t d = part->dim_count; d > 0 && !more; d--) {
			more = ++at[d - 1] < part->extent[d - 1];
			if (!more)
				at[d - 1] = 0;
		}
	}
}

/* The entries by which codes are made. */
static void mark_codes(uint8_t *marks, const struct plan_part *part)
{
	struct plan_part entries = *part;
	uint64_t offset = part->blocks->table_offset;
	int64_t stride[BOX_DIM_MAX];

	for (uint32_t d = 0; d < part->dim_count; d++) {
		const struct plan_blocks *blocks = part->blocks;
		uint64_t first = blocks->first[d] / blocks->each[d];
		uint64_t last = (blocks->first[d] + part->extent[d] - 1) / blocks->each[d];
		offset += first * (uint64_t)blocks->stride[d] * 4;
		entries.extent[d] = last - first + 1;
		stride[d] = blocks->stride[d] * 4;
	}
	mark_box(marks, &entries, offset, stride, 1);
}

static void trainer_lean(struct maxima_world *world, uint32_t trainer)
{
	const struct plan *plan = world->plans[trainer];
	uint64_t count = plan_tables_bytes(plan) / 4;
	uint8_t *marks = mem_alloc(count + 1);
	struct plan_cursor cursor = {0};
	struct plan_copy copy;

	while (plan_next_send(plan, &cursor, &copy))
		for (uint32_t i = 0; i < copy.part_count; i++) {
			const struct plan_part *part = &copy.parts[i];
			if (part->kind == PART_CODES)
				mark_codes(marks, part);
			else if (part->kind == PART_SCALES)
				mark_box(marks, part, part->src_offset, part->src_stride, 1);
		}
	memset(&cursor, 0, sizeof(cursor));
	while (plan_next_receive(plan, &cursor, &copy))
		for (uint32_t i = 0; i < copy.part_count; i++)
			if (copy.parts[i].kind == PART_MAXIMA)
				mark_box(marks, &copy.parts[i], copy.parts[i].dst_offset,
					 copy.parts[i].dst_stride, 2);
	for (uint64_t i = 0; i < count; i++)
		if (marks[i] == 2)
			ck_abort_msg("trainer %u is told entry %" PRIu64 " for nothing", trainer,
				     i);
	mem_free(marks);
}

/* A pair has one digest in its sender's plan, in its receiver's and in that of all. */
static void digests_agree(struct maxima_world *world, uint32_t trainer)
{
	const struct plan *plan = world->plans[trainer];

	for (uint32_t i = 0; i < plan_send_pair_count(plan); i++) {
		const struct plan_pair *pair = plan_send_pair(plan, i), *other = NULL;
		const struct plan *receiver = world->plans[pair->receiver];
		for (uint32_t j = 0; j < plan_receive_pair_count(receiver); j++)
			if (plan_receive_pair(receiver, j)->sender == trainer)
				other = plan_receive_pair(receiver, j);
		ck_assert_msg(other != NULL, "%u doesn't expect %u", pair->receiver, trainer);
		ck_assert_uint_eq(other->inbox_bytes, pair->inbox_bytes);
		ck_assert_msg(other->digest == pair->digest, "pair %u to %u", trainer,
			      pair->receiver);
		for (uint32_t j = 0; j < plan_send_pair_count(world->all); j++) {
			other = plan_send_pair(world->all, j);
			if (other->sender == trainer && other->receiver == pair->receiver)
				ck_assert_msg(other->digest == pair->digest,
					      "pair %u to %u in a plan of all", trainer,
					      pair->receiver);
		}
	}
	for (uint32_t i = 0; i < plan_receive_pair_count(plan); i++) {
		const struct plan_pair *pair = plan_receive_pair(plan, i);
		const struct plan *sender = world->plans[pair->sender];
		bool met = false;
		for (uint32_t j = 0; j < plan_send_pair_count(sender); j++)
			met = met || plan_send_pair(sender, j)->receiver == trainer;
		ck_assert_msg(met, "%u doesn't tell %u", pair->sender, trainer);
	}
}

void maxima_lean(struct maxima_world *world)
{
	for (uint32_t t = 0; t < world->trainers; t++) {
		trainer_lean(world, t);
		digests_agree(world, t);
	}
}
