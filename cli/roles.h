/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two roles of a process in a job: what `run` does by rank, `push` and `serve` do alone.
 */
#ifndef ROLES_H
#define ROLES_H

#include "cli/cli.h"
#include "rollout_side/ws_rollout.h"
#include "trainer_side/ws_trainer.h"

struct job {
	/* where and how */
	const char *hub, *key_file;	  /* of the run; NULL in `run`: made in the job's folder */
	const char *transport, *provider; /* NULL: as the library chooses */
	const char **nics;
	uint32_t nic_count;
	const char *gpu; /* whose NICs: a number, a PCI address, "local"; NULL: for host memory */
	struct launch launch;	       /* this process in the whole job (`run`) */
	uint32_t rank, world, replica; /* in its side; world of the trainers or of a replica */
	uint32_t replicas;	       /* `run`: all of them; `push`: the least to call it done */
	uint32_t deadline_ms, start_ms, lost_ms, phase_ms;
	/* what */
	struct manifest *trainer, *rollout; /* owned; push has no rollout, serve no trainer */
	void *trainer_text, *rollout_text;  /* owned */
	size_t trainer_bytes, rollout_bytes;
	const char *checkpoint_path;
	struct checkpoint checkpoint;
	uint64_t first_version;
	uint32_t updates;
	uint32_t interval_ms;
	bool keep_going; /* a version that failed is said and pushed again */
	struct rules rules;
	uint32_t ranks_per_node; /* `run`: hosts are named so, to try fan-out; 0: as they are */
	const char *host;	 /* `serve`: the name of this one, or NULL */
	uint64_t staging_bytes, offload_bytes;
	/* and then */
	bool hub_here;		/* `run` on rank 0: the hub is a thread of this process */
	struct rendezvous meet; /* `run` without --hub: the job's folder */
	char endpoint[128];	/* ... and the hub found in it */
	bool change; /* versions differ (run; push --change); else each is the checkpoint as it is
		      */
	bool verify, inplace, as_json, verbose;
	/* host, pinned, cuda or cuda:N, a trainer's also offload or offload:N; NULL: host.  push
	 * and serve have one of them */
	const char *trainer_memory, *rollout_memory;
	const char *dump, *on_reload;
	uint32_t reload_ms; /* deadline of an exec: command */
};

#define JOB_DEFAULT                                                                          \
	{                                                                                    \
		.replicas = 1, .deadline_ms = 120000, .start_ms = 60000, .lost_ms = 5000,    \
		.phase_ms = 60000, .first_version = 1, .updates = 1, .rules = RULES_DEFAULT, \
		.offload_bytes = 512u << 20, .reload_ms = 60000                              \
	}

/* How bytes travel: alike in all three commands. */
#define OPTIONS_OF_NICS(job, nic_list)                                                           \
	{"transport",                                                                            \
	 0,                                                                                      \
	 OPTION_TEXT,                                                                            \
	 &(job).transport,                                                                       \
	 "NAME",                                                                                 \
	 "auto (default: ipc inside a host, verbs where RDMA devices are, else fabric), or "     \
	 "ipc, verbs, fabric"},                                                                  \
		{"provider",                                                                     \
		 0,                                                                              \
		 OPTION_TEXT,                                                                    \
		 &(job).provider,                                                                \
		 "NAME",                                                                         \
		 "fabric: libfabric's provider (default: efa if it has a NIC here, else tcp)"},  \
		{"gpu",                                                                          \
		 0,                                                                              \
		 OPTION_TEXT,                                                                    \
		 &(job).gpu,                                                                     \
		 "N|PCI|local",                                                                  \
		 "use the NICs of this GPU, or of the one with this rank's number on its host"}, \
	{                                                                                        \
		"nics", 0, OPTION_TEXT, &(nic_list), "A,B,..",                                   \
			"addresses or devices of this rank's NICs to other hosts"                \
	}

#define OFFLOAD_BYTES_MIN 4096u
#define MEMORY_KINDS \
	"host (default), pinned, cuda (the GPU with this rank's number on its host) or cuda:N"
#define TRAINER_MEMORY_KINDS \
	MEMORY_KINDS "; of a trainer also offload or offload:N: the host's, and that GPU works"

/* On stderr, of one rank: at the start its NICs and why not others; at the end what went over
 * each.  who: "trainer 0". */
void say_nics(const char *who, const char *choice);
void say_core(const char *who, const char *core); /* says nothing if it is empty */

/* What all updates together sent over each NIC. */
struct sent {
	struct ws_nic nics[WS_NICS_MAX];
	uint32_t nic_count;
	uint64_t bytes;
};
void sent_add(struct sent *sent, const struct ws_nic *nics, uint32_t count);
void say_sent(const char *who, const struct sent *sent); /* nothing where no byte was sent */

