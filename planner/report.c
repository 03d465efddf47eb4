/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people and programs read about a plan of all members: one JSON object, a table, and a
 * page that stands alone.
 */
#include "planner/plan_internal.h"

#define BARS_MAX 512 /* ranks drawn one by one on the page */

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

void plan_report_json(const struct plan *all, double plan_seconds, struct json_writer *json)
{
	const struct plan_totals *totals = &all->totals;
	char digest[20];
	struct writer text = writer_fixed(digest, sizeof(digest));

	write_format(&text, "%016" PRIx64, all->digest);
	write_u8(&text, 0);
	json_begin_object(json, NULL);
	json_put_text(json, "digest", digest);
	json_put_text(json, "model", manifest_model(all->input.rollout));
	json_put_u64(json, "trainers", all->trainer_count);
	json_put_u64(json, "replicas", all->input.replica_count);
	json_put_u64(json, "replica_ranks", all->rollout_count);
	json_put_u64(json, "members", all->member_count);
	json_put_u64(json, "total_bytes", totals->bytes);
	json_put_u64(json, "boxes", totals->boxes);
	json_put_u64(json, "runs", totals->runs);
	json_put_u64(json, "copies", totals->copies);
	json_put_u64(json, "ops", totals->ops);
	json_put_u64(json, "classes", totals->classes);
	json_put_u64(json, "pairs", all->pairs.count);
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
	json_put_number(json, "plan_seconds", plan_seconds, 6);
	json_end_object(json);
}

static double ratio(uint64_t max, uint64_t mean)
{
	return mean == 0 ? 1.0 : (double)max / (double)mean;
}

static void text_side(struct writer *out, const char *name, uint32_t count, uint64_t min,
		      uint64_t mean, uint64_t max)
{
	write_format(out,
		     "%-12s %6" PRIu32 "  min %14" PRIu64 "  mean %14" PRIu64 "  max %14" PRIu64
		     "  max/mean %.3f\n",
		     name, count, min, mean, max, ratio(max, mean));
}

void plan_report_text(const struct plan *all, double plan_seconds, struct writer *out)
{
	const struct plan_totals *totals = &all->totals;

	write_format(out,
		     "plan %016" PRIx64 " of '%s': %" PRIu32 " trainers, %" PRIu32
		     " replicas of %" PRIu32 " ranks, made in %.3f s\n",
		     all->digest, manifest_model(all->input.rollout), all->trainer_count,
		     all->input.replica_count, all->rollout_count, plan_seconds);
	text_side(out, "senders", all->trainer_count, totals->send_min, totals->send_mean,
		  totals->send_max);
	text_side(out, "receivers", all->member_count - all->trainer_count, totals->receive_min,
		  totals->receive_mean, totals->receive_max);
	if (all->input.rules.fanout != FANOUT_NONE) {
		text_side(out, "  trainers'", all->member_count - all->trainer_count,
			  totals->trainer_min, totals->trainer_mean, totals->trainer_max);
		write_format(out, "fan-out %s: rollouts forward %" PRIu64 " bytes\n",
			     fanout_name(all->input.rules.fanout), totals->forward_bytes);
	}
	write_format(out,
		     "bytes %" PRIu64 "  boxes %" PRIu64 "  runs %" PRIu64 "  copies %" PRIu64
		     "  ops %" PRIu64 "  pairs %zu  idle senders %" PRIu32 "\n",
		     totals->bytes, totals->boxes, totals->runs, totals->copies, totals->ops,
		     all->pairs.count, totals->senders_idle);
	write_format(out,
		     "boxes by contiguity: both ends %" PRIu64 ", target only %" PRIu64
		     ", source only %" PRIu64 ", neither %" PRIu64 "\n",
		     totals->class_count[0], totals->class_count[1], totals->class_count[2],
		     totals->class_count[3]);
	write_format(out, "%-6s %14s  %s\n", "bucket", "bytes", "name");
	for (uint32_t b = 0; b < all->bucket_count; b++)
		write_format(out, "%-6" PRIu32 " %14" PRIu64 "  %s\n", b, all->buckets[b].bytes,
			     all->buckets[b].name);
}

static void html_text(struct writer *out, const char *text)
{
	for (; *text != '\0'; text++)
		switch (*text) {
		case '<':
			write_format(out, "&lt;");
			break;
		case '>':
			write_format(out, "&gt;");
			break;
		case '&':
			write_format(out, "&amp;");
			break;
		case '"':
			write_format(out, "&quot;");
			break;
		default:
			write_u8(out, (uint8_t)*text);
		}
}

/* Bars of members [first, first + count): each one's share of the largest. */
static void html_bars(struct writer *out, const struct plan *all, const char *title, uint32_t first,
		      uint32_t count, const uint64_t *bytes, uint64_t max)
{
	char name[96];

	write_format(out, "<h2>%s</h2>\n<table class=bars>\n", title);
	for (uint32_t i = first; i < first + MIN(count, BARS_MAX); i++) {
		double share = max == 0 ? 0 : 100.0 * (double)bytes[i] / (double)max;
		write_format(out,
			     "<tr><td>%s<td class=n>%" PRIu64
			     "<td><div style=\"width:%.1f%%\"></div>\n",
			     plan_member_name(all, i, name, sizeof(name)), bytes[i], share);
	}
	if (count > BARS_MAX)
		write_format(out, "<tr><td colspan=3>and %" PRIu32 " more\n", count - BARS_MAX);
	write_format(out, "</table>\n");
}

int plan_report_html(const struct plan *all, double plan_seconds, struct writer *out)
{
	const struct plan_totals *totals = &all->totals;

	write_format(
		out,
		"<!doctype html>\n<meta charset=utf-8>\n<title>weightsync plan</title>\n<style>\n"
		"body{font:14px sans-serif;margin:2em}td{padding:1px 8px}.n{text-align:right}\n"
		".bars td:last-child{width:50vw}.bars div{background:#47a;height:11px}\n"
		"pre{background:#eee;padding:1em}\n</style>\n<h1>Plan of ");
	html_text(out, manifest_model(all->input.rollout));
	write_format(out, "</h1>\n<pre>\n");
	struct writer table = WRITER_INIT(64u << 20);
	plan_report_text(all, plan_seconds, &table);
	write_u8(&table, 0);
	bool failed = table.failed;
	if (!failed)
		html_text(out, (const char *)table.bytes);
	writer_release(&table);
	write_format(out, "</pre>\n");
	html_bars(out, all, "Bytes sent", 0, all->trainer_count, all->sent, totals->send_max);
	html_bars(out, all, "Bytes received", all->trainer_count,
		  all->member_count - all->trainer_count, all->received, totals->receive_max);
	write_format(out,
		     "<h2>Buckets</h2>\n<table>\n<tr><th>bucket<th>bytes<th>tensors<th>name\n");
	for (uint32_t b = 0; b < all->bucket_count; b++) {
		write_format(out,
			     "<tr><td class=n>%" PRIu32 "<td class=n>%" PRIu64
			     "<td class=n>%" PRIu32 "<td>",
			     b, all->buckets[b].bytes, all->buckets[b].unit_count);
		html_text(out, all->buckets[b].name);
		write_format(out, "\n");
	}
	write_format(out, "</table>\n");
	return failed || out->failed ? -ENOMEM : 0;
}
