/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder below /tmp for each test: add make_folder and remove_folder as a checked fixture.
 */
#ifndef FOLDER_H
#define FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "lib/base/base.h"
#include "tests/test.h"

static char folder[64];

static inline void make_folder(void)
{
	snprintf(folder, sizeof(folder), "/tmp/ws-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *ftw)
{
	(void)stat;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static inline void remove_folder(void)
{
	nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a name in the folder; four at a time. */
static inline const char *in_folder(const char *name)
{
	static char paths[4][512];
	static uint32_t turn;
	char *path = paths[turn++ % 4];
	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static inline void put_file(const char *name, const void *bytes, size_t count)
{
	struct ws_error err = {0};
	ck_ok(file_write(in_folder(name), bytes, count, 0644, &err), err);
}

#endif