/* Both return an exit status and have said what went wrong. */
int trainer_role(struct job *job);
int rollout_role(struct job *job);
/* push and serve: who this process is and which NICs it has.  -1 to go on, or an exit status. */
int job_find_rank(struct job *job, const struct command *command, uint32_t rank, uint32_t world,
		  const char *nics, struct arena *arena);
void job_release(struct job *job);

/* A signal (INT, TERM, HUP) asked for the end; a second one kills at once. */
void catch_signals(void);
bool stop_asked(void);
void cancel_on_signal(struct ws_trainer *trainer); /* NULL: forget it */
/* While this process ("rollout 0.1") waits in a call that can't be interrupted and owns nothing
 * outside itself, a signal ends it at once.  NULL: it no longer does. */
void end_on_signal(const char *who);

/* ---- rank_memory.c: a rank's params in one allocation, of the host or of a GPU.  A GPU's has the
 * host's beside it, in which it is filled, changed and looked at. */
struct rank_memory {
	struct arena arena;
	struct rank_params params;
	struct rank_steps steps;
	uint64_t *derived_offset; /* behind the params, by made; in the arena */
	struct ws_memory memory;  /* owned */
	struct ws_memory host;	  /* owned; the same as memory where that is the host's */
	bool pinned;
	bool offloaded; /* a trainer's: the host's, and this GPU works */
	int offload_device;
};

/* kind: MEMORY_KINDS, or NULL; launch numbers this host's ranks for "cuda".  -EINVAL names them;
 * -ENOTSUP, -ENODEV without CUDA or GPU. */
int rank_memory_make(struct rank_memory *memory, const struct manifest *manifest, uint32_t rank,
		     const char *kind, const struct launch *launch, struct ws_error *err);
void rank_memory_release(struct rank_memory *memory);
struct ws_memory param_memory(const struct rank_memory *memory, uint32_t index);
/* Its bytes at the host. */
void *param_bytes(const struct rank_memory *memory, uint32_t index);
/* The same of what post steps derive: memory.steps.derived_count. */
struct ws_memory derived_memory(const struct rank_memory *memory, uint32_t index);
void *derived_bytes(const struct rank_memory *memory, uint32_t index);
/* From the host to the GPU, and back: nothing where that is the same. */
int rank_memory_put(const struct rank_memory *memory, struct ws_error *err);
int rank_memory_get(const struct rank_memory *memory, struct ws_error *err);

/* ---- post.c: the post steps that a rollout without an engine can run: those of MLA, and of a
 * staged param that nobody knows, which is held as it landed. */
struct post_tools;

/* Gives the rollout all that its manifest names.  -ENOTSUP for one that isn't built in. */
int post_tools_open(struct post_tools **tools_out, struct ws_rollout *rollout,
		    const struct rank_memory *memory, struct ws_error *err);
void post_tools_close(struct post_tools *tools); /* after the rollout; accepts NULL */

/* ---- params.c: params filled from the checkpoint, changed by version, at the host. */
/* Every piece read from the checkpoint and cast to the param's dtype: version 0. */
int fill_params(const struct rank_memory *memory, const struct manifest *manifest, uint32_t rank,
		const struct checkpoint *checkpoint, struct ws_error *err);
/* Turns version `from` of the params into version `to`, in place. */
void change_params(const struct rank_memory *memory, const struct manifest *manifest, uint32_t rank,
		   uint64_t from, uint64_t to);
/* The bits of an element's mantissa that version v flips: 0 for version 0, and for infinities and
 * NaN. hash: digest_bytes(canonical name, length, 0).  bits: the element, in the trainer's dtype.
 */
uint32_t change_mask(enum ws_dtype dtype, uint32_t bits, uint64_t hash, uint64_t element,
		     uint64_t version);

/* ---- oracle.c: what a rollout must hold, element by element; shares no code with planner/expr.c.
 */
struct oracle;

/* Texts of both manifests; the checkpoint stays open as long as the oracle. */
int oracle_open(struct oracle **oracle_out, const void *trainer_text, size_t trainer_bytes,
		const void *rollout_text, size_t rollout_bytes, uint32_t rank,
		const struct checkpoint *checkpoint, struct ws_error *err);
void oracle_close(struct oracle *oracle);
/* Compares a param's memory with version; counts what differs.  err describes the first difference
 * in canonical coordinates.  0 also when bytes differ; negative when it can't tell. */
int oracle_compare(struct oracle *oracle, const char *param, enum ws_dtype dtype,
		   const void *memory, uint64_t bytes, uint64_t version, uint64_t *verified_bytes,
		   uint64_t *different_bytes, struct ws_error *first, struct ws_error *err);

#endif
