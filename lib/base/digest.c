/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests: XXH3 with 64 bits from libxxhash, whole or in pieces (both give the same number),
 * and the kernel's random source.
 */
#include "lib/base/base.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* The state's size, so that it comes from our own door and not from libxxhash's malloc. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define STATE_ALIGN 64

/* The aligned state inside the owned memory; libxxhash requires 64 bytes. */
static XXH3_state_t *state_of(const struct digest *digest)
{
	return (XXH3_state_t *)align_up((uintptr_t)digest->state, STATE_ALIGN);
}

uint64_t digest_bytes(const void *bytes, size_t count, uint64_t seed)
{
	return XXH3_64bits_withSeed(count == 0 ? "" : bytes, count, seed);
}

int digest_open(struct digest *digest, uint64_t seed, struct ws_error *err)
{
	digest->state = mem_alloc(sizeof(XXH3_state_t) + STATE_ALIGN - 1);
	if (digest->state == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for a digest");
	XXH3_64bits_reset_withSeed(state_of(digest), seed);
	return 0;
}

void digest_add(struct digest *digest, const void *bytes, size_t count)
{
	if (count > 0)
		XXH3_64bits_update(state_of(digest), bytes, count);
}

uint64_t digest_end(struct digest *digest)
{
	return XXH3_64bits_digest(state_of(digest));
}

void digest_close(struct digest *digest)
{
	mem_free(digest->state);
	digest->state = NULL;
}

int random_bytes(void *bytes, size_t count, struct ws_error *err)
{
	uint8_t *at = bytes;
	while (count > 0) {
		ssize_t n = getrandom(at, count, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return ws_fail(err, -EIO, "the kernel gives no random bytes: %s",
				       strerror(errno));
		at += n;
		count -= (size_t)n;
	}
	return 0;
}
