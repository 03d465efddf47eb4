/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint of several files: the folder, and model.safetensors.index.json.  The index is
 * somebody else's text, so that its file names must stay inside the folder.  Its weight_map is
 * walked twice (for the files, and once they are read for the tensors) and never held.
 */
#include "lib/base/st_index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/json_scan.h"
#include "lib/base/names.h"

#define INDEX_NAME   "model.safetensors.index.json"
#define INDEX_SUFFIX ".safetensors.index.json"
#define FILE_SUFFIX  ".safetensors"

static bool ends_with(const char *text, const char *suffix)
{
	size_t count = strlen(text), suffix_count = strlen(suffix);
	return count > suffix_count && strcmp(text + count - suffix_count, suffix) == 0;
}

static bool is_inside(const char *path, const char *folder, size_t folder_count)
{
	return strncmp(path, folder, folder_count) == 0 &&
	       (path[folder_count] == '/' || folder_count == 1);
}

/* Where a link may lead: see st_open_inside. */
static bool link_may_lead_to(const char *folder, const char *target)
{
	static const char snapshots[] = "/snapshots/";
	if (is_inside(target, folder, strlen(folder)))
		return true;
	const char *slash = strrchr(folder, '/');
	size_t tail = sizeof(snapshots) - 1;
	if (slash == NULL || (size_t)(slash + 1 - folder) < tail ||
	    strncmp(slash + 1 - tail, snapshots, tail) != 0)
		return false;
	char blobs[PATH_MAX];
	size_t count = (size_t)(slash + 1 - folder) - tail;
	if (count + sizeof("/blobs") > sizeof(blobs))
		return false;
	memcpy(blobs, folder, count);
	memcpy(blobs + count, "/blobs", sizeof("/blobs"));
	return is_inside(target, blobs, strlen(blobs));
}

static int resolve_link(const char *folder, const char *name, char *path, struct ws_error *err)
{
	char real_folder[PATH_MAX], target[PATH_MAX];
	if (realpath(folder, real_folder) == NULL)
		return file_fail(err, errno, "look at", folder);
	if (realpath(path, target) == NULL)
		return file_fail(err, errno, "follow", path);
	if (!link_may_lead_to(real_folder, target))
		return ws_fail(err, -EINVAL, "'%.200s' is a link that leaves its folder", name);
	memcpy(path, target, strlen(target) + 1);
	return 0;
}

int st_open_inside(const char *folder, const char *name, struct ws_error *err)
{
	char path[PATH_MAX];
	struct stat stat;
	size_t folder_count = strlen(folder), name_count = strlen(name);
	if (folder_count + name_count + 2 > sizeof(path))
		return ws_fail(err, -EINVAL, "the path of '%.200s' is too long", name);
	memcpy(path, folder, folder_count);
	path[folder_count] = '/';
	memcpy(path + folder_count + 1, name, name_count + 1);
	if (lstat(path, &stat) != 0)
		return file_fail(err, errno, "open", path);
	if (S_ISLNK(stat.st_mode)) {
		int rc = resolve_link(folder, name, path, err);
		if (rc != 0)
			return rc;
		if (lstat(path, &stat) != 0)
			return file_fail(err, errno, "open", path);
	}
	/* Before open: opening a device may already do something. */
	if (!S_ISREG(stat.st_mode))
		return ws_fail(err, -EINVAL, "'%s' isn't a regular file", path);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
	return fd < 0 ? file_fail(err, errno, "open", path) : fd;
}

static int compare_texts(const void *a, const void *b)
{
	const char *const *left = a, *const *right = b;
	return strcmp(*left, *right);
}

