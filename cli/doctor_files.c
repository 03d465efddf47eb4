/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's small files below a root folder, as texts. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/doctor.h"

#define FILE_BYTES_MAX (1u << 20)
#define NAMES_MAX      512

static bool make_path(const struct doctor *doctor, const char *path, char *out, size_t room)
{
	int length = snprintf(out, room, "%s%s", doctor->root, path);
	return length > 0 && (size_t)length < room;
}

const char *host_read(struct doctor *doctor, const char *path)
{
	char whole[512];
	void *bytes;
	size_t count;

	if (!make_path(doctor, path, whole, sizeof(whole)) ||
	    file_read(whole, FILE_BYTES_MAX, &bytes, &count, NULL) != 0)
		return NULL;
	while (count > 0 && ((const char *)bytes)[count - 1] == '\n')
		count--;
	char *text = arena_copy(&doctor->arena, bytes, count);
	mem_free(bytes);
	doctor->out_of_memory |= text == NULL;
	return text;
}

bool host_has(const struct doctor *doctor, const char *path)
{
	char whole[512];
	return make_path(doctor, path, whole, sizeof(whole)) && access(whole, F_OK) == 0;
}

static int by_name(const void *a, const void *b)
{
	return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

uint32_t host_list(struct doctor *doctor, const char *folder, const char *begin,
		   const char *const **names_out)
{
	char whole[512];
	uint32_t count = 0;
	const char **names = arena_array(&doctor->arena, NAMES_MAX, sizeof(*names));
	DIR *dir = make_path(doctor, folder, whole, sizeof(whole)) ? opendir(whole) : NULL;

	*names_out = names;
	doctor->out_of_memory |= names == NULL;
	for (struct dirent *entry;
	     dir != NULL && names != NULL && count < NAMES_MAX && (entry = readdir(dir)) != NULL;) {
		const char *name = entry->d_name;
		if (name[0] == '.' || strncmp(name, begin, strlen(begin)) != 0)
			continue;
		names[count] = arena_copy(&doctor->arena, name, strlen(name));
		doctor->out_of_memory |= names[count] == NULL;
		count += names[count] != NULL;
	}
	if (dir != NULL)
		closedir(dir);
	if (count > 0)
		qsort(names, count, sizeof(*names), by_name);
	return count;
}

const char *host_link_name(struct doctor *doctor, const char *path)
{
	char whole[512], name[256];

	if (!make_path(doctor, path, whole, sizeof(whole)) ||
	    !file_link_name(whole, name, sizeof(name)))
		return NULL;
	char *copy = arena_copy(&doctor->arena, name, strlen(name));
	doctor->out_of_memory |= copy == NULL;
	return copy;
}

const char *text_field(struct doctor *doctor, const char *text, const char *name)
{
	size_t length = strlen(name);

	for (const char *line = text; line != NULL && *line != '\0';) {
		const char *end = strchrnul(line, '\n');
		if (strncmp(line, name, length) == 0) {
			const char *value = line + length;
			value += strspn(value, " \t");
			return arena_copy(&doctor->arena, value, (size_t)(end - value));
		}
		line = *end == '\n' ? end + 1 : end;
	}
	return NULL;
}
