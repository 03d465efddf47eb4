/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: opens the files (st_index.c says which), reads and checks each header
 * (st_header.c), sorts all tensors by name, and reads their data with pread.
 */
#include "lib/base/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/st_index.h"

/* One file's tensors. */
struct st_part {
	struct st_tensor *tensors; /* in the scratch arena, their names in the checkpoint's */
	uint32_t count;
};

/* What is needed only while opening. */
struct opening {
	struct checkpoint *checkpoint;
	struct st_part *parts; /* by file; in the scratch arena */
	struct arena scratch;
	uint64_t header_bytes, tensor_count; /* of all files so far */
};

static uint64_t mtime_of(const struct stat *stat)
{
	return (uint64_t)stat->st_mtim.tv_sec * 1000000000u + (uint64_t)stat->st_mtim.tv_nsec;
}

/* Reads all of count bytes.  -ESTALE where the file ends before. */
static int read_at(const struct st_file *file, uint64_t offset, void *bytes_out, size_t count,
		   struct ws_error *err)
{
	uint8_t *at = bytes_out;
	while (count > 0) {
		ssize_t n = pread(file->fd, at, count, (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ws_fail(err, -EIO, "cannot read '%s' at byte %llu: %s", file->path,
				       (unsigned long long)offset, strerror(errno));
		if (n == 0)
			return ws_fail(err, -ESTALE,
				       "'%s' ends at byte %llu: it was cut since it was opened",
				       file->path, (unsigned long long)offset);
		at += n;
		offset += (uint64_t)n;
		count -= (size_t)n;
	}
	return 0;
}

/* The first three rules, in the Rust reader's order. */
static int read_header_bytes(const struct st_file *file, uint64_t *header_bytes_out,
			     struct ws_error *err)
{
	uint8_t prefix[8];
	if (file->bytes < sizeof(prefix))
		return ws_fail(err, -EBADMSG, "'%s' is too small for a header: it has %llu bytes",
			       file->path, (unsigned long long)file->bytes);
	int rc = read_at(file, 0, prefix, sizeof(prefix), err);
	if (rc != 0)
		return rc;
	struct reader reader = reader_make(prefix, sizeof(prefix));
	uint64_t header_bytes = read_u64(&reader);
	if (header_bytes > ST_HEADER_BYTES_MAX)
		return ws_fail(err, -EBADMSG,
			       "'%s' says its header is too large: %llu bytes, %d at most",
			       file->path, (unsigned long long)header_bytes, ST_HEADER_BYTES_MAX);
	if (header_bytes > file->bytes - sizeof(prefix))
		return ws_fail(err, -EBADMSG,
			       "'%s' says its header has %llu bytes, more than the file",
			       file->path, (unsigned long long)header_bytes);
	*header_bytes_out = header_bytes;
	return 0;
}

static int parse_file(struct opening *opening, uint32_t index, void *header, uint64_t header_bytes,
		      struct ws_error *err)
{
	struct checkpoint *checkpoint = opening->checkpoint;
	struct st_file *file = &checkpoint->files[index];
	int rc = read_at(file, 8, header, (size_t)header_bytes, err);
	if (rc != 0)
		return rc;
	rc = st_parse_header_in(&checkpoint->arena, &opening->scratch, header, (size_t)header_bytes,
				file->bytes - 8 - header_bytes, &opening->parts[index].tensors,
				&opening->parts[index].count, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "'%s'", file->path);
	opening->tensor_count += opening->parts[index].count;
	if (opening->tensor_count > ST_TENSOR_COUNT_MAX)
		return ws_fail(err, -ENOSPC, "a checkpoint may have %d tensors at most",
			       ST_TENSOR_COUNT_MAX);
	return 0;
}

/* The file is open; its size and time are as of now. */
static int add_file(struct opening *opening, uint32_t index, struct ws_error *err)
{
	struct st_file *file = &opening->checkpoint->files[index];
	struct stat stat;
	if (fstat(file->fd, &stat) != 0)
		return file_fail(err, errno, "look at", file->path);
	if (!S_ISREG(stat.st_mode))
		return ws_fail(err, -EINVAL, "'%s' isn't a regular file", file->path);
	file->bytes = (uint64_t)stat.st_size;
	file->mtime_ns = mtime_of(&stat);
	uint64_t header_bytes = 0;
	int rc = read_header_bytes(file, &header_bytes, err);
	if (rc != 0)
		return rc;
	opening->header_bytes += header_bytes;
	if (opening->header_bytes > ST_HEADER_BYTES_MAX)
		return ws_fail(err, -ENOSPC, "the headers have more than %d bytes together",
			       ST_HEADER_BYTES_MAX);
	void *header = mem_alloc((size_t)header_bytes);
	if (header == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the header of '%s'", file->path);
	rc = parse_file(opening, index, header, header_bytes, err);
	mem_free(header);
	return rc;
}

static int compare_names(const void *a, const void *b)
{
	const struct st_tensor *left = a, *right = b;
	return strcmp(left->name, right->name);
}

/* All files' tensors in one array, by name; none may be there twice. */
static int merge_files(struct opening *opening, struct ws_error *err)
{
	struct checkpoint *checkpoint = opening->checkpoint;
	size_t count = (size_t)opening->tensor_count, at = 0;
	struct st_tensor *tensors = arena_array(&checkpoint->arena, count, sizeof(*tensors));
	if (tensors == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %zu tensors", count);
	for (uint32_t i = 0; i < checkpoint->file_count; i++) {
		for (uint32_t j = 0; j < opening->parts[i].count; j++) {
			tensors[at] = opening->parts[i].tensors[j];
			tensors[at].file_index = i;
			checkpoint->data_bytes += tensors[at].bytes;
			at++;
		}
	}
	qsort(tensors, count, sizeof(*tensors), compare_names);
	for (size_t i = 1; i < count; i++)
		if (strcmp(tensors[i - 1].name, tensors[i].name) == 0)
			return ws_fail(
				err, -EBADMSG, "tensor '%.150s' is in '%.120s' and in '%.120s'",
				tensors[i].name, checkpoint->files[tensors[i - 1].file_index].path,
				checkpoint->files[tensors[i].file_index].path);
	checkpoint->tensors = tensors;
	checkpoint->tensor_count = (uint32_t)count;
	return 0;
}

static int make_files(struct opening *opening, uint32_t count, struct ws_error *err)
{
	struct checkpoint *checkpoint = opening->checkpoint;
	checkpoint->files = arena_array(&checkpoint->arena, count, sizeof(checkpoint->files[0]));
	opening->parts = arena_array(&opening->scratch, count, sizeof(opening->parts[0]));
	if (checkpoint->files == NULL || opening->parts == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for %u files", count);
	for (uint32_t i = 0; i < count; i++)
		checkpoint->files[i].fd = -1;
	checkpoint->file_count = count;
	return 0;
}

static int open_one(struct opening *opening, const char *path, struct ws_error *err)
{
	int rc = make_files(opening, 1, err);
	if (rc != 0)
		return rc;
	struct st_file *file = &opening->checkpoint->files[0];
	file->path = arena_copy(&opening->checkpoint->arena, path, strlen(path));
	if (file->path == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the path '%s'", path);
	file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (file->fd < 0)
		return file_fail(err, errno, "open", path);
	rc = add_file(opening, 0, err);
	return rc == 0 ? merge_files(opening, err) : rc;
}

static int open_files(struct opening *opening, const struct st_index *index, struct ws_error *err)
{
	struct checkpoint *checkpoint = opening->checkpoint;
	int rc = make_files(opening, index->file_count, err);
	for (uint32_t i = 0; rc == 0 && i < index->file_count; i++) {
		struct st_file *file = &checkpoint->files[i];
		file->path =
			arena_text(&checkpoint->arena, "%s/%s", index->folder, index->files[i]);
		if (file->path == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for a path");
		file->fd = st_open_inside(index->folder, index->files[i], err);
		rc = file->fd < 0 ? file->fd : add_file(opening, i, err);
	}
	if (rc == 0)
		rc = merge_files(opening, err);
	return rc == 0 ? st_index_check(index, checkpoint, err) : rc;
}

static int open_any(struct opening *opening, const char *path, struct ws_error *err)
{
	struct stat status;
	struct st_index index;
	size_t count = strlen(path);
	if (stat(path, &status) != 0)
		return file_fail(err, errno, "open", path);
	bool is_folder = S_ISDIR(status.st_mode);
	if (!is_folder && (count < 5 || strcmp(path + count - 5, ".json") != 0))
		return open_one(opening, path, err);
	int rc = st_index_open(&index, path, is_folder, err);
	if (rc == 0)
		rc = open_files(opening, &index, err);
	st_index_close(&index);
	return rc;
}

int checkpoint_open(struct checkpoint *checkpoint, const char *path, struct ws_error *err)
{
	struct opening opening = {.checkpoint = checkpoint};
	*checkpoint = (struct checkpoint){.opened = true};
	int rc = open_any(&opening, path, err);
	arena_release(&opening.scratch);
	if (rc != 0)
		checkpoint_close(checkpoint);
	return rc;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
	if (checkpoint == NULL || !checkpoint->opened)
		return;
	for (uint32_t i = 0; i < checkpoint->file_count; i++)
		if (checkpoint->files[i].fd >= 0)
			close(checkpoint->files[i].fd);
	arena_release(&checkpoint->arena);
	*checkpoint = (struct checkpoint){0};
}

static int compare_with_name(const void *key, const void *tensor)
{
	return strcmp(key, ((const struct st_tensor *)tensor)->name);
}

const struct st_tensor *checkpoint_find(const struct checkpoint *checkpoint, const char *name)
{
	if (checkpoint->tensor_count == 0)
		return NULL;
	return bsearch(name, checkpoint->tensors, checkpoint->tensor_count,
		       sizeof(checkpoint->tensors[0]), compare_with_name);
}

int checkpoint_read(const struct checkpoint *checkpoint, const struct st_tensor *tensor,
		    uint64_t offset, void *bytes_out, size_t count, struct ws_error *err)
{
	const struct st_file *file = &checkpoint->files[tensor->file_index];
	struct stat stat;
	assert(offset <= tensor->bytes && count <= tensor->bytes - offset);
	int rc = read_at(file, tensor->offset + offset, bytes_out, count, err);
	if (rc == 0 && fstat(file->fd, &stat) != 0)
		rc = file_fail(err, errno, "look at", file->path);
	/* Looked at after reading: what has been read is of one file only if it hasn't changed. */
	if (rc == 0 && ((uint64_t)stat.st_size != file->bytes || mtime_of(&stat) != file->mtime_ns))
		rc = ws_fail(err, -ESTALE, "'%s' has changed since it was opened", file->path);
	return rc == 0 ? 0 : ws_fail_in(err, rc, "tensor '%.200s'", tensor->name);
}
