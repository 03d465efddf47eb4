/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline of `bench transfer`: fi_writemsg in a loop and nothing else.  No product code runs
 * here but errors and the clock.  A queue that stays empty is slept on: where cores are scarce
 * that is several times as fast as polling without a pause, and the baseline is to be the best
 * that a program which does only this can be.
 */
#ifndef BARE_FABRIC_H
#define BARE_FABRIC_H

#include "lib/base/base.h"

#define BARE_NAME_BYTES 96

struct bare;

/* What the other end must know. */
struct bare_address {
	uint64_t name_bytes, key, base;
	uint8_t name[BARE_NAME_BYTES];
};

/* memory is what is written from, or into. */
int bare_open(struct bare **bare_out, const char *provider, const char *source, uint32_t depth,
	      void *memory, size_t bytes, struct bare_address *address_out, struct ws_error *err);
int bare_connect(struct bare *bare, const struct bare_address *peer, struct ws_error *err);
void bare_close(struct bare *bare);

/* Writes total bytes, around the memory, op by op, and returns when all are complete. */
int bare_write(struct bare *bare, uint64_t total, uint64_t op_bytes, struct ws_error *err);
/* Returns when count immediates have come. */
int bare_receive(struct bare *bare, uint64_t count, struct ws_error *err);

#endif
