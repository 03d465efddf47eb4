/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench update`: a trainer on one GPU and a rollout on another, a process each.
 *
 *   update.c        the turns and the report; the trainer's process is the bench's own
 *   update_rank.c   what both processes have: manifests, params on a GPU
 *   update_runs.c   which bytes of the trainer's are which of the rollout's
 *   update_fp8.c    weights that are quantized: the baseline, and what they must be
 *   update_peer.c   the rollout's process: does what it is told over a socket
 *   nccl.c          the baseline's library
 */
#ifndef UPDATE_H
#define UPDATE_H

#include "bench/measure.h"
#include "bench/nccl.h"
#include "lib/convert/convert.h"
#include "planner/planner.h"
#include "rollout_side/ws_rollout.h"
#include "trainer_side/ws_trainer.h"

#define UPDATE_WAIT_MS	    120000u
#define UPDATE_END_MS	    20000u /* how long the rollout's process may take to close */
#define UPDATE_BUCKET_BYTES ((uint64_t)512 << 20)
#define UPDATE_RING_BYTES   ((uint64_t)512 << 20) /* that offloaded params come through */

struct update_job {
	const struct bench_options *options;
	struct manifest *manifest[2]; /* owned; by enum side */
	struct writer text[2];	      /* owned; their JSON */
	char folder[64], key_path[96];
};

/* Bytes that lie side by side at both ends. */
struct run {
	uint64_t from, to, bytes; /* in the trainer's memory, in the rollout's */
};

/* A matrix that lies whole at both ends, and is quantized on the way. */
struct weight {
	uint64_t from, codes, scales; /* in the trainer's memory; in the rollout's */
	uint64_t extent[2], grid[2];  /* elements; scales */
	uint64_t each[2];	      /* elements under one scale */
	enum ws_dtype dtype;	      /* the trainer's */
	struct quant quant;
};

struct update_fp8; /* update_fp8.c's */

struct update_rank {
	const struct update_job *job;
	int device, socket;
	struct arena arena;
	struct rank_params params[2]; /* by enum side: both processes know both */
	struct ws_memory source;      /* owned; what the trainer has.  The rollout makes its own,
				       * to compare with */
	struct ws_memory host;	      /* owned; the trainer's, offloaded: the same as source */
	struct ws_memory target;      /* owned; the rollout's */
	struct ws_memory bucket;      /* owned; of NCCL's bucketed broadcast */
	struct ws_memory count;	      /* owned; the rollout's: bytes that differ */
	struct cuda_queue queue;
	struct run *runs;	/* in the arena, by from; what isn't quantized */
	struct weight *weights; /* in the arena */
	uint32_t run_count, weight_count;
	struct update_fp8 *fp8; /* owned; NULL before it is needed */
	struct nccl *nccl;	/* owned; NULL: without */
};

/* What the trainer's process tells the rollout's, and the answer. */
enum update_word {
	UPDATE_START = 1, /* text: the hub's endpoint */
	UPDATE_CLEAR,	  /* zeroes the target: the next turn is to bring every byte again */
	UPDATE_PUSH,	  /* value: until this version is live */
	UPDATE_VERIFY,	  /* answer: value: bytes that differ */
	UPDATE_SHARE,	  /* answer: share */
	UPDATE_NCCL,	  /* id: join */
	UPDATE_BUCKETS,
	UPDATE_TENSORS,
	UPDATE_END
};

struct update_message {
	enum update_word word;
	int rc; /* of an answer; then text says why */
	uint64_t value;
	union {
		char text[256];
		struct nccl_id id;
		struct cuda_share share;
	};
};

/* Which side: whose target or source is made.  The other's params are known, too. */
int update_rank_open(struct update_rank *rank, enum side side, struct ws_error *err);
void update_rank_close(struct update_rank *rank);
/* A param of the side, in its memory. */
struct ws_memory update_param(const struct update_rank *rank, enum side side, uint32_t index);
int update_queue_wait(struct update_rank *rank, struct ws_error *err);
/* NCCL is loaded: which of its two ranks this is. */
int update_join(struct update_rank *rank, const struct nccl_id *id, int number,
		struct ws_error *err);
/* One end of NCCL's broadcast of all: tensor by tensor straight between where they lie, or bucket
 * by bucket; weights that are quantized one after the other.  Waits for this end; the other one may
 * die meanwhile.  -ECONNRESET, -ETIMEDOUT. */
int update_broadcast(struct update_rank *rank, enum side side, bool buckets, struct ws_error *err);

/* update_runs.c.  -ENOTSUP: a weight that doesn't lie so. */
int update_runs_make(struct update_rank *rank, struct ws_error *err);

/* update_fp8.c.  The rollout's codes and scales against what they must be: what differs is added to
 * rank->count.  Waits. */
int update_weights_verify(struct update_rank *rank, struct ws_error *err);
/* One end: each weight is quantized and broadcast.  Queued. */
int update_weights_broadcast(struct update_rank *rank, enum side side, struct ws_error *err);
void update_fp8_close(struct update_rank *rank);

int update_say(int socket, const struct update_message *message, struct ws_error *err);
/* -ETIMEDOUT after UPDATE_WAIT_MS; an answer's own error is returned, too. */
int update_hear(int socket, struct update_message *message_out, struct ws_error *err);

/* Never returns. */
_Noreturn void update_peer(const struct update_job *job, int socket);

#endif
