/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run's key file: six lines of text that only its owner may read.  Whoever has it is in
 * the run, so it is never overwritten, never read when others could have read it too, and its
 * bytes are wiped from every buffer they pass through.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "lib/link/link.h"

#define KEY_FILE_HEAD	   "weightsync run key 1"
#define KEY_FILE_BYTES_MAX 512

static const char *const line_names[] = {"run", "hub_public", "hub_secret", "member_public",
					 "member_secret"};

/* Where line i of the file lives in key, and its room with the NUL. */
static char *line_value(struct run_key *key, uint32_t line_index, size_t *room_out)
{
	char *const values[] = {key->run_id, key->hub_public, key->hub_secret, key->member_public,
				key->member_secret};

	*room_out = line_index == 0 ? sizeof(key->run_id) : sizeof(key->hub_public);
	return values[line_index];
}

int run_key_make(struct run_key *key, struct ws_error *err)
{
	uint64_t run = 0;

	memset(key, 0, sizeof(*key));
	int rc = random_bytes(&run, sizeof(run), err);
	if (rc != 0)
		return rc;
	snprintf(key->run_id, sizeof(key->run_id), "%016llx", (unsigned long long)run);
	if (zmq_curve_keypair(key->hub_public, key->hub_secret) != 0 ||
	    zmq_curve_keypair(key->member_public, key->member_secret) != 0) {
		run_key_wipe(key);
		return ws_fail(err, -ENOTSUP,
			       "cannot make keys: this ZeroMQ was built without CURVE (libsodium)");
	}
	return 0;
}

void run_key_wipe(struct run_key *key)
{
	if (key != NULL)
		explicit_bzero(key, sizeof(*key));
}

static int write_all(int fd, const char *bytes, size_t count)
{
	while (count > 0) { /* ends: every turn writes at least one byte or returns */
		ssize_t wrote = write(fd, bytes, count);
		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote <= 0)
			return -1;
		bytes += wrote;
		count -= (size_t)wrote;
	}
	return 0;
}

int run_key_write(const struct run_key *key, const char *path, struct ws_error *err)
{
	char text[KEY_FILE_BYTES_MAX];
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0 && errno == EEXIST)
		return ws_fail(
			err, -EEXIST,
			"'%s' exists: a key is never overwritten; remove it or name another file",
			path);
	if (fd < 0)
		return ws_fail(err, -errno, "cannot create key file '%s': %s", path,
			       strerror(errno));
	int count = snprintf(text, sizeof(text),
			     KEY_FILE_HEAD "\nrun %s\nhub_public %s\nhub_secret %s\n"
					   "member_public %s\nmember_secret %s\n",
			     key->run_id, key->hub_public, key->hub_secret, key->member_public,
			     key->member_secret);
	/* fchmod: an odd umask may have taken away more than it should. */
	int rc = fchmod(fd, 0600) != 0 || write_all(fd, text, (size_t)count) != 0 || fsync(fd) != 0
			 ? -errno
			 : 0;
	if (close(fd) != 0 && rc == 0)
		rc = -errno;
	explicit_bzero(text, sizeof(text));
	if (rc != 0) {
		unlink(path);
		return ws_fail(err, rc, "cannot write key file '%s': %s", path, strerror(-rc));
	}
	return 0;
}

/* Opens path and reads it into text; -EACCES where others could have read it as well. */
static int key_file_read(const char *path, char *text, size_t room, size_t *count_out,
			 struct ws_error *err)
{
	struct stat status;
	size_t count = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return ws_fail(err, -errno, "cannot open key file '%s': %s", path, strerror(errno));
	int rc = fstat(fd, &status) != 0 ? -errno : 0;
	if (rc == 0 && !S_ISREG(status.st_mode))
		rc = ws_fail(err, -EBADMSG, "'%s' is not a regular file", path);
	else if (rc == 0 && (status.st_mode & 077) != 0)
		rc = ws_fail(err, -EACCES,
			     "key file '%s' has mode %03o: others may read it; chmod 600 it, or "
			     "make a new one if others did",
			     path, status.st_mode & 0777);
	else if (rc == 0 && status.st_uid != geteuid() && status.st_uid != 0)
		rc = ws_fail(err, -EACCES, "key file '%s' belongs to user %u, who isn't you", path,
			     status.st_uid);
	else if (rc != 0)
		rc = ws_fail(err, rc, "cannot look at key file '%s': %s", path, strerror(-rc));
	while (rc == 0 && count < room) { /* ends: count rises, or the file's end */
		ssize_t got = read(fd, text + count, room - count);
		if (got < 0 && errno != EINTR)
			rc = ws_fail(err, -EIO, "cannot read key file '%s': %s", path,
				     strerror(errno));
		if (got == 0)
			break;
		count += got > 0 ? (size_t)got : 0;
	}
	close(fd);
	*count_out = count;
	return rc;
}

/* Takes one line "name value\n" off the reader; the value must have exactly its length. */
static bool line_take(struct reader *reader, const char *name, char *value_out, size_t room)
{
	size_t name_bytes = strlen(name);
	const char *head = read_bytes(reader, name_bytes);

	if (head == NULL || memcmp(head, name, name_bytes) != 0 || read_u8(reader) != ' ')
		return false;
	const char *value = read_bytes(reader, room - 1);
	if (value == NULL || read_u8(reader) != '\n')
		return false;
	for (size_t i = 0; i < room - 1; i++)
		if (value[i] <= ' ' || value[i] > '~')
			return false;
	memcpy(value_out, value, room - 1);
	value_out[room - 1] = '\0';
	return true;
}

/* Whether the public keys are those of the secret ones: a damaged file is told here, not as a
 * refused handshake later. */
static bool pairs_match(const struct run_key *key)
{
	char derived[41];
	bool ok = zmq_curve_public(derived, key->hub_secret) == 0 &&
		  strcmp(derived, key->hub_public) == 0;

	return ok && zmq_curve_public(derived, key->member_secret) == 0 &&
	       strcmp(derived, key->member_public) == 0;
}

int run_key_read(struct run_key *key, const char *path, struct ws_error *err)
{
	char text[KEY_FILE_BYTES_MAX];
	size_t count = 0;

	memset(key, 0, sizeof(*key));
	int rc = key_file_read(path, text, sizeof(text), &count, err);
	struct reader reader = reader_make(text, rc == 0 ? count : 0);
	const char *head = read_bytes(&reader, strlen(KEY_FILE_HEAD "\n"));
	bool ok = head != NULL && memcmp(head, KEY_FILE_HEAD "\n", strlen(KEY_FILE_HEAD "\n")) == 0;

	for (uint32_t i = 0; ok && i < ARRAY_SIZE(line_names); i++) {
		size_t room = 0;
		char *value = line_value(key, i, &room);
		ok = line_take(&reader, line_names[i], value, room);
	}
	ok = ok && reader_done(&reader) && pairs_match(key) &&
	     strspn(key->run_id, "0123456789abcdef") == sizeof(key->run_id) - 1;
	explicit_bzero(text, sizeof(text));
	if (rc == 0 && !ok)
		rc = ws_fail(err, -EBADMSG,
			     "'%s' isn't a run key file, or is damaged: copy it again, or make one "
			     "by weightsync keygen",
			     path);
	if (rc != 0)
		run_key_wipe(key);
	return rc;
}
