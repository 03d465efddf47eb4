/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doctor's rules, each on a tree of files that differs in one thing; the list of findings;
 * which rails a probe tries; and its data path between two threads, sound and broken by rule.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/probe_inside.h"
#include "lib/cuda/cuda.h"
#include "tests/test.h"

/* ----------------------------------------------------------------------------- trees */

static char tree[64];

static void tree_make(void)
{
	snprintf(tree, sizeof(tree), "/tmp/weightsync-doctor-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(tree));
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
	(void)info;
	(void)flag;
	(void)walk;
	return remove(path);
}

static void tree_remove(void)
{
	ck_assert_int_eq(nftw(tree, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void tree_put(const char *path, const char *text)
{
	char whole[400];
	snprintf(whole, sizeof(whole), "%s%s", tree, path);
	for (char *slash = strchr(whole + strlen(tree) + 1, '/'); slash != NULL;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(whole, 0700);
		*slash = '/';
	}
	FILE *file = fopen(whole, "w");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
}

/* The worst that is said of an area, and its words. */
static const struct advice *worst(const struct doctor *doctor, const char *area)
{
	const struct advice *found = NULL;
	for (const struct advice *it = doctor->first; it != NULL; it = it->next)
		if (strcmp(it->area, area) == 0 && (found == NULL || it->health > found->health))
			found = it;
	return found;
}

struct rule {
	const char *area;
	enum health health;
	const char *says;
	const char *files[10]; /* path, text, .. */
};

#define RDMA	     "/sys/class/infiniband/mlx5_0/fw_ver", "28.1", "/dev/infiniband/uverbs0", ""
#define LIMITS	     "/proc/self/limits"
#define LOCKED(what) "Max locked memory         " what "   " what "   bytes\n"
#define OPEN(a, b)   "Max open files            " a "   " b "   files\n"
#define STATUS	     "/proc/self/status"
#define HUGE	     "/sys/kernel/mm/transparent_hugepage/"
#define CLOCK	     "/sys/devices/system/clocksource/clocksource0/current_clocksource"
#define RELEASE	     "/proc/sys/kernel/osrelease"
#define NVIDIA	     "/proc/driver/nvidia/version", "NVRM version: Module  570.1  Release"

static const struct rule rules[] = {
	{"memlock", HEALTH_NOTE, "8 MiB", {LIMITS, LOCKED("8388608")}},
	{"memlock", HEALTH_PROBLEM, "only 8 MiB", {LIMITS, LOCKED("8388608"), RDMA}},
	{"memlock", HEALTH_WARNING, "2 GiB", {LIMITS, LOCKED("2147483648"), RDMA}},
	{"memlock", HEALTH_OK, "unlimited", {LIMITS, LOCKED("unlimited"), RDMA}},
	{"memlock",
	 HEALTH_OK,
	 "CAP_IPC_LOCK",
	 {LIMITS, LOCKED("8388608"), RDMA, STATUS, "CapEff:\t0000000000004000\n",
	  "/proc/self/uid_map", "0 0 4294967295\n"}},
	{"memlock",
	 HEALTH_PROBLEM,
	 "only 8 MiB",
	 {LIMITS, LOCKED("8388608"), RDMA, STATUS, "CapEff:\t0000000000000fff\n"}},
	{"files", HEALTH_PROBLEM, "only 64 may be open", {LIMITS, OPEN("64", "64")}},
	{"files", HEALTH_WARNING, "only 1024 may be open", {LIMITS, OPEN("1024", "4096")}},
	{"files", HEALTH_OK, "4096 may be open", {LIMITS, OPEN("4096", "4096")}},
	{"cores", HEALTH_WARNING, "bound to core 7", {STATUS, "Cpus_allowed_list:\t7\n"}},
	{"cores", HEALTH_OK, "6 (0-3,8,10)", {STATUS, "Cpus_allowed_list:\t0-3,8,10\n"}},
	{"kernel", HEALTH_WARNING, "no /proc", {"/proc/version", "Linux"}},
	{"kernel", HEALTH_WARNING, "Linux 5.2.9", {RELEASE, "5.2.9"}},
	{"kernel", HEALTH_OK, "Linux 5.10.0", {RELEASE, "5.10.0"}},
	{"clock", HEALTH_OK, "kvm-clock", {CLOCK, "kvm-clock\n"}},
	{"clock", HEALTH_WARNING, "acpi_pm", {CLOCK, "acpi_pm\n"}},
	{"hugepages", HEALTH_NOTE, "no transparent", {CLOCK, "tsc"}},
	{"hugepages",
	 HEALTH_NOTE,
	 "shared memory: deny",
	 {HUGE "enabled", "[always] madvise never", HUGE "shmem_enabled", "never [deny]"}},
	{"hugepages",
	 HEALTH_OK,
	 "shared memory: advise",
	 {HUGE "enabled", "[always] madvise never", HUGE "shmem_enabled", "[advise] never"}},
	{"shm", HEALTH_NOTE, "no tmpfs", {"/proc/self/mounts", "proc /proc proc rw 0 0\n"}},
	{"shm",
	 HEALTH_NOTE,
	 "only 64 MiB",
	 {"/proc/self/mounts", "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw,size=65536k 0 0\n"}},
	{"shm", HEALTH_OK, "8 GiB", {"/proc/self/mounts", "shm /dev/shm tmpfs rw,size=8g 0 0\n"}},
	{"shm", HEALTH_OK, "half", {"/proc/self/mounts", "shm /dev/shm tmpfs rw 0 0\n"}},
	{"rdma", HEALTH_NOTE, "no RDMA device", {CLOCK, "tsc"}},
	{"rdma", HEALTH_OK, "mlx5_0 (driver unknown, firmware 28.1)", {RDMA}},
	{"rdma",
	 HEALTH_OK,
	 "rxe1 (over eth0)",
	 {"/sys/class/infiniband/rxe1/parent", "eth0\n", "/dev/infiniband/uverbs0", ""}},
	{"cores",
	 HEALTH_WARNING,
	 "this host has core 0 only",
	 {STATUS, "Cpus_allowed_list:\t0\n", "/sys/devices/system/cpu/online", "0\n"}},
	{"rdma",
	 HEALTH_PROBLEM,
	 "1 of 1 devices have no file",
	 {"/sys/class/infiniband/rxe1/fw_ver", ""}},
	{"rdma",
	 HEALTH_WARNING,
	 "0000:3b:00.0 (efa)",
	 {"/sys/bus/pci/devices/0000:3b:00.0/vendor", "0x1d0f\n",
	  "/sys/bus/pci/devices/0000:3b:00.0/device", "0xefa2\n",
	  "/sys/bus/pci/devices/0000:3b:00.0/class", "0x020000\n"}},
	{"gpu", HEALTH_OK, "no NVIDIA GPU", {CLOCK, "tsc"}},
	{"gpu", HEALTH_WARNING, "no device files", {NVIDIA}},
	{"gpudirect", HEALTH_OK, "dma-buf: the kernel", {NVIDIA, "/dev/nvidia0", "", RDMA}},
	{"gpudirect",
	 HEALTH_WARNING,
	 "neither dma-buf",
	 {RELEASE, "5.4.0", "/dev/nvidia0", "", RDMA}},
	{"gpudirect",
	 HEALTH_OK,
	 "nvidia_peermem: loaded",
	 {"/sys/module/nvidia_peermem/version", "1", "/dev/nvidia0", "", RDMA}},
};

START_TEST(each_fact_has_its_finding)
{
	const struct rule *rule = &rules[_i];
	struct doctor doctor = {.ranks = 1, .root = tree};

	tree_make();
	for (size_t i = 0; i < ARRAY_SIZE(rule->files) && rule->files[i] != NULL; i += 2)
		tree_put(rule->files[i], rule->files[i + 1]);
	unsetenv("CUDA_VISIBLE_DEVICES");
	doctor_host(&doctor);
	doctor_devices(&doctor);
	const struct advice *found = worst(&doctor, rule->area);
	ck_assert_msg(found != NULL, "nothing is said of %s", rule->area);
	ck_assert_msg(found->health == rule->health && strstr(found->what, rule->says) != NULL,
		      "%s: %d: %s", rule->area, (int)found->health, found->what);
	ck_assert(!doctor.out_of_memory);
	arena_release(&doctor.arena);
	tree_remove();
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(a_build_without_cuda_is_a_warning_where_a_gpu_is)
{
	struct doctor doctor = {.ranks = 1, .root = tree};

	tree_make();
	tree_put(NVIDIA);
	tree_put("/dev/nvidia0", "");
	tree_put("/dev/nvidiactl", "");
	unsetenv("CUDA_VISIBLE_DEVICES");
	doctor_devices(&doctor);
	const struct advice *found = worst(&doctor, "gpu");
	ck_assert_int_eq(found->health, cuda_built_in() ? HEALTH_OK : HEALTH_WARNING);
	ck_assert_ptr_nonnull(
		strstr(found->what, cuda_built_in() ? "1 NVIDIA GPU" : "has no CUDA"));
	arena_release(&doctor.arena);
	tree_remove();
}
END_TEST

START_TEST(hidden_gpus_are_a_warning)
{
	struct doctor doctor = {.ranks = 1, .root = tree};

	tree_make();
	tree_put("/dev/nvidia0", "");
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	doctor_devices(&doctor);
	bool said = false;
	for (const struct advice *it = doctor.first; it != NULL; it = it->next)
		said |= it->health == HEALTH_WARNING &&
			strcmp(it->what, "CUDA_VISIBLE_DEVICES is ''") == 0;
	ck_assert(said);
	arena_release(&doctor.arena);
	tree_remove();
}
END_TEST

/* A part that is missing is missing, not a crash; and it is known that one is. */
START_TEST(out_of_memory_is_noticed)
{
	bool short_once = false;

	tree_make();
	tree_put(LIMITS, LOCKED("8388608") OPEN("1024", "1024"));
	tree_put(STATUS, "Cpus_allowed_list:\t0-3\n");
	for (int64_t n = 0; n < 400; n++) {
		struct doctor doctor = {.ranks = 1, .root = tree};
		mem_fail_nth(n);
		doctor_host(&doctor);
		doctor_devices(&doctor);
		mem_fail_nth(-1);
		short_once |= doctor.out_of_memory;
		arena_release(&doctor.arena);
		ck_assert_uint_eq(mem_live_count(), 0);
	}
	ck_assert(short_once);
	tree_remove();
}
END_TEST

/* ------------------------------------------------------------------------ the list */

static void say_two(struct doctor *doctor, uint32_t rank, const char *limit)
{
	*doctor = (struct doctor){.root = "", .ranks = UINT64_C(1) << rank};
	doctor_say(doctor, HEALTH_PROBLEM, "memlock", "why", "fix", "%s", limit);
	doctor_say(doctor, HEALTH_OK, "clock", "", "", "tsc");
}

START_TEST(equal_findings_of_ranks_are_one)
{
	struct doctor all, other;
	struct ws_error err;
	char ranks[64];

	say_two(&all, 0, "8 MiB");
	for (uint32_t rank = 1; rank < 4; rank++) {
		struct writer out = WRITER_INIT(1u << 20);
		say_two(&other, rank, rank == 2 ? "16 MiB" : "8 MiB");
		doctor_encode(&other, &out);
		struct reader in = reader_make(out.bytes, out.count);
		ck_ok(doctor_merge(&all, &in, &err), err);
		ck_assert(reader_done(&in));
		writer_release(&out);
		arena_release(&other.arena);
	}
	ck_assert_uint_eq(doctor_count(&all, HEALTH_PROBLEM), 2);
	ck_assert_uint_eq(doctor_count(&all, HEALTH_OK), 1);
	ck_assert_str_eq(format_ranks(all.first->ranks, ranks, sizeof(ranks)), "0-1,3");
	struct writer table = WRITER_INIT(1u << 20);
	doctor_put_table(&all, 4, 100, &table);
	write_u8(&table, 0);
	ck_assert_str_eq((const char *)table.bytes, "problem  memlock    8 MiB (rank 0-1,3)\n"
						    "                    why: why\n"
						    "                    fix: fix\n"
						    "problem  memlock    16 MiB (rank 2)\n"
						    "                    why: why\n"
						    "                    fix: fix\n"
						    "ok       clock      tsc\n");
	writer_release(&table);
	arena_release(&all.arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(findings_that_are_cut_or_wrong_are_refused)
{
	struct doctor doctor, other;
	struct ws_error err;
	struct writer out = WRITER_INIT(1u << 20);

	say_two(&other, 1, "8 MiB");
	doctor_encode(&other, &out);
	for (size_t count = 0; count < out.count; count++) {
		doctor = (struct doctor){.root = "", .ranks = 1};
		struct reader in = reader_make(out.bytes, count);
		ck_fails(doctor_merge(&doctor, &in, &err), -EPROTO, err);
		arena_release(&doctor.arena);
	}
	out.bytes[4] = HEALTH_COUNT;
	struct reader in = reader_make(out.bytes, out.count);
	ck_fails(doctor_merge(&doctor, &in, &err), -EPROTO, err);
	writer_release(&out);
	arena_release(&other.arena);
	arena_release(&doctor.arena);
}
END_TEST

START_TEST(a_line_is_as_wide_as_it_may_be)
{
	struct doctor doctor = {.root = "", .ranks = 1};
	struct writer out = WRITER_INIT(1u << 20);
	uint32_t columns = 40 + 20 * (uint32_t)_i;

	doctor_say(&doctor, HEALTH_NOTE, "speed",
		   "because of this and of that and of what is said in many short words here",
		   "do this, then do that, and then do it all once more until it is well",
		   "something is so and so, and something else is otherwise than it was before");
	doctor_put_table(&doctor, 1, columns, &out);
	write_u8(&out, 0);
	for (const char *line = (const char *)out.bytes; *line != '\0';) {
		size_t length = strcspn(line, "\n");
		ck_assert_uint_le(length, columns);
		ck_assert(length == 0 || line[length - 1] != ' ');
		line += length + 1;
	}
	writer_release(&out);
	arena_release(&doctor.arena);
}
END_TEST

START_TEST(ranks_are_written_as_ranges)
{
	static const struct {
		uint64_t ranks;
		const char *text;
	} cases[] = {{0, ""},
		     {1, "0"},
		     {UINT64_MAX, "0-63"},
		     {UINT64_C(1) << 63, "63"},
		     {0x8000000000000f05, "0,2,8-11,63"}};
	char text[64];
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_str_eq(format_ranks(cases[i].ranks, text, sizeof(text)), cases[i].text);
	/* As many as there is room for. */
	ck_assert_uint_lt(strlen(format_ranks(0x5555555555555555, text, sizeof(text))),
			  sizeof(text));
}
END_TEST

/* ---------------------------------------------------------------------------- NICs */

START_TEST(a_nic_is_told_with_what_is_known)
{
	struct doctor doctor = {.root = "", .ranks = 1};
	struct nic_info info = {.transport = "verbs",
				.device = "mlx5_0/1",
				.state = "up",
				.subnet = "10.0.1.0/24",
				.gid = "GID 3 (RoCE v2, 10.0.1.1)",
				.mbps = 400000,
				.mtu = 4096,
				.driver = "mlx5_core",
				.pci = "0000:18:00.0",
				.numa = 0,
				.gpus = 3};

	doctor_nic(&doctor, &info);
	ck_assert_str_eq(doctor.last->what,
			 "verbs mlx5_0/1: up, 10.0.1.0/24, 400 Gb/s, MTU 4096, GID 3 (RoCE v2, "
			 "10.0.1.1), mlx5_core at 0000:18:00.0, NUMA 0, for GPU 0-1");
	ck_assert_int_eq(doctor.last->health, HEALTH_OK);
	info.mtu = 1024;
	doctor_nic(&doctor, &info);
	ck_assert_int_eq(doctor.last->health, HEALTH_NOTE);
	snprintf(info.skipped, sizeof(info.skipped), "serves GPU 1, not GPU 0");
	doctor_nic(&doctor, &info);
	ck_assert_int_eq(doctor.last->health, HEALTH_OK);
	snprintf(info.state, sizeof(info.state), "down");
	snprintf(info.skipped, sizeof(info.skipped), "its port is down");
	doctor_nic(&doctor, &info);
	ck_assert_int_eq(doctor.last->health, HEALTH_WARNING);
	ck_assert_ptr_nonnull(strstr(doctor.last->what, "skipped: its port is down"));
	info = (struct nic_info){.transport = "fabric",
				 .device = "tcp/127.0.0.1",
				 .state = "lo up",
				 .skipped = "loopback",
				 .numa = -1};
	doctor_nic(&doctor, &info);
	ck_assert_int_eq(doctor.last->health, HEALTH_OK);
	ck_assert_str_eq(doctor.last->what, "fabric tcp/127.0.0.1: lo up: skipped: loopback");
	arena_release(&doctor.arena);
}
END_TEST

/* A rank with NICs "transport subnet protocol[!]", ! for one that stays inside its host. */
static void rank_make(struct probe_rank *rank, const char *const nics[], uint32_t count)
{
	memset(rank, 0, sizeof(*rank));
	rank->nic_count = count;
	for (uint32_t i = 0; i < count; i++) {
		unsigned long long protocol = 0;
		char mark = 0;
		ck_assert_int_ge(sscanf(nics[i], "%15s %95s %llu%c", rank->nics[i].transport,
					rank->nics[i].subnet, &protocol, &mark),
				 3);
		rank->nics[i].protocol = protocol;
		rank->nics[i].same_host = mark == '!';
	}
}

static const struct {
	const char *here[4], *there[4];
	const char *rails; /* "here-there" */
} joined[] = {
	{{"verbs a 1"}, {"verbs a 1"}, "0-0 "},
	{{"verbs a 1", "verbs b 1"}, {"verbs b 1", "verbs a 1"}, "0-1 1-0 "},
	{{"verbs a 1", "verbs a 1"}, {"verbs a 1", "verbs a 1"}, "0-0 1-1 "},
	{{"verbs a 1", "verbs a 1", "verbs a 1"}, {"verbs a 1"}, "0-0 "},
	{{"verbs a 1"}, {"verbs b 1"}, ""},
	{{"verbs a 1"}, {"fabric a 1"}, ""},
	{{"fabric a 1"}, {"fabric a 2"}, ""},
	{{"verbs a 1", "ipc h 7!"}, {"ipc h 7!", "verbs a 1"}, "1-0 "},
	{{"verbs a 1", "ipc h 7!"}, {"ipc i 7!", "verbs a 1"}, "0-1 "},
	{{"verbs a 1", "verbs b 1", "fabric a 2"}, {"fabric a 2", "verbs b 1"}, "1-1 2-0 "},
};

START_TEST(rails_join_what_can_be_joined)
{
	struct probe_rank here, there;
	struct rail rails[NICS_MAX], back[NICS_MAX];
	char text[64] = "";
	uint32_t count[2] = {0, 0};

	while (count[0] < 4 && joined[_i].here[count[0]] != NULL)
		count[0]++;
	while (count[1] < 4 && joined[_i].there[count[1]] != NULL)
		count[1]++;
	rank_make(&here, joined[_i].here, count[0]);
	rank_make(&there, joined[_i].there, count[1]);
	uint32_t found = probe_rails(&here, &there, rails);
	for (uint32_t i = 0; i < found; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%u-%u ", rails[i].from,
			 rails[i].to);
	ck_assert_str_eq(text, joined[_i].rails);
	ck_assert_uint_eq(probe_rails(&there, &here, back), found);
}
END_TEST

/* ------------------------------------------------------------------- the data path */

struct end {
	struct wire wire;
	struct ws_memory memory;
	struct mr mr;
	struct address address;
	int rc;
	struct ws_error err;
};

static void end_open(struct end *end, const char *device)
{
	struct ws_error err;
	memset(end, 0, sizeof(*end));
	ck_ok(nic_open(&end->wire.nic, "fault", device, &err), err);
	ck_ok(ws_memory_alloc(&end->memory, PROBE_MEMORY_BYTES, &err), err);
	const struct transport *transport = end->wire.nic->transport;
	ck_ok(transport->reg(end->wire.nic, &end->memory, MR_TARGET, &end->mr, &err), err);
	ck_ok(transport->peer_open(end->wire.nic, &end->wire.peer, &end->address, &err), err);
	end->wire.mr = &end->mr;
	end->wire.memory = end->memory.base;
	wire_clear(&end->wire);
}

static void end_join(struct end *end, const struct end *other)
{
	struct ws_error err;
	end->wire.remote_key = other->mr.key;
	end->wire.remote_base = other->mr.base;
	ck_ok(end->wire.nic->transport->peer_connect(end->wire.nic, end->wire.peer, &other->address,
						     &err),
	      err);
}

static void end_close(struct end *end)
{
	end->wire.nic->transport->dereg(end->wire.nic, &end->mr);
	nic_close(end->wire.nic);
	ws_memory_free(&end->memory);
}

static void *answer_main(void *arg)
{
	struct end *end = arg;
	end->rc = wire_answer(&end->wire, 42, &end->err);
	return NULL;
}

/* One step, one end in a thread of its own; what it gives at the end that answers is in rc, err. */
static int end_probe(struct end *writer, struct end *answerer, uint64_t ms,
		     struct pair_result *result, struct ws_error *err)
{
	pthread_t thread;

	wire_begin(&writer->wire, false, deadline_in_ms(ms));
	wire_begin(&answerer->wire, true, deadline_in_ms(ms));
	wire_clear(&answerer->wire);
	ck_assert_int_eq(pthread_create(&thread, NULL, answer_main, answerer), 0);
	int rc = wire_probe(&writer->wire, 42, result, err);
	pthread_join(thread, NULL);
	return rc;
}

static const struct {
	const char *writer, *answerer; /* rules */
	const char *here, *there;      /* what the two say; NULL: nothing is wrong */
} broken[] = {
	{"seed=1", "seed=2", NULL, NULL},
	{"delay=0.5", "delay=0.5", NULL, NULL},
	{"drop_nth=1", "", "didn't come", "didn't come"},
	{"drop_nth=7", "", "the answer to a write of 8 B", "the next write didn't come"},
	{"corrupt_nth=1", "", "the other end says", "a write of 8 bytes"},
	{"corrupt_nth=4", "", "the other end says", "a write of 1048576 bytes"},
	{"cut_nth=2", "", "the other end says", "a write of 4096 bytes"},
	{"fail_nth=1", "", "failed", "didn't come"},
	{"lost_nth=4", "", "the end of a write didn't come", NULL},
	{"", "drop_nth=1", "the answer to writes of 8 B to 1 MiB", "the next write"},
	{"", "drop_nth=3", "the answer to a write of 8 B", "the next write"},
};

START_TEST(what_is_broken_is_said_at_both_ends)
{
	struct end writer, answerer;
	struct pair_result result = {0};
	struct ws_error err = {0};
	char devices[2][96];

	snprintf(devices[0], sizeof(devices[0]), "%s:loop:net/a?seed=%d", broken[_i].writer,
		 _i + 1);
	snprintf(devices[1], sizeof(devices[1]), "%s:loop:net/b", broken[_i].answerer);
	end_open(&writer, devices[0]);
	end_open(&answerer, devices[1]);
	end_join(&writer, &answerer);
	end_join(&answerer, &writer);
	uint64_t ms = broken[_i].here == NULL ? 60000 : SANITIZED ? 3000 : 600;
	int rc = end_probe(&writer, &answerer, ms, &result, &err);
	if (broken[_i].here == NULL) {
		ck_ok(rc, err);
		ck_assert_int_eq(result.state, PAIR_GOOD);
		ck_assert(result.first_ns > 0 && result.p50_ns <= result.p99_ns);
		ck_assert_uint_gt(result.bytes_per_s, 0);
	} else {
		ck_assert_int_lt(rc, 0);
		ck_assert_int_eq(result.state, PAIR_BAD);
		ck_assert_msg(strstr(err.text, broken[_i].here) != NULL, "%s", err.text);
	}
	if (broken[_i].here == NULL)
		ck_ok(answerer.rc, answerer.err);
	if (broken[_i].there != NULL)
		ck_assert_msg(strstr(answerer.err.text, broken[_i].there) != NULL, "%s",
			      answerer.err.text);
	/* What is still under way of it isn't the other direction's fault. */
	rc = end_probe(&answerer, &writer, 60000, &result, &err);
	ck_ok(rc, err);
	ck_ok(writer.rc, writer.err);
	end_close(&writer);
	end_close(&answerer);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *suite = suite_create("doctor");
	TCase *facts = tcase_create("facts");
	TCase *list = tcase_create("list");
	TCase *wires = tcase_create("wires");

	tcase_set_timeout(facts, 60);
	tcase_add_loop_test(facts, each_fact_has_its_finding, 0, (int)ARRAY_SIZE(rules));
	tcase_add_test(facts, a_build_without_cuda_is_a_warning_where_a_gpu_is);
	tcase_add_test(facts, hidden_gpus_are_a_warning);
	tcase_add_test(facts, out_of_memory_is_noticed);
	suite_add_tcase(suite, facts);
	tcase_add_test(list, equal_findings_of_ranks_are_one);
	tcase_add_test(list, findings_that_are_cut_or_wrong_are_refused);
	tcase_add_loop_test(list, a_line_is_as_wide_as_it_may_be, 0, 5);
	tcase_add_test(list, ranks_are_written_as_ranges);
	tcase_add_test(list, a_nic_is_told_with_what_is_known);
	tcase_add_loop_test(list, rails_join_what_can_be_joined, 0, (int)ARRAY_SIZE(joined));
	suite_add_tcase(suite, list);
	tcase_set_timeout(wires, 120);
	tcase_add_loop_test(wires, what_is_broken_is_said_at_both_ends, 0, (int)ARRAY_SIZE(broken));
	suite_add_tcase(suite, wires);
	return suite;
}
