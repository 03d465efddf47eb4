/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules that everybody plans by: checked where they are made and where they arrive.
 */
#include "planner/plan_internal.h"

#define RULES_BYTES_MAX (1ull << 40) /* of any size in the rules */

static const char *const fanout_names[] = {
	[FANOUT_NONE] = "none",
	[FANOUT_NODE] = "node",
	[FANOUT_REPLICA] = "replica",
};

const char *fanout_name(enum fanout fanout)
{
	return fanout_names[fanout];
}

int fanout_parse(const char *name, enum fanout *fanout_out, struct ws_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(fanout_names); i++)
		if (strcmp(name, fanout_names[i]) == 0) {
			*fanout_out = (enum fanout)i;
			return 0;
		}
	return ws_fail(err, -EINVAL, "fan-out is none, node or replica, not '%s'", name);
}

int rules_check(const struct rules *rules, struct ws_error *err)
{
	if (rules->planner_version != PLANNER_VERSION)
		return ws_fail(err, -EINVAL,
			       "the rules are of planner version %" PRIu32 ", this is %d: run one "
			       "version of weightsync everywhere",
			       rules->planner_version, PLANNER_VERSION);
	if (rules->op_bytes == 0 || rules->op_bytes % SLOT_ALIGN != 0 || rules->op_bytes > 1u << 30)
		return ws_fail(err, -EINVAL,
			       "op_bytes is %" PRIu64 ", not a multiple of 4096 up to 1 GiB",
			       rules->op_bytes);
	if (rules->staging_bytes < rules->op_bytes || rules->staging_bytes % rules->op_bytes != 0 ||
	    rules->staging_bytes > RULES_BYTES_MAX)
		return ws_fail(err, -EINVAL,
			       "staging_bytes is %" PRIu64 ", not a multiple of op_bytes (%" PRIu64
			       ")",
			       rules->staging_bytes, rules->op_bytes);
	if (rules->recv_staging_bytes > RULES_BYTES_MAX)
		return ws_fail(err, -EINVAL, "recv_staging_bytes is %" PRIu64 ", above 1 TiB",
			       rules->recv_staging_bytes);
	if (rules->run_bytes_min == 0 || rules->run_bytes_min > RULES_BYTES_MAX)
		return ws_fail(err, -EINVAL, "run_bytes_min is %" PRIu64 ", not from 1 to 1 TiB",
			       rules->run_bytes_min);
	if (rules->pack_bytes_max > RULES_BYTES_MAX)
		return ws_fail(err, -EINVAL, "pack_bytes_max is %" PRIu64 ", above 1 TiB",
			       rules->pack_bytes_max);
	return 0;
}

void rules_encode(const struct rules *rules, struct writer *out)
{
	write_u32(out, rules->planner_version);
	write_u64(out, rules->op_bytes);
	write_u64(out, rules->staging_bytes);
	write_u64(out, rules->recv_staging_bytes);
	write_u64(out, rules->run_bytes_min);
	write_u64(out, rules->pack_bytes_max);
	write_u64(out, rules->bucket_bytes);
	write_u8(out, rules->wire_digests);
	write_u8(out, rules->barrier);
	write_u8(out, (uint8_t)rules->fanout);
}

int rules_decode(struct rules *rules_out, const void *bytes, size_t count, struct ws_error *err)
{
	struct reader reader = reader_make(bytes, count);
	struct rules rules = {.planner_version = read_u32(&reader)};

	rules.op_bytes = read_u64(&reader);
	rules.staging_bytes = read_u64(&reader);
	rules.recv_staging_bytes = read_u64(&reader);
	rules.run_bytes_min = read_u64(&reader);
	rules.pack_bytes_max = read_u64(&reader);
	rules.bucket_bytes = read_u64(&reader);
	uint8_t wire_digests = read_u8(&reader), barrier = read_u8(&reader);
	uint8_t fanout = read_u8(&reader);
	if (!reader_done(&reader) || wire_digests > 1 || barrier > 1 || fanout > FANOUT_REPLICA)
		return ws_fail(
			err, -EPROTO,
			"the hub's rules are %zu bytes that this version can't read: run one "
			"version of weightsync everywhere",
			count);
	rules.wire_digests = wire_digests != 0;
	rules.barrier = barrier != 0;
	rules.fanout = (enum fanout)fanout;
	int rc = rules_check(&rules, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "the hub's rules");
	*rules_out = rules;
	return 0;
}

bool rules_same(const struct rules *a, const struct rules *b)
{
	return a->planner_version == b->planner_version && a->op_bytes == b->op_bytes &&
	       a->staging_bytes == b->staging_bytes &&
	       a->recv_staging_bytes == b->recv_staging_bytes &&
	       a->run_bytes_min == b->run_bytes_min && a->pack_bytes_max == b->pack_bytes_max &&
	       a->bucket_bytes == b->bucket_bytes && a->wire_digests == b->wire_digests &&
	       a->barrier == b->barrier && a->fanout == b->fanout;
}
