/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare libfabric writes: fi_writemsg in a loop, one endpoint, one queue, a window of ops, and no
 * product code but errors and the clock.  A queue that stays empty is slept on: where cores are
 * scarce that is several times as fast as polling without a pause, and a baseline is to be the
 * best that a program which does only this can be.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bench/contest.h"
#include "lib/transport/libfabric.h"

#define READ_MAX       64
#define SPIN_POLLS     64 /* empty polls in a row before it sleeps on the queue */
#define SLEEP_MS       100
#define DEPTH_MAX      4096
#define NAME_BYTES_MAX 96

/* What the other end must know. */
struct bare_address {
	uint64_t name_bytes, key, base;
	uint8_t name[NAME_BYTES_MAX];
};

struct bare {
	const struct end *end;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	struct fi_context2 *contexts; /* owned; one per op in flight */
	void **free;		      /* owned; those that are */
	uint32_t free_count;
	struct bare_address peers[WORKERS_MAX];
	fi_addr_t to[WORKERS_MAX];
	uint64_t flags;
	bool waits;	     /* the queue can be slept on */
	double *samples;     /* owned; latency */
	uint64_t sent, come; /* in this turn */
	uint32_t empty;	     /* polls in a row */
	uint64_t deadline;
};

static int say(struct ws_error *err, int rc, const char *step)
{
	return ws_fail(err, -EIO, "bare libfabric can't %s: %s", step, libfabric_error(rc));
}

static void bare_close(void *state)
{
	struct bare *bare = state;
	if (bare == NULL)
		return;
	struct fid *fids[] = {bare->ep != NULL ? &bare->ep->fid : NULL,
			      bare->mr != NULL ? &bare->mr->fid : NULL,
			      bare->cq != NULL ? &bare->cq->fid : NULL,
			      bare->av != NULL ? &bare->av->fid : NULL,
			      bare->domain != NULL ? &bare->domain->fid : NULL,
			      bare->fabric != NULL ? &bare->fabric->fid : NULL};
	for (size_t i = 0; i < ARRAY_SIZE(fids); i++)
		if (fids[i] != NULL)
			fi_close(fids[i]);
	if (bare->info != NULL)
		libfabric.freeinfo(bare->info);
	mem_free(bare->contexts);
	mem_free(bare->free);
	mem_free(bare->samples);
	mem_free(bare);
}

/* ------------------------------------------------------------------------------- open */

/* The same hints as lib/transport gives. */
static int info_find(struct bare *bare, const char *provider, const char *source)
{
	struct fi_info *hints = libfabric.dupinfo(NULL);
	if (hints == NULL)
		return -FI_ENOMEM;
	hints->caps = FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->rx_attr->size = 8;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->fabric_attr->prov_name = strdup(provider);
	int rc = libfabric.getinfo(FI_VERSION(1, 17), source, NULL, source != NULL ? FI_SOURCE : 0,
				   hints, &bare->info);
	libfabric.freeinfo(hints);
	return rc;
}

static int endpoint_open(struct bare *bare)
{
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD, .size = 4096};
	int rc = libfabric.fabric(bare->info->fabric_attr, &bare->fabric, NULL);
	if (rc == 0)
		rc = fi_domain(bare->fabric, bare->info, &bare->domain, NULL);
	if (rc == 0)
		rc = fi_av_open(bare->domain, &av, &bare->av, NULL);
	if (rc == 0 && fi_cq_open(bare->domain, &cq, &bare->cq, NULL) == 0) {
		bare->waits = true;
	} else if (rc == 0) {
		cq.wait_obj = FI_WAIT_NONE;
		rc = fi_cq_open(bare->domain, &cq, &bare->cq, NULL);
	}
	if (rc == 0)
		rc = fi_endpoint(bare->domain, bare->info, &bare->ep, NULL);
	if (rc == 0)
		rc = fi_ep_bind(bare->ep, &bare->cq->fid, FI_TRANSMIT | FI_RECV);
	if (rc == 0)
		rc = fi_ep_bind(bare->ep, &bare->av->fid, 0);
	if (rc == 0)
		rc = fi_enable(bare->ep);
	if (rc == 0)
		rc = fi_mr_reg(bare->domain, bare->end->memory.base, bare->end->memory.bytes,
			       FI_WRITE | FI_REMOTE_WRITE, 0, 4711, 0, &bare->mr, NULL);
	return rc;
}

