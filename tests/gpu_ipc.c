/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc between two processes with GPU memory at either end or both: on one GPU, and on two where
 * there are two.  Also when one of them is killed with the other's memory mapped.
 */
#include "lib/base/base.h"
#include "tests/gpu.h"
#include "tests/gpu_pieces.h"
#include "tests/transport_ends.h"

#define BYTES	 ((size_t)64 << 20)
#define OPS	 512u
#define ROOM	 (BYTES / OPS)
#define BOUND_MS 10000

static struct ws_error err;
static bool two_gpus;
static bool touching; /* where an op ends the next begins, but for every seventh */

/* What a process has its memory in. */
struct kind {
	enum ws_place place;
	int device;
	bool in_pieces; /* nobody else can map it: it is only sent from */
};

struct kinds {
	struct kind sender, receiver;
};

/* GPU 0 to GPU 0, to GPU 1, from and to the host, and from what can't be shared. */
static struct kinds kinds_of(int i)
{
	const struct kind gpu[2] = {{.place = WS_CUDA}, {.place = WS_CUDA, .device = 1}};
	const struct kind host = {.place = WS_HOST};
	const struct kind pieces = {.place = WS_CUDA, .in_pieces = true};
	const struct kinds all[] = {
		{gpu[0], gpu[0]}, {gpu[0], gpu[two_gpus]}, {host, gpu[0]},
		{gpu[0], host},	  {pieces, gpu[two_gpus]}, {pieces, host},
	};
	return all[i];
}

static int open_kind(struct end *end, int socket, const struct kind *kind)
{
	struct ws_memory memory = {.bytes = BYTES, .place = kind->place, .device = kind->device};
	enum mr_use use = kind->in_pieces ? MR_SOURCE : MR_TARGET;
	int rc = 0;

	if (kind->in_pieces)
		rc = cuda_use(kind->device, &err);
	else
		rc = ws_memory_alloc(&memory, BYTES, &err);
	if (rc == 0 && kind->in_pieces)
		memory.base = gpu_pieces_make(kind->device, BYTES);
	if (rc == 0)
		rc = end_open_with(end, "ipc", "host", socket, &memory, use, &err);
	end->allocated = !kind->in_pieces;
	return rc;
}

static void copy_out(void *to, const void *from, size_t bytes)
{
	MUST(cuda_copy(to, from, bytes, NULL, &err) == 0);
	MUST(cuda_stream_wait(NULL, &err) == 0);
}

static uint8_t *pattern(uint64_t seed)
{
	uint64_t *words = malloc(BYTES);

	for (size_t i = 0; words != NULL && i < BYTES / sizeof(*words); i++)
		words[i] = mix64(seed << 32 | i);
	return (uint8_t *)words;
}

/* An op's part of its room: odd offsets and lengths, and some empty; or nearly all of it. */
static uint64_t op_lead(uint32_t op)
{
	return touching ? 0 : mix64(op) % 33;
}

static uint64_t op_bytes(uint32_t op)
{
	if (touching)
		return op % 7 == 6 ? ROOM - 5 : ROOM;
	return op % 50 == 7 ? 0 : op % 3 == 0 ? ROOM - 64 : mix64(op) % (ROOM - 64);
}

