/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the checker of plans.  The bytes are records that overwrite numbers of one plan, of
 * a member or of all; whatever they say, the check ends with a verdict, and the plan as it was
 * still passes.  A plan never comes from outside; this is about a planner that is wrong.
 *
 *   record: which kind of number, which of its fields, which one of the plan's (2 bytes), value (8)
 *   the first byte: the plan, and whether its digests are made anew over the wrong numbers
 */
#include <assert.h>
#include <errno.h>

#include "tests/plan_digests.h"

#define RECORD_BYTES 12
#define RECORDS_MAX  16

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* A number inside a struct.  `length` says how much there is of something else: it stays when
 * digests are made anew, since those are taken before anything is checked. */
struct field {
	size_t offset, bytes;
	bool length;
};

#define FIELD(type, member)                                                \
	{                                                                  \
		offsetof(type, member), sizeof(((type *)0)->member), false \
	}
#define LENGTH(type, member)                                              \
	{                                                                 \
		offsetof(type, member), sizeof(((type *)0)->member), true \
	}

static const struct field part_fields[] = {
	FIELD(struct plan_part, src_param),	FIELD(struct plan_part, dst_param),
	LENGTH(struct plan_part, dim_count),	FIELD(struct plan_part, extent[0]),
	FIELD(struct plan_part, extent[1]),	FIELD(struct plan_part, extent[2]),
	FIELD(struct plan_part, src_offset),	FIELD(struct plan_part, dst_offset),
	FIELD(struct plan_part, src_stride[0]), FIELD(struct plan_part, src_stride[1]),
	FIELD(struct plan_part, dst_stride[0]), FIELD(struct plan_part, dst_stride[1]),
	FIELD(struct plan_part, wire_offset),
};
static const struct field rules_fields[] = {
	FIELD(struct part_rules, src_rule),
	FIELD(struct part_rules, dst_rule),
	FIELD(struct part_rules, src_each),
	FIELD(struct part_rules, dst_each),
};
static const struct field copy_fields[] = {
	FIELD(struct stored_copy, bytes),	FIELD(struct stored_copy, repeat),
	FIELD(struct stored_copy, src_step),	FIELD(struct stored_copy, dst_step),
	LENGTH(struct stored_copy, part_first), LENGTH(struct stored_copy, part_count),
	FIELD(struct stored_copy, first_op),	FIELD(struct stored_copy, op_count),
	FIELD(struct stored_copy, counter),	FIELD(struct stored_copy, ring),
};
static const struct field segment_fields[] = {
	FIELD(struct segment, kind),	      LENGTH(struct segment, copy_count),
	LENGTH(struct segment, copy_first),   FIELD(struct segment, copy_total),
	FIELD(struct segment, counter_count), FIELD(struct segment, ring_count),
	FIELD(struct segment, direct_bytes),  FIELD(struct segment, direct_op_count),
	FIELD(struct segment, bytes),	      FIELD(struct segment, op_count),
};
/* Not how many instances and counters there are: these are lengths of memory, not numbers. */
static const struct field pair_fields[] = {
	FIELD(struct pair_state, pair.sender),	     FIELD(struct pair_state, pair.receiver),
	FIELD(struct pair_state, pair.bytes),	     FIELD(struct pair_state, pair.data_op_count),
	FIELD(struct pair_state, pair.op_count),     FIELD(struct pair_state, pair.ring_count),
	FIELD(struct pair_state, pair.credit_count), FIELD(struct pair_state, counter_total),
};
static const struct field instance_fields[] = {
	FIELD(struct instance, bucket),	      LENGTH(struct instance, segment),
	FIELD(struct instance, counter_base), FIELD(struct instance, ring_base),
	FIELD(struct instance, op_base),
};
static const struct field bucket_fields[] = {
	FIELD(struct unit_bucket, kind),
	FIELD(struct unit_bucket, layer),
};
static const struct field kind_fields[] = {FIELD(struct bucket_kind, layer)};
static const struct field word_fields[] = {{0, sizeof(uint32_t), true}};
static const struct field plan_fields[] = {
	FIELD(struct plan, send_first),	   FIELD(struct plan, send_count),
	FIELD(struct plan, receive_count), FIELD(struct plan, digest),
	FIELD(struct plan, slot_bytes),
};
static const struct field blocks_fields[] = {
	FIELD(struct plan_blocks, each[0]),	 FIELD(struct plan_blocks, each[1]),
	FIELD(struct plan_blocks, first[0]),	 FIELD(struct plan_blocks, first[1]),
	FIELD(struct plan_blocks, stride[0]),	 FIELD(struct plan_blocks, stride[1]),
	FIELD(struct plan_blocks, table_offset),
};
static const struct field table_fields[] = {
	FIELD(struct plan_table, first),
	FIELD(struct plan_table, kind),
	FIELD(struct plan_table, param),
};
static const struct field offset_fields[] = {{0, sizeof(uint64_t), false}};
static const struct field local_fields[] = {
	FIELD(struct stored_local, local.param),
	FIELD(struct stored_local, local.dim_count),
	FIELD(struct stored_local, local.extent[0]),
	FIELD(struct stored_local, local.extent[1]),
	FIELD(struct stored_local, local.src_offset),
	FIELD(struct stored_local, local.src_stride[0]),
	FIELD(struct stored_local, local.src_stride[1]),
	FIELD(struct stored_local, local.blocks.each[0]),
	FIELD(struct stored_local, local.blocks.first[0]),
	FIELD(struct stored_local, local.blocks.first[1]),
	FIELD(struct stored_local, local.blocks.stride[0]),
	FIELD(struct stored_local, local.blocks.table_offset),
	FIELD(struct stored_local, rule),
	FIELD(struct stored_local, each),
};

