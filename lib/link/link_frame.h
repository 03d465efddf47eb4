/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame's bytes: a header of FRAME_HEADER_BYTES, little-endian, then the body.  Pure; a
 * header of its own so that the fuzzer needs no sockets.
 *
 *   0 magic u32 | 4 version u16 | 6 kind u16 | 8 run u64 | 16 hub incarnation u64
 *   24 member u64 | 32 incarnation u64 | 40 sequence u64 | 48 body bytes u32 | 52 zero u32
 */
#ifndef LINK_FRAME_H
#define LINK_FRAME_H

#include "lib/link/link.h"

#define FRAME_MAGIC	   0x46535357u /* "WSSF" */
#define FRAME_VERSION	   1
#define FRAME_HEADER_BYTES 56

/* Writes the header of frame; the body follows it and is the caller's to copy. */
void link_encode(uint8_t header_out[FRAME_HEADER_BYTES], const struct frame *frame, uint64_t run);

/* Reads a frame; its body points into bytes.  route is left 0.  -EBADMSG, with a sentence. */
int link_decode(struct frame *frame_out, const void *bytes, size_t count, uint64_t run,
		struct ws_error *err);

#endif
