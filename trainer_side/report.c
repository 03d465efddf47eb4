/* SPDX-License-Identifier: Apache-2.0 */
/* Where a push's time and bytes went, and which replicas serve what. */
#include <stdio.h>
#include <string.h>

#include "trainer_side/report.h"

static uint64_t between(uint64_t from_ns, uint64_t to_ns)
{
	return from_ns != 0 && to_ns > from_ns ? to_ns - from_ns : 0;
}

static void replica_report(struct ws_trainer *trainer, const struct replica_view *view,
			   struct ws_replica_report *out)
{
	const struct push *push = &trainer->push;

	out->text[0] = '\0';
	out->replica = view->replica;
	out->live_version = view->live_version;
	out->bytes = view->attempt == push->attempt ? view->bytes : 0;
	out->bytes_from_rollouts = view->attempt == push->attempt ? view->from_rollouts : 0;
	out->live = view->in && view->live_version == push->version;
	if (out->live)
		return;
	if (view->error.text[0] != 0)
		snprintf(out->text, sizeof(out->text), "%.255s", view->error.text);
	else
		snprintf(out->text, sizeof(out->text), "%s",
			 view->in ? "it hasn't reported this version live" : "it was dropped");
}

static void report_nics(struct ws_trainer *trainer, struct ws_report *report)
{
	if (trainer->engine == NULL || trainer->push.attempt == 0)
		return;
	report->nic_count = engine_nics(trainer->engine, report->nics);
	for (uint32_t i = 0; i < report->nic_count; i++)
		report->bytes += report->nics[i].bytes_sent;
}

/* At its begin and at its end: what has come back in between was missing all the same. */
void report_trouble(struct ws_trainer *trainer)
{
	struct ws_report *report = &trainer->push.report;
	const char *trouble = member_trouble(trainer->member);

	if (trouble[0] != '\0')
		snprintf(report->nic_trouble, sizeof(report->nic_trouble), "%s", trouble);
}

void report_replicas(struct ws_trainer *trainer)
{
	struct ws_report *report = &trainer->push.report;
	struct wire *wire = &trainer->wire;

	if (wire->views == NULL)
		return;
	uint32_t count = member_replicas(trainer->member, wire->views, wire->replica_count);
	/* A new roster has no word on its replicas yet: what was heard before it stays. */
	if (count == 0)
		return;
	report->replica_count = MIN(count, WS_REPORT_REPLICAS_MAX);
	for (uint32_t i = 0; i < report->replica_count; i++)
		replica_report(trainer, &wire->views[i], &report->replicas[i]);
}

void report_end(struct ws_trainer *trainer)
{
	struct push *push = &trainer->push;
	struct ws_report *report = &push->report;
	struct wire *wire = &trainer->wire;
	struct engine_progress progress = {0};
	uint64_t now = clock_ns();

	if (trainer->engine != NULL)
		engine_progress(trainer->engine, &progress);
	if (!push->over_heard)
		report_replicas(trainer);
	struct ws_report filled = {
		.version = push->version,
		.attempt = push->attempt,
		.staging_high_bytes = progress.staging_high_bytes,
		.total_ns = now - push->start_ns,
		.begin_ns = between(push->start_ns, push->ready_ns),
		.stage_ns = progress.gather_ns,
		.exchange_ns = progress.gated_ns,
		.quantize_ns = progress.quantize_ns,
		.h2d_bytes = progress.load_bytes,
		.h2d_ns = progress.load_ns,
		.offload_high_bytes = progress.ring_high_bytes,
		.write_ns = between(push->ready_ns, push->sent_ns),
		.landed_ns = between(push->start_ns, push->landed_ns),
		.pause_ns = between(push->landed_ns, push->paused_ns),
		.reload_ns = between(push->paused_ns, push->live ? now : 0),
	};
	filled.replica_count = report->replica_count;
	memcpy(filled.nic_trouble, report->nic_trouble, sizeof(filled.nic_trouble));
	memcpy(filled.replicas, report->replicas, sizeof(filled.replicas));
	*report = filled;
	report_nics(trainer, report);
	report_trouble(trainer);
	if (push->landed_ns != 0 && wire->replica_count > 0)
		snprintf(report->slowest_peer, sizeof(report->slowest_peer), "replica %u",
			 push->last_landed);
}
