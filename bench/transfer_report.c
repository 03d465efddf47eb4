/* SPDX-License-Identifier: Apache-2.0 */
/* What a contest came to: a line of a table per baseline, or one JSON object. */
#include <stdio.h>
#include <string.h>

#include "bench/transfer.h"

#define LINE "%-17s %-21s %-15s %-21s %s\n" /* 100 columns in all */

/* Above 1 the product is better: more bytes a second, or less time. */
static struct spread ratio_of(const struct score *score, uint32_t baseline)
{
	double ratios[BENCH_ROUNDS_MAX];
	const struct rounds *mine = &score->rounds[0], *other = &score->rounds[baseline];
	for (uint32_t i = 0; i < score->round_count; i++)
		ratios[i] = score->contest->latency ? other->p50_us[i] / mine->p50_us[i]
						    : mine->gbytes[i] / other->gbytes[i];
	return spread_of(ratios, score->round_count);
}

static double mops(const struct contest *contest, double gbytes)
{
	return gbytes * 1e3 / (double)contest->op_bytes;
}

/* "4 KiB", "1 MiB" */
static const char *size_text(uint64_t bytes, char *out, size_t room)
{
	if (bytes % (1u << 20) == 0)
		snprintf(out, room, "%llu MiB", (unsigned long long)(bytes >> 20));
	else if (bytes % 1024 == 0)
		snprintf(out, room, "%llu KiB", (unsigned long long)(bytes >> 10));
	else
		snprintf(out, room, "%llu B", (unsigned long long)bytes);
	return out;
}

/* ------------------------------------------------------------------------------- table */

void transfer_head(const struct bench_options *options, const struct bench_nics *nics,
		   struct writer *out)
{
	write_format(out, "%s over", nics->transport);
	for (uint32_t i = 0; i < nics->count; i++)
		write_format(out, "%s %s", i > 0 ? "," : "", nics->names[i]);
	write_format(out, ", memory %s; medians of %u turns (least to most)\n", options->memory,
		     options->rounds);
	write_format(out, LINE, "", "weightsync", "against", "", "ratio");
}

static void latency_text(double p50_us, double p99_us, char *out, size_t room)
{
	snprintf(out, room, "p50 %.*f p99 %.*f us", p50_us < 100, p50_us, p99_us < 100, p99_us);
}

static void value_text(const struct contest *contest, const struct rounds *given, uint32_t count,
		       char *out, size_t room)
{
	struct rounds rounds = *given; /* sorted here, still paired there */
	struct spread rate = spread_of(rounds.gbytes, count);
	if (contest->latency)
		latency_text(spread_of(rounds.p50_us, count).median,
			     spread_of(rounds.p99_us, count).median, out, room);
	else if (contest->op_bytes <= 64u << 10)
		snprintf(out, room, "%.3f Mop/s %.2f GB/s", mops(contest, rate.median),
			 rate.median);
	else
		snprintf(out, room, "%.*f GB/s", rate.median < 1 ? 4 : 2, rate.median);
}

static void row_write(const struct score *score, struct writer *out)
{
	const struct contest *contest = score->contest;
	char row[64], size[24], mine[64], other[64], ratios[64];
	snprintf(row, sizeof(row), "%s %ux%u %s", contest->what, contest->senders,
		 contest->receivers, size_text(contest->op_bytes, size, sizeof(size)));
	value_text(contest, &score->rounds[0], score->round_count, mine, sizeof(mine));
	if (contest->contender_count == 1)
		write_format(out, LINE, row, mine, "nothing", "", "");
	for (uint32_t i = 1; i < contest->contender_count; i++) {
		struct spread ratio = ratio_of(score, i);
		value_text(contest, &score->rounds[i], score->round_count, other, sizeof(other));
		snprintf(ratios, sizeof(ratios), "%.3f (%.3f to %.3f)", ratio.median, ratio.min,
			 ratio.max);
		write_format(out, LINE, i == 1 ? row : "", i == 1 ? mine : "",
			     contest->contenders[i], other, ratios);
	}
}

