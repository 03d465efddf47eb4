/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rollout's side of weightsync: one ws_rollout in each inference worker.
 *
 *	ws_rollout_open(&r, &options, &hooks, arg, &err);
 *	for each weight buffer of mine: ws_rollout_add(r, param, &memory, &err);
 *	for each post step that the manifest names: ws_rollout_on_post(r, step, f, arg, &err);
 *	ws_rollout_start(r, deadline_ms, &err);
 *	the engine's loop: ws_rollout_step(r, &err);         runs hooks, never blocks otherwise
 *	ws_rollout_close(r);
 *
 * Threads: calls come from one thread at a time, the engine's.  Hooks run only inside
 * ws_rollout_step, on that thread; post steps on a thread of weightsync's own.
 */
#ifndef WS_ROLLOUT_H
#define WS_ROLLOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/ws_error.h"
#include "lib/ws_memory.h"
#include "lib/ws_nic.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_rollout;

enum ws_buffers {
	/* Bytes land in weightsync's spare memory and are copied into the engine's own, inside
	 * step, after commit and before on_reload.  Old weights stay valid through any failure
	 * before. */
	WS_DOUBLE = 0,
	/* Bytes land in the engine's own memory, which is poisoned from on_begin until commit. */
	WS_INPLACE
};

/*
 * Hooks, all optional.  arg comes back.  0 or a negative errno with a sentence in err.  They may
 * take as long as the engine needs; nothing of weightsync is blocked but this rank's progress.
 * On a GPU the memory is written by streams of weightsync's own, or on options.stream: kernels of
 * other streams that read it must have ended when the hook that stops serving returns 0, and from
 * on_reload on any stream sees the bytes.
 *
 *   on_begin   an update begins.  In place: stop serving, the memory is poisoned from now on;
 *              -EAGAIN: not yet, called again at the next step until the engine has all its ranks
 *              at the same one.  Double: nothing needs to be done.
 *   on_pause   double only, all bytes have landed: stop serving at a step that is the same on all
 *              ranks of the replica; -EAGAIN: not yet, called again at the next step
 *   on_reload  the new bytes are in the engine's memory: derive what depends on them.  An error
 *              poisons this replica: it is dropped and named.
 *   on_resume  all ranks of the replica have reloaded: serve
 *   on_abort   the update died.  serving_old: the old weights are whole and may be served (double
 *              before commit); else the memory is poisoned: refuse to serve until a later
 *              on_resume.
 */
struct ws_rollout_hooks {
	int (*on_begin)(void *arg, uint64_t version, struct ws_error *err);
	int (*on_pause)(void *arg, uint64_t version, struct ws_error *err);
	int (*on_reload)(void *arg, uint64_t version, struct ws_error *err);
	int (*on_resume)(void *arg, uint64_t version, struct ws_error *err);
	void (*on_abort)(void *arg, uint64_t version, bool serving_old, const struct ws_error *why);
};

/*
 * Post steps: what an engine makes of params once they have landed, before a version may go live:
 * MLA's w_kc and w_vc of kv_b_proj, a kernel's own order of rows.  The manifest names them: an
 * entry of "derived" lists params and the memory that is made of them; a param with a "post" is
 * staged: it lands in memory of weightsync's, and the step makes the engine's own of it.
 *
 * A step is called once for each of these, at each layer that this rank holds, as soon as all its
 * params have landed and been unpacked, while others are still under way: one call at a time, in
 * the order in which they landed.  What it writes is not live: double, spare memory that is copied
 * into the engine's with everything else, after commit; in place, the engine's own, which is
 * poisoned since on_begin returned 0.  All calls have ended well before this rank says that the
 * version has landed, so before on_pause (double), commit and on_reload.
 *
 * 0; or a negative errno with a sentence in err: the version is aborted, and the trainers are told
 * rank, step, param and sentence.  The same for a call that hasn't come back, on a GPU with all
 * that it queued, within post_ms.  Once a version is aborted no call begins; on_abort waits for the
 * one that has, and this rank takes no other version before it is back: the others go on without
 * its replica.  ws_post_cancelled tells a long step to end early.
 *
 * Thread: one of weightsync's own, which runs nothing else; a step may block, and calls nothing of
 * this rollout's.  Where the params lie on a GPU, that is the thread's current one.
 */
#define WS_DIMS_MAX 6

/* A param that has landed, or memory to make.  Row-major, without gaps. */
struct ws_post_param {
	const char *name;
	enum ws_dtype dtype; /* WS_NONE: to be made, in a form that the engine knows */
	uint32_t dim_count;
	uint64_t dim[WS_DIMS_MAX]; /* in elements */
	/* Of a quantized weight: how many elements by dim lie under one element of its scale, which
	 * is the next param; the last may be fewer.  0: it isn't quantized, or not in such blocks
	 * (a stack of experts with one scale each). */
	uint64_t block[WS_DIMS_MAX];
	struct ws_memory memory; /* of the version that isn't live */
};

