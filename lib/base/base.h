/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Floor 1: what every other folder stands on.  Errors and findings, the only door to malloc,
 * arenas, checked reading and writing of bytes, digests, the clock, JSON and safetensors.
 * Nothing here knows a NIC, a layout or a peer.
 */
#ifndef BASE_H
#define BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/ws_error.h"
#include "lib/ws_memory.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)     ((a) < (b) ? (a) : (b))
#define MAX(a, b)     ((a) > (b) ? (a) : (b))

#define NICS_MAX 16 /* of one rank */

/* How engine, hub and planner speak of a NIC: what it reaches, and how fast. */
struct nic_speed {
	uint64_t subnet; /* a digest of its name; 0: it joins processes of one host only */
	uint64_t mbps;	 /* line rate in Mb/s; 0: unknown */
};

/* Rounds up to a multiple of align, a power of two. */
static inline size_t align_up(size_t value, size_t align)
{
	return (value + align - 1) & ~(align - 1);
}

/* ------------------------------------------------------------------------------------------
 * mem.c: the only door to malloc.
 *
 * Everything weightsync allocates itself goes through these three, so that a test can make
 * the nth allocation fail and a debug build can assert that the data path allocates nothing.
 * Thread: any.
 */
void *mem_alloc(size_t bytes); /* zeroed; NULL when out of memory; bytes 0 gives a valid pointer */
/* The new part is zeroed; the old memory is kept on NULL. */
void *mem_grow(void *old, size_t old_bytes, size_t new_bytes);
void mem_free(void *memory); /* accepts NULL */
char *mem_copy_text(const char *text);

/* The nth allocation from now on (0 = the next) fails once; -1 = none. */
void mem_fail_nth(int64_t n);
uint64_t mem_live_count(void); /* allocations not yet freed, for leak checks in tests */
uint64_t mem_alloc_count(void);
/* While a thread has forbidden allocation, mem_alloc asserts.  Calls nest. */
void mem_forbid(void);
void mem_allow(void);

/* An arena: many small allocations that are freed as one.  Zeroed memory, 16-byte aligned. */
struct arena {
	struct arena_block *blocks; /* owned; newest first */
	size_t used;		    /* bytes handed out, all blocks */
};

