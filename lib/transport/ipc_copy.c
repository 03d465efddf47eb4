/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy of ipc's stores.  memcpy keeps what it writes in the cache up to sizes far above an
 * op's, and so reads each line of the target before it writes it.  Weights are read again only when
 * all of them are there: large ops are streamed past the cache instead.
 */
#include <string.h>

#include "lib/transport/ipc.h"

#define STREAM_BYTES_MIN ((size_t)64 << 10) /* below it the receiver finds them in the cache */

#ifdef __SSE2__
#include <emmintrin.h>

/* to is 16-aligned, bytes a multiple of 64. */
static void stream(uint8_t *to, const uint8_t *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 48));
		_mm_stream_si128((__m128i *)(void *)(to + i), a);
		_mm_stream_si128((__m128i *)(void *)(to + i + 16), b);
		_mm_stream_si128((__m128i *)(void *)(to + i + 32), c);
		_mm_stream_si128((__m128i *)(void *)(to + i + 48), d);
	}
	_mm_sfence(); /* streamed stores are in no order with others' */
}
#else
static void stream(uint8_t *to, const uint8_t *from, size_t bytes)
{
	memcpy(to, from, bytes);
}
#endif

void ipc_copy(void *to, const void *from, size_t bytes)
{
	uint8_t *at = to;
	const uint8_t *source = from;

	if (bytes < STREAM_BYTES_MIN) {
		memcpy(at, source, bytes);
		return;
	}
	size_t head = -(uintptr_t)at % 64, body = (bytes - head) & ~(size_t)63;
	memcpy(at, source, head);
	stream(at + head, source + head, body);
	memcpy(at + head + body, source + head + body, bytes - head - body);
}
