/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a safetensors file: the header first, since it holds the length of everything, then
 * the data in that order.  A reader of the path sees the old file or the whole new one.
 */
#include "lib/base/json_scan.h"
#include "lib/base/names.h"
#include "lib/base/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_ALIGN 8 /* so that the data begin where every dtype may */

static int check_name(const char *name, struct ws_error *err)
{
	const uint8_t *at = (const uint8_t *)name, *end = at + strlen(name);
	if (strcmp(name, "__metadata__") == 0)
		return ws_fail(err, -EINVAL, "no tensor may be named '__metadata__'");
	while (at < end) {
		size_t count = utf8_bytes(at, end);
		if (count == 0)
			return ws_fail(err, -EINVAL, "the name '%.200s' isn't valid UTF-8", name);
		at += count;
	}
	return 0;
}

static int put_tensor(struct json_writer *json, const struct st_tensor *given, uint64_t *end,
		      struct ws_error *err)
{
	struct st_tensor tensor = *given;
	uint64_t bits = 0, begin = *end;
	int rc = check_name(tensor.name, err);
	if (rc != 0)
		return rc;
	tensor.dtype_name = st_dtype_name(tensor.dtype);
	if (tensor.dtype_name == NULL || tensor.dim_count > TENSOR_DIM_MAX)
		return ws_fail(err, -EINVAL, "tensor '%.200s' has no dtype, or too many dimensions",
			       tensor.name);
	rc = st_tensor_bits(&tensor, &bits, err);
	if (rc != 0)
		return rc;
	/* Readers agree on integers up to 2^53-1 only. */
	if (__builtin_add_overflow(begin, bits / 8, end) || *end >= (uint64_t)1 << 53)
		return ws_fail(err, -EINVAL, "tensor '%.200s' makes the file too large",
			       tensor.name);
	json_begin_object(json, tensor.name);
	json_put_text(json, "dtype", tensor.dtype_name);
	json_begin_array(json, "shape");
	for (uint32_t i = 0; i < tensor.dim_count; i++)
		json_put_u64(json, NULL, tensor.dim[i]);
	json_end_array(json);
	json_begin_array(json, "data_offsets");
	json_put_u64(json, NULL, begin);
	json_put_u64(json, NULL, *end);
	json_end_array(json);
	json_end_object(json);
	return 0;
}

/* The 8 length bytes, and the header padded with blanks. */
static int make_header(struct writer *header, const struct st_tensor *tensors, uint32_t count,
		       uint64_t *data_bytes_out, struct ws_error *err)
{
	struct json_writer json = {.out = header};
	struct names names;
	uint64_t end = 0;
	int rc = names_open(&names, count, err);
	write_u64(header, 0);
	json_begin_object(&json, NULL);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		if (names_add(&names, tensors[i].name) != NULL)
			rc = ws_fail(err, -EINVAL, "tensor '%.200s' is there twice",
				     tensors[i].name);
		else
			rc = put_tensor(&json, &tensors[i], &end, err);
	}
	names_close(&names);
	json_end_object(&json);
	while (header->count % HEADER_ALIGN != 0 && !header->failed)
		write_u8(header, ' ');
	if (rc != 0)
		return rc;
	if (header->failed && header->room == header->room_max)
		return ws_fail(err, -ENOSPC, "the header would have more than %d bytes",
			       ST_HEADER_BYTES_MAX);
	if (header->failed)
		return ws_fail(err, -ENOMEM, "out of memory for the header");
	struct writer prefix = writer_fixed(header->bytes, 8);
	write_u64(&prefix, header->count - 8);
	*data_bytes_out = end;
	return 0;
}

static int open_file(struct st_writer *writer, const char *path, struct ws_error *err)
{
	char tmp_path[4096];
	struct stat stat;
	if (lstat(path, &stat) == 0 && !S_ISREG(stat.st_mode))
		return ws_fail(err, -EINVAL, "'%s' isn't a regular file: name another", path);
	int length = snprintf(tmp_path, sizeof(tmp_path), "%s.tmp", path);
	if (length < 0 || (size_t)length >= sizeof(tmp_path))
		return ws_fail(err, -EINVAL, "the path is too long");
	/* One that a killed run left. */
	unlink(tmp_path);
	writer->fd = open(tmp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (writer->fd < 0)
		return file_fail(err, errno, "write", tmp_path);
	/* From here on close finds something to delete. */
	writer->tmp_path = mem_copy_text(tmp_path);
	writer->path = mem_copy_text(path);
	if (writer->tmp_path != NULL && writer->path != NULL)
		return 0;
	unlink(tmp_path);
	return ws_fail(err, -ENOMEM, "out of memory for the path '%s'", path);
}

int st_writer_begin(struct st_writer *writer, const char *path, const struct st_tensor *tensors,
		    uint32_t count, struct ws_error *err)
{
	struct writer header = WRITER_INIT(ST_HEADER_BYTES_MAX + 8);
	*writer = (struct st_writer)ST_WRITER_INIT;
	int rc = count > ST_TENSOR_COUNT_MAX
			 ? ws_fail(err, -ENOSPC, "%u tensors, and the limit is %d", count,
				   ST_TENSOR_COUNT_MAX)
			 : make_header(&header, tensors, count, &writer->data_bytes, err);
	if (rc == 0)
		rc = open_file(writer, path, err);
	if (rc == 0)
		rc = file_write_all(writer->fd, writer->tmp_path, header.bytes, header.count, err);
	writer_release(&header);
	if (rc == 0)
		return 0;
	st_writer_close(writer);
	return ws_fail_in(err, rc, "cannot write '%s'", path);
}

int st_writer_add(struct st_writer *writer, const void *bytes, size_t count, struct ws_error *err)
{
	if (count > writer->data_bytes - writer->written_bytes)
		return ws_fail(err, -EINVAL, "'%s' gets more data than its tensors have",
			       writer->path);
	int rc = file_write_all(writer->fd, writer->tmp_path, bytes, count, err);
	if (rc == 0)
		writer->written_bytes += count;
	return rc;
}

int st_writer_end(struct st_writer *writer, struct ws_error *err)
{
	if (writer->written_bytes != writer->data_bytes)
		return ws_fail(err, -EINVAL, "'%s' got %llu of its %llu bytes of data",
			       writer->path, (unsigned long long)writer->written_bytes,
			       (unsigned long long)writer->data_bytes);
	if (fsync(writer->fd) != 0)
		return file_fail(err, errno, "write", writer->tmp_path);
	int fd = writer->fd;
	writer->fd = -1;
	if (close(fd) != 0)
		return file_fail(err, errno, "write", writer->tmp_path);
	if (rename(writer->tmp_path, writer->path) != 0)
		return file_fail(err, errno, "write", writer->path);
	mem_free(writer->tmp_path);
	writer->tmp_path = NULL;
	return 0;
}

void st_writer_close(struct st_writer *writer)
{
	if (writer == NULL)
		return;
	/* A zeroed writer has no file; descriptor 0 without a path isn't ours. */
	if (writer->fd > 0 || (writer->fd == 0 && writer->path != NULL))
		close(writer->fd);
	if (writer->tmp_path != NULL)
		unlink(writer->tmp_path);
	mem_free(writer->tmp_path);
	mem_free(writer->path);
	*writer = (struct st_writer)ST_WRITER_INIT;
}
