/* SPDX-License-Identifier: Apache-2.0 */
/* The frame's bytes, both ways.  Nothing is believed before all of the header has been looked at.
 */
#include <errno.h>

#include "lib/link/link_frame.h"

void link_encode(uint8_t header_out[FRAME_HEADER_BYTES], const struct frame *frame, uint64_t run)
{
	struct writer writer = writer_fixed(header_out, FRAME_HEADER_BYTES);

	write_u32(&writer, FRAME_MAGIC);
	write_u16(&writer, FRAME_VERSION);
	write_u16(&writer, frame->kind);
	write_u64(&writer, run);
	write_u64(&writer, frame->hub_incarnation);
	write_u64(&writer, frame->member);
	write_u64(&writer, frame->incarnation);
	write_u64(&writer, frame->sequence);
	write_u32(&writer, frame->body_bytes);
	write_u32(&writer, 0);
}

int link_decode(struct frame *frame_out, const void *bytes, size_t count, uint64_t run,
		struct ws_error *err)
{
	struct reader reader = reader_make(bytes, count);
	uint32_t magic = read_u32(&reader);
	uint16_t version = read_u16(&reader);
	struct frame frame = {.kind = read_u16(&reader)};
	uint64_t sent_run = read_u64(&reader);

	frame.hub_incarnation = read_u64(&reader);
	frame.member = read_u64(&reader);
	frame.incarnation = read_u64(&reader);
	frame.sequence = read_u64(&reader);
	frame.body_bytes = read_u32(&reader);
	uint32_t zero = read_u32(&reader);

	if (reader.failed)
		return ws_fail(err, -EBADMSG,
			       "a frame of %zu bytes is shorter than its header of %d", count,
			       FRAME_HEADER_BYTES);
	if (magic != FRAME_MAGIC)
		return ws_fail(err, -EBADMSG, "a frame begins with 0x%08x instead of 0x%08x", magic,
			       FRAME_MAGIC);
	if (version != FRAME_VERSION)
		return ws_fail(err, -EBADMSG,
			       "a frame has version %u, this weightsync speaks %d: run the same "
			       "weightsync everywhere",
			       version, FRAME_VERSION);
	if (sent_run != run)
		return ws_fail(err, -EBADMSG, "a frame is of run %016llx instead of %016llx",
			       (unsigned long long)sent_run, (unsigned long long)run);
	if (frame.kind == 0 || zero != 0)
		return ws_fail(err, -EBADMSG, "a frame has kind %u and reserved bits 0x%x",
			       frame.kind, zero);
	if (frame.body_bytes > LINK_BODY_BYTES_MAX || frame.body_bytes != reader_left(&reader))
		return ws_fail(err, -EBADMSG, "a frame says its body has %u bytes, but %zu came",
			       frame.body_bytes, reader_left(&reader));
	frame.body = read_bytes(&reader, frame.body_bytes);
	*frame_out = frame;
	return 0;
}
