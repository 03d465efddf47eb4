/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trainers and rollouts of the real sides in one process, over libfabric's tcp on loopback: the
 * trainers as the test's own calls on threads, each rollout with an engine loop on a thread.
 * Bytes are a hash of (canonical tensor, element, version), so that every byte can be checked.
 */
#ifndef UPDATE_WORLD_H
#define UPDATE_WORLD_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/base/base.h"
#include "planner/planner.h"
#include "rollout_side/ws_rollout.h"
#include "trainer_side/ws_trainer.h"

#define TRAINERS_MAX 8
#define ROLLOUTS_MAX 8

struct world_options {
	const char *model; /* NULL: "llama-3-70b" */
	uint64_t scale;	   /* 1/scale of its bytes; 0: 16000 */
	const char *trainer_layout, *trainer_mesh;
	const char *rollout_layout, *rollout_mesh;
	const char *dtype; /* the trainers' params; NULL: as the model's */
	const char *quant; /* the rollouts' scheme; NULL: none */
	uint32_t trainers, replicas, replica_ranks, min_replicas;
	bool inplace, digests, barrier;
	const char *fanout;		  /* NULL: none */
	uint32_t ranks_per_host;	  /* of a replica; 0: all on this one */
	const char *transport;		  /* NULL: "fabric" */
	const char *fault_device;	  /* of trainer 1's fault NIC, or NULL */
	const char *rollout_fault_device; /* of rollout 0.0's, or NULL */
	const char *trainer_nics[2], *rollout_nics[2];
	/* With two NICs: other ones of trainer 1 and rollout 0.0, where given. */
	const char *trainer_own_nics[2], *rollout_own_nics[2];
	uint32_t nic_count; /* 0: one, 127.0.0.1 */
	uint64_t op_bytes, staging_bytes, recv_staging_bytes, run_bytes_min;
	uint64_t ring_bytes; /* trainers read through one, as if they were offloaded; 0: they don't
			      */
	uint32_t lost_ms, phase_ms;
	const char *staged, *derived; /* text_post's, of the rollouts' manifest */
	uint32_t post_ms;
	bool offloaded; /* ... and they are: GPU 0 does the trainers' work; over ipc */
	bool on_gpu;	/* the rollouts' params, on GPU 0: no digests, no remaps; over ipc */
	bool in_pieces; /* ... mapped piece by piece there, as an engine's that sleeps */
	void *stream;	/* the engines', there; NULL: none */
	const volatile uint32_t *go; /* for POST_HANG: spin_launch's */
};

struct world;

/* What "swap" puts behind its param. */
#define TAIL	  16
#define TAIL_FILL 0x77

/* What the next call of a post step does. */
enum post_act {
	POST_WELL = 0,
	POST_FAIL,
	POST_MUTE,   /* fails without a sentence */
	POST_LINGER, /* until it is released, or cancelled */
	POST_STUCK,  /* until it is released */
	POST_HANG    /* it comes back, but what it has queued on the GPU doesn't end before go */
};

/* One rollout rank with its engine loop.  Counters are the loop thread's until it has ended. */
struct engine_loop {
	struct world *world;
	uint32_t replica, rank;
	struct ws_rollout *rollout;
	const struct manifest *manifest; /* what it holds now */
	struct rank_params params;
	struct arena arena;
	uint8_t *memory, *expected; /* all params, at arena_offset each */
	struct ws_memory *where;    /* by param: in memory, or moved since; in the arena */
	struct remap *remap;
	_Atomic bool remaps; /* to be described at the next step that may */
	_Atomic bool dies;   /* ... and then nothing more is heard of it */
	_Atomic uint32_t described, busy;
	uint64_t remap_after, remap_after_aborts; /* not before so many begins and aborts */
	pthread_t thread;
	_Atomic bool quit, silent;	   /* silent: it doesn't step */
	_Atomic bool started;		   /* ws_rollout_start has returned */
	_Atomic uint64_t resumed, aborted; /* last version; count */
	struct ws_rollout_report last;	   /* written before last_version */
	_Atomic uint64_t last_version;
	_Atomic uint32_t fail_begin, fail_reload, put_off; /* how many times still */
	struct rank_steps steps;
	struct ws_memory *made;	 /* by made; in the arena */
	struct ws_memory *twins; /* on a GPU: where params, and then made, really are; owned */
	_Atomic int post_act;	 /* enum post_act */
	_Atomic bool post_release, post_cancelled;
	_Atomic uint32_t post_calls, post_inside;
	_Atomic uint64_t post_version; /* of the last call that is back */
	uint64_t checked_bytes, begun, paused, reloaded;
	bool stopped_serving;
	char fault[256]; /* the first thing that was wrong */
	int rc;
	struct ws_error err;
	char abort_text[508], refused_text[508]; /* of a describe that couldn't be */
};

