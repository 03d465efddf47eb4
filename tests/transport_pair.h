/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two NICs of one process with a connection and a region each, and what every transport test
 * does with them: post while polling both, wait for events, close.
 */
#ifndef TRANSPORT_PAIR_H
#define TRANSPORT_PAIR_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/transport.h"
#include "tests/test.h"

#define EVENTS_MAX  64
#define DEADLINE_MS PATIENCE_MS
#define IDLE_POLLS  300 /* after which loop holds nothing back */

/* Two NICs with one connection, and a region on each. */
struct pair {
	struct nic *nics[2];
	struct peer *peers[2];
	struct ws_memory memory[2];
	struct mr mrs[2];
	uint64_t imms[2], sent[2], failed[2]; /* how many events each NIC gave */
	int last_status;
	const char *last_reason; /* with it */
	struct event last_imm;
	bool allocated; /* the memory is ws_memory_alloc's, not the heap's */
	void (*on_imm)(struct pair *pair, int at, const struct event *event);
	uint8_t *seen; /* on_imm's own */
};

static struct ws_error err;

static inline void memory_make(struct ws_memory *memory, size_t bytes, bool allocated)
{
	*memory = (struct ws_memory){.bytes = bytes};
	if (allocated)
		ck_ok(ws_memory_alloc(memory, bytes, &err), err);
	else
		memory->base = calloc(1, bytes);
	ck_assert_ptr_nonnull(memory->base);
}

static inline void memory_drop(struct ws_memory *memory, bool allocated)
{
	if (allocated)
		ws_memory_free(memory);
	else
		free(memory->base);
}

static inline void pair_connect(struct pair *pair)
{
	struct address addresses[2];

	for (int i = 0; i < 2; i++)
		ck_ok(pair->nics[i]->transport->peer_open(pair->nics[i], &pair->peers[i],
							  &addresses[i], &err),
		      err);
	for (int i = 0; i < 2; i++)
		ck_ok(pair->nics[i]->transport->peer_connect(pair->nics[i], pair->peers[i],
							     &addresses[1 - i], &err),
		      err);
}

static inline void pair_open_in(struct pair *pair, const char *transport,
				const char *const devices[2], size_t bytes, bool allocated)
{
	memset(pair, 0, sizeof(*pair));
	pair->allocated = allocated;
	for (int i = 0; i < 2; i++) {
		ck_ok(nic_open(&pair->nics[i], transport, devices[i], &err), err);
		memory_make(&pair->memory[i], bytes, allocated);
		ck_ok(pair->nics[i]->transport->reg(pair->nics[i], &pair->memory[i], MR_TARGET,
						    &pair->mrs[i], &err),
		      err);
	}
	pair_connect(pair);
}

static inline void pair_open(struct pair *pair, const char *transport, const char *const devices[2],
			     size_t bytes)
{
	pair_open_in(pair, transport, devices, bytes, false);
}

static inline void pair_close(struct pair *pair)
{
	for (int i = 0; i < 2; i++) {
		if (pair->mrs[i].memory.base != NULL)
			pair->nics[i]->transport->dereg(pair->nics[i], &pair->mrs[i]);
		nic_close(pair->nics[i]);
		memory_drop(&pair->memory[i], pair->allocated);
	}
	ck_assert_uint_eq(mem_live_count(), 0);
}

static inline int poll_one(struct pair *pair, int at)
{
	struct event events[EVENTS_MAX];
	int count = pair->nics[at]->transport->poll(pair->nics[at], events, EVENTS_MAX);

	ck_assert_int_ge(count, 0);
	for (int i = 0; i < count; i++) {
		switch (events[i].kind) {
		case EVENT_SENT:
			pair->sent[at]++;
			break;
		case EVENT_FAILED:
			ck_assert_int_lt(events[i].status, 0);
			pair->failed[at]++;
			pair->last_status = events[i].status;
			pair->last_reason = events[i].reason;
			break;
		case EVENT_IMM:
			pair->imms[at]++;
			pair->last_imm = events[i];
			if (pair->on_imm != NULL)
				pair->on_imm(pair, at, &events[i]);
			break;
		case EVENT_NIC:
			break;
		}
	}
	return count;
}

static inline int poll_both(struct pair *pair)
{
	return poll_one(pair, 0) + poll_one(pair, 1);
}

static inline struct op op_make(const struct pair *pair, int from, uint64_t offset, uint64_t bytes,
				uint32_t imm)
{
	return (struct op){
		.peer = pair->peers[from],
		.local = (const uint8_t *)pair->memory[from].base + offset,
		.local_mr = &pair->mrs[from],
		.remote = pair->mrs[1 - from].base + offset,
		.remote_key = pair->mrs[1 - from].key,
		.bytes = bytes,
		.id = imm,
		.imm = imm,
	};
}

/* Posts one op, polling while the NIC is full. */
static inline void post(struct pair *pair, int from, const struct op *op)
{
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	int taken = 0;

	while (taken == 0) {
		ck_assert_msg(clock_ns() < deadline, "nothing was taken for %d ms", DEADLINE_MS);
		taken = pair->nics[from]->transport->post(pair->nics[from], op, 1);
		ck_assert_int_ge(taken, 0);
		poll_both(pair);
	}
}

/* Polls until both NICs have given as many events as these. */
static inline void await(struct pair *pair, int at, uint64_t reports, uint64_t imms)
{
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);

	while (pair->sent[at] + pair->failed[at] < reports || pair->imms[1 - at] < imms) {
		ck_assert_msg(clock_ns() < deadline,
			      "%llu + %llu of %llu reports, %llu of %llu imms",
			      (unsigned long long)pair->sent[at],
			      (unsigned long long)pair->failed[at], (unsigned long long)reports,
			      (unsigned long long)pair->imms[1 - at], (unsigned long long)imms);
		poll_both(pair);
	}
}

/* A while, and polls enough, for what is still under way; often nothing may be. */
static inline void poll_idle(struct pair *pair, uint64_t ms)
{
	uint64_t deadline = deadline_in_ms(ms);

	for (int polls = 0; polls < IDLE_POLLS || clock_ns() < deadline; polls++)
		poll_both(pair);
}

static inline void fill(void *memory, size_t bytes, uint64_t seed)
{
	uint8_t *to = memory;

	for (size_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)(mix64(seed + (i >> 3)) >> (8 * (i & 7)));
}

static inline bool is_filled(const struct ws_memory *memory, uint8_t value)
{
	const uint8_t *bytes = memory->base;

	return bytes[0] == value && memcmp(bytes, bytes + 1, memory->bytes - 1) == 0;
}

static inline void close_peer(struct pair *pair, int at, bool quiet)
{
	uint64_t deadline = deadline_in_ms(DEADLINE_MS);
	int rc;

	while ((rc = pair->nics[at]->transport->peer_close(pair->nics[at], pair->peers[at], quiet,
							   false)) == -EAGAIN) {
		ck_assert_msg(clock_ns() < deadline, "peer_close doesn't end");
		poll_one(pair, at);
	}
	ck_assert_int_eq(rc, 0);
}

#endif
