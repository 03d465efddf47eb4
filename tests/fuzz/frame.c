/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the frame decoder.  What it takes must lie inside the input, be within the limits
 * and encode to the same header; what it refuses must come with a sentence.
 *
 *   clang -g -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. tests/fuzz/frame.c
 *         lib/link/frame.c lib/base/bytes.c lib/base/error.c lib/base/mem.c lib/base/arena.c
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "lib/link/link_frame.h"

#define RUN UINT64_C(0x0123456789abcdef)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	struct frame frame = {0};
	struct ws_error err = {0};
	uint8_t header[FRAME_HEADER_BYTES];
	uint8_t patched[4096];

	/* Most inputs fail by magic, version or run: give those that are long enough a second
	 * chance with the right ones. */
	int rc = link_decode(&frame, bytes, count, RUN, &err);
	if (rc != 0 && count >= FRAME_HEADER_BYTES && count <= sizeof(patched)) {
		struct writer writer = writer_fixed(patched, 16);
		assert(rc == -EBADMSG && err.text[0] != '\0');
		memcpy(patched, bytes, count);
		write_u32(&writer, FRAME_MAGIC);
		write_u16(&writer, FRAME_VERSION);
		write_u16(&writer, (uint16_t)(bytes[6] | bytes[7] << 8));
		write_u64(&writer, RUN);
		bytes = patched;
		rc = link_decode(&frame, bytes, count, RUN, &err);
	}
	if (rc != 0) {
		assert(rc == -EBADMSG && err.code == rc && err.text[0] != '\0');
		return 0;
	}
	assert(frame.kind != 0 && frame.body_bytes <= LINK_BODY_BYTES_MAX);
	assert(FRAME_HEADER_BYTES + (size_t)frame.body_bytes == count);
	assert(frame.body == bytes + FRAME_HEADER_BYTES);
	link_encode(header, &frame, RUN);
	assert(memcmp(header, bytes, sizeof(header)) == 0);
	return 0;
}
