/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files, whole: read with a limit and without ever blocking on a FIFO, and written so
 * that a reader sees the old contents or the new, never a half.  And what a library has by name.
 */
#include "lib/base/base.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The closed set of codes for what open, read and write say. */
static int file_code(int error)
{
	switch (error) {
	case ENOENT:
	case ENOTDIR:
		return -ENOENT;
	case EACCES:
	case EPERM:
	case EROFS:
		return -EACCES;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
	case EMFILE:
	case ENFILE:
		return -ENOSPC;
	case ENOMEM:
		return -ENOMEM;
	case EISDIR:
	case ELOOP:
	case ENAMETOOLONG:
	case EINVAL:
	case ENXIO:
		return -EINVAL;
	}
	return -EIO;
}

int file_fail(struct ws_error *err, int error, const char *doing, const char *path)
{
	return ws_fail(err, file_code(error), "cannot %s '%s': %s", doing, path, strerror(error));
}

/* Reads to the end of the file; *bytes and *room grow as needed, up to bytes_max + 1. */
static int read_all(int fd, const char *path, size_t bytes_max, uint8_t **bytes, size_t *room,
		    size_t *count, struct ws_error *err)
{
	while (true) {
		if (*count == *room - 1) {
			/* One byte is kept for the NUL; a full buffer may still be the end. */
			size_t more = MIN(*room * 2, bytes_max + 2);
			uint8_t *grown = mem_grow(*bytes, *room, more);
			if (grown == NULL)
				return ws_fail(err, -ENOMEM, "out of memory while reading '%s'",
					       path);
			*bytes = grown;
			*room = more;
		}
		ssize_t n = read(fd, *bytes + *count, *room - 1 - *count);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_fail(err, errno, "read", path);
		if (n == 0)
			return 0;
		*count += (size_t)n;
		if (*count > bytes_max)
			return ws_fail(err, -ENOSPC, "'%s' has more than %zu bytes, the limit",
				       path, bytes_max);
	}
}

int file_read_open(int fd, const char *path, size_t bytes_max, void **bytes_out, size_t *count_out,
		   struct ws_error *err)
{
	struct stat stat;
	*bytes_out = NULL;
	*count_out = 0;
	bytes_max = MIN(bytes_max, SIZE_MAX / 4);
	if (fstat(fd, &stat) != 0)
		return file_fail(err, errno, "look at", path);
	if (!S_ISREG(stat.st_mode))
		return ws_fail(err, -EINVAL, "'%s' isn't a regular file", path);
	if (stat.st_size > 0 && (uint64_t)stat.st_size > bytes_max)
		return ws_fail(err, -ENOSPC, "'%s' has %lld bytes, and the limit is %zu", path,
			       (long long)stat.st_size, bytes_max);
	/* Two more than it has: the NUL, and a byte to find the end without growing. */
	size_t room = (size_t)stat.st_size + 2, count = 0;
	uint8_t *bytes = mem_alloc(room);
	if (bytes == NULL)
		return ws_fail(err, -ENOMEM, "out of memory for the %lld bytes of '%s'",
			       (long long)stat.st_size, path);
	int rc = read_all(fd, path, bytes_max, &bytes, &room, &count, err);
	if (rc != 0) {
		mem_free(bytes);
		return rc;
	}
	bytes[count] = '\0';
	*bytes_out = bytes;
	*count_out = count;
	return 0;
}

int file_read(const char *path, size_t bytes_max, void **bytes_out, size_t *count_out,
	      struct ws_error *err)
{
	*bytes_out = NULL;
	*count_out = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return file_fail(err, errno, "open", path);
	int rc = file_read_open(fd, path, bytes_max, bytes_out, count_out, err);
	close(fd);
	return rc;
}

int file_write_all(int fd, const char *path, const void *bytes, size_t count, struct ws_error *err)
{
	const uint8_t *at = bytes;
	while (count > 0) {
		ssize_t n = write(fd, at, count);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_fail(err, errno, "write", path);
		at += n;
		count -= (size_t)n;
	}
	return 0;
}

bool file_link_name(const char *path, char *name_out, size_t room)
{
	char target[PATH_MAX];

	ssize_t length = readlink(path, target, sizeof(target) - 1);
	if (length <= 0)
		return false;
	target[length] = '\0';
	const char *slash = strrchr(target, '/');
	snprintf(name_out, room, "%s", slash != NULL ? slash + 1 : target);
	return true;
}

/* A device, a pipe or a link ("/dev/stdout") stays what it is.  A pipe nobody reads is an error. */
static int write_in_place(const char *path, const void *bytes, size_t count, struct ws_error *err)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	int rc = 0;

	if (fd < 0)
		return file_fail(err, errno, "write", path);
	if (fcntl(fd, F_SETFL, 0) != 0)
		rc = file_fail(err, errno, "write", path);
	if (rc == 0)
		rc = file_write_all(fd, path, bytes, count, err);
	if (close(fd) != 0 && rc == 0)
		rc = file_fail(err, errno, "write", path);
	return rc;
}

int file_write(const char *path, const void *bytes, size_t count, unsigned mode,
	       struct ws_error *err)
{
	char tmp_path[PATH_MAX];
	struct stat stat;
	if (lstat(path, &stat) == 0 && !S_ISREG(stat.st_mode)) {
		if ((mode & 077) == 0)
			return ws_fail(err, -EINVAL,
				       "'%s' isn't a regular file, and what goes into it is "
				       "secret: name another",
				       path);
		return write_in_place(path, bytes, count, err);
	}
	int length = snprintf(tmp_path, sizeof(tmp_path), "%s.tmp", path);
	if (length < 0 || (size_t)length >= sizeof(tmp_path))
		return ws_fail(err, -EINVAL, "the path '%.60s...' is too long", path);
	/* One that a killed run left, perhaps with another mode, or a link that somebody laid. */
	unlink(tmp_path);
	int fd = open(tmp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
	if (fd < 0)
		return file_fail(err, errno, "write", tmp_path);
	int rc = file_write_all(fd, tmp_path, bytes, count, err);
	if (rc == 0 && fsync(fd) != 0)
		rc = file_fail(err, errno, "write", tmp_path);
	if (close(fd) != 0 && rc == 0)
		rc = file_fail(err, errno, "write", tmp_path);
	if (rc == 0 && rename(tmp_path, path) != 0)
		rc = file_fail(err, errno, "write", path);
	if (rc != 0)
		unlink(tmp_path);
	return rc;
}

/* A function pointer has another type than dlsym's answer: it is stored as one. */
bool library_find(void *library, const char *name, void *function_out)
{
	void *function = dlsym(library, name);

	*(void **)function_out = function;
	return function != NULL;
}
