/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checked cursor for everything that comes from outside, and its counterpart for what
 * goes there.  Little-endian, byte by byte: no alignment and no host order is assumed.
 */
#include "lib/base/base.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define WRITER_BYTES_MIN 256

size_t reader_left(const struct reader *reader)
{
	return reader->failed ? 0 : (size_t)(reader->end - reader->at);
}

const void *read_bytes(struct reader *reader, size_t count)
{
	if (reader->failed || count > (size_t)(reader->end - reader->at)) {
		reader->failed = true;
		return NULL;
	}
	const uint8_t *bytes = reader->at;
	if (count > 0)
		reader->at += count;
	/* A reader over nothing may have a NULL start; NULL is kept to mean failed. */
	return bytes == NULL ? (const void *)"" : bytes;
}

static uint64_t read_number(struct reader *reader, size_t count)
{
	const uint8_t *bytes = read_bytes(reader, count);
	uint64_t value = 0;
	if (bytes == NULL)
		return 0;
	for (size_t i = 0; i < count; i++)
		value |= (uint64_t)bytes[i] << (8 * i);
	return value;
}

uint8_t read_u8(struct reader *reader)
{
	return (uint8_t)read_number(reader, 1);
}

uint16_t read_u16(struct reader *reader)
{
	return (uint16_t)read_number(reader, 2);
}

uint32_t read_u32(struct reader *reader)
{
	return (uint32_t)read_number(reader, 4);
}

uint64_t read_u64(struct reader *reader)
{
	return read_number(reader, 8);
}

void read_text(struct reader *reader, char *text_out, size_t bytes_max)
{
	assert(bytes_max > 0);
	text_out[0] = '\0';
	uint32_t count = read_u32(reader);
	if (count >= bytes_max)
		reader->failed = true;
	const char *text = read_bytes(reader, count);
	if (text == NULL)
		return;
	if (memchr(text, '\0', count) != NULL) {
		reader->failed = true;
		return;
	}
	memcpy(text_out, text, count);
	text_out[count] = '\0';
}

uint32_t read_count(struct reader *reader, size_t bytes_each_min, uint32_t count_max)
{
	uint32_t count = read_u32(reader);
	size_t left = reader_left(reader);
	if (count > count_max || (bytes_each_min > 0 && count > left / bytes_each_min))
		reader->failed = true;
	return reader->failed ? 0 : count;
}

bool reader_done(const struct reader *reader)
{
	return !reader->failed && reader->at == reader->end;
}

/* Makes room for count more bytes, or fails the writer. */
static bool writer_reserve(struct writer *writer, size_t count)
{
	if (writer->failed)
		return false;
	if (count <= writer->room - writer->count)
		return true;
	if (writer->fixed || count > writer->room_max - writer->count) {
		writer->failed = true;
		return false;
	}
	size_t want = writer->count + count;
	size_t room = MAX(writer->room, WRITER_BYTES_MIN);
	while (room < want)
		room = room > SIZE_MAX / 2 ? want : room * 2;
	room = MIN(room, writer->room_max);
	uint8_t *bytes = mem_grow(writer->bytes, writer->room, room);
	if (bytes == NULL) {
		writer->failed = true;
		return false;
	}
	writer->bytes = bytes;
	writer->room = room;
	return true;
}

void write_bytes(struct writer *writer, const void *bytes, size_t count)
{
	if (count == 0 || !writer_reserve(writer, count))
		return;
	memcpy(writer->bytes + writer->count, bytes, count);
	writer->count += count;
}

static void write_number(struct writer *writer, uint64_t value, size_t count)
{
	uint8_t bytes[8];
	for (size_t i = 0; i < count; i++)
		bytes[i] = (uint8_t)(value >> (8 * i));
	write_bytes(writer, bytes, count);
}

void write_u8(struct writer *writer, uint8_t value)
{
	write_number(writer, value, 1);
}

void write_u16(struct writer *writer, uint16_t value)
{
	write_number(writer, value, 2);
}

void write_u32(struct writer *writer, uint32_t value)
{
	write_number(writer, value, 4);
}

void write_u64(struct writer *writer, uint64_t value)
{
	write_number(writer, value, 8);
}

void write_text(struct writer *writer, const char *text)
{
	size_t count = strlen(text);
	if (count > UINT32_MAX) {
		writer->failed = true;
		return;
	}
	write_u32(writer, (uint32_t)count);
	write_bytes(writer, text, count);
}

void write_format(struct writer *writer, const char *format, ...)
{
	char text[256];
	va_list args, again;
	va_start(args, format);
	va_copy(again, args);
	int count = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (count < 0) {
		writer->failed = true;
	} else if ((size_t)count < sizeof(text)) {
		write_bytes(writer, text, (size_t)count);
	} else if (writer_reserve(writer, (size_t)count + 1)) {
		/* One byte more than is kept: vsnprintf ends with a NUL. */
		vsnprintf((char *)writer->bytes + writer->count, (size_t)count + 1, format, again);
		writer->count += (size_t)count;
	}
	va_end(again);
}

void writer_reset(struct writer *writer)
{
	writer->count = 0;
	writer->failed = false;
}

void writer_release(struct writer *writer)
{
	if (!writer->fixed)
		mem_free(writer->bytes);
	size_t room_max = writer->fixed ? 0 : writer->room_max;
	*writer = (struct writer){.room_max = room_max};
}
