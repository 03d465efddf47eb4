/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of a rollout rank.  version_settle is the whole of it: which of the facts
 * counts now, given state and hook; the functions below it only note a fact and settle.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "rollout_side/version.h"

static const struct ws_error no_error;

const char *hook_name(enum hook hook)
{
	switch (hook) {
	case HOOK_NONE:
		return "none";
	case HOOK_BEGIN:
		return "on_begin";
	case HOOK_PAUSE:
		return "on_pause";
	case HOOK_RELOAD:
		return "on_reload";
	case HOOK_RESUME:
		return "on_resume";
	case HOOK_ABORT:
		return "on_abort";
	}
	return "?";
}

static struct version_action *act(struct version_actions *out, enum version_act what)
{
	assert(out->count < VERSION_ACTIONS_MAX);
	struct version_action *action = &out->list[out->count++];
	memset(action, 0, sizeof(*action));
	action->act = what;
	return action;
}

static void ask_hook(struct version *version, enum hook hook, struct version_actions *out)
{
	struct version_action *action = act(out, ACT_HOOK);

	action->hook = hook;
	action->version = version->version;
	version->hook = hook;
	version->revoking = false;
}

static void set_state(struct version *version, enum rank_state state, struct version_actions *out)
{
	version->state = state;
	version->said_attempt = version->attempt;
	act(out, ACT_SAY);
}

static void fail(struct version *version, enum failure_kind kind, const struct ws_error *why,
		 struct version_actions *out)
{
	struct version_action *action = act(out, ACT_FAIL);

	action->failure = kind;
	action->why = *why;
	version->broken = true;
}

static void poison(struct version *version)
{
	version->live_version = 0;
	version->written = true;
}

/* The engine's memory isn't what anybody pushed: after commit, or in place. */
static void go_bad(struct version *version, const struct ws_error *why, struct version_actions *out)
{
	poison(version);
	set_state(version, RANK_BAD, out);
	fail(version, FAILURE_POISONED, why, out);
}

/* Whether something of an attempt is open that an abort ends. */
static bool is_open(const struct version *version)
{
	return version->opening || (version->state >= RANK_READY && version->state <= RANK_PAUSED);
}

/* Ends what is open.  Old weights survive unless bytes may have gone over them. */
static void give_up(struct version *version, const struct ws_error *why,
		    struct version_actions *out)
{
	bool committed = version->state == RANK_COMMITTED || version->state == RANK_LIVE ||
			 version->state == RANK_BAD;

	if (committed)
		poison(version);
	act(out, ACT_END);
	version->opening = false;
	version->broken = false;
	version->touched = false;
	version->landed = false;
	set_state(version, RANK_IDLE, out);
	ask_hook(version, HOOK_ABORT, out);
	struct version_action *action = &out->list[out->count - 1];
	action->serving_old = !version->written;
	action->why = *why;
}

/* An abort or drop may find a hook with the caller: only what hasn't touched weights is taken back.
 */
static void want_hook_back(struct version *version, struct version_actions *out)
{
	if (version->revoking || (version->hook != HOOK_BEGIN && version->hook != HOOK_PAUSE))
		return;
	version->revoking = true;
	act(out, ACT_REVOKE);
}

static void settle_dropped(struct version *version, struct version_actions *out)
{
	bool something = is_open(version) || version->broken || version->state == RANK_COMMITTED ||
			 version->state == RANK_LIVE || version->state == RANK_BAD;

	/* An engine that never steps doesn't keep its rank from joining again. */
	if (version->hook != HOOK_NONE && (something || version->hook != HOOK_ABORT)) {
		want_hook_back(version, out);
		return;
	}
	version->dropped = false;
	version->word = WORD_NONE;
	if (something)
		give_up(version, &version->dropped_why, out);
	act(out, ACT_REJOIN);
}

