/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors files: a strict reader for one file or a folder with an index, and a writer.
 *
 * Format: huggingface/safetensors README and tensor.rs; what is checked, in which order and
 * where weightsync is stricter stands in README.md beside this file.  Data are read with
 * pread, never mapped, so that a file cut short under us is an error and not a SIGBUS.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include "lib/base/base.h"

#define TENSOR_DIM_MAX 8

/* The first is the format's, and here also of all headers of a checkpoint together; the others
 * keep the memory of a hostile one below 256 MB.  Beyond a limit: -ENOSPC. */
#define ST_HEADER_BYTES_MAX	 100000000
#define ST_TENSOR_COUNT_MAX	 524288	 /* of one checkpoint */
#define ST_TENSOR_TEXT_BYTES_MAX 1000000 /* one tensor's JSON */
#define ST_TENSOR_NODE_COUNT_MAX 4096
#define ST_METADATA_COUNT_MAX	 65536
#define ST_INDEX_BYTES_MAX	 64000000
#define ST_FILE_COUNT_MAX	 4096

struct st_tensor {
	const char *name;	/* in the checkpoint's arena */
	enum ws_dtype dtype;	/* WS_NONE for a dtype weightsync can't move (sub-byte, complex) */
	const char *dtype_name; /* as the file spells it; static */
	uint32_t dim_count;
	uint64_t dim[TENSOR_DIM_MAX];
	uint32_t file_index;
	uint64_t offset; /* of the first byte, from the file's start */
	uint64_t bytes;
};

struct st_file {
	const char *path; /* in the arena */
	int fd;
	uint64_t bytes, mtime_ns;
};

/* All tensors of a checkpoint, sorted by name (strcmp order). */
struct checkpoint {
	struct arena arena;
	struct st_file *files; /* in the arena; fds owned */
	uint32_t file_count;
	struct st_tensor *tensors; /* in the arena */
	uint32_t tensor_count;
	uint64_t data_bytes; /* of all tensors */
	bool opened;
};

/*
 * Opens path: a .safetensors file, an index (.json), or a folder that holds either
 * an index or any number of *.safetensors files.  Reads headers only.  -EBADMSG names
 * file, tensor and rule; -EINVAL refuses names in the index that leave the folder, and
 * anything that isn't a regular file; -ENOSPC names the limit.  On failure nothing stays open.
 */
int checkpoint_open(struct checkpoint *checkpoint, const char *path, struct ws_error *err);
void checkpoint_close(struct checkpoint *checkpoint); /* also half-open or zeroed */

/* By name, bsearch; NULL if it isn't there. */
const struct st_tensor *checkpoint_find(const struct checkpoint *checkpoint, const char *name);

/* Reads bytes of a tensor's data.  -EIO names file and offset; -ESTALE when the file's size or
 * mtime changed since open.  offset + count must lie inside the tensor.  Thread: any. */
int checkpoint_read(const struct checkpoint *checkpoint, const struct st_tensor *tensor,
		    uint64_t offset, void *bytes_out, size_t count, struct ws_error *err);

/* Checks one header (what follows the 8 length bytes) against the length of the data behind it
 * and yields its tensors in the order of their data.  For tests and fuzzers; opens nothing. */
int st_parse_header(struct arena *arena, const void *header, size_t count, uint64_t data_bytes,
		    struct st_tensor **tensors_out, uint32_t *count_out, struct ws_error *err);

/* Bits of a tensor with a known dtype_name; -EBADMSG where they overflow 64 bits. */
int st_tensor_bits(const struct st_tensor *tensor, uint64_t *bits_out, struct ws_error *err);

/* A dtype's spelling in a header ("BF16"); NULL for WS_NONE. */
const char *st_dtype_name(enum ws_dtype dtype);

/*
 * Writing: begin with every tensor's name, dtype and shape (nothing else is read), then its
 * data in that order, in any pieces, then end (temp file, fsync, rename).  close without end
 * leaves nothing behind.  Any other process that writes the same path has the same temp file.
 */
struct st_writer {
	char *path, *tmp_path; /* owned */
	int fd;
	uint64_t data_bytes, written_bytes;
};

#define ST_WRITER_INIT   \
	{                \
		.fd = -1 \
	}

int st_writer_begin(struct st_writer *writer, const char *path, const struct st_tensor *tensors,
		    uint32_t count, struct ws_error *err);
int st_writer_add(struct st_writer *writer, const void *bytes, size_t count, struct ws_error *err);
int st_writer_end(struct st_writer *writer, struct ws_error *err);
void st_writer_close(struct st_writer *writer);

#endif
