/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the page shows, as one JSON object: what `plan --json` says, and what is too much for it:
 * bytes by member, by pair and by bucket, places and sentences.
 */
#include "planner/page_internal.h"

void page_varint(struct writer *out, uint64_t value)
{
	for (; value >= 128; value >>= 7)
		write_u8(out, (uint8_t)(value | 128));
	write_u8(out, (uint8_t)value);
}

int page_base64(const struct writer *packed, const char *key, struct json_writer *json)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	struct writer text = WRITER_INIT(512u << 20);
	const uint8_t *bytes = packed->bytes;

	for (size_t i = 0; i < packed->count; i += 3) {
		size_t left = MIN(packed->count - i, 3);
		uint32_t group = (uint32_t)bytes[i] << 16;
		if (left > 1)
			group |= (uint32_t)bytes[i + 1] << 8;
		if (left > 2)
			group |= bytes[i + 2];
		for (uint32_t d = 0; d < 4; d++)
			write_u8(&text,
				 (uint8_t)(d > left ? '=' : digits[group >> (18 - 6 * d) & 63]));
	}
	write_u8(&text, 0);
	bool failed = packed->failed || text.failed;
	if (!failed)
		json_put_text(json, key, (const char *)text.bytes);
	writer_release(&text);
	return failed ? -ENOMEM : 0;
}

static void put_side(struct json_writer *json, const char *key, const struct manifest *manifest)
{
	if (manifest == NULL)
		return;
	json_begin_object(json, key);
	json_put_text(json, "framework", manifest_framework(manifest));
	json_put_text(json, "model", manifest_model(manifest));
	json_put_u64(json, "ranks", manifest_world(manifest));
	json_end_object(json);
}

static void put_findings(struct json_writer *json, const struct findings *findings)
{
	json_begin_object(json, "findings");
	json_put_u64(json, "count", findings->count);
	json_begin_array(json, "list");
	for (const struct finding *at = findings->first; at != NULL; at = at->next) {
		json_begin_array(json, NULL);
		json_put_text(json, NULL, at->kind);
		json_put_text(json, NULL, at->where);
		json_put_text(json, NULL, at->text);
		json_put_u64(json, NULL, at->alike);
		json_end_array(json);
	}
	json_end_array(json);
	json_end_object(json);
}

static bool place_same(const struct place *a, const struct place *b)
{
	return a->nic_count == b->nic_count && a->mbps == b->mbps && strcmp(a->host, b->host) == 0;
}

/* [host, NICs, Mb/s, how many members in a row] */
static void put_places(struct json_writer *json, const struct plan *all)
{
	const struct place *places = all->input.places;

	json_begin_array(json, "places");
	for (uint32_t i = 0, run; places != NULL && i < all->member_count; i += run) {
		run = 1;
		while (i + run < all->member_count && place_same(&places[i], &places[i + run]))
			run++;
		json_begin_array(json, NULL);
		json_put_text(json, NULL, places[i].host);
		json_put_u64(json, NULL, places[i].nic_count);
		json_put_u64(json, NULL, places[i].mbps);
		json_put_u64(json, NULL, run);
		json_end_array(json);
	}
	json_end_array(json);
}

static void put_members(struct json_writer *json, const char *key, const uint64_t *bytes,
			uint32_t count)
{
	json_begin_array(json, key);
	for (uint32_t i = 0; i < count; i++)
		json_put_u64(json, NULL, bytes[i]);
	json_end_array(json);
}

/* What goes through each member's NICs, gaps on the wire included, maxima not: pairs inside a host
 * don't. */
static int put_nics(struct json_writer *json, const struct plan *all)
{
	const struct place *places = all->input.places;
	uint64_t *sent = mem_alloc(all->member_count * sizeof(*sent));
	uint64_t *received = mem_alloc(all->member_count * sizeof(*received));
	int rc = sent == NULL || received == NULL ? -ENOMEM : 0;

	for (uint32_t i = 0; rc == 0 && i < plan_send_pair_count(all); i++) {
		const struct plan_pair *pair = plan_send_pair(all, i);
		if (pair_tells(all, pair))
			continue;
		if (places != NULL &&
		    strcmp(places[pair->sender].host, places[pair->receiver].host) == 0)
			continue;
		sent[pair->sender] += pair->bytes;
		received[pair->receiver] += pair->bytes;
	}
	if (rc == 0) {
		put_members(json, "nic_sent", sent, all->member_count);
		put_members(json, "nic_received", received, all->member_count);
	}
	mem_free(sent);
	mem_free(received);
	return rc;
}

static void put_buckets(struct json_writer *json, const struct plan *all)
{
	json_begin_array(json, "buckets");
	for (uint32_t b = 0; b < plan_bucket_count(all); b++) {
		json_begin_array(json, NULL);
		json_put_text(json, NULL, plan_bucket_name(all, b));
		json_put_u64(json, NULL, all->buckets[b].bytes);
		json_put_u64(json, NULL, all->buckets[b].unit_count);
		json_end_array(json);
	}
	json_end_array(json);
}

static int put_plan(const struct page *page, struct json_writer *json)
{
	const struct plan *all = page->all;

	json_begin_array(json, "replicas");
	for (uint32_t i = 0; i < all->input.replica_count; i++)
		json_put_u64(json, NULL, all->input.replicas[i]);
	json_end_array(json);
	put_places(json, all);
	put_members(json, "sent", all->sent, all->member_count);
	put_members(json, "received", all->received, all->member_count);
	put_buckets(json, all);
	plan_report_json(all, page->plan_seconds, "plan", json);
	int rc = put_nics(json, all);
	if (rc == 0)
		rc = page_matrix(all, json);
	if (rc == 0 && page->simulation != NULL)
		rc = page_timeline(page->simulation, json);
	return rc;
}

int page_data(const struct page *page, struct json_writer *json)
{
	int rc = 0;

	json_begin_object(json, NULL);
	json_put_text(json, "version", WS_VERSION);
	put_side(json, "trainer", page->trainer);
	put_side(json, "rollout", page->rollout);
	put_findings(json, page->findings);
	if (page->reason != NULL)
		json_put_text(json, "reason", page->reason);
	if (page->all != NULL)
		rc = put_plan(page, json);
	json_end_object(json);
	return rc != 0 || json->out->failed ? -ENOMEM : 0;
}
