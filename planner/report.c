/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people and programs read about a plan of all members: a table and one JSON object.
 */
#include <stdio.h>

#include "planner/plan_internal.h"

static const char *const contiguity[4] = {"both", "target_only", "source_only", "none"};

static void put_side(struct json_writer *json, const char *key, uint64_t min, uint64_t mean,
		     uint64_t max, uint32_t count)
{
	json_begin_object(json, key);
	json_put_u64(json, "count", count);
	json_put_u64(json, "bytes_min", min);
	json_put_u64(json, "bytes_mean", mean);
	json_put_u64(json, "bytes_max", max);
	json_end_object(json);
}

/* What pairs write: the tensors' bytes, and the gaps between those that are packed. */
static uint64_t wire_bytes(const struct plan *all)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < plan_send_pair_count(all); i++)
		if (!pair_tells(all, plan_send_pair(all, i)))
			bytes += plan_send_pair(all, i)->bytes;
	return bytes;
}

static void put_warnings(const struct plan *all, struct json_writer *json)
{
	struct arena arena = {0};
	struct findings warnings = {.arena = &arena};

	plan_warnings(all, &warnings);
	json_begin_array(json, "warnings");
	for (const struct finding *at = warnings.first; at != NULL; at = at->next) {
		json_begin_object(json, NULL);
		json_put_text(json, "kind", at->kind);
		json_put_text(json, "where", at->where);
		json_put_text(json, "text", at->text);
		json_end_object(json);
	}
	json_end_array(json);
	arena_release(&arena);
}

void plan_report_json(const struct plan *all, double plan_seconds, const char *key,
		      struct json_writer *json)
{
	const struct plan_totals *totals = &all->totals;
	char digest[20];
	struct writer text = writer_fixed(digest, sizeof(digest));

	write_format(&text, "%016" PRIx64, all->digest);
	write_u8(&text, 0);
	json_begin_object(json, key);
	json_put_text(json, "digest", digest);
	json_put_text(json, "model", manifest_model(all->input.rollout));
	if (manifest_map_version(all->input.rollout) >= 0)
		json_put_integer(json, "map_version", manifest_map_version(all->input.rollout));
	json_put_u64(json, "trainers", all->trainer_count);
	json_put_u64(json, "replicas", all->input.replica_count);
	json_put_u64(json, "replica_ranks", all->rollout_count);
	json_put_u64(json, "members", all->member_count);
	json_put_u64(json, "total_bytes", totals->bytes);
	json_put_u64(json, "scale_bytes", totals->scale_bytes);
	json_put_u64(json, "wire_bytes", wire_bytes(all));
	json_put_u64(json, "boxes", totals->boxes);
	json_put_u64(json, "runs", totals->runs);
	json_put_u64(json, "copies", totals->copies);
	json_put_u64(json, "ops", totals->ops);
	json_put_u64(json, "classes", totals->classes);
	json_put_u64(json, "pairs", all->pairs.count - totals->maxima_pairs);
	json_put_u64(json, "maxima_bytes", totals->maxima_bytes);
	json_put_u64(json, "maxima_pairs", totals->maxima_pairs);
	json_put_u64(json, "tables_bytes_max", totals->tables_max);
	json_put_u64(json, "buckets", totals->bucket_count);
	json_put_u64(json, "op_bytes", all->input.rules.op_bytes);
	json_put_u64(json, "slot_bytes", all->slot_bytes);
	json_begin_object(json, "contiguity");
	for (size_t i = 0; i < ARRAY_SIZE(contiguity); i++)
		json_put_u64(json, contiguity[i], totals->class_count[i]);
	json_end_object(json);
	put_side(json, "senders", totals->send_min, totals->send_mean, totals->send_max,
		 all->trainer_count);
	json_put_u64(json, "senders_idle", totals->senders_idle);
	put_side(json, "receivers", totals->receive_min, totals->receive_mean, totals->receive_max,
		 all->member_count - all->trainer_count);
	json_put_text(json, "fanout", fanout_name(all->input.rules.fanout));
	json_put_u64(json, "forward_bytes", totals->forward_bytes);
	put_side(json, "from_trainers", totals->trainer_min, totals->trainer_mean,
		 totals->trainer_max, all->member_count - all->trainer_count);
	put_warnings(all, json);
	json_put_number(json, "plan_seconds", plan_seconds, 6);
	json_end_object(json);
}

const char *bytes_text(uint64_t bytes, char *out, size_t room)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 999.95 && unit + 1 < ARRAY_SIZE(units); unit++)
		value /= 1000;
	int digits = unit == 0 ? 0 : value < 9.9995 ? 3 : value < 99.995 ? 2 : 1;
	snprintf(out, room, "%.*f %s", digits, value, units[unit]);
	return out;
}

static void text_side(struct writer *out, const char *name, uint32_t count, uint64_t least,
		      uint64_t mean, uint64_t most, uint32_t idle)
{
	char text[3][BYTES_TEXT];

	write_format(out, "%-10s %6" PRIu32 " %12s %12s %12s %12.3f %6" PRIu32 "\n", name, count,
		     bytes_text(least, text[0], sizeof(text[0])),
		     bytes_text(mean, text[1], sizeof(text[1])),
		     bytes_text(most, text[2], sizeof(text[2])),
		     mean == 0 ? 1.0 : (double)most / (double)mean, idle);
}