static void settle_begin(struct version *version, struct version_actions *out)
{
	if (version->word_attempt <= version->attempt || version->state == RANK_COMMITTED ||
	    version->state == RANK_BAD)
		return;
	if (version->hook != HOOK_NONE) {
		want_hook_back(version, out);
	} else if (version->state == RANK_LIVE) {
		/* The hub begins again only when it had said resume: it implies it. */
		ask_hook(version, HOOK_RESUME, out);
	} else if (is_open(version) || version->broken) {
		struct ws_error why;
		ws_fail(&why, -ESTALE, "the hub went on to attempt %llu",
			(unsigned long long)version->word_attempt);
		give_up(version, &why, out);
	} else if (version->wired) {
		version->attempt = version->word_attempt;
		version->version = version->word_version;
		version->opening = true;
		version->landed = false;
		version->touched = false;
		ask_hook(version, HOOK_BEGIN, out);
	}
}

static void settle_pause(struct version *version, struct version_actions *out)
{
	if (version->word_attempt != version->attempt || version->state != RANK_LANDED ||
	    version->broken || version->hook != HOOK_NONE)
		return;
	if (version->inplace)
		set_state(version, RANK_PAUSED, out); /* since on_begin */
	else
		ask_hook(version, HOOK_PAUSE, out);
}

static void settle_commit(struct version *version, struct version_actions *out)
{
	if (version->word_attempt != version->attempt || version->state != RANK_PAUSED ||
	    version->hook != HOOK_NONE)
		return;
	act(out, ACT_END);
	if (version->broken) {
		/* The hub hadn't heard of the failure when it committed. */
		struct ws_error why;
		ws_fail(&why, -EIO, "version %llu was committed after a failure was seen here",
			(unsigned long long)version->version);
		go_bad(version, &why, out);
		return;
	}
	set_state(version, RANK_COMMITTED, out);
	version->written = true;
	ask_hook(version, HOOK_RELOAD, out);
}

static void settle_abort(struct version *version, struct version_actions *out)
{
	if (version->word_attempt < version->attempt || (!is_open(version) && !version->broken) ||
	    version->state > RANK_PAUSED)
		return;
	if (version->hook != HOOK_NONE)
		want_hook_back(version, out);
	else
		give_up(version, &version->word_why, out);
}

static void version_settle(struct version *version, struct version_actions *out)
{
	if (version->dropped) {
		settle_dropped(version, out);
		return;
	}
	switch (version->word) {
	case WORD_NONE:
		break;
	case WORD_BEGIN:
		settle_begin(version, out);
		break;
	case WORD_PAUSE:
		settle_pause(version, out);
		break;
	case WORD_COMMIT:
		settle_commit(version, out);
		break;
	case WORD_RESUME:
		if (version->word_attempt == version->attempt && version->state == RANK_LIVE &&
		    version->hook == HOOK_NONE)
			ask_hook(version, HOOK_RESUME, out);
		break;
	case WORD_ABORT:
		settle_abort(version, out);
		break;
	}
}

/* ---------------------------------------------------------------- what a hook returned */

static void begin_done(struct version *version, int rc, const struct ws_error *err,
		       struct version_actions *out)
{
	if (!version->opening || version->broken)
		return;
	if (rc == 0) {
		act(out, ACT_ARM);
	} else {
		fail(version, FAILURE_ATTEMPT, err, out);
	}
}

static void reload_done(struct version *version, int rc, const struct ws_error *err,
			struct version_actions *out)
{
	struct ws_error why;

	if (rc == 0 && !version->touched) {
		version->written = false;
		version->live_version = version->version;
		set_state(version, RANK_LIVE, out);
		return;
	}
	ws_fail(&why, -EIO, "version %llu was written to while it was being reloaded",
		(unsigned long long)version->version);
	go_bad(version, rc != 0 ? err : &why, out);
}

/* -EAGAIN: the same hook again, unless a word has made it needless. */
static void hook_again(struct version *version, enum hook hook, struct version_actions *out)
{
	version_settle(version, out);
	if (version->hook == HOOK_NONE && out->count == 0)
		ask_hook(version, hook, out);
}

void version_hook_done(struct version *version, int rc, const struct ws_error *err,
		       struct version_actions *out)
{
	enum hook hook = version->hook;