static int add_file(struct st_index *index, const char *name, struct ws_error *err)
{
	/* One more than may stay: an index names a file many times. */
	if (index->file_count > ST_FILE_COUNT_MAX)
		return ws_fail(err, -ENOSPC, "a checkpoint may have %d files at most",
			       ST_FILE_COUNT_MAX);
	char *copy = arena_copy(&index->arena, name, strlen(name));
	if (copy == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the files' names");
	index->files[index->file_count++] = copy;
	return 0;
}

/* Either index_out, or the folder's files. */
static int look_through_folder(struct st_index *index, DIR *directory, const char **index_out,
			       struct ws_error *err)
{
	const char *found = NULL;
	for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
		int rc = 0;
		if (ends_with(entry->d_name, FILE_SUFFIX))
			rc = add_file(index, entry->d_name, err);
		if (rc != 0)
			return rc;
		if (!ends_with(entry->d_name, INDEX_SUFFIX))
			continue;
		if (found != NULL && strcmp(found, INDEX_NAME) != 0 &&
		    strcmp(entry->d_name, INDEX_NAME) != 0)
			return ws_fail(err, -EINVAL,
				       "'%s' has the indexes '%.100s' and '%.100s', give the one "
				       "that is meant",
				       index->folder, found, entry->d_name);
		if (found != NULL && strcmp(found, INDEX_NAME) == 0)
			continue;
		found = arena_copy(&index->arena, entry->d_name, strlen(entry->d_name));
		if (found == NULL)
			return ws_fail(err, -ENOMEM, "out of memory for the index's name");
	}
	*index_out = found;
	if (found == NULL && index->file_count == 0)
		return ws_fail(err, -ENOENT, "'%s' has no file *.safetensors and no index",
			       index->folder);
	return 0;
}

static int read_index(struct st_index *index, const char *name, struct ws_error *err)
{
	static const struct json_limits limits = {
		.bytes_max = ST_INDEX_BYTES_MAX, .depth_max = 64, .node_count_max = UINT32_MAX};
	uint32_t member_count = 0;
	char *path = arena_text(&index->arena, "%s/%s", index->folder, name);
	if (path == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the index's path");
	int fd = st_open_inside(index->folder, name, err);
	if (fd < 0)
		return fd;
	int rc = file_read_open(fd, path, ST_INDEX_BYTES_MAX, &index->bytes, &index->count, err);
	close(fd);
	if (rc != 0)
		return rc;
	rc = json_scan(index->bytes, index->count, &limits, &member_count, err);
	if (rc != 0)
		return ws_fail_in(err, rc, "index '%s'", path);
	index->path = path;
	return 0;
}

static int find_weight_map(const struct st_index *index, struct json_slice *map_out,
			   struct ws_error *err)
{
	static const char name[] = "\"weight_map\"";
	const uint8_t *at = index->bytes, *end = at + index->count;
	struct json_slice key, value;
	uint32_t found = 0;
	while (at < end && *at != '{' && *at <= ' ')
		at++;
	struct json_walk walk = json_walk_make((struct json_slice){at, (size_t)(end - at)});
	while (*at == '{' && json_walk_next(&walk, &key, &value)) {
		if (key.count != sizeof(name) - 1 || memcmp(key.at, name, key.count) != 0)
			continue;
		found++;
		*map_out = value;
	}
	if (found != 1 || map_out->at[0] != '{')
		return ws_fail(err, -EBADMSG, "index '%s' needs one object weight_map, and has %u",
			       index->path, found);
	return 0;
}

static int check_file_name(const char *name, struct ws_error *err)
{
	if (name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, ".") == 0 ||
	    strcmp(name, "..") == 0)
		return ws_fail(err, -EINVAL,
			       "it names the file '%.200s', which isn't one of its own folder",
			       name);
	return 0;
}