static uint32_t receivers_idle(const struct plan *all)
{
	uint32_t idle = 0;

	for (uint32_t i = all->trainer_count; i < all->member_count; i++)
		idle += all->received[i] == 0;
	return idle;
}

static void text_totals(const struct plan *all, struct writer *out)
{
	const struct plan_totals *totals = &all->totals;
	static const char *const where[4] = {"both ends", "the rollout only", "the trainer only",
					     "neither end"};
	char text[BYTES_TEXT];

	write_format(out, "\n%-10s %6s %12s %12s %12s %12s %6s\n", "", "ranks", "least", "mean",
		     "most", "most/mean", "idle");
	text_side(out, "senders", all->trainer_count, totals->send_min, totals->send_mean,
		  totals->send_max, totals->senders_idle);
	text_side(out, "receivers", all->member_count - all->trainer_count, totals->receive_min,
		  totals->receive_mean, totals->receive_max, receivers_idle(all));
	if (all->input.rules.fanout != FANOUT_NONE)
		text_side(out, "  direct", all->member_count - all->trainer_count,
			  totals->trainer_min, totals->trainer_mean, totals->trainer_max, 0);
	write_format(out,
		     "\n%s (%" PRIu64 " bytes) in %" PRIu64 " writes between %" PRIu64 " pairs\n",
		     bytes_text(totals->bytes, text, sizeof(text)), totals->bytes, totals->ops,
		     all->pairs.count - totals->maxima_pairs);
	write_format(out,
		     "%" PRIu64 " boxes, %" PRIu64 " runs, %" PRIu64 " copies, %" PRIu64
		     " classes\n",
		     totals->boxes, totals->runs, totals->copies, totals->classes);
	if (all->input.rules.fanout != FANOUT_NONE)
		write_format(out, "fan-out %s: rollouts forward %s of it\n",
			     fanout_name(all->input.rules.fanout),
			     bytes_text(totals->forward_bytes, text, sizeof(text)));
	if (all->tables != NULL)
		write_format(out, "%s of maxima between %" PRIu64 " pairs of trainers\n",
			     bytes_text(totals->maxima_bytes, text, sizeof(text)),
			     totals->maxima_pairs);
	write_format(out, "\n%-18s %14s %8s\n", "contiguous at", "boxes", "share");
	for (size_t i = 0; i < ARRAY_SIZE(where); i++)
		write_format(out, "%-18s %14" PRIu64 " %6.1f %%\n", where[i],
			     totals->class_count[i],
			     totals->boxes == 0 ? 0.0
						: 100.0 * (double)totals->class_count[i] /
							  (double)totals->boxes);
}

/* Buckets of equal size, as layers are, share a line. */
static void text_buckets(const struct plan *all, struct writer *out)
{
	const struct unit_bucket *buckets = all->buckets;
	char range[32], text[BYTES_TEXT];

	write_format(out, "\n%-12s %12s %9s  %s\n", "bucket", "bytes each", "tensors", "name");
	for (uint32_t b = 0, end; b < all->bucket_count; b = end) {
		for (end = b + 1; end < all->bucket_count; end++)
			if (buckets[end].bytes != buckets[b].bytes ||
			    buckets[end].unit_count != buckets[b].unit_count)
				break;
		snprintf(range, sizeof(range), "%" PRIu32, b);
		if (end > b + 1)
			snprintf(range, sizeof(range), "%" PRIu32 " to %" PRIu32, b, end - 1);
		write_format(out, "%-12s %12s %9" PRIu32 "  %s%s%s\n", range,
			     bytes_text(buckets[b].bytes, text, sizeof(text)),
			     buckets[b].unit_count, buckets[b].name, end > b + 1 ? ", .., " : "",
			     end > b + 1 ? buckets[end - 1].name : "");
	}
}

static void text_warnings(const struct plan *all, struct writer *out)
{
	struct arena arena = {0};
	struct findings warnings = {.arena = &arena};

	plan_warnings(all, &warnings);
	if (warnings.count > 0)
		write_format(out, "\n");
	for (const struct finding *at = warnings.first; at != NULL; at = at->next)
		write_format(out, "warning: %s %s\n", at->where, at->text);
	arena_release(&arena);
}

void plan_report_text(const struct plan *all, double plan_seconds, struct writer *out)
{
	const struct manifest *trainer = all->input.trainer, *rollout = all->input.rollout;

	write_format(out, "plan %016" PRIx64 " of '%s', made in %.3f s\n", all->digest,
		     manifest_model(rollout), plan_seconds);
	write_format(out,
		     "%" PRIu32 " trainer%s (%s) to %" PRIu32 " replica%s of %" PRIu32
		     " rank%s (%s)\n",
		     all->trainer_count, all->trainer_count == 1 ? "" : "s",
		     manifest_framework(trainer), all->input.replica_count,
		     all->input.replica_count == 1 ? "" : "s", all->rollout_count,
		     all->rollout_count == 1 ? "" : "s", manifest_framework(rollout));
	text_totals(all, out);
	text_buckets(all, out);
	text_warnings(all, out);
}
