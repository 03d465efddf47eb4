/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer's side of weightsync: one ws_trainer in each trainer process.
 *
 *	ws_trainer_open(&t, &options, &err);
 *	for each param of mine: ws_trainer_add(t, name, &memory, &err);
 *	ws_trainer_start(t, deadline_ms, &err);              meets the hub, plans, wires
 *	each step: ws_trainer_push(t, version, deadline_ms, &report, &err);
 *	ws_trainer_close(t);
 *
 * Threads: calls on one ws_trainer come from one thread at a time.  An I/O thread and a stage
 * thread of weightsync's run beside it, on rank 0 (unless options.hub is set) a hub thread too.
 * Nothing is called back on them.
 */
#ifndef WS_TRAINER_H
#define WS_TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/ws_error.h"
#include "lib/ws_memory.h"
#include "lib/ws_nic.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_trainer;

struct ws_trainer_options {
	const char *hub; /* "tcp://host:port" of the run's hub.  Rank 0 with hub_here binds it */
	bool hub_here;	 /* rank 0: run the hub in a thread of this process */
	const char *key_file; /* made by `weightsync keygen`, mode 0600 */
	uint32_t rank, world; /* of the trainers */
	const char *manifest; /* JSON text of the trainer's manifest; borrowed during open */
	size_t manifest_bytes;
	/* NULL or "auto": ipc to ranks on this host, and to the others verbs where an RDMA device
	 * is, else libfabric.  "ipc", "verbs", "fabric": only that. */
	const char *transport;
	const char *provider; /* libfabric's; NULL: with "auto" efa where such a NIC is, else tcp */
	/* For other hosts: addresses, interfaces or devices ("mlx5_0/1", "tcp/eth0"); with "auto"
	 * of any transport ("verbs:mlx5_0/1").  NULL: those of this host that may be used. */
	const char *const *nics;
	uint32_t nic_count;
	/* Whose memory is sent: a GPU's PCI address ("0000:18:00.0") or its number in PCI order.
	 * Without nics the ones nearest to it are used.  NULL: host memory. */
	const char *gpu;
	/* This process among the run's on this host.  0 of 0: unknown.  Where there are cores to
	 * spare, the I/O thread gets one near the NICs to itself. */
	uint32_t local_rank, local_ranks;
	/* The hard watermark of what is gathered, cast or quantized.  0: 64 MiB, up to 512 MiB of a
	 * GPU's memory where params are on one, or offloaded. */
	uint64_t staging_bytes;
	/*
	 * Params are offloaded: they lie in the host's memory, and this GPU (CUDA's number)
	 * gathers, casts and quantizes them, out of a ring of at most so many bytes of its memory
	 * (512 MiB is plenty), through which each comes once.  What needs none of that is written
	 * straight from the host's.  weightsync page-locks memory that isn't.  offload_bytes 0:
	 * they aren't.
	 */
	uint64_t offload_bytes;
	int offload_device;
	/* Only read where the hub runs (hub_here): the rules of the run.  0: the default. */
	uint64_t op_bytes;	     /* 1 MiB */
	uint64_t recv_staging_bytes; /* 64 MiB; of each rollout's ring */
	uint64_t run_bytes_min;	     /* 64 KiB */
	uint64_t bucket_bytes;	     /* about a layer */
	uint32_t replica_ranks;	     /* ranks of one replica; needed */
	uint32_t min_replicas;	     /* 1 */
	bool wire_digests;	     /* hash every op at both ends */
	bool barrier;		     /* no replica commits before all have landed */
	/* What rollouts pass on among themselves: "none" (NULL), "node": what several ranks of a
	 * replica on one host hold alike, "replica": everything, from one replica to the next. */
	const char *fanout;
	uint32_t lost_ms,
		phase_ms; /* 5 s of silence lose a member; 60 s for each phase of a rank */
	uint32_t join_ms; /* 60 s for all to meet the first time */
};

struct ws_replica_report {
	uint32_t replica;
	bool live;		      /* the pushed version is live on all its ranks */
	uint64_t live_version;	      /* what it serves, as far as is known; 0: nothing */
	uint64_t bytes;		      /* that its ranks received in this push */
	uint64_t bytes_from_rollouts; /* of them: forwards of other ranks */
	char text[256];		      /* why it isn't live; empty if it is */
};

#define WS_REPORT_REPLICAS_MAX 64

/* What a push did.  Times in nanoseconds, of this rank unless said otherwise. */
struct ws_report {
	uint64_t version, attempt;
	uint64_t bytes;		     /* this rank sent */
	uint64_t staging_high_bytes; /* most staging in use at once */
	uint64_t total_ns;	     /* the call */
	uint64_t begin_ns;	     /* until the first rollout was ready */
	/* Stage thread's time in gathering and casting, and in finding maxima and making codes
	 * and scales; and how long something waited for other trainers' maxima alone.  All of it
	 * goes on beside begin and write. */
	uint64_t stage_ns, quantize_ns, exchange_ns;
	/* Of offloaded params: what came into the ring, in what time, and most of it in use. */
	uint64_t h2d_bytes, h2d_ns, offload_high_bytes;
	uint64_t write_ns;  /* first ready to my last op reported */
	uint64_t landed_ns; /* until every replica had landed */
	uint64_t pause_ns,
		reload_ns; /* all replicas: landed to paused; paused to live and resumed */
	uint32_t nic_count;
	struct ws_nic nics[WS_NICS_MAX];
	/* Whose NICs aren't in use and why, of any member: "rollout 0.1: NIC 'rxe2 port 1' is down:
	 * port 1 is down; running on 1 of 2 NICs".  Empty: all are. */
	char nic_trouble[256];
	char slowest_peer[64];	/* the replica that landed last */
	uint32_t replica_count; /* entries in replicas, at most WS_REPORT_REPLICAS_MAX */
	struct ws_replica_report replicas[WS_REPORT_REPLICAS_MAX];
};

