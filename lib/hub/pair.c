/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of a pair frame: what one sender and one receiver tell each other while wiring.  The
 * engine's own encodings (address, regions) pass through as bytes.
 */
#include <errno.h>

#include "lib/hub/hub.h"

#define PAIR_MAGIC	    0x31524950u /* "PIR1" */
#define PAIR_BLOB_BYTES_MAX (16u << 20)
#define PAIR_ROWS_MAX	    (1u << 20)
#define PAIR_ROW_BYTES	    32u

int pair_encode(const struct pair_frame *pair, struct writer *out)
{
	if (pair->slot_count > ARRAY_SIZE(pair->slot_offset) || pair->row_count > PAIR_ROWS_MAX ||
	    pair->address_bytes > PAIR_BLOB_BYTES_MAX || pair->regions_bytes > PAIR_BLOB_BYTES_MAX)
		return -ENOSPC;
	write_u32(out, PAIR_MAGIC);
	write_u64(out, pair->pair_digest[0]);
	write_u64(out, pair->pair_digest[1]);
	write_u64(out, pair->plan_digest);
	write_u32(out, pair->address_bytes);
	write_bytes(out, pair->address, pair->address_bytes);
	write_u32(out, pair->regions_bytes);
	write_bytes(out, pair->regions, pair->regions_bytes);
	write_u32(out, pair->op_id_base);
	write_u32(out, pair->receive_base);
	write_u32(out, pair->ring_region);
	write_u32(out, pair->slot_count);
	for (uint32_t i = 0; i < pair->slot_count; i++)
		write_u64(out, pair->slot_offset[i]);
	write_u32(out, pair->row_count);
	for (uint32_t i = 0; i < pair->row_count; i++) {
		const struct place_row *row = &pair->rows[i];
		write_u32(out, row->set);
		write_u32(out, row->first_param);
		write_u32(out, row->param_count);
		write_u32(out, row->region);
		write_u64(out, row->offset);
		write_u64(out, (uint64_t)row->step);
	}
	return out->failed ? -ENOMEM : 0;
}

static const void *read_part(struct reader *in, uint32_t *bytes_out)
{
	uint32_t bytes = read_count(in, 1, PAIR_BLOB_BYTES_MAX);
	*bytes_out = bytes;
	return read_bytes(in, bytes);
}

/* Counts and sets are checked here; regions and offsets by the engine, before each post. */
static void read_row(struct reader *in, struct place_row *row)
{
	row->set = read_u32(in);
	row->first_param = read_u32(in);
	row->param_count = read_u32(in);
	row->region = read_u32(in);
	row->offset = read_u64(in);
	row->step = (int64_t)read_u64(in);
	if (row->set >= BUFFER_SETS_MAX || row->param_count == 0 ||
	    row->param_count > UINT32_MAX - row->first_param)
		in->failed = true;
}

int pair_decode(struct pair_frame *pair_out, struct arena *arena, const void *bytes, size_t count,
		struct ws_error *err)
{
	struct reader in = reader_make(bytes, count);
	struct pair_frame pair = {.rows = NULL};
	*pair_out = pair;
	if (read_u32(&in) != PAIR_MAGIC)
		return ws_fail(
			err, -EPROTO,
			"a pair frame begins with other bytes; is the peer of this version?");
	pair.pair_digest[0] = read_u64(&in);
	pair.pair_digest[1] = read_u64(&in);
	pair.plan_digest = read_u64(&in);
	pair.address = read_part(&in, &pair.address_bytes);
	pair.regions = read_part(&in, &pair.regions_bytes);
	if (in.failed)
		return ws_fail(err, -EPROTO,
			       "a pair frame of %zu bytes ends inside its address or regions",
			       count);
	pair.op_id_base = read_u32(&in);
	pair.receive_base = read_u32(&in);
	pair.ring_region = read_u32(&in);
	pair.slot_count = read_count(&in, 8, ARRAY_SIZE(pair.slot_offset));
	for (uint32_t i = 0; i < pair.slot_count; i++)
		pair.slot_offset[i] = read_u64(&in);
	if (in.failed)
		return ws_fail(err, -EPROTO,
			       "a pair frame of %zu bytes has more ring slots than fit", count);
	pair.row_count = read_count(&in, PAIR_ROW_BYTES, PAIR_ROWS_MAX);
	struct place_row *rows = arena_array(arena, pair.row_count, sizeof(*rows));
	if (rows == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u rows of a pair frame",
			       pair.row_count);
	for (uint32_t i = 0; i < pair.row_count; i++)
		read_row(&in, &rows[i]);
	if (!reader_done(&in))
		return ws_fail(
			err, -EPROTO,
			"a pair frame of %zu bytes has a bad row of places, or bytes behind its rows",
			count);
	pair.rows = rows;
	*pair_out = pair;
	return 0;
}

int pair_check(const struct pair_frame *frame, const struct pair_plan *mine, struct ws_error *err)
{
	if (frame->plan_digest != mine->plan_digest || frame->pair_digest[0] != mine->pair_digest)
		return ws_fail(err, -ESTALE,
			       "has another plan of its pair with %s (plans %016llx and %016llx, "
			       "pairs %016llx and %016llx); use one version of weightsync",
			       mine->with, (unsigned long long)mine->plan_digest,
			       (unsigned long long)frame->plan_digest,
			       (unsigned long long)mine->pair_digest,
			       (unsigned long long)frame->pair_digest[0]);
	if (frame->op_id_base + mine->op_count > mine->op_id_max + UINT64_C(1))
		return ws_fail(err, -EPROTO, "got op ids beyond %llu from %s",
			       (unsigned long long)mine->op_id_max, mine->with);
	return 0;
}

/* The last row that begins at or before the param counts. */
bool place_find(const struct place_row *rows, uint32_t count, uint32_t param, uint32_t *region_out,
		uint64_t *offset_out)
{
	uint32_t lo = 0, hi = count;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (rows[mid].first_param <= param)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == 0)
		return false;
	const struct place_row *row = &rows[lo - 1];
	uint32_t steps = param - row->first_param;
	if (steps >= row->param_count || row->set != 0)
		return false;
	*region_out = row->region;
	*offset_out = row->offset + (uint64_t)row->step * steps; /* may wrap: a peer's */
	return true;
}
