/* SPDX-License-Identifier: Apache-2.0 */
/* Random quantized jobs; see the header. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/shards_world.h"
#include "tests/test.h"

static uint32_t below(struct shards_world *shards, uint32_t limit)
{
	shards->state = mix64(shards->state + 0x9e3779b97f4a7c15ull);
	return (uint32_t)(shards->state % limit);
}

/* How trainers may hold a tensor "w" (and "v"), over axes a and b. */
static const char *const held[] = {
	"[\"s\",[\"t\",\"%s\"],0,\"a\",{\"mode\":\"chunk\"}]", /* HSDP where b > 1 */
	"[\"s\",[\"t\",\"%s\"],1,\"b\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"s\",[\"t\",\"%s\"],0,\"b\",{\"mode\":\"chunk\"}],0,\"a\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"s\",[\"t\",\"%s\"],0,\"a\",{\"mode\":\"chunk\"}],1,\"b\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"fl\",[\"t\",\"%s\"]],0,\"a\",{\"mode\":\"chunk\"}]", /* ZeRO-3 */
	"[\"s\",[\"fl\",[\"t\",\"%s\"]],0,\"b\",{\"mode\":\"chunk\"}]",
	"[\"t\",\"%s\"]",
	"[\"s\",[\"x\",[\"t\",\"%s\"],[1,0]],0,\"a\",{\"mode\":\"chunk\"}]",
	"[\"s\",[\"il\",[\"t\",\"%s\"],0,1,2,$h],0,\"a\",{\"mode\":\"chunk\"}]",
};

static void put_held(struct shards_world *shards, struct writer *out, const char *name,
		     uint32_t rows)
{
	const char *form = held[below(shards, ARRAY_SIZE(held))];
	char text[256], number[16];

	snprintf(text, sizeof(text), "%s", form);
	for (const char *at = text; *at != '\0'; at++)
		if (at[0] == '%' && at[1] == 's') {
			write_format(out, "%s", name);
			at++;
		} else if (at[0] == '$' && at[1] == 'h') {
			snprintf(number, sizeof(number), "%" PRIu32, rows / 2);
			write_format(out, "%s", number);
			at++;
		} else {
			write_format(out, "%c", *at);
		}
}

static void put_scheme(struct shards_world *shards, struct writer *out)
{
	static const char *const kinds[] = {"block",   "block",	 "block",
					    "channel", "tensor", "tensor"};
	const char *kind = kinds[below(shards, ARRAY_SIZE(kinds))];

	write_format(out, "\"schemes\":{\"q\":{\"kind\":\"%s\",", kind);
	if (strcmp(kind, "block") == 0)
		write_format(out, "\"block\":[%" PRIu32 ",%" PRIu32 "],", shards->block[0],
			     shards->block[1]);
	write_format(
		out, "\"fmt\":\"e4m3\",\"scale\":\"%s\",\"eps\":0.0001,\"pow2\":%s,\"recip\":%s}},",
		below(shards, 3) == 0 ? "bf16" : "f32", below(shards, 2) == 0 ? "true" : "false",
		below(shards, 2) == 0 ? "true" : "false");
}

/* A cut of rows, one of columns, whole, or two in one param. */
static void put_wanted(struct shards_world *shards, struct writer *out, uint32_t shape)
{
	const char *rest = "\"dtype\":\"f8e4m3\",\"q\":\"q\"";

	if (shape == 0) {
		write_format(out, "{\"p\":\"wv\",%s,\"x\":[\"c\",0,[\"t\",\"w\"],[\"t\",\"v\"]]}",
			     rest);
		return;
	}
	for (int i = 0; i < 2; i++) {
		const char *name = i == 0 ? "w" : "v";
		uint32_t dim = below(shards, 2);
		write_format(out, "%s{\"p\":\"%s\",%s,\"x\":", i == 0 ? "" : ",", name, rest);
		if (shape == 1)
			write_format(out, "[\"t\",\"%s\"]}", name);
		else
			write_format(out,
				     "[\"s\",[\"t\",\"%s\"],%" PRIu32
				     ",\"n\",{\"mode\":\"chunk\",\"unit\":%" PRIu32 "}]}",
				     name, dim, shards->block[dim]);
	}
}

