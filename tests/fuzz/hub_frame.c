/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the bodies of all frames between hub and members, and pair frames.  The first byte
 * picks the decoder.  What is taken encodes to the same bytes again; what is refused comes with a
 * sentence.
 *
 *   clang -g -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. tests/fuzz/hub_frame.c
 *         lib/hub/hub_frames.c lib/hub/pair.c lib/base/bytes.c lib/base/error.c lib/base/mem.c
 *         lib/base/arena.c
 */
#include <assert.h>
#include <string.h>

#include "lib/hub/hub_frames.h"

#define VIEWS 8

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static int again(uint8_t which, const uint8_t *bytes, size_t count, struct writer *out,
		 struct arena *arena, struct ws_error *err)
{
	struct replica_view views[VIEWS];
	struct beat_down down = {.views = views, .view_room = VIEWS};
	struct beat_up up;
	struct join join;
	struct roster roster;
	struct passage passage;
	struct pair_frame pair;
	struct ws_error over;
	int rc = 0;

	switch (which % 7) {
	case 0:
		rc = join_decode(&join, bytes, count, err);
		if (rc == 0)
			join_encode(&join, out);
		break;
	case 1:
		rc = beat_up_decode(&up, bytes, count, err);
		if (rc == 0)
			beat_up_encode(&up, out);
		break;
	case 2:
		rc = beat_down_decode(&down, bytes, count, err);
		if (rc == 0)
			beat_down_encode(&down, out);
		break;
	case 3:
		rc = roster_decode(&roster, arena, bytes, count, err);
		if (rc == 0)
			roster_encode(&roster, out);
		break;
	case 4:
		rc = passage_decode(&passage, bytes, count, err);
		if (rc == 0)
			passage_encode(&passage, out);
		break;
	case 5:
		rc = over_decode(&over, bytes, count, err);
		if (rc == 0)
			over_encode(&over, out);
		break;
	case 6:
		rc = pair_decode(&pair, arena, bytes, count, err);
		if (rc == 0)
			assert(pair_encode(&pair, out) == 0);
		break;
	}
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	struct writer out = WRITER_INIT(64u << 20);
	struct arena arena = {0};
	struct ws_error err = {0};

	if (count == 0)
		return 0;
	if (again(bytes[0], bytes + 1, count - 1, &out, &arena, &err) != 0)
		assert(err.text[0] != '\0');
	else
		assert(!out.failed && out.count == count - 1 &&
		       memcmp(out.bytes, bytes + 1, count - 1) == 0);
	writer_release(&out);
	arena_release(&arena);
	return 0;
}
