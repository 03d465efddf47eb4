/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Over which transports the contract is tested, and what not all of them can.  A test's _i is the
 * kind of transport (the list is printed) plus kind_count times the seed or the case.
 *
 *   WS_CONTRACT="verbs:rxe1/1 rxe2/1" build/tests/contract
 *
 * runs it over that transport alone, with a device for each of the two rails; both ends of a rail
 * open the same device.  Unless asked for so verbs isn't run: it needs an RDMA device.
 */
#ifndef CONTRACT_KINDS_H
#define CONTRACT_KINDS_H

#include <glob.h>
#include <unistd.h>

#include "tests/transport_pair.h"

#define KINDS_MAX 16

struct kind {
	const char *transport;
	const char *rails[2][2]; /* by rail and end */
	/* What not every transport can. */
	bool unchecked; /* the sender isn't told that the receiver refused a write */
	bool together;	/* a connection ends only when both ends close it */
	bool settled;	/* it may be closed only when every op was reported */
	bool polled;	/* it has no wait_fd */
	bool allocated; /* memory by ws_memory_alloc, which others can map; else the heap's */
};

static struct kind kinds[KINDS_MAX] = {
	{.transport = "loop",
	 .rails = {{"net/a?seed=5", "net/b"}, {"net/c", "net/d"}},
	 .polled = true},
	{.transport = "fabric",
	 .rails = {{"tcp/127.0.0.1", "tcp/127.0.0.2"}, {"tcp/127.0.0.3", "tcp/127.0.0.4"}}},
	{.transport = "fault",
	 .rails = {{":loop:net/a?seed=6", "seed=2:loop:net/b"}, {":loop:net/c", ":loop:net/d"}},
	 .polled = true},
	{.transport = "fault",
	 .rails = {{":fabric:tcp/127.0.0.1", ":fabric:tcp/127.0.0.2"},
		   {":fabric:tcp/127.0.0.3", ":fabric:tcp/127.0.0.4"}}},
	/* A baseline, never chosen, and this is why: a write that was refused counts as sent, a
	 * receiver crashes over the ops of a sender that closed, and a peer killed while it holds
	 * the shared lock leaves a healthy sender spinning for ever. */
	{.transport = "fabric",
	 .rails = {{"shm/shm", "shm/shm"}, {"shm/shm", "shm/shm"}},
	 .unchecked = true,
	 .together = true,
	 .settled = true,
	 .polled = true},
	/* What EFA needs, over a provider that is here. */
	{.transport = "fabric",
	 .rails = {{"shm/shm?as=efa", "shm/shm?as=efa"}, {"shm/shm?as=efa", "shm/shm?as=efa"}},
	 .unchecked = true,
	 .settled = true,
	 .polled = true},
	{.transport = "ipc", .rails = {{"host", "host"}, {"host", "host"}}},
	{.transport = "ipc", .rails = {{"host", "host"}, {"host", "host"}}, .allocated = true},
};
static int kind_count;

/* libfabric's shm names its files by process, and an endpoint that was never closed leaves its
 * file: an earlier process of this number may have. */
static inline void shm_tidy(void)
{
	glob_t found = {0};
	char pattern[64];

	snprintf(pattern, sizeof(pattern), "/dev/shm/%d:*", (int)getpid());
	if (glob(pattern, 0, NULL, &found) == 0)
		for (size_t i = 0; i < found.gl_pathc; i++)
			unlink(found.gl_pathv[i]);
	globfree(&found);
}

static inline void open_kind(struct pair *pair, int i, size_t bytes)
{
	const struct kind *kind = &kinds[i % kind_count];

	shm_tidy();
	pair_open_in(pair, kind->transport, kind->rails[0], bytes, kind->allocated);
}

/* "verbs:rxe1/1 rxe2/1": the transport, and a device for each rail. */
static inline void kind_parse(struct kind *kind, char *text)
{
	char *save = NULL, *colon = strchr(text, ':');

	if (colon == NULL || colon[1] == 0) {
		fprintf(stderr, "WS_CONTRACT=\"%s\" isn't TRANSPORT:DEVICE [DEVICE]\n", text);
		exit(2);
	}
	*colon = 0;
	*kind = (struct kind){.transport = text};
	char *device = strtok_r(colon + 1, " ", &save);
	for (size_t i = 0; device != NULL && i < ARRAY_SIZE(kind->rails); i++) {
		kind->rails[i][0] = kind->rails[i][1] = device;
		device = strtok_r(NULL, " ", &save);
	}
	kind->polled =
		strcmp(kind->transport, "loop") == 0 || strncmp(kind->rails[0][0], "shm/", 4) == 0;
	/* Only tcp's connections can be shut down by one end. */
	kind->together = strcmp(kind->transport, "fabric") == 0 &&
			 strncmp(kind->rails[0][0], "tcp/", 4) != 0;
}

static inline void kinds_print(void)
{
	printf("contract over");
	for (int i = 0; i < kind_count; i++)
		printf("%s %d %s %s%s", i > 0 ? "," : "", i, kinds[i].transport,
		       kinds[i].rails[0][0], kinds[i].allocated ? " (allocated memory)" : "");
	puts("");
}

/* Those of the list that this build has; or the one that the environment names. */
static inline void kinds_find(void)
{
	static char text[256];
	const char *asked = getenv("WS_CONTRACT");

	kind_count = 0;
	if (asked != NULL) {
		snprintf(text, sizeof(text), "%s", asked);
		kind_parse(&kinds[kind_count++], text);
	}
	for (int i = 0; asked == NULL && i < KINDS_MAX && kinds[i].transport != NULL; i++)
		if (transport_find(kinds[i].transport) != NULL)
			kinds[kind_count++] = kinds[i];
	kinds_print();
	if (asked == NULL)
		puts("not verbs, which needs an RDMA device: WS_CONTRACT=\"verbs:rxe1/1\" here, "
		     "tests/roce.sh in a VM");
}

static inline bool any_kind(const struct kind *kind)
{
	(void)kind;
	return true;
}

/* A test over each kind that it applies to, so many times.  Where it doesn't apply it isn't a pass:
 * it isn't run, and that is said. */
static inline void kinds_add(TCase *tests, const TTest *test, bool (*applies)(const struct kind *),
			     int times)
{
	for (int i = 0; i < kind_count; i++) {
		if (!applies(&kinds[i])) {
			printf("not applicable to %d %s %s: %s\n", i, kinds[i].transport,
			       kinds[i].rails[0][0], test->name);
			continue;
		}
		for (int k = 0; k < times; k++)
			tcase_add_loop_test(tests, test, i + k * kind_count,
					    i + k * kind_count + 1);
	}
	fflush(stdout); /* before the tests fork */
}

#endif
