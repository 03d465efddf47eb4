/* SPDX-License-Identifier: Apache-2.0 */
/* What callers ask of a push, on either side of the mailbox: their calls, and the answers. */
#include <errno.h>

#include "trainer_side/mailbox.h"
#include "trainer_side/trainer_internal.h"

/* ---------------------------------------------------------------- the caller's calls */

int ws_trainer_push_begin(struct ws_trainer *trainer, uint64_t version, uint32_t deadline_ms,
			  struct ws_error *err)
{
	struct request request = {.kind = REQUEST_BEGIN,
				  .version = version,
				  .deadline_ns = deadline_in_ms(deadline_ms)};

	if (version == 0)
		return ws_fail(err, -EINVAL, "version 0 means none; versions begin at 1");
	trainer->push_deadline_ns = request.deadline_ns;
	return mailbox_ask(trainer, &request, err);
}

int ws_trainer_push_released(struct ws_trainer *trainer, struct ws_error *err)
{
	struct request request = {.kind = REQUEST_RELEASED,
				  .deadline_ns = trainer->push_deadline_ns};

	return mailbox_ask(trainer, &request, err);
}

int ws_trainer_push_end(struct ws_trainer *trainer, struct ws_report *report, struct ws_error *err)
{
	struct request request = {.kind = REQUEST_END, .deadline_ns = trainer->push_deadline_ns};

	int rc = mailbox_ask(trainer, &request, err);
	if (report != NULL && !trainer->stuck)
		*report = trainer->push.report;
	return rc;
}

int ws_trainer_push(struct ws_trainer *trainer, uint64_t version, uint32_t deadline_ms,
		    struct ws_report *report, struct ws_error *err)
{
	int rc = ws_trainer_push_begin(trainer, version, deadline_ms, err);

	return rc != 0 ? rc : ws_trainer_push_end(trainer, report, err);
}

/* The I/O thread keeps the sums of the version that was asked for last. */
int ws_trainer_verified(const struct ws_trainer *trainer, uint64_t version, uint32_t *ranks_out,
			uint64_t *bytes_out, uint64_t *different_out, struct ws_error *err)
{
	struct verified *verified = trainer->verified;
	bool gone = atomic_load(&verified->gone_version) == version;
	uint32_t serial = atomic_load(&verified->serial);

	*ranks_out = 0;
	*bytes_out = 0;
	*different_out = 0;
	atomic_store(&verified->wanted, version);
	if (serial % 2 == 0 && atomic_load(&verified->version) == version) {
		uint32_t ranks = atomic_load(&verified->ranks);
		uint64_t bytes = atomic_load(&verified->bytes);
		uint64_t different = atomic_load(&verified->different);
		if (atomic_load(&verified->serial) == serial) {
			*ranks_out = ranks;
			*bytes_out = bytes;
			*different_out = different;
		}
	}
	return gone ? ws_fail(err, -ECONNRESET, "%s", verified->gone.text) : 0;
}

void ws_trainer_cancel(struct ws_trainer *trainer)
{
	atomic_store(&trainer->cancelled, true);
	mailbox_wake(trainer->wake_fd);
}

/* ---------------------------------------------------------------- the I/O thread's answers */

static void begin_take(struct ws_trainer *trainer, const struct request *request)
{
	const struct push *push = &trainer->push;
	struct ws_error answer = {0};

	if (push->state != PUSH_NONE && push->state != PUSH_OVER) {
		ws_fail(&answer, -EINVAL, "the push of version %llu hasn't ended yet",
			(unsigned long long)push->version);
	} else if (trainer->is_over) {
		answer = trainer->over;
		if (answer.code == 0)
			answer.code = -ECANCELED;
	} else if (request->version < trainer->version_live) {
		ws_fail(&answer, -EINVAL, "version %llu is below %llu, which went live",
			(unsigned long long)request->version,
			(unsigned long long)trainer->version_live);
	}
	if (answer.code == 0)
		push_begin(trainer, request->version, request->deadline_ns);
	mailbox_answer(trainer, &answer);
}

static void start_answer(struct ws_trainer *trainer, const struct request *request)
{
	struct ws_error answer = {0}, waits = {0};

	if (trainer->is_over) {
		answer = trainer->over;
		if (answer.code == 0)
			answer.code = -ECANCELED;
	} else if (!trainer->all_wired) {
		if (clock_ns() < request->deadline_ns)
			return;
		(void)member_attempt_over(trainer->member, UINT64_MAX, &waits);
		ws_fail(&answer, -ETIMEDOUT, "trainer %u wasn't wired in time%s%s", trainer->rank,
			waits.text[0] != 0 ? ": " : "; is the hub up?", waits.text);
	}
	mailbox_answer(trainer, &answer);
}

void push_request(struct ws_trainer *trainer)
{
	const struct request *request = mailbox_look(trainer);
	struct push *push = &trainer->push;
	struct ws_error answer = {0};

	if (request == NULL)
		return;
	if (atomic_load(&trainer->cancelled) &&
	    (push->state == PUSH_NONE || push->state == PUSH_OVER)) {
		ws_fail(&answer, -ECANCELED, "trainer %u was told to stop", trainer->rank);
		mailbox_answer(trainer, &answer);
		return;
	}
	switch (request->kind) {
	case REQUEST_START:
		start_answer(trainer, request);
		return;
	case REQUEST_BEGIN:
		begin_take(trainer, request);
		return;
	case REQUEST_RELEASED:
	case REQUEST_END:
		break;
	case REQUEST_NONE:
		return;
	}
	if (push->state == PUSH_NONE) {
		ws_fail(&answer, -EINVAL, "no push was begun on trainer %u", trainer->rank);
	} else if (push->state == PUSH_OVER) {
		answer = push->why;
	} else if (request->kind == REQUEST_END || !push->released) {
		return;
	}
	if (request->kind == REQUEST_END) {
		trainer->ended_attempt = MAX(push->attempt, trainer->ended_attempt);
		if (push->live)
			trainer->version_live = push->version;
		push->state = PUSH_NONE;
	}
	mailbox_answer(trainer, &answer);
}
