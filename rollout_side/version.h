/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rollout rank does in which order: pure, facts in, actions out (facts: update_model.pml,
 * rank; fence_model.pml, poll).  No clock, no memory, no thread, no NIC.
 *
 * Facts are kept, not queued: the hub's last word, whether everything landed, what a hook
 * returned.  After each fact version_settle derives what is to be done now, so that a word that
 * came too early is acted upon when its time comes, and a repeated one changes nothing.
 */
#ifndef ROLLOUT_VERSION_H
#define ROLLOUT_VERSION_H

#include "lib/base/base.h"
#include "lib/hub/hub.h"

/* What the caller's thread is asked to run inside step; one at a time. */
enum hook {
	HOOK_NONE = 0,
	HOOK_BEGIN,
	HOOK_PAUSE,
	HOOK_RELOAD, /* the copy (double), then on_reload */
	HOOK_RESUME,
	HOOK_ABORT
};

enum version_act {
	ACT_HOOK = 1, /* hand action.hook to the caller */
	ACT_REVOKE, /* take the hook back if it hasn't been begun: version_hook_done(-ECANCELED) */
	ACT_ARM,    /* let memory be written: version_armed */
	ACT_END,    /* no write of the attempt is expected any more */
	ACT_SAY,    /* state, attempt or live version changed: tell the hub */
	ACT_READY,  /* say ready for the attempt, after ACT_SAY */
	ACT_FAIL,   /* tell the hub: action.failure, action.why */
	ACT_REJOIN  /* this incarnation was dropped and has given up: join as a new one */
};

struct version_action {
	enum version_act act;
	enum hook hook;
	uint64_t version;
	bool serving_old;	   /* HOOK_ABORT */
	enum failure_kind failure; /* ACT_FAIL */
	struct ws_error why;	   /* HOOK_ABORT, ACT_FAIL */
};

struct version {
	bool inplace;

	/* my state */
	enum rank_state state;
	uint64_t attempt, version; /* taken: open, or the last */
	uint64_t said_attempt;	   /* what state belongs to: a begin taken is no state yet */
	uint64_t live_version;	   /* what the engine's memory holds whole; 0: nothing known */
	bool opening;		   /* begin taken: on_begin runs, or the engine is being armed */
	bool broken;		   /* a failure was reported: only abort or drop follow */
	bool written;		   /* engine's memory may hold bytes of this attempt */
	bool touched;		   /* a stray write came after commit */
	enum hook hook;		   /* with the caller */
	bool revoking;

	/* facts */
	enum replica_word word;
	uint64_t word_attempt, word_version;
	struct ws_error word_why;
	bool wired, landed, dropped;
	struct ws_error dropped_why;
};

#define VERSION_ACTIONS_MAX 8
struct version_actions {
	uint32_t count;
	struct version_action list[VERSION_ACTIONS_MAX];
};

void version_init(struct version *version, bool inplace);
/* Facts; each appends what is to be done now, in order. */
void version_word(struct version *version, enum replica_word word, uint64_t attempt,
		  uint64_t number, const struct ws_error *why, struct version_actions *out);
void version_wired(struct version *version, bool wired, struct version_actions *out);
void version_armed(struct version *version, int rc, const struct ws_error *err,
		   struct version_actions *out);
void version_landed(struct version *version, struct version_actions *out);
/* rc: 0, -EAGAIN (not yet: begin, pause, resume), -ECANCELED (revoked), or the hook's error. */
void version_hook_done(struct version *version, int rc, const struct ws_error *err,
		       struct version_actions *out);
/* A NIC, a count, a digest, an op: the attempt can't be completed here. */
void version_failed(struct version *version, const struct ws_error *why,
		    struct version_actions *out);
/* A write nobody expected was seen. */
void version_stray(struct version *version, const struct ws_error *why,
		   struct version_actions *out);
void version_dropped(struct version *version, const struct ws_error *why,
		     struct version_actions *out);
/* Nothing of an update is open here, known or with the caller. */
bool version_is_calm(const struct version *version);
/* The rank, calm and dropped, comes back with other params: nobody knows what they hold. */
void version_describe(struct version *version);

const char *hook_name(enum hook hook);

#endif
