/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's end: step takes the hook that the I/O thread has handed over, runs it, and hands
 * back what it returned.  Whether the engine may serve is decided here, on the engine's thread,
 * in the same call that ran the hook; only poisoning comes from outside at any time.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "rollout_side/rollout_internal.h"

static int hook_call(struct ws_rollout *rollout,
		     int (*function)(void *, uint64_t, struct ws_error *), struct ws_error *err)
{
	struct hook_slot *slot = &rollout->slot;

	err->code = 0;
	err->text[0] = 0;
	if (function == NULL)
		return 0;
	int rc = function(rollout->hook_arg, slot->version, err);
	if (rc == 0 || rc == -EAGAIN)
		return rc;
	return ws_fail_in(err, rc, "%s of version %llu failed", hook_name(slot->hook),
			  (unsigned long long)slot->version);
}

static int run_begin(struct ws_rollout *rollout)
{
	struct hook_slot *slot = &rollout->slot;

	int rc = hook_call(rollout, rollout->hooks.on_begin, &slot->err);
	if (rc == 0 && rollout->inplace) {
		rollout->serving = false;
		rollout->whole = false;
	}
	return rc;
}

static int run_pause(struct ws_rollout *rollout)
{
	int rc = hook_call(rollout, rollout->hooks.on_pause, &rollout->slot.err);

	if (rc == 0)
		rollout->serving = false;
	return rc;
}

static int run_reload(struct ws_rollout *rollout)
{
	struct hook_slot *slot = &rollout->slot;
	uint64_t start = clock_ns();

	/* In place a word may have come without on_begin's caller having stopped: never serve now.
	 */
	rollout->serving = false;
	int rc = landing_copy_out(rollout, &slot->err);
	rollout->whole = rc == 0;
	slot->copy_ns = clock_ns() - start;
	slot->param_digest = 0;
	if (rc == 0 && rollout->want_digest)
		rc = params_digest(rollout, &slot->param_digest, &slot->err);
	if (rc != 0)
		return rc;
	start = clock_ns();
	rc = hook_call(rollout, rollout->hooks.on_reload, &slot->err);
	slot->reload_ns = clock_ns() - start;
	if (rc == -EAGAIN)
		rc = ws_fail(&slot->err, -EIO, "on_reload can't be put off");
	if (rc == 0)
		atomic_store(&rollout->live_version, slot->version);
	return rc;
}

static int run_resume(struct ws_rollout *rollout)
{
	struct hook_slot *slot = &rollout->slot;
	uint64_t start = clock_ns();

	int rc = hook_call(rollout, rollout->hooks.on_resume, &slot->err);
	if (rc == 0) {
		rollout->serving = true;
		rollout->last = slot->report;
		rollout->last.resumed_ns = clock_ns() - start;
	}
	return rc;
}

static int run_abort(struct ws_rollout *rollout)
{
	struct hook_slot *slot = &rollout->slot;

	rollout->whole = slot->serving_old;
	rollout->serving = slot->serving_old && atomic_load(&rollout->live_version) != 0;
	if (rollout->hooks.on_abort != NULL)
		rollout->hooks.on_abort(rollout->hook_arg, slot->version, slot->serving_old,
					&slot->why);
	return 0;
}

static void slot_run(struct ws_rollout *rollout)
{
	struct hook_slot *slot = &rollout->slot;
	int posted = SLOT_POSTED;

	if (!atomic_compare_exchange_strong(&slot->state, &posted, SLOT_CLAIMED))
		return;
	switch (slot->hook) {
	case HOOK_NONE:
		slot->rc = 0;
		break;
	case HOOK_BEGIN:
		slot->rc = run_begin(rollout);
		break;
	case HOOK_PAUSE:
		slot->rc = run_pause(rollout);
		break;
	case HOOK_RELOAD:
		slot->rc = run_reload(rollout);
		break;
	case HOOK_RESUME:
		slot->rc = run_resume(rollout);
		break;
	case HOOK_ABORT:
		slot->rc = run_abort(rollout);
		break;
	}
	atomic_store_explicit(&slot->state, SLOT_DONE, memory_order_release);
	fd_wake(rollout->wake_fd);
}

/* A run that ended badly is neither a normal end nor a hub that may come back. */
static int over_code(int code)
{
	return code == -ECANCELED || code == -ECONNRESET ? -EIO : code;
}

int ws_rollout_step(struct ws_rollout *rollout, struct ws_error *err)
{
	uint64_t dropped;

	if (rollout->describing)
		return 0;
	if (!rollout->thread_started)
		return ws_fail(err, -EINVAL, "%s hasn't been started", rollout->name);
	atomic_store_explicit(&rollout->last_step_ns, clock_ns(), memory_order_relaxed);
	(void)!read(rollout->step_fd, &dropped, sizeof(dropped));
	slot_run(rollout);
	if (atomic_load_explicit(&rollout->over_set, memory_order_acquire)) {
		/* What had been handed over before the end is still carried out. */
		int state = atomic_load(&rollout->slot.state);
		if (state != SLOT_EMPTY)
			return 0;
		if (rollout->over.code == 0)
			return ws_fail(err, -ECANCELED, "%s", rollout->over.text);
		return ws_fail(err, over_code(rollout->over.code), "%s", rollout->over.text);
	}
	if (atomic_load_explicit(&rollout->hub_lost, memory_order_acquire))
		return ws_fail(err, -ECONNRESET,
			       "the hub at '%s' isn't heard; keep stepping, it may come back",
			       rollout->hub_text);
	return 0;
}

int ws_rollout_fd(const struct ws_rollout *rollout)
{
	return rollout->step_fd;
}

uint64_t ws_rollout_version(const struct ws_rollout *rollout)
{
	return atomic_load(&rollout->live_version);
}

bool ws_rollout_serving(const struct ws_rollout *rollout)
{
	return rollout->serving && !atomic_load(&rollout->poisoned);
}

void ws_rollout_last(const struct ws_rollout *rollout, struct ws_rollout_report *report_out)
{
	*report_out = rollout->last;
}

/* Three numbers for the I/O thread, which takes them when the serial stands still and is even. */
void ws_rollout_say_verified(struct ws_rollout *rollout, uint64_t version, uint64_t bytes,
			     uint64_t different_bytes)
{
	atomic_fetch_add(&rollout->verified_serial, 1);
	atomic_store(&rollout->verified_version, version);
	atomic_store(&rollout->verified_bytes, bytes);
	atomic_store(&rollout->verified_different, different_bytes);
	atomic_fetch_add(&rollout->verified_serial, 1);
	fd_wake(rollout->wake_fd);
}