void *arena_alloc(struct arena *arena, size_t bytes); /* NULL when out of memory */
void *arena_array(struct arena *arena, size_t count, size_t bytes_each); /* NULL also on overflow */
char *arena_text(struct arena *arena, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
char *arena_copy(struct arena *arena, const void *bytes, size_t count); /* NUL is added */
void arena_release(struct arena *arena); /* all at once; may be called again */

/* ------------------------------------------------------------------------------------------
 * error.c: a list of findings: what a check says when one sentence isn't enough.
 */
/* "rollout 0.1: rollout 0.1 is taken" becomes "rollout 0.1 is taken", wherever a part of a sentence
 * before ": " is said again right behind it.  In place; ws_fail does it to every sentence. */
void error_drop_repeats(char *text);

struct finding {
	struct finding *next;
	const char *kind;  /* a stable word: "missing", "doubled", "shape", "dtype", ...; static */
	const char *where; /* the param, tensor or file it is about; in the arena */
	const char *text;  /* one sentence; in the arena */
	uint64_t words;	   /* a hash of all three without their numbers: equal ones are alike */
	uint32_t alike;	   /* others like it, which were counted and not kept */
};

struct findings {
	struct finding *first, *last; /* in the order found; in the arena */
	uint32_t count;		      /* of all that were found */
	uint32_t kept;
	struct arena *arena; /* borrowed; set by the owner before use */
};

#define FINDINGS_KEPT_MAX	1000
#define FINDINGS_ALIKE_KEPT_MAX 3 /* the same words with other numbers */

void findings_add(struct findings *findings, const char *kind, const char *where,
		  const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Adds all that others have. */
void findings_merge(struct findings *findings, const struct findings *others);
/* Puts the first sentence and the number of others into err; 0 where there are no findings. */
int findings_fail(const struct findings *findings, int code, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * bytes.c: reading what came from outside, and writing what goes there.
 *
 * Little-endian.  A reader that once ran past its end stays failed and yields zeroes, so that
 * a decoder reads everything and looks at `failed` once.  A writer never passes its limit.
 */
struct reader {
	const uint8_t *at, *end; /* borrowed */
	bool failed;
};

static inline struct reader reader_make(const void *bytes, size_t count)
{
	return (struct reader){.at = (const uint8_t *)bytes, .end = (const uint8_t *)bytes + count};
}
size_t reader_left(const struct reader *reader);
uint8_t read_u8(struct reader *reader);
uint16_t read_u16(struct reader *reader);
uint32_t read_u32(struct reader *reader);
uint64_t read_u64(struct reader *reader);
const void *read_bytes(struct reader *reader, size_t count); /* borrowed; NULL when failed */
/* A u32 length and as many bytes, at most bytes_max - 1, no NUL inside; text_out gets a NUL. */
void read_text(struct reader *reader, char *text_out, size_t bytes_max);
/* A u32 count of things of at least bytes_each_min bytes each: fails if not all can be there. */
uint32_t read_count(struct reader *reader, size_t bytes_each_min, uint32_t count_max);
/* True when nothing failed and nothing is left. */
bool reader_done(const struct reader *reader);

struct writer {
	uint8_t *bytes; /* owned, or borrowed if fixed */
	size_t count, room, room_max;
	bool fixed;
	bool failed; /* out of memory or beyond room_max; what was written before is kept */
};

/* Grows by mem_grow up to max bytes. */
#define WRITER_INIT(max)          \
	{                         \
		.room_max = (max) \
	}
static inline struct writer writer_fixed(void *bytes, size_t room)
{
	return (struct writer){
		.bytes = (uint8_t *)bytes, .room = room, .room_max = room, .fixed = true};
}
void write_u8(struct writer *writer, uint8_t value);
void write_u16(struct writer *writer, uint16_t value);
void write_u32(struct writer *writer, uint32_t value);
void write_u64(struct writer *writer, uint64_t value);
void write_bytes(struct writer *writer, const void *bytes, size_t count);
void write_text(struct writer *writer, const char *text);
void write_format(struct writer *writer, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void writer_reset(struct writer *writer); /* count and failed to 0; memory is kept */
void writer_release(struct writer *writer);

/* ------------------------------------------------------------------------------------------
 * digest.c: XXH3, 64 bits (xxHash).  Not a defence against an attacker.
 */
uint64_t digest_bytes(const void *bytes, size_t count, uint64_t seed);

struct digest {
	void *state; /* owned */
};

int digest_open(struct digest *digest, uint64_t seed, struct ws_error *err);
void digest_add(struct digest *digest, const void *bytes, size_t count);
uint64_t digest_end(struct digest *digest); /* the digest may go on after it */
void digest_close(struct digest *digest);

/* A good 64-bit mix of one number (the finaliser of XXH3 / MurmurHash3). */
static inline uint64_t mix64(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ (x >> 33);
}

/* Fills bytes from the kernel's random source. */
int random_bytes(void *bytes, size_t count, struct ws_error *err);

/* ------------------------------------------------------------------------------------------
 * clock.c: CLOCK_MONOTONIC in nanoseconds; a test may put a clock of its own in its place.
 */
uint64_t clock_ns(void);
void clock_set(uint64_t (*now_ns)(void *arg), void *arg); /* NULL: the real one; tests only */
void sleep_ns(uint64_t ns);

static inline uint64_t deadline_in_ms(uint64_t ms)
{
	return clock_ns() + ms * 1000000u;
}

/* ------------------------------------------------------------------------------------------
 * thread.c: as pthread_create (a positive errno), on one core, or with cpu -1 on all that the
 * process's threads had before the first was bound.  EINVAL for a core that isn't the process's.
 */
int thread_start(pthread_t *thread_out, int cpu, void *(*run)(void *arg), void *arg);

/* ------------------------------------------------------------------------------------------
 * json.c: strict JSON in, streaming JSON out; the only file that knows cJSON.
 *
 * json_parse first scans the bytes without allocating: valid UTF-8, no BOM, no control bytes
 * as white space, no NUL (raw or escaped) in strings, only well-formed escapes, numbers by
 * RFC 8259's grammar, at most depth_max nested and node_count_max values, nothing but white
 * space after the value, no duplicate keys in one object.  Only then is it given to cJSON.
 */
enum json_type {
	JSON_NULL,
	JSON_FALSE,
	JSON_TRUE,
	JSON_NUMBER,
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT
};

struct json {
	enum json_type type;
	bool is_integer;	  /* a number without fraction and exponent, in -(2^53-1)..2^53-1 */
	int64_t integer;	  /* if is_integer */
	double number;		  /* if JSON_NUMBER */
	const char *text;	  /* JSON_STRING; in the arena */
	const char *key;	  /* inside an object: its name */
	uint32_t count;		  /* children of an array or object */
	const struct json *first; /* children, in the order written */
	const struct json *next;
};

struct json_limits {
	size_t bytes_max;
	uint32_t depth_max;
	uint32_t node_count_max;
};

#define JSON_LIMITS_MANIFEST                                                        \
	{                                                                           \
		.bytes_max = 64u << 20, .depth_max = 64, .node_count_max = 4u << 20 \
	}

/* Parses into arena.  -EBADMSG with line and column, -ENOSPC for a limit, -ENOMEM. */
int json_parse(struct arena *arena, const void *bytes, size_t count,
	       const struct json_limits *limits, const struct json **json_out,
	       struct ws_error *err);

/* Lets cJSON allocate through mem_alloc, so that mem_fail_nth reaches it.  Tests only: the
 * hooks are global in libcjson, and a program that links us may use it too. */
void json_use_mem(bool yes);

/* Lookups; NULL or the fallback where absent or of another type.  json may be NULL. */
const struct json *json_get(const struct json *object, const char *key);
const struct json *json_at(const struct json *array, uint32_t index); /* walks */
const char *json_text(const struct json *object, const char *key, const char *fallback);
int64_t json_integer(const struct json *object, const char *key, int64_t fallback);
bool json_true(const struct json *object, const char *key); /* present and true */

/* Streaming output.  Commas, quoting and escapes are its business; nesting is the caller's.
 * What isn't valid UTF-8 becomes U+FFFD, and a number that isn't finite becomes null. */
struct json_writer {
	struct writer *out; /* borrowed */
	uint32_t depth;
	bool need_comma;
	bool pretty;	 /* indent by two blanks, one member a line, short arrays on one line */
	uint64_t broken; /* a bit for each depth: this container has begun a second line */
};

void json_begin_object(struct json_writer *json, const char *key); /* key NULL inside an array */
void json_end_object(struct json_writer *json);
void json_begin_array(struct json_writer *json, const char *key);
void json_end_array(struct json_writer *json);
void json_put_text(struct json_writer *json, const char *key, const char *value);
void json_put_integer(struct json_writer *json, const char *key, int64_t value);
void json_put_u64(struct json_writer *json, const char *key, uint64_t value);
/* decimals -1: as many digits as it takes to read the same number back */
void json_put_number(struct json_writer *json, const char *key, double value, int decimals);
void json_put_bool(struct json_writer *json, const char *key, bool value);
void json_put_null(struct json_writer *json, const char *key);
void json_put_value(struct json_writer *json, const char *key, const struct json *value);

/* ------------------------------------------------------------------------------------------
 * file.c: small files, whole.
 */
/* Reads a regular file of at most bytes_max bytes; *bytes_out is the caller's, mem_free it.
 * One NUL is added behind.  Never blocks on a FIFO.  -ENOENT, -EACCES, -EINVAL, -ENOSPC, -EIO. */
int file_read(const char *path, size_t bytes_max, void **bytes_out, size_t *count_out,
	      struct ws_error *err);
/* The same from an open file, which stays open; path is for the sentence. */
int file_read_open(int fd, const char *path, size_t bytes_max, void **bytes_out, size_t *count_out,
		   struct ws_error *err);
/* Writes path.tmp, syncs, renames.  mode as in open(2).  What exists and isn't a regular file (a
 * device, a pipe, a link) is written in place, or, if only its owner could read (mode 0600),
 * -EINVAL. */
int file_write(const char *path, const void *bytes, size_t count, unsigned mode,
	       struct ws_error *err);
/* For who keeps a file open: writes all of it; and "cannot <doing> '<path>': <why>", with the
 * code that struct ws_error's table has for the kernel's errno. */
int file_write_all(int fd, const char *path, const void *bytes, size_t count, struct ws_error *err);
int file_fail(struct ws_error *err, int error, const char *doing, const char *path);
/* The last part of what a link points to; false where there is none. */
bool file_link_name(const char *path, char *name_out, size_t room);
/* A function of a library that dlopen gave, into the function pointer at function_out; false, and
 * NULL there: it has none of that name. */
bool library_find(void *library, const char *name, void *function_out);

#endif