/* Another expert map for one rank: its params, and memory for those that are new or changed. */
struct remap {
	struct remap *before;
	struct writer text;
	struct manifest *manifest;
	struct rank_params params;
	uint8_t *memory;
};

struct trainer {
	struct world *world;
	uint32_t rank;
	struct ws_trainer *trainer;
	struct rank_params params;
	struct arena arena;
	uint8_t *memory;
	uint64_t version; /* to push */
	uint32_t deadline_ms;
	bool split; /* scribbles over its params once they are released */
	struct ws_report report;
	int rc;
	struct ws_error err;
	pthread_t thread;
};

struct world {
	struct world_options options;
	struct writer trainer_text, rollout_text;
	struct manifest *manifest[2];
	char folder[64], key_file[96];
	struct trainer trainer[TRAINERS_MAX];
	struct engine_loop loop[ROLLOUTS_MAX];
	uint32_t loop_count;
};

/* How many ops a member posts in one update, credits aside. */
uint64_t world_member_ops(const struct world_options *options, uint32_t member);
/* Those of them that it writes to other trainers. */
uint64_t world_exchange_ops(const struct world_options *options, uint32_t trainer);
struct world *world_open(const struct world_options *options); /* wired; fails the test */
/* Closes all and fails the test for what any engine saw wrong. */
void world_close(struct world *world);
/* What ws_rollout_last says of the version that was resumed last, for another thread. */
const struct ws_rollout_report *loop_last(struct engine_loop *loop);
/* Every trainer pushes on a thread of its own; returns when all have. */
void world_push(struct world *world, uint64_t version, uint32_t deadline_ms, bool split);
/* Asserts that the last push went well, and that every rank got every byte of the version. */
void world_is_live(const struct world *world, uint64_t version);
/* Pushes and asserts that. */
void world_push_good(struct world *world, uint64_t version, bool split);
/* Asserts that every trainer's last push failed, with this in its sentence. */
void world_errors_have(const struct world *world, const char *text);
void world_fill(struct trainer *trainer, uint64_t version);
void loop_start(struct engine_loop *loop); /* opens the side; starting it happens on the thread */
void loop_stop(struct engine_loop *loop);

/* Gives a rank another manifest: the world's with `experts` as the value of its "experts".  Its
 * engine describes itself again at the next step that may. */
void loop_remap(struct engine_loop *loop, const char *experts);
/* The same with any text. */
void loop_remap_text(struct engine_loop *loop, const void *text, size_t bytes);
/* Waits until it has. */
void loop_await_remap(struct engine_loop *loop);

/* ---- update_bytes_world.c */
void bytes_fill(const struct manifest *manifest, uint32_t rank, const struct rank_params *params,
		uint8_t *memory, uint64_t version);
void bytes_expect(const struct engine_loop *loop, uint64_t version); /* into loop->expected */

/* ---- update_post_world.c, for update_world.c */
void loop_posts_make(struct engine_loop *loop); /* what steps make, before the side is opened */
void loop_posts_add(struct engine_loop *loop);	/* tells the side */
bool loop_is_staged(const struct engine_loop *loop, uint32_t param);
/* After bytes_expect: whether that is what was made. */
void loop_posts_check(struct engine_loop *loop, uint64_t version);

/* ---- update_gpu_world.c */
/* From where and made: memory of the GPU for all of them.  After loop_posts_make. */
void loop_gpu_make(struct engine_loop *loop);
void loop_gpu_release(struct engine_loop *loop);
void loop_gpu_read(struct engine_loop *loop); /* to where and made */
/* Queues a step's work and doesn't wait: parts of its params are what is made. */
int loop_gpu_step(struct engine_loop *loop, const struct ws_post *post, bool hangs,
		  struct ws_error *err);
/* What the engine's memory of a param, or behind them of what is made, is. */
const struct ws_memory *loop_param(const struct engine_loop *loop, uint32_t param);
const struct ws_memory *loop_made(const struct engine_loop *loop, uint32_t made);

/* ---- between update_world.c and update_remap_world.c */
void loop_fault(struct engine_loop *loop, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
int loop_describe(struct engine_loop *loop); /* in its thread */
void loop_remap_release(struct engine_loop *loop);
uint8_t *world_memory_make(size_t bytes);

#endif
