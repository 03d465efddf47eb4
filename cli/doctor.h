/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `doctor` finds, and where it looks.  A finding says what is, why it matters and how to
 * mend it; a problem means that an update would fail, a warning that it would be slow or might
 * fail later, a note is worth knowing.
 *
 * Facts of the host are files below a root folder ("" is this host), so that a test can feed a
 * tree, and a debug container can look at the host it runs on.  What must be tried or asked of a
 * library (CMA, NICs, the probe) looks at this host only.
 */
#ifndef DOCTOR_H
#define DOCTOR_H

#include "cli/cli.h"
#include "lib/engine/devices.h"

enum health { HEALTH_OK, HEALTH_NOTE, HEALTH_WARNING, HEALTH_PROBLEM, HEALTH_COUNT };

struct advice {
	struct advice *next;
	enum health health;
	const char *area;      /* a stable word: "memlock" */
	const char *what;      /* in the arena */
	const char *why, *fix; /* in the arena; "" where there is nothing to mend */
	uint64_t ranks;	       /* a bit for each rank that found it */
};

struct doctor {
	struct arena arena; /* owned; holds all texts */
	struct advice *first, *last;
	bool out_of_memory;
	const char *root; /* borrowed; "" or a folder without a slash at its end */
	uint64_t ranks;	  /* the bit of the rank this process is: 1 for a process alone */
};

/* ---- doctor_advice.c: the list, printed, merged and sent. */
void doctor_say(struct doctor *doctor, enum health health, const char *area, const char *why,
		const char *fix, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* How many there are of this health. */
uint32_t doctor_count(const struct doctor *doctor, enum health health);
void doctor_encode(const struct doctor *doctor, struct writer *out);
/* Adds what another rank found; equal findings become one.  -EPROTO. */
int doctor_merge(struct doctor *doctor, struct reader *in, struct ws_error *err);
/* Problems first.  columns: where a line is broken.  world: all ranks found it, so none is named */
void doctor_put_table(const struct doctor *doctor, uint32_t world, uint32_t columns,
		      struct writer *out);
void doctor_put_json(const struct doctor *doctor, struct writer *out);
/* "0-3,6" */
const char *format_ranks(uint64_t ranks, char *out, size_t room);

/* ---- doctor_files.c: reading below the root.  Texts are in the arena. */
const char *host_read(struct doctor *doctor, const char *path); /* no last newline; NULL: absent */
bool host_has(const struct doctor *doctor, const char *path);
/* Names in a folder that begin so, sorted; how many. */
uint32_t host_list(struct doctor *doctor, const char *folder, const char *begin,
		   const char *const **names_out);
const char *host_link_name(struct doctor *doctor, const char *path); /* "mlx5_core"; NULL */
/* The rest of the line that begins with name, blanks skipped; in the arena, NULL: no such line. */
const char *text_field(struct doctor *doctor, const char *text, const char *name);

/* ---- doctor_host.c, doctor_devices.c, doctor_launch.c, doctor_cma.c */
void doctor_host(struct doctor *doctor);
void doctor_devices(struct doctor *doctor);
uint32_t host_rdma_count(struct doctor *doctor);
bool host_kernel_at_least(struct doctor *doctor, uint32_t major, uint32_t minor);
/* The environment's launcher; launch and rc are what launch_find gave, err its sentence. */
void doctor_launch(struct doctor *doctor, const struct launch *launch, int rc,
		   const struct ws_error *err);
/* Tries a write between two children of this process, as two ranks of a launcher are. */
void doctor_cma(struct doctor *doctor);

/* ---- doctor_nics.c */
/* What is offered, and what an update would take: *devices is empty where nothing is. */
void doctor_nics(struct doctor *doctor, const struct devices_wanted *wanted,
		 struct devices *devices);
void doctor_nic(struct doctor *doctor, const struct nic_info *info);

#endif