/* What the plan has of one kind. */
struct numbers {
	void *first;
	size_t count, bytes_each;
	const struct field *fields;
	size_t field_count;
};

#define NUMBERS(at, number, fields)                                       \
	{                                                                 \
		(at), (number), sizeof(*(at)), fields, ARRAY_SIZE(fields) \
	}

struct change {
	uint8_t *at, before[8];
	size_t bytes;
};

/* The grid of some part of codes, as if it were the plan's own to write. */
static struct plan_blocks *some_blocks(struct plan *plan, size_t from)
{
	const struct plan_part *parts = plan->parts.items;

	for (size_t i = 0; i < plan->parts.count; i++) {
		const struct plan_part *part = &parts[(from + i) % plan->parts.count];
		if (part->blocks != NULL)
			return (struct plan_blocks *)(uintptr_t)part->blocks;
	}
	return NULL;
}

/* So many kinds of numbers there were before: what seeds from then say of those still means the
 * same.
 */
#define KINDS_OLD 9

static bool change_make(struct plan *plan, const uint8_t *record, bool renew, struct change *change)
{
	struct trainer_tables *tables = &plan->tables[record[3] % plan->trainer_count];
	struct pair_state *pairs = plan->pairs.items;
	struct pair_state *pair = &pairs[record[3] % plan->pairs.count];
	const struct numbers all[] = {
		NUMBERS((struct plan_part *)plan->parts.items, plan->parts.count, part_fields),
		NUMBERS((struct part_rules *)plan->part_rules.items, plan->part_rules.count,
			rules_fields),
		NUMBERS((struct stored_copy *)plan->copies.items, plan->copies.count, copy_fields),
		NUMBERS((struct segment *)plan->segments.items, plan->segments.count,
			segment_fields),
		NUMBERS(pairs, plan->pairs.count, pair_fields),
		NUMBERS(pair->instances, pair->instance_count, instance_fields),
		NUMBERS(pair->segments, plan->kind_count, word_fields),
		NUMBERS(plan->buckets, plan->bucket_count, bucket_fields),
		NUMBERS(plan->kinds, plan->kind_count, kind_fields),
		NUMBERS(plan, 1, plan_fields),
		NUMBERS(some_blocks(plan, record[2]), 1, blocks_fields),
		NUMBERS(tables->list, tables->count, table_fields),
		NUMBERS(tables->bucket, tables->known ? plan->bucket_count + 1 : 0, offset_fields),
		NUMBERS((struct stored_local *)plan->locals.items, plan->locals.count,
			local_fields),
	};
	uint32_t kind = record[0] % KINDS_OLD, which = record[1];
	if (record[0] >= 256 / KINDS_OLD * KINDS_OLD) {
		kind = KINDS_OLD + which % (ARRAY_SIZE(all) - KINDS_OLD);
		which /= ARRAY_SIZE(all) - KINDS_OLD;
	}
	const struct numbers *numbers = &all[kind];
	if (numbers->count == 0)
		return false;
	const struct field *field = &numbers->fields[which % numbers->field_count];
	size_t index = (record[2] + 256u * record[3]) % numbers->count;

	if (renew && field->length)
		return false;
	change->at = (uint8_t *)numbers->first + index * numbers->bytes_each + field->offset;
	change->bytes = field->bytes;
	memcpy(change->before, change->at, field->bytes);
	memcpy(change->at, record + 4, field->bytes);
	return true;
}