/* The next tensor and its file, in an arena that is emptied at each call. */
static int next_entry(struct json_walk *walk, struct arena *scratch, const char **tensor_out,
		      const char **file_out, struct ws_error *err)
{
	struct json_slice key, value;
	arena_release(scratch);
	*tensor_out = NULL;
	if (!json_walk_next(walk, &key, &value))
		return 0;
	const char *tensor = json_slice_text(scratch, key);
	if (value.at[0] != '"')
		return ws_fail(err, -EBADMSG, "it has something else than a file for '%.200s'",
			       tensor == NULL ? "" : tensor);
	*file_out = json_slice_text(scratch, value);
	if (tensor == NULL || *file_out == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for an entry");
	*tensor_out = tensor;
	return check_file_name(*file_out, err);
}

static int collect_files(struct st_index *index, struct json_slice map, struct names *names,
			 struct ws_error *err)
{
	struct json_walk walk = json_walk_make(map);
	struct arena scratch = {0};
	const char *tensor = NULL, *file = NULL;
	int rc = next_entry(&walk, &scratch, &tensor, &file, err);
	for (uint32_t i = 0; rc == 0 && tensor != NULL; i++) {
		if (i == ST_TENSOR_COUNT_MAX) {
			rc = ws_fail(err, -ENOSPC, "it has more than %d tensors, the limit",
				     ST_TENSOR_COUNT_MAX);
			break;
		}
		/* Neighbours are mostly in the same file. */
		uint32_t count = index->file_count;
		if (count == 0 || strcmp(index->files[count - 1], file) != 0) {
			rc = add_file(index, file, err);
			if (rc == 0 && names_add(names, index->files[count]) != NULL)
				index->file_count--;
		}
		if (rc == 0)
			rc = next_entry(&walk, &scratch, &tensor, &file, err);
	}
	arena_release(&scratch);
	if (rc == 0 && index->file_count == 0)
		rc = ws_fail(err, -EBADMSG, "its weight_map is empty");
	return rc == 0 ? 0 : ws_fail_in(err, rc, "index '%s'", index->path);
}

static int files_of_index(struct st_index *index, const char *name, struct ws_error *err)
{
	struct json_slice map = {0};
	struct names names = {0};
	index->file_count = 0;
	int rc = read_index(index, name, err);
	if (rc == 0)
		rc = find_weight_map(index, &map, err);
	if (rc == 0)
		rc = names_open(&names, ST_FILE_COUNT_MAX + 1, err);
	if (rc == 0)
		rc = collect_files(index, map, &names, err);
	names_close(&names);
	return rc;
}

static int files_of_folder(struct st_index *index, struct ws_error *err)
{
	const char *name = NULL;
	DIR *directory = opendir(index->folder);
	if (directory == NULL)
		return file_fail(err, errno, "open", index->folder);
	int rc = look_through_folder(index, directory, &name, err);
	closedir(directory);
	if (rc == 0 && name != NULL)
		rc = files_of_index(index, name, err);
	return rc;
}

int st_index_open(struct st_index *index, const char *path, bool is_folder, struct ws_error *err)
{
	*index = (struct st_index){0};
	const char *slash = strrchr(path, '/');
	if (is_folder)
		index->folder = arena_copy(&index->arena, path, strlen(path));
	else if (slash == NULL)
		index->folder = arena_copy(&index->arena, ".", 1);
	else
		index->folder = arena_copy(&index->arena, path, MAX((size_t)(slash - path), 1));
	index->files = arena_array(&index->arena, ST_FILE_COUNT_MAX + 1, sizeof(index->files[0]));
	if (index->folder == NULL || index->files == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the files of '%s'", path);
	int rc = is_folder ? files_of_folder(index, err)
			   : files_of_index(index, slash == NULL ? path : slash + 1, err);
	if (rc == 0 && index->file_count > ST_FILE_COUNT_MAX)
		rc = ws_fail(err, -ENOSPC, "a checkpoint may have %d files at most",
			     ST_FILE_COUNT_MAX);
	qsort(index->files, index->file_count, sizeof(index->files[0]), compare_texts);
	return rc;
}

/* seen has a byte for each tensor. */
static int check_entries(const struct st_index *index, const struct checkpoint *checkpoint,
			 uint8_t *seen, struct ws_error *err)
{
	struct json_slice map = {0};
	const char *name = NULL, *file = NULL;
	struct arena scratch = {0};
	int rc = find_weight_map(index, &map, err);
	struct json_walk walk = json_walk_make(map);
	if (rc == 0)
		rc = next_entry(&walk, &scratch, &name, &file, err);
	while (rc == 0 && name != NULL) {
		const struct st_tensor *tensor = checkpoint_find(checkpoint, name);
		const char *in = tensor == NULL ? NULL : index->files[tensor->file_index];
		if (in == NULL || strcmp(in, file) != 0)
			rc = ws_fail(err, -EBADMSG,
				     "index '%s' has tensor '%.150s' in '%.80s', which doesn't "
				     "hold it",
				     index->path, name, file);
		else if (seen[tensor - checkpoint->tensors]++ != 0)
			rc = ws_fail(err, -EBADMSG, "index '%s' has tensor '%.200s' twice",
				     index->path, name);
		else
			rc = next_entry(&walk, &scratch, &name, &file, err);
	}
	arena_release(&scratch);
	return rc;
}

int st_index_check(const struct st_index *index, const struct checkpoint *checkpoint,
		   struct ws_error *err)
{
	if (index->path == NULL)
		return 0;
	uint8_t *seen = mem_alloc(checkpoint->tensor_count);
	if (seen == NULL)
		return ws_fail(err, -ENOMEM, "out of memory to check index '%s'", index->path);
	int rc = check_entries(index, checkpoint, seen, err);
	mem_free(seen);
	return rc;
}

void st_index_close(struct st_index *index)
{
	mem_free(index->bytes);
	arena_release(&index->arena);
	*index = (struct st_index){0};
}