	version->hook = HOOK_NONE;
	version->revoking = false;
	if (rc == -EAGAIN && (hook == HOOK_BEGIN || hook == HOOK_PAUSE || hook == HOOK_RESUME)) {
		hook_again(version, hook, out);
		return;
	}
	switch (hook) {
	case HOOK_NONE:
	case HOOK_ABORT:
		break;
	case HOOK_BEGIN:
		if (rc != -ECANCELED)
			begin_done(version, rc, err, out);
		break;
	case HOOK_PAUSE:
		if (rc == 0)
			set_state(version, RANK_PAUSED, out);
		else if (rc != -ECANCELED)
			fail(version, FAILURE_ATTEMPT, err, out);
		break;
	case HOOK_RELOAD:
		reload_done(version, rc, err, out);
		break;
	case HOOK_RESUME:
		if (version->state != RANK_LIVE)
			break; /* poisoned meanwhile */
		if (rc == 0)
			set_state(version, RANK_RESUMED, out);
		else
			go_bad(version, err, out);
		break;
	}
	version_settle(version, out);
}

/* ---------------------------------------------------------------- facts */

void version_init(struct version *version, bool inplace)
{
	memset(version, 0, sizeof(*version));
	version->inplace = inplace;
}

void version_word(struct version *version, enum replica_word word, uint64_t attempt,
		  uint64_t number, const struct ws_error *why, struct version_actions *out)
{
	version->word = word;
	version->word_attempt = attempt;
	version->word_version = number;
	version->word_why = why != NULL ? *why : no_error;
	version_settle(version, out);
}

void version_wired(struct version *version, bool wired, struct version_actions *out)
{
	version->wired = wired;
	if (wired)
		version_settle(version, out);
}

void version_armed(struct version *version, int rc, const struct ws_error *err,
		   struct version_actions *out)
{
	if (!version->opening)
		return;
	if (rc != 0) {
		fail(version, FAILURE_ATTEMPT, err, out);
		version_settle(version, out);
		return;
	}
	version->opening = false;
	if (version->inplace)
		poison(version);
	version->state = RANK_READY;
	version->said_attempt = version->attempt;
	version_settle(version, out);
	/* Nobody is told of a state that a drop or an abort has ended already. */
	if (version->state == RANK_READY) {
		act(out, ACT_SAY);
		act(out, ACT_READY);
	}
}

void version_landed(struct version *version, struct version_actions *out)
{
	if (version->landed || version->state != RANK_READY || version->broken)
		return;
	version->landed = true;
	set_state(version, RANK_LANDED, out);
	version_settle(version, out);
}

void version_failed(struct version *version, const struct ws_error *why,
		    struct version_actions *out)
{
	/* After commit nothing of the attempt is under way here. */
	if (version->broken || !is_open(version))
		return;
	fail(version, FAILURE_ATTEMPT, why, out);
	version_settle(version, out);
}

void version_stray(struct version *version, const struct ws_error *why, struct version_actions *out)
{
	if (is_open(version)) {
		version_failed(version, why, out);
	} else if (version->state == RANK_COMMITTED) {
		version->touched = true; /* the reload that runs can't be trusted */
		if (version->hook == HOOK_NONE)
			go_bad(version, why, out);
	} else if (version->inplace && version->state != RANK_BAD && version->live_version != 0) {
		/* Written to while it is served, or about to be.  on_abort comes with the drop. */
		go_bad(version, why, out);
	}
	/* Else it went into the spare arena, or into memory that is poisoned already. */
}

void version_dropped(struct version *version, const struct ws_error *why,
		     struct version_actions *out)
{
	version->dropped = true;
	version->dropped_why = *why;
	version_settle(version, out);
}

bool version_is_calm(const struct version *version)
{
	bool begins = version->word == WORD_BEGIN && version->word_attempt > version->attempt;

	return (version->state == RANK_IDLE || version->state == RANK_RESUMED) &&
	       version->hook == HOOK_NONE && !version->opening && !version->broken &&
	       !version->dropped && !begins;
}

void version_describe(struct version *version)
{
	version->word = WORD_NONE;
	version->state = RANK_IDLE;
	version->live_version = 0;
	version->written = false;
}