static double share_of(const struct score *score, uint32_t nic_count, uint32_t nic)
{
	uint64_t all = 0;
	for (uint32_t i = 0; i < nic_count; i++)
		all += score->nic_bytes[i];
	return all == 0 ? 0 : (double)score->nic_bytes[nic] / (double)all;
}

static void shares_write(const struct score *score, const struct bench_nics *nics,
			 struct writer *out)
{
	write_format(out, "%-17s shares:", "");
	for (uint32_t i = 0; i < nics->count; i++)
		write_format(out, "%s %s %.1f %%", i > 0 ? "," : "", nics->names[i],
			     100 * share_of(score, nics->count, i));
	write_format(out, "\n");
}

/* -------------------------------------------------------------------------------- JSON */

static void spread_put(struct json_writer *json, const char *name, struct spread spread,
		       int decimals)
{
	char key[64];
	json_put_number(json, name, spread.median, decimals);
	snprintf(key, sizeof(key), "%s_min", name);
	json_put_number(json, key, spread.min, decimals);
	snprintf(key, sizeof(key), "%s_max", name);
	json_put_number(json, key, spread.max, decimals);
}

static void rounds_put(struct json_writer *json, const struct score *score, uint32_t contender)
{
	struct rounds rounds = score->rounds[contender];
	struct spread rate = spread_of(rounds.gbytes, score->round_count);
	if (score->contest->latency) {
		spread_put(json, "p50_us", spread_of(rounds.p50_us, score->round_count), 3);
		spread_put(json, "p99_us", spread_of(rounds.p99_us, score->round_count), 3);
	} else {
		spread_put(json, "gbytes_per_s", rate, 4);
		json_put_number(json, "mops_per_s", mops(score->contest, rate.median), 5);
	}
}

static void json_write(const struct score *score, const struct bench_nics *nics, struct writer *out)
{
	const struct contest *contest = score->contest;
	struct json_writer json = {.out = out};
	json_begin_object(&json, NULL);
	json_put_text(&json, "bench", "transfer");
	json_put_text(&json, "what", contest->what);
	json_put_text(&json, "transport", nics->transport);
	json_put_u64(&json, "senders", contest->senders);
	json_put_u64(&json, "receivers", contest->receivers);
	json_put_u64(&json, "op_bytes", contest->op_bytes);
	json_put_u64(&json, "depth", contest->latency ? 1 : contest->depth);
	json_put_u64(&json, "total_bytes", contest_bytes(contest));
	json_put_u64(&json, "rounds", score->round_count);
	json_put_text(&json, "memory", bench_memory_name(contest->memory));
	json_put_u64(&json, "page_bytes", score->page_bytes);
	rounds_put(&json, score, 0);
	json_begin_array(&json, "nics");
	for (uint32_t i = 0; i < nics->count; i++) {
		json_begin_object(&json, NULL);
		json_put_text(&json, "name", nics->names[i]);
		json_put_number(&json, "share", share_of(score, nics->count, i), 4);
		json_end_object(&json);
	}
	json_end_array(&json);
	json_begin_array(&json, "baselines");
	for (uint32_t i = 1; i < contest->contender_count; i++) {
		json_begin_object(&json, NULL);
		json_put_text(&json, "name", contest->contenders[i]);
		rounds_put(&json, score, i);
		spread_put(&json, "ratio", ratio_of(score, i), 6);
		json_end_object(&json);
	}
	json_end_array(&json);
	json_end_object(&json);
	write_format(out, "\n");
}

void transfer_report(const struct bench_options *options, const struct bench_nics *nics,
		     struct score *score, struct writer *out)
{
	if (options->json) {
		json_write(score, nics, out);
		return;
	}
	row_write(score, out);
	if (nics->count > 1)
		shares_write(score, nics, out);
}