/* Waits for the immediates; at each of them its bytes must be there. */
static void receiver(int socket, const void *arg)
{
	const struct kinds *kinds = arg;
	uint8_t *want = pattern(5), *got = calloc(1, BYTES), *zero = calloc(1, ROOM);
	uint64_t end_ns = deadline_in_ms(BOUND_MS);
	struct end end;
	uint32_t seen = 0;

	MUST(want != NULL && got != NULL && zero != NULL);
	MUST(open_kind(&end, socket, &kinds->receiver) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	while (seen < OPS) {
		struct event event;
		MUST(clock_ns() < end_ns);
		if (end.nic->transport->poll(end.nic, &event, 1) != 1 || event.kind != EVENT_IMM)
			continue;
		uint64_t at = (uint64_t)event.imm * ROOM + op_lead(event.imm);
		copy_out(got + at, (uint8_t *)end.memory.base + at, op_bytes(event.imm));
		MUST(memcmp(got + at, want + at, op_bytes(event.imm)) == 0);
		seen++;
	}
	/* And nothing beside them. */
	copy_out(got, end.memory.base, BYTES);
	for (uint32_t i = 0; i < OPS; i++) {
		uint8_t *room = got + (size_t)i * ROOM;
		memset(room + op_lead(i), 0, op_bytes(i));
		MUST(memcmp(room, zero, ROOM) == 0);
	}
	while (end.nic->transport->peer_close(end.nic, end.peer, false, false) == -EAGAIN)
		MUST(end_poll(&end) >= 0 && clock_ns() < end_ns);
	end_close(&end);
}

START_TEST(every_byte_is_there_when_its_immediate_is)
{
	struct kinds kinds = kinds_of(_i / 2);
	touching = _i % 2 == 1; /* in the child, too */
	struct child child = child_start(receiver, &kinds);
	uint8_t *bytes = pattern(5);
	uint64_t end_ns = deadline_in_ms(BOUND_MS);
	struct end end;

	ck_ok(open_kind(&end, child.socket, &kinds.sender), err);
	gpu_put(end.memory.base, bytes, BYTES);
	ck_ok(end_connect(&end, child.socket, &err), err);
	for (uint32_t i = 0; i < OPS;) {
		i += (uint32_t)end_post(&end, (uint64_t)i * ROOM + op_lead(i), op_bytes(i), i);
		end_poll(&end);
		ck_assert(clock_ns() < end_ns);
	}
	while (end.sent + end.failed < OPS) {
		end_poll(&end);
		ck_assert(clock_ns() < end_ns);
	}
	ck_assert_msg(end.failed == 0, "%s", end.last_reason);
	ck_assert_int_eq(end_fence(&end, false, BOUND_MS), 0);
	ck_assert_int_eq(child_wait(&child), 0);
	if (kinds.sender.in_pieces)
		end.memory.base = NULL;
	end_close(&end);
	free(bytes);
}
END_TEST

/* ---------------------------------------------------------------- what must fail */

static void receiver_patient(int socket, const void *arg)
{
	const struct kinds *kinds = arg;
	struct end end;

	MUST(open_kind(&end, socket, &kinds->receiver) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	for (;;)
		end_poll(&end);
}

START_TEST(a_write_past_the_region_or_with_a_wrong_key_fails_at_the_sender)
{
	struct kinds kinds = kinds_of(1);
	struct child child = child_start(receiver_patient, &kinds);
	struct end end;

	ck_ok(open_kind(&end, child.socket, &kinds.sender), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	ck_assert_int_eq(end_post(&end, BYTES - 100, 101, 1), 1);
	end.other.key ^= UINT64_C(1) << 40;
	ck_assert_int_eq(end_post(&end, 0, 4096, 2), 1);
	while (end.sent + end.failed < 2)
		end_poll(&end);
	ck_assert_uint_eq(end.failed, 2);
	ck_assert_ptr_nonnull(strstr(end.last_reason, "no memory with this key"));
	child_kill(&child);
	ck_assert_int_eq(end_fence(&end, true, BOUND_MS), 0);
	end_close(&end);
}
END_TEST

/* Posts until something fails. */
static void post_until_failure(struct end *end)
{
	uint64_t end_ns = deadline_in_ms(BOUND_MS);

	for (uint32_t i = 0; end->failed == 0; i++) {
		end_post(end, i % OPS * ROOM, ROOM, i);
		end_poll(end);
		ck_assert_msg(clock_ns() < end_ns, "no failure within %d ms", BOUND_MS);
	}
	while (end->sent + end->failed < end->posted) {
		end_poll(end);
		ck_assert(clock_ns() < end_ns);
	}
}

START_TEST(a_receiver_that_is_killed_with_its_memory_mapped_is_noticed)
{
	struct kinds kinds = kinds_of(1);
	struct child child = child_start(receiver_patient, &kinds);
	struct end end;

	ck_ok(open_kind(&end, child.socket, &kinds.sender), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	for (uint32_t i = 0; i < 200; i++) {
		end_post(&end, i % OPS * ROOM, ROOM, i);
		end_poll(&end);
	}
	kill(child.pid, SIGKILL);
	post_until_failure(&end);
	ck_assert_ptr_nonnull(strstr(end.last_reason, "has died"));
	child_wait(&child);
	ck_assert_int_eq(end_fence(&end, true, BOUND_MS), 0);
	end_close(&end);
}
END_TEST

static void sender_endless(int socket, const void *arg)
{
	const struct kinds *kinds = arg;
	struct end end;

	MUST(open_kind(&end, socket, &kinds->sender) == 0);
	MUST(end_connect(&end, socket, &err) == 0);
	for (uint32_t i = 0;; i++) {
		end_post(&end, i % OPS * ROOM, ROOM, i);
		end_poll(&end);
	}
}

/* Whoever has closed the fence, after the sender's death or while it lives: nothing lands any more,
 * also not what the sender had kept for its next launch. */
START_TEST(nothing_lands_after_a_sender_was_fenced)
{
	struct kinds kinds = kinds_of(1);
	struct child child = child_start(sender_endless, &kinds);
	uint8_t *ones = malloc(BYTES), *got = malloc(BYTES);
	uint64_t moment_ns;
	struct end end;

	memset(ones, 0xa5, BYTES);
	ck_ok(open_kind(&end, child.socket, &kinds.receiver), err);
	ck_ok(end_connect(&end, child.socket, &err), err);
	moment_ns = clock_ns() + mix64((uint64_t)_i) % 20000000;
	while (clock_ns() < moment_ns || end.imms == 0)
		end_poll(&end);
	if (_i % 2 == 0)
		child_kill(&child);
	ck_assert_int_eq(end_fence(&end, false, BOUND_MS), 0);
	gpu_put(end.memory.base, ones, BYTES);
	usleep(20000);
	gpu_get(got, end.memory.base, BYTES);
	ck_assert_int_eq(memcmp(got, ones, BYTES), 0);
	if (_i % 2 == 1)
		child_kill(&child);
	end_close(&end);
	free(ones);
	free(got);
}
END_TEST

Suite *suite(void)
{
	if (!gpus_are_there(1))
		return NULL;
	Suite *s = suite_create("gpu_ipc");
	TCase *tc = tcase_create("gpu");
	two_gpus = gpus_are_there(2);
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, every_byte_is_there_when_its_immediate_is, 0, 12);
	tcase_add_test(tc, a_write_past_the_region_or_with_a_wrong_key_fails_at_the_sender);
	tcase_add_test(tc, a_receiver_that_is_killed_with_its_memory_mapped_is_noticed);
	tcase_add_loop_test(tc, nothing_lands_after_a_sender_was_fenced, 0, 8);
	suite_add_tcase(s, tc);
	return s;
}