#define TENSORS                                                                             \
	"\"tensors\":[{\"name\":\"l.{L}.a\",\"dtype\":\"bf16\",\"shape\":[24,40],"          \
	"\"layers\":[0,3]},{\"name\":\"l.{L}.e.{E}.w\",\"dtype\":\"bf16\",\"shape\":[8,6]," \
	"\"layers\":[0,3],\"experts\":[0,4]},{\"name\":\"h\",\"dtype\":\"bf16\","           \
	"\"shape\":[10,40]}],\"layers\":{\"all\":[0,3]},\"experts\":{\"axis\":\"n\"},"
#define STACK \
	"{\"p\":\"l.{L}.w\",\"each\":{\"L\":\"all\"},\"x\":[\"k\",\"E\",[\"t\",\"l.{L}.e.{E}.w\"]]}"
#define TRAINER                                                                                    \
	"{\"ws_manifest\":1,\"side\":\"trainer\",\"framework\":\"f\",\"model\":\"m\",\"world\":2," \
	"\"meshes\":{\"m\":{\"axes\":[[\"n\",2]]}}," TENSORS "\"params\":[{\"p\":\"l.{L}.a\","     \
	"\"each\":{\"L\":\"all\"},\"x\":[\"s\",[\"t\",\"l.{L}.a\"],1,\"n\"]}," STACK               \
	",{\"p\":\"h\",\"x\":[\"t\",\"h\"]}]}"
#define ROLLOUT                                                                                     \
	"{\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"f\",\"model\":\"m\",\"world\":2,"  \
	"\"meshes\":{\"m\":{\"axes\":[[\"n\",2]]}},\"schemes\":{\"q\":{\"kind\":\"block\","         \
	"\"block\":[8,8],\"fmt\":\"e4m3\",\"scale\":\"f32\"}}," TENSORS                             \
	"\"params\":[{\"p\":\"l.{L}.a\",\"each\":{\"L\":\"all\"},\"q\":\"q\",\"dtype\":\"f8e4m3\"," \
	"\"scale\":\"l.{L}.a_scale\",\"x\":[\"t\",\"l.{L}.a\"]}," STACK                             \
	",{\"p\":\"h\",\"x\":[\"s\",[\"t\",\"h\"],0,\"n\"]}]}"

/* Of all, of a trainer and of a rollout; for as long as the process lives. */
static struct plan *plan_of(uint32_t which)
{
	static const uint32_t selves[] = {PLAN_ALL, 0, 3};
	static const uint32_t replicas[] = {0, 1};
	static struct manifest *sides[2]; /* LeakSanitizer sees them */
	static struct plan *plans[ARRAY_SIZE(selves)];
	struct plan_input input = {
		.replicas = replicas, .replica_count = 2, .rules = RULES_DEFAULT};
	struct ws_error err;

	if (sides[0] == NULL) {
		int rc = manifest_parse(&sides[0], TRAINER, sizeof(TRAINER) - 1, NULL, &err);
		rc |= manifest_parse(&sides[1], ROLLOUT, sizeof(ROLLOUT) - 1, NULL, &err);
		assert(rc == 0);
	}
	input.trainer = sides[0];
	input.rollout = sides[1];
	/* Small enough that copies of every shape are there: runs, rings, repetitions. */
	input.rules.run_bytes_min = 12;
	input.rules.pack_bytes_max = 16;
	input.rules.op_bytes = 4096;
	input.rules.recv_staging_bytes = 2 * 2 * 4096;
	which %= ARRAY_SIZE(selves);
	if (plans[which] == NULL) {
		int rc = plan_make(&plans[which], &input, selves[which], NULL, &err);
		assert(rc == 0);
	}
	return plans[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	struct change changes[RECORDS_MAX];
	struct ws_error err = {0};
	uint32_t made = 0;

	if (count == 0)
		return 0;
	struct plan *plan = plan_of(bytes[0] >> 1);
	bool renew = (bytes[0] & 1) != 0;
	for (size_t at = 1; at + RECORD_BYTES <= count && made < RECORDS_MAX; at += RECORD_BYTES)
		made += change_make(plan, bytes + at, renew, &changes[made]);
	if (renew)
		digests_renew(plan);
	int rc = plan_check(plan, NULL, &err);
	assert(rc == 0 || (rc == -EINVAL && err.text[0] != '\0'));
	while (made > 0) {
		made--;
		memcpy(changes[made].at, changes[made].before, changes[made].bytes);
	}
	if (renew)
		digests_renew(plan);
	assert(plan_check(plan, NULL, &err) == 0);
	return 0;
}