/*
 * Makes a side: parses the manifest, tries the NICs, starts the hub where it runs here.  Meets
 * nobody yet.  options and what it points to are borrowed during the call.  Blocks for NICs and
 * files. -EINVAL for a manifest that can't be (the first fault is in err), -ENODEV, -EACCES for the
 * key.
 */
WS_API int ws_trainer_open(struct ws_trainer **trainer_out,
			   const struct ws_trainer_options *options, struct ws_error *err);

/* With hub_here: the endpoint that the hub is bound to, for the other members; else options.hub.
 * Valid from open to close. */
WS_API const char *ws_trainer_hub(const struct ws_trainer *trainer);

/* The NICs of this rank and why not others: "ipc host; fabric tcp/192.0.2.7 (this host has no RDMA
 * device)".  Valid from open to close. */
WS_API const char *ws_trainer_nics(const struct ws_trainer *trainer);
/* The same of the I/O thread: "core 47, on NUMA node 0 beside its NICs", or why it isn't bound;
 * empty where local_ranks is 0. */
WS_API const char *ws_trainer_core(const struct ws_trainer *trainer);

/* What rollout ranks have said of a version with ws_rollout_say_verified: how many of them, and
 * the sums of their bytes; set also with an error.  Never blocks.  -ECONNRESET: a replica was
 * dropped since the push of this version began, or the run ended, for the reason in err: not all
 * ranks may ever say. */
WS_API int ws_trainer_verified(const struct ws_trainer *trainer, uint64_t version,
			       uint32_t *ranks_out, uint64_t *bytes_out, uint64_t *different_out,
			       struct ws_error *err);

/* NULL, half-open and started sides.  Leaves the run; rank 0 with the hub ends it for all.
 * Returns within 3 s; within a minute more where a GPU hangs, which is given up then: what
 * weightsync has there stays taken until the process ends. */
WS_API void ws_trainer_close(struct ws_trainer *trainer);

/* How many params the manifest gives this rank, and the i-th: its name, dtype and bytes. */
WS_API uint32_t ws_trainer_param_count(const struct ws_trainer *trainer);
WS_API int ws_trainer_param(const struct ws_trainer *trainer, uint32_t index, const char **name_out,
			    enum ws_dtype *dtype_out, uint64_t *bytes_out);

/*
 * Says where a param of this rank lies: contiguous, row-major, memory->bytes as the manifest
 * says.  Borrowed until close.  Before start.  A param of 0 bytes needn't be added.  It is only
 * read, and no peer is given the right to write there: of a GPU's memory any kind will do over
 * ipc (expandable segments, pools).
 * -EINVAL: no such param here (the nearest name is in the sentence), another size, added twice.
 */
WS_API int ws_trainer_add(struct ws_trainer *trainer, const char *param,
			  const struct ws_memory *memory, struct ws_error *err);

/*
 * Registers the params, joins the hub, waits for all trainers and min_replicas replicas, plans,
 * checks this rank's part and wires.  Blocks until then or deadline_ms.  -ETIMEDOUT names who is
 * missing; -EINVAL that the source doesn't cover the target, with what is missing.
 */
WS_API int ws_trainer_start(struct ws_trainer *trainer, uint32_t deadline_ms, struct ws_error *err);

/*
 * Sends the params' present bytes as the given version, and returns when every replica still in
 * the run has it live, or deadline_ms have passed.  Blocks.  Every trainer rank calls it with the
 * same version, which must not be below any that went live (the same one again is a new attempt,
 * for replicas that missed it).
 *
 * The params must not change until it returns; ws_trainer_push_begin() lets them earlier.  On a GPU
 * they are read by streams of weightsync's own: whatever writes them must have ended before the
 * call (synchronize its stream).
 * report may be NULL; it says which replicas are live, also when an error is returned.
 * -ETIMEDOUT, -EIO, -ECONNRESET: no replica serves torn weights; push again.  "params may still be
 * read": a NIC or a GPU hasn't done what it was given 2 s after the deadline.  Who frees them then
 * closes the trainer before.  -EINVAL: another trainer pushes another version, or hasn't left an
 * earlier push yet that it gave up (then push again).
 */
WS_API int ws_trainer_push(struct ws_trainer *trainer, uint64_t version, uint32_t deadline_ms,
			   struct ws_report *report, struct ws_error *err);

/* The split form: begin returns at once; released waits until the params may change (every replica
 * still in has landed, every op of mine is reported); end waits until the version is live. */
WS_API int ws_trainer_push_begin(struct ws_trainer *trainer, uint64_t version, uint32_t deadline_ms,
				 struct ws_error *err);
WS_API int ws_trainer_push_released(struct ws_trainer *trainer, struct ws_error *err);
WS_API int ws_trainer_push_end(struct ws_trainer *trainer, struct ws_report *report,
			       struct ws_error *err);

/* Ends whatever call is blocked in this trainer, and every later one, with -ECANCELED; only close
 * is left then.  Async-signal-safe. */
WS_API void ws_trainer_cancel(struct ws_trainer *trainer);

#ifdef __cplusplus
}
#endif

#endif