/* Valid during the call. */
struct ws_post {
	const char *step;
	uint64_t version;
	int32_t layer, expert;		    /* -1: none */
	const struct ws_post_param *params; /* to be read only: they may be forwarded meanwhile */
	const struct ws_post_param *made;   /* to be written, all of it */
	uint32_t param_count, made_count;
	void *stream; /* cudaStream_t to queue work on, which weightsync waits for; NULL: the memory
		       * is the host's */
	const void *cancelled; /* ws_post_cancelled's */
};

/* Whether the version is given up, so that nobody will look at what is made.  Any thread. */
WS_API bool ws_post_cancelled(const struct ws_post *post);

#define WS_POST_STEPS_MAX 32

struct ws_rollout_options {
	const char *hub; /* "tcp://host:port" */
	const char *key_file;
	uint32_t replica, rank, world; /* rank and world inside the replica */
	const char *manifest; /* JSON text of the rollout's manifest; borrowed during open */
	size_t manifest_bytes;
	const char *transport; /* these seven as in ws_trainer_options */
	const char *provider;
	const char *const *nics;
	uint32_t nic_count;
	const char *gpu;
	uint32_t local_rank, local_ranks;
	/* Who shares a host with whom, for fan-out: ranks that say the same.  NULL: who can be
	 * reached over ipc (without it: this host's name and boot).  For containers of one host.
	 * Which ranks ipc joins doesn't depend on it. */
	const char *host;
	enum ws_buffers buffers;
	bool param_digest; /* hash all params after each copy, for ws_rollout_last */
	uint32_t post_ms;  /* one call of a post step, at most; 0: 30000 */
	/* The engine's cudaStream_t on the GPU where the params lie, borrowed until close; not the
	 * default stream, but cudaStreamLegacy can be given.  Unpacking, post steps and the copy
	 * after commit are queued on it, behind what is there.  NULL: streams of weightsync's own.
	 * With params in host memory: -EINVAL at start. */
	void *stream;
};

WS_API int ws_rollout_open(struct ws_rollout **rollout_out,
			   const struct ws_rollout_options *options,
			   const struct ws_rollout_hooks *hooks, void *arg, struct ws_error *err);
/* Accepts NULL.  Waits for a post step that runs, but not longer than it may take: then its thread
 * and the spare memory that it has are left behind, and options.stream must stay, too, until the
 * step is back.  Waits a minute for what weightsync, or the engine on options.stream, has queued on
 * the GPU: then it is given up, and memory on it stays. */
WS_API void ws_rollout_close(struct ws_rollout *rollout);
/* As ws_trainer_nics and ws_trainer_core. */
WS_API const char *ws_rollout_nics(const struct ws_rollout *rollout);
WS_API const char *ws_rollout_core(const struct ws_rollout *rollout);

/* Params that land, and behind them what is derived. */
WS_API uint32_t ws_rollout_param_count(const struct ws_rollout *rollout);
WS_API int ws_rollout_param(const struct ws_rollout *rollout, uint32_t index, const char **name_out,
			    enum ws_dtype *dtype_out, uint64_t *bytes_out);
/* As ws_trainer_add, but in place trainers write there: a GPU's memory is of cudaMalloc then.
 * Elements that no canonical tensor covers (padding) are zeroed at start.  The
 * memory of a staged param is what its post step makes: of any size. */
WS_API int ws_rollout_add(struct ws_rollout *rollout, const char *param,
			  const struct ws_memory *memory, struct ws_error *err);

/*
 * The function of a named post step (see struct ws_post); every step that the manifest names on
 * this rank must have one at start.  Before start, or while describing again.  name is copied; arg
 * comes back with each call.  -EINVAL for a second function of a name, -ENOSPC beyond
 * WS_POST_STEPS_MAX.
 */
WS_API int ws_rollout_on_post(struct ws_rollout *rollout, const char *step,
			      int (*function)(void *arg, const struct ws_post *post,
					      struct ws_error *err),
			      void *arg, struct ws_error *err);

/* Registers, joins the hub, and waits until it is wired the first time, or deadline_ms. */
WS_API int ws_rollout_start(struct ws_rollout *rollout, uint32_t deadline_ms, struct ws_error *err);