static int bare_open_over(void **state_out, const struct end *end, const char *provider,
			  const char *source, struct ws_error *err)
{
	uint32_t depth = end->contest->depth;
	struct bare *bare = mem_alloc(sizeof(*bare));
	*state_out = bare;
	if (bare == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the baseline");
	if (depth > DEPTH_MAX)
		return ws_fail(err, -EINVAL,
			       "fi_writemsg is measured with a depth of at most %d, not %u",
			       DEPTH_MAX, depth);
	bare->end = end;
	bare->contexts = mem_alloc(depth * sizeof(*bare->contexts));
	bare->free = mem_alloc(depth * sizeof(*bare->free));
	bare->samples = mem_alloc(end->contest->op_count * sizeof(*bare->samples));
	if (bare->contexts == NULL || bare->free == NULL || bare->samples == NULL)
		return ws_fail(err, -ENOMEM, "no memory for %u writes in flight", depth);
	/* As lib/transport/fabric_modes.c: without it tcp's completions say nothing of delivery. */
	bool delivery = strncmp(provider, "tcp", 3) == 0 || strncmp(provider, "net", 3) == 0 ||
			strncmp(provider, "sockets", 7) == 0;
	bare->flags = FI_REMOTE_CQ_DATA | FI_COMPLETION | (delivery ? FI_DELIVERY_COMPLETE : 0);
	int rc = libfabric_load(err);
	if (rc != 0)
		return rc;
	rc = info_find(bare, provider, source);
	if (rc == 0)
		rc = endpoint_open(bare);
	return rc == 0 ? 0 : say(err, rc, "open an endpoint");
}

/* Over the first NIC only; beside ipc, which names none of libfabric's, over shm. */
static int bare_open(void **state_out, const struct end *end, struct ws_error *err)
{
	const char *device = end->nics->names[0], *slash = strchr(device, '/');
	char provider[64];
	*state_out = NULL;
	if (strcmp(end->nics->transport, "ipc") == 0)
		return bare_open_over(state_out, end, "shm", NULL, err);
	if (slash == NULL)
		return ws_fail(err, -EINVAL, "'%s' isn't a device of libfabric", device);
	snprintf(provider, sizeof(provider), "%.*s", (int)(slash - device), device);
	return bare_open_over(state_out, end, provider, slash + 1, err);
}

static int bare_address(void *state, uint32_t peer, struct writer *out, struct ws_error *err)
{
	struct bare *bare = state;
	struct bare_address mine = {.key = fi_mr_key(bare->mr)};
	size_t name_bytes = sizeof(mine.name);
	(void)peer;
	int rc = fi_getname(&bare->ep->fid, mine.name, &name_bytes);
	mine.name_bytes = name_bytes;
	if ((bare->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0)
		mine.base = (uint64_t)(uintptr_t)bare->end->memory.base;
	write_bytes(out, &mine, sizeof(mine));
	return rc == 0 ? 0 : say(err, rc, "tell its address");
}

static int bare_connect(void *state, uint32_t peer, const void *bytes, size_t count,
			struct ws_error *err)
{
	struct bare *bare = state;
	if (count != sizeof(bare->peers[peer]))
		return ws_fail(err, -EPROTO, "the baseline's address has %zu bytes", count);
	memcpy(&bare->peers[peer], bytes, count);
	if (fi_av_insert(bare->av, bare->peers[peer].name, 1, &bare->to[peer], 0, NULL) != 1)
		return say(err, -FI_EINVAL, "take the other end's address");
	return 0;
}

/* ------------------------------------------------------------------------------ turns */

static int bare_arm(void *state, struct ws_error *err)
{
	struct bare *bare = state;
	(void)err;
	bare->free_count = bare->end->contest->depth;
	for (uint32_t i = 0; i < bare->free_count; i++)
		bare->free[i] = &bare->contexts[i];
	bare->sent = bare->come = 0;
	return 0;
}

/* Takes what the queue has; sleeps only where may_sleep, when there is nothing to post.  Out of
 * time it fails. */
static int bare_poll(struct bare *bare, bool may_sleep, struct ws_error *err)
{
	struct fi_cq_data_entry entries[READ_MAX];
	ssize_t got = fi_cq_read(bare->cq, entries, READ_MAX);
	if (got == -FI_EAGAIN && ++bare->empty > SPIN_POLLS) {
		if (clock_ns() > bare->deadline)
			return ws_fail(err, -ETIMEDOUT, "the baseline wasn't done after %d s",
				       RUN_MS_MAX / 1000);
		if (may_sleep && bare->waits)
			got = fi_cq_sread(bare->cq, entries, READ_MAX, NULL, SLEEP_MS);
		else
			sched_yield();
	}
	if (got == -FI_EAGAIN)
		return 0;
	bare->empty = 0;
	if (got < 0)
		return say(err, (int)got, "read completions");
	for (ssize_t i = 0; i < got; i++)
		if ((entries[i].flags & FI_REMOTE_CQ_DATA) != 0) {
			bare->come++;
		} else {
			bare->free[bare->free_count++] = entries[i].op_context;
			bare->sent++;
		}
	return 0;
}

/* fi_writemsg's answer. */
static ssize_t write_issue(struct bare *bare, uint32_t peer, uint64_t local, uint64_t remote,
			   uint32_t imm)
{
	uint64_t bytes = bare->end->contest->op_bytes;
	struct iovec from = {.iov_base = (uint8_t *)bare->end->memory.base + local,
			     .iov_len = bytes};
	struct fi_rma_iov to = {.addr = bare->peers[peer].base + remote,
				.len = bytes,
				.key = bare->peers[peer].key};
	void *desc = fi_mr_desc(bare->mr);
	struct fi_msg_rma message = {.msg_iov = &from,
				     .desc = &desc,
				     .iov_count = 1,
				     .addr = bare->to[peer],
				     .rma_iov = &to,
				     .rma_iov_count = 1,
				     .context = bare->free[bare->free_count - 1],
				     .data = imm};
	ssize_t rc = fi_writemsg(bare->ep, &message, bare->flags);
	bare->free_count -= rc == 0;
	return rc;
}

static int bare_write(struct bare *bare, struct ws_error *err)
{
	const struct contest *contest = bare->end->contest;
	uint64_t count = (uint64_t)contest->op_count * contest->receivers, posted = 0;
	while (bare->sent < count) {
		ssize_t rc = 0;
		while (posted < count && bare->free_count > 0 && rc == 0) {
			uint64_t i = posted / contest->receivers;
			rc = write_issue(bare, (uint32_t)(posted % contest->receivers),
					 contest_local(contest, i),
					 contest_remote(contest, bare->end->index, i), (uint32_t)i);
			posted += rc == 0;
		}
		if (rc != 0 && rc != -FI_EAGAIN)
			return say(err, (int)rc, "write");
		int poll = bare_poll(bare, true, err);
		if (poll != 0)
			return poll;
	}
	return 0;
}

static int bare_receive(struct bare *bare, uint64_t count, struct ws_error *err)
{
	int rc = 0;
	while (rc == 0 && bare->come < count)
		rc = bare_poll(bare, true, err);
	return rc;
}

/* One write there, one back. */
static int bare_latency(struct bare *bare, struct outcome *outcome, struct ws_error *err)
{
	const struct contest *contest = bare->end->contest;
	bool first = !bare->end->receives;
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < contest->op_count; i++) {
		uint64_t begin = clock_ns();
		if (!first)
			rc = bare_receive(bare, i + 1, err);
		ssize_t wrote = -FI_EAGAIN;
		while (rc == 0 && wrote == -FI_EAGAIN) {
			if (bare->free_count > 0)
				wrote = write_issue(bare, 0, 0, contest->op_bytes, i);
			if (wrote == -FI_EAGAIN)
				rc = bare_poll(bare, false, err);
			else if (wrote != 0)
				rc = say(err, (int)wrote, "write");
		}
		if (rc == 0 && first)
			rc = bare_receive(bare, i + 1, err);
		bare->samples[i] = (double)(clock_ns() - begin) / 2e3;
	}
	while (rc == 0 && bare->sent < contest->op_count)
		rc = bare_poll(bare, true, err);
	if (rc == 0 && first)
		outcome_latency(outcome, bare->samples, contest->op_count);
	return rc;
}

static int bare_run(void *state, struct outcome *outcome, struct ws_error *err)
{
	struct bare *bare = state;
	const struct contest *contest = bare->end->contest;
	bare->deadline = deadline_in_ms(RUN_MS_MAX);
	if (contest->latency)
		return bare_latency(bare, outcome, err);
	return bare->end->receives
		       ? bare_receive(bare, (uint64_t)contest->op_count * contest->senders, err)
		       : bare_write(bare, err);
}

const struct contender contender_fabric = {
	.open = bare_open,
	.close = bare_close,
	.address = bare_address,
	.connect = bare_connect,
	.arm = bare_arm,
	.run = bare_run,
};
