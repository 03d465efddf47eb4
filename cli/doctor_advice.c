/* SPDX-License-Identifier: Apache-2.0 */
/* The list of what was found: built up, merged from other ranks, printed. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "cli/doctor.h"

#define TEXT_BYTES_MAX	 1024
#define ADVICE_COUNT_MAX 4096
#define LABEL_COLUMN	 20 /* "problem  memlock    " */

static const char *const health_names[HEALTH_COUNT] = {
	[HEALTH_OK] = "ok",
	[HEALTH_NOTE] = "note",
	[HEALTH_WARNING] = "warning",
	[HEALTH_PROBLEM] = "problem",
};

/* Behind the last of its area, or at the end. */
static void advice_insert(struct doctor *doctor, struct advice *advice)
{
	struct advice *after = doctor->last;
	for (struct advice *it = doctor->first; it != NULL; it = it->next)
		if (strcmp(it->area, advice->area) == 0)
			after = it;
	struct advice **link = after != NULL ? &after->next : &doctor->first;
	advice->next = *link;
	*link = advice;
	if (advice->next == NULL)
		doctor->last = advice;
}

static void advice_add(struct doctor *doctor, const struct advice *wanted)
{
	struct arena *arena = &doctor->arena;
	struct advice *advice = arena_alloc(arena, sizeof(*advice));

	if (advice == NULL) {
		doctor->out_of_memory = true;
		return;
	}
	*advice = (struct advice){
		.health = wanted->health,
		.area = arena_copy(arena, wanted->area, strlen(wanted->area)),
		.what = arena_copy(arena, wanted->what, strlen(wanted->what)),
		.why = arena_copy(arena, wanted->why, strlen(wanted->why)),
		.fix = arena_copy(arena, wanted->fix, strlen(wanted->fix)),
		.ranks = wanted->ranks,
	};
	if (advice->area == NULL || advice->what == NULL || advice->why == NULL ||
	    advice->fix == NULL) {
		doctor->out_of_memory = true;
		return;
	}
	advice_insert(doctor, advice);
}

void doctor_say(struct doctor *doctor, enum health health, const char *area, const char *why,
		const char *fix, const char *format, ...)
{
	char what[TEXT_BYTES_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	advice_add(doctor, &(struct advice){.health = health,
					    .area = area,
					    .what = what,
					    .why = why,
					    .fix = fix,
					    .ranks = doctor->ranks});
}

uint32_t doctor_count(const struct doctor *doctor, enum health health)
{
	uint32_t count = 0;
	for (const struct advice *it = doctor->first; it != NULL; it = it->next)
		count += it->health == health;
	return count;
}

/* ------------------------------------------------------------------ between ranks */

void doctor_encode(const struct doctor *doctor, struct writer *out)
{
	uint32_t count = 0;
	for (const struct advice *it = doctor->first; it != NULL; it = it->next)
		count++;
	write_u32(out, count);
	for (const struct advice *it = doctor->first; it != NULL; it = it->next) {
		write_u8(out, (uint8_t)it->health);
		write_u64(out, it->ranks);
		write_text(out, it->area);
		write_text(out, it->what);
		write_text(out, it->why);
		write_text(out, it->fix);
	}
}

static struct advice *find_alike(struct doctor *doctor, const struct advice *wanted)
{
	for (struct advice *it = doctor->first; it != NULL; it = it->next)
		if (it->health == wanted->health && strcmp(it->area, wanted->area) == 0 &&
		    strcmp(it->what, wanted->what) == 0)
			return it;
	return NULL;
}

int doctor_merge(struct doctor *doctor, struct reader *in, struct ws_error *err)
{
	uint32_t count = read_count(in, 1 + 8 + 4 * 4, ADVICE_COUNT_MAX);

	for (uint32_t i = 0; i < count && !in->failed; i++) {
		char area[32], what[TEXT_BYTES_MAX], why[TEXT_BYTES_MAX], fix[TEXT_BYTES_MAX];
		uint8_t health = read_u8(in);
		struct advice advice = {
			.area = area, .what = what, .why = why, .fix = fix, .ranks = read_u64(in)};
		read_text(in, area, sizeof(area));
		read_text(in, what, sizeof(what));
		read_text(in, why, sizeof(why));
		read_text(in, fix, sizeof(fix));
		in->failed |= health >= HEALTH_COUNT;
		if (in->failed)
			break;
		advice.health = (enum health)health;
		struct advice *alike = find_alike(doctor, &advice);
		if (alike != NULL)
			alike->ranks |= advice.ranks;
		else
			advice_add(doctor, &advice);
	}
	if (in->failed)
		return ws_fail(err, -EPROTO, "a rank sent findings that aren't any");
	return 0;
}

/* ---------------------------------------------------------------------- printing */

const char *format_ranks(uint64_t ranks, char *out, size_t room)
{
	size_t used = 0;

	out[0] = '\0';
	for (uint32_t i = 0; i < 64 && used + 8 < room;) {
		uint32_t end = i;
		while (end < 64 && (ranks >> end & 1) != 0)
			end++;
		if (end > i) {
			int length =
				snprintf(out + used, room - used, end == i + 1 ? "%s%u" : "%s%u-%u",
					 used > 0 ? "," : "", i, end - 1);
			used += length > 0 ? (size_t)length : 0;
		}
		i = MAX(end, i + 1);
	}
	return out;
}

static void put_part(struct writer *out, const char *label, const char *text, uint32_t columns)
{
	if (text[0] == '\0')
		return;
	write_format(out, "%*s%s ", LABEL_COLUMN, "", label);
	put_folded(out, text, LABEL_COLUMN + 5, columns);
}

static void put_advice(struct writer *out, const struct advice *advice, uint64_t everybody,
		       uint32_t columns)
{
	char what[TEXT_BYTES_MAX + 64], ranks[64];

	snprintf(what, sizeof(what), "%s%s%s%s", advice->what,
		 advice->ranks == everybody ? "" : " (rank ",
		 advice->ranks == everybody ? ""
					    : format_ranks(advice->ranks, ranks, sizeof(ranks)),
		 advice->ranks == everybody ? "" : ")");
	write_format(out, "%-8s %-10s ", health_names[advice->health], advice->area);
	put_folded(out, what, LABEL_COLUMN, columns);
	put_part(out, "why:", advice->why, columns);
	put_part(out, "fix:", advice->fix, columns);
}

void doctor_put_table(const struct doctor *doctor, uint32_t world, uint32_t columns,
		      struct writer *out)
{
	uint64_t everybody = world >= 64 ? UINT64_MAX : (UINT64_C(1) << world) - 1;

	for (int health = HEALTH_PROBLEM; health >= HEALTH_OK; health--) {
		for (const struct advice *it = doctor->first; it != NULL; it = it->next)
			if ((int)it->health == health)
				put_advice(out, it, everybody, columns);
	}
}

void doctor_put_json(const struct doctor *doctor, struct writer *out)
{
	for (const struct advice *it = doctor->first; it != NULL; it = it->next) {
		struct json_writer json = {.out = out};
		char ranks[64];
		json_begin_object(&json, NULL);
		json_put_text(&json, "kind", "finding");
		json_put_text(&json, "level", health_names[it->health]);
		json_put_text(&json, "area", it->area);
		json_put_text(&json, "what", it->what);
		json_put_text(&json, "why", it->why);
		json_put_text(&json, "fix", it->fix);
		json_put_text(&json, "ranks", format_ranks(it->ranks, ranks, sizeof(ranks)));
		json_end_object(&json);
		write_format(out, "\n");
	}
}