/*
 * Describing again: the engine is to move experts between its ranks, or params appear, vanish or
 * change form.
 *
 *	ws_rollout_describe(r, json, bytes, deadline_ms, &err);   no update comes from here on
 *	the engine moves its experts; ws_rollout_add what is new or lies elsewhere now
 *	ws_rollout_describe_end(r, &err);                         back in the run
 *
 * describe takes the manifest's text (copied), once no update is open: it blocks for one answer of
 * the hub, and while an update is still open in another replica, deadline_ms at most.  Then
 * ws_rollout_param lists the new params.  One with the name and size that it had keeps its memory
 * unless it is added again; the others must be added.  Between the two calls weightsync touches
 * no memory and runs no hook (step returns 0); what vanished may be freed once describe_end has
 * returned.  Padding is zeroed as at start, and double's spare memory is laid out anew where
 * sizes changed.  describe may be called again before the end.
 *
 * describe_end returns at once; the hub takes the replica back when all its ranks have described
 * the same, and begins no attempt before all replicas of the run have the same manifest, for its
 * phase_ms at most: then those that most have go on, and the others wait outside until they have
 * described it too.  What goes wrong there step says: -ESTALE for a rank that described otherwise
 * than its peers.
 *
 * From describe on, ws_rollout_version is 0 and ws_rollout_serving false until a version is live
 * in the new params: weightsync can't know what they hold.  An engine that moved them itself,
 * whole, serves them on its own word.
 *
 * All ranks of a replica describe the same manifests one after the other; their first answers may
 * differ, so each goes on asking until it is 0, and the engine moves its experts when all are.
 *
 * describe: -EBUSY during an update here (go on stepping, ask again); -ETIMEDOUT; -EINVAL for a
 * manifest that can't be, or that the trainers' weights don't cover: then nothing has changed.
 */
WS_API int ws_rollout_describe(struct ws_rollout *rollout, const char *manifest, size_t bytes,
			       uint32_t deadline_ms, struct ws_error *err);
WS_API int ws_rollout_describe_end(struct ws_rollout *rollout, struct ws_error *err);

/*
 * Runs what is due: hooks, the copy after commit.  Called from the engine's loop, at least every
 * few seconds; cheap when nothing is due.  0; or the error that ended or endangers this side:
 * -ECONNRESET the hub is gone ("in doubt": keep calling, it may come back; whether the weights
 * may be served is ws_rollout_serving's word), -ECANCELED the run has ended normally (code 0 text),
 * others: the side is dead, close it (-EIO also for a run whose end was no normal one).
 */
WS_API int ws_rollout_step(struct ws_rollout *rollout, struct ws_error *err);

/* Readable when step has something to do. */
WS_API int ws_rollout_fd(const struct ws_rollout *rollout);

/* The version that is live here, to stamp samples with; 0: none yet. */
WS_API uint64_t ws_rollout_version(const struct ws_rollout *rollout);
/* Whether the engine may serve now: weights whole, not paused, not poisoned. */
WS_API bool ws_rollout_serving(const struct ws_rollout *rollout);

/* What the last update that went live here did. */
struct ws_rollout_report {
	uint64_t version, attempt, bytes; /* received by this rank */
	uint64_t bytes_from_rollouts;	  /* of them: forwards of other ranks; 0 without fan-out */
	uint64_t bytes_forwarded;	  /* by this rank to others */
	uint64_t ready_ns, landed_ns, paused_ns, copy_ns, reload_ns,
		resumed_ns;    /* each from the one before;
				* copy_ns and reload_ns are inside paused..live */
	uint64_t ring_bytes;   /* of the receive staging ring in use */
	char nic_trouble[256]; /* this rank's NICs that aren't in use and why; empty: all are */
	uint64_t post_ns;      /* in post steps, inside ready..landed */
	uint32_t post_count;   /* calls of them */
	uint32_t counter_count, digest_count; /* thresholds reached; wire digests compared */
	uint64_t param_digest; /* xor over params of xxh3(bytes, seed: name); 0 unless asked */
	uint32_t nic_count;
	struct ws_nic nics[WS_NICS_MAX]; /* bytes_sent: forwards */
};
WS_API void ws_rollout_last(const struct ws_rollout *rollout, struct ws_rollout_report *report_out);
/* xxh3 of a param's present bytes.  -EAGAIN while an update may be writing them. */
WS_API int ws_rollout_digest(const struct ws_rollout *rollout, uint32_t index, uint64_t *digest_out,
			     struct ws_error *err);

/* Tells the trainers (ws_trainer_verified) and `weightsync status` what a check of the live version
 * found: bytes looked at, bytes that differ.  Kept until the next one. */
WS_API void ws_rollout_say_verified(struct ws_rollout *rollout, uint64_t version, uint64_t bytes,
				    uint64_t different_bytes);

#ifdef __cplusplus
}
#endif

#endif