static void put_side(struct shards_world *shards, struct writer *out, enum side side,
		     const uint32_t rows[2], const uint32_t columns[2], uint32_t shape)
{
	bool trains = side == SIDE_TRAINER;
	const char *dtype = below(shards, 3) == 0 ? "f32" : "bf16";

	write_format(out,
		     "{\"ws_manifest\":1,\"side\":\"%s\",\"framework\":\"hand\",\"model\":\"hand\","
		     "\"world\":%" PRIu32 ",\"tensors\":[",
		     trains ? "trainer" : "rollout",
		     trains ? shards->a * shards->b : shards->ranks);
	for (int i = 0; i < 2; i++)
		write_format(out,
			     "%s{\"name\":\"%s\",\"dtype\":\"bf16\",\"shape\":[%" PRIu32 ",%" PRIu32
			     "]}",
			     i == 0 ? "" : ",", i == 0 ? "w" : "v", rows[i], columns[i]);
	if (!trains) {
		write_format(out, "],\"meshes\":{\"m\":{\"axes\":[[\"n\",%" PRIu32 "]]}},",
			     shards->ranks);
		put_scheme(shards, out);
		write_format(out, "\"params\":[");
		put_wanted(shards, out, shape);
		write_format(out, "]}");
		return;
	}
	write_format(out,
		     "],\"meshes\":{\"m\":{\"axes\":[[\"a\",%" PRIu32 "],[\"b\",%" PRIu32
		     "]]}},\"params\":[",
		     shards->a, shards->b);
	for (int i = 0; i < 2; i++) {
		const char *name = i == 0 ? "w" : "v";
		write_format(out, "%s{\"p\":\"%s\",\"dtype\":\"%s\",\"x\":", i == 0 ? "" : ",",
			     name, dtype);
		put_held(shards, out, name, rows[i]);
		write_format(out, "}");
	}
	write_format(out, "]}");
}

/* Small limits, so that every shape of copy occurs. */
static struct rules shards_rules(struct shards_world *shards)
{
	static const uint64_t sizes[] = {1, 64, 1024, 1u << 20};
	struct rules rules = RULES_DEFAULT;

	rules.op_bytes = 4096;
	rules.staging_bytes = 1u << 20;
	rules.recv_staging_bytes =
		(uint64_t)shards->a * shards->b * 2 * 4096 * (1 + below(shards, 2));
	rules.run_bytes_min = sizes[below(shards, 4)];
	rules.pack_bytes_max = sizes[below(shards, 4)];
	rules.bucket_bytes = below(shards, 2) == 0 ? 0 : 10000;
	rules.wire_digests = below(shards, 2) == 0;
	rules.fanout = (enum fanout)below(shards, 3);
	return rules;
}

void shards_open(struct shards_world *shards, uint32_t seed)
{
	struct findings findings = {.arena = &shards->arena};

	memset(shards, 0, sizeof(*shards));
	shards->state = seed;
	shards->a = 1 + below(shards, 5);
	shards->b = 1 + below(shards, 3);
	shards->ranks = 1 + below(shards, 2);
	shards->block[0] = 1u << (2 + below(shards, 3));
	shards->block[1] = 1u << (2 + below(shards, 4));
	uint32_t shape = below(shards, 3), rows[2], columns[2];
	for (int i = 0; i < 2; i++) {
		rows[i] = 2 * (1 + below(shards, 60));
		columns[i] = 1 + below(shards, 90);
	}
	if (below(shards, 3) == 0) {
		rows[1] = rows[0];
		columns[1] = columns[0];
	}
	/* What a part of another stands behind begins with a block. */
	if (shape == 0) {
		columns[1] = columns[0];
		rows[0] = shards->block[0] * (1 + below(shards, 5));
	}
	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(1u << 20);
		put_side(shards, &out, (enum side)side, rows, columns, shape);
		ck_assert(!out.failed);
		int rc = manifest_parse(&shards->manifests[side], out.bytes, out.count, &findings,
					&shards->err);
		ck_assert_msg(rc == 0, "%.*s: %s", (int)out.count, (char *)out.bytes,
			      findings.first != NULL ? findings.first->text : shards->err.text);
		writer_release(&out);
	}
	uint32_t replicas = 1 + below(shards, 3);
	for (uint32_t r = 0; r < replicas; r++)
		shards->replicas[r] = r;
	for (uint32_t m = 0; m < ARRAY_SIZE(shards->places); m++) {
		bool trains = m < shards->a * shards->b;
		shards->places[m].nic_count = 1;
		snprintf(shards->places[m].host, sizeof(shards->places[m].host), "%c%u",
			 trains ? 't' : 'r', trains ? m : (m - shards->a * shards->b) / 2);
	}
	shards->input = (struct plan_input){.trainer = shards->manifests[0],
					    .rollout = shards->manifests[1],
					    .replicas = shards->replicas,
					    .replica_count = replicas,
					    .places = shards->places,
					    .rules = shards_rules(shards)};
}

void shards_close(struct shards_world *shards)
{
	manifest_free(shards->manifests[0]);
	manifest_free(shards->manifests[1]);
	arena_release(&shards->arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
