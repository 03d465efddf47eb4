/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands share: one table of options per command (it parses and it is the help),
 * output, the launcher's environment, and loading what a command is given.
 */
#ifndef CLI_H
#define CLI_H

#include <stdio.h>

#include "lib/base/base.h"
#include "lib/base/safetensors.h"
#include "lib/link/link.h"
#include "planner/planner.h"

enum exit_status { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_DIFFERENT = 3 };

/* ---- options.c */
enum option_kind {
	OPTION_FLAG,  /* bool */
	OPTION_TEXT,  /* const char * */
	OPTION_COUNT, /* uint32_t */
	OPTION_U64,   /* uint64_t */
	OPTION_BYTES, /* uint64_t: 4096, 64K, 64M, 2G */
	OPTION_MS     /* uint32_t milliseconds: 500ms, 5s, 2m */
};

struct option_spec {
	const char *name; /* without the dashes */
	char letter;	  /* 0: none */
	enum option_kind kind;
	void *value; /* of the kind's type; its value before parsing is the default */
	const char *argument, *help;
};

struct command {
	const char *name, *summary;
	const char *usage; /* what follows "weightsync NAME"; a line for each form */
	const char *more;  /* paragraphs behind the options: exit status, examples; or NULL */
	int (*run)(const struct command *command, int argc, char **argv);
};

/*
 * Parses argv[1..]; operands (at most operand_max) go to operands_out, their number to
 * *operand_count.  Returns -1 to go on, or the status to exit with: 0 after --help, 2 after a
 * usage error, which has been said.
 */
int options_parse(const struct command *command, const struct option_spec *options, uint32_t count,
		  int argc, char **argv, const char **operands_out, uint32_t operand_max,
		  uint32_t *operand_count);

/* "64M" -> bytes, "5s" -> ms; -EINVAL with a good example. */
int parse_bytes(const char *text, uint64_t *bytes_out, struct ws_error *err);
int parse_ms(const char *text, uint32_t *ms_out, struct ws_error *err);

/* Splits "a,b,c"; the array and its texts are in the arena. */
int split_list(struct arena *arena, const char *text, const char ***items_out, uint32_t *count_out);

/* ---- output.c: stdout is the result, stderr is talk. */
/* "weightsync: " + the sentence; returns EXIT_FAILED (or EXIT_USAGE). */
int say_failure(const struct ws_error *err);
int say_usage(const struct command *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes all of it and flushes; EXIT_FAILED with a sentence when stdout can't be written. */
int put_stdout(const struct writer *text);
/* How wide the terminal is, so far as an eye likes that; otherwise: stdout isn't one. */
uint32_t stdout_columns(uint32_t otherwise);
/* Words until the line is full, and its end; further lines begin under the first, at indent. */
void put_folded(struct writer *out, const char *text, uint32_t indent, uint32_t columns);
/* Findings as a table on stderr: kind, where, sentence; alike ones are one line.  In a terminal
 * that is too narrow for it sentences stand below, broken between words. */
void say_findings(const struct findings *findings);
/* The same as one JSON object on stdout. */
int put_findings(const struct findings *findings);

/* A progress line on stderr, only if it is a terminal, from the first second on, removed at the
 * end. */
struct progress_line {
	uint64_t started_ns, last_ns;
	bool shown;
};
void progress_line_start(struct progress_line *line);
void progress_line_say(struct progress_line *line, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void progress_line_end(struct progress_line *line);

/* 1234567890 -> "1.23 GB" in a buffer of at least 32 bytes. */
const char *format_bytes(uint64_t bytes, char *out, size_t room);

/* ---- launch.c: who am I in this job? */
struct launch {
	uint32_t rank, world;
	uint32_t local_rank, local_ranks; /* on this host; 0 of 0: no launcher says it */
	char local_text[12];		  /* local_rank, for launch_gpu */
	char job[96];	    /* names the job on this host: user and launcher's job id */
	const char *source; /* "Open MPI", "Slurm", "torchrun", "--rank/--world"; NULL: none */
};

/* From --rank/--world when given (rank_given), else from the launcher's environment.  -ENOENT: no
 * launcher, and which variables it looked for; -EINVAL: which two disagree. */
int launch_find(struct launch *launch, bool rank_given, uint32_t rank, uint32_t world,
		const char *job, struct ws_error *err);
/* Whether a launcher has set only one of its two variables, and which. */
#define LAUNCHER_COUNT 3
bool launch_half_set(uint32_t launcher, const char **set_out, const char **unset_out);

/* A --gpu that is "local" becomes the number that this rank has on its host. */
int launch_gpu(struct launch *launch, const char **gpu, struct ws_error *err);

/* This process among those of the job on this host; 0 of 0 where no launcher says it. */
void launch_find_local(uint32_t *local_rank_out, uint32_t *local_ranks_out);

/*
 * The job's folder for the run key and the hub's address: 0700, owned by this user, named by user
 * and job.  Rank 0 makes it and removes it; the others wait for what it writes.  One host only.
 */
struct rendezvous {
	char folder[160], key_file[192], hub_file[192];
	bool mine;
};
int rendezvous_make(struct rendezvous *meet, const struct launch *launch, struct ws_error *err);
int rendezvous_say_hub(const struct rendezvous *meet, const char *endpoint, struct ws_error *err);
int rendezvous_find(struct rendezvous *meet, const struct launch *launch, char *endpoint_out,
		    size_t room, uint64_t until_ns, struct ws_error *err);
void rendezvous_end(struct rendezvous *meet);

/* ---- load.c */
/* A manifest file; *text_out is the caller's (mem_free).  Findings are said. */
int load_manifest(const char *path, enum side side, struct manifest **manifest_out, void **text_out,
		  size_t *bytes_out, struct ws_error *err);
/* Both sides' manifests by enum side, owned, for who says the findings itself. */
struct manifest_pair {
	struct manifest *sides[2];
	void *texts[2];
};
/* Goes on after the first fault, so that one run finds those of both files; the sentence of a
 * second bad file is said.  Also with an error both may be there (as by manifest_parse_faulty):
 * then a plan finds the faults of the pair.  *pair is for pair_release in any case. */
int pair_read(struct manifest_pair *pair, const char *const files[2], struct findings *findings,
	      struct ws_error *err);
void pair_release(struct manifest_pair *pair);
/* A folder with a checkpoint, or a built-in name. */
int load_model(const char *name_or_folder, struct model **model_out, struct ws_error *err);

/* ---- places.c: members' hosts and NICs, into input->places (in the arena). */
struct places_wanted {
	const char *file;	       /* or NULL: */
	uint32_t ranks_per_node, nics; /* all alike, sides and replicas on hosts of their own */
	uint64_t mbps;		       /* of all NICs of a member; 0 unknown */
};
int make_places(const struct places_wanted *wanted, struct arena *arena, struct plan_input *input,
		struct ws_error *err);

/* ---- synth.c: a checkpoint of this model in a folder, contents by seed. */
int synth_write(const struct model *model, const char *folder, uint64_t seed, uint32_t *count_out,
		uint64_t *bytes_out, struct ws_error *err);

/* ---- the commands */
extern const struct command command_keygen, command_synth, command_manifest, command_plan,
	command_simulate, command_hub, command_push, command_serve, command_run, command_bench,
	command_nics, command_status, command_doctor;

#endif
