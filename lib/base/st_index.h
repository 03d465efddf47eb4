/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to lib/base, between the three files of the safetensors reader: which files a
 * checkpoint consists of, what its index says of them, and one header.
 */
#ifndef ST_INDEX_H
#define ST_INDEX_H

#include "lib/base/safetensors.h"

struct st_index {
	void *bytes; /* owned; the index's text, NULL where there is none */
	size_t count;
	struct arena arena;
	char *folder;	    /* in the arena; "." for the current one */
	const char *path;   /* of the index, or NULL */
	const char **files; /* in the arena; names within the folder, sorted, each once */
	uint32_t file_count;
};

/* Finds the files of a folder, or of an index. */
int st_index_open(struct st_index *index, const char *path, bool is_folder, struct ws_error *err);
/* Every tensor that the index names must be in the file that it names. */
int st_index_check(const struct st_index *index, const struct checkpoint *checkpoint,
		   struct ws_error *err);
void st_index_close(struct st_index *index);

/*
 * Opens a regular file inside the folder without ever blocking.  A link may lead to another
 * file of the folder, or, in Hugging Face's cache (.../snapshots/REVISION), to .../blobs.
 * The descriptor, or -EINVAL, -ENOENT, ...
 */
int st_open_inside(const char *folder, const char *name, struct ws_error *err);

/* st_parse_header with the tensors' array in another arena than their names. */
int st_parse_header_in(struct arena *names_arena, struct arena *arena, const void *header,
		       size_t count, uint64_t data_bytes, struct st_tensor **tensors_out,
		       uint32_t *count_out, struct ws_error *err);

#endif
