/* SPDX-License-Identifier: Apache-2.0 */
/* The host without its devices: kernel, limits, memory, clock. */
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"

/* Each NIC of a peer over tcp holds two libfabric endpoints of 11 descriptors. */
#define FILES_EACH_PEER 22
#define FILES_OF_OURS	64
#define FILES_ENOUGH	4096
#define FILES_WANTED	UINT64_C(65536)
#define MEMLOCK_LEAST	(UINT64_C(1) << 30)
#define SHM_ENOUGH	(UINT64_C(1) << 30)
#define CAP_IPC_LOCK	14

bool host_kernel_at_least(struct doctor *doctor, uint32_t major, uint32_t minor)
{
	const char *release = host_read(doctor, "/proc/sys/kernel/osrelease");
	char *end = NULL;
	if (release == NULL)
		return true; /* said once, by the kernel's own finding */
	unsigned long has_major = strtoul(release, &end, 10);
	unsigned long has_minor = *end == '.' ? strtoul(end + 1, NULL, 10) : 0;
	return has_major > major || (has_major == major && has_minor >= minor);
}

static void kernel(struct doctor *doctor)
{
	const char *release = host_read(doctor, "/proc/sys/kernel/osrelease");
	if (release == NULL)
		doctor_say(doctor, HEALTH_WARNING, "kernel",
			   "most of what is looked at here are files of /proc and /sys",
			   "mount /proc, or give the right --root", "there is no /proc to read");
	else if (!host_kernel_at_least(doctor, 5, 3))
		doctor_say(
			doctor, HEALTH_WARNING, "kernel",
			"ranks of one host notice each other's death by pidfd_open, of Linux 5.3",
			"update the kernel, or give --transport fabric", "Linux %s", release);
	else
		doctor_say(doctor, HEALTH_OK, "kernel", "", "", "Linux %s", release);
}

/* Limits are spoken of in powers of two: 8388608 -> "8 MiB". */
static const char *format_binary(uint64_t bytes, char *out, size_t room)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double value = (double)bytes;
	size_t unit = 0;
	for (; value >= 1024.0 && unit + 1 < ARRAY_SIZE(units); unit++)
		value /= 1024.0;
	snprintf(out, room, "%.3g %s", value, units[unit]);
	return out;
}

/* A limit's soft and hard value of /proc/self/limits; UINT64_MAX is unlimited. */
static bool read_limit(struct doctor *doctor, const char *name, uint64_t *soft, uint64_t *hard)
{
	const char *line = text_field(doctor, host_read(doctor, "/proc/self/limits"), name);
	uint64_t *outs[] = {soft, hard};
	for (size_t i = 0; i < ARRAY_SIZE(outs); i++) {
		if (line == NULL || *line == '\0')
			return false;
		char *end;
		bool unlimited = strncmp(line, "unlimited", 9) == 0;
		*outs[i] = unlimited ? UINT64_MAX : strtoull(line, &end, 10);
		line += strcspn(line, " ");
		line += strspn(line, " ");
	}
	return true;
}

/* Root of the machine (not of a user namespace) may lock what it wants. */
static bool may_lock_all(struct doctor *doctor)
{
	const char *caps = text_field(doctor, host_read(doctor, "/proc/self/status"), "CapEff:");
	const char *map = host_read(doctor, "/proc/self/uid_map");
	if (caps == NULL || (strtoull(caps, NULL, 16) >> CAP_IPC_LOCK & 1) == 0)
		return false;
	return map != NULL && strstr(map, "4294967295") != NULL;
}

static void memlock(struct doctor *doctor)
{
	static const char why[] = "an RDMA NIC pins all memory that is registered with it, and "
				  "refuses what is over the limit";
	static const char fix[] =
		"set it to unlimited: `ulimit -l unlimited`, memlock in "
		"/etc/security/limits.conf, LimitMEMLOCK=infinity in a unit (slurmd's too), "
		"--ulimit memlock=-1 for docker";
	char text[32];
	uint64_t soft, hard;

	if (!read_limit(doctor, "Max locked memory", &soft, &hard))
		return;
	if (soft == UINT64_MAX) {
		doctor_say(doctor, HEALTH_OK, "memlock", "", "", "unlimited");
		return;
	}
	format_binary(soft, text, sizeof(text));
	if (may_lock_all(doctor))
		doctor_say(doctor, HEALTH_OK, "memlock", "", "",
			   "%s, but this process has CAP_IPC_LOCK and is above it", text);
	else if (host_rdma_count(doctor) == 0)
		doctor_say(doctor, HEALTH_NOTE, "memlock", why,
			   "nothing as long as there is no RDMA device",
			   "%s of memory may be locked", text);
	else if (soft < MEMLOCK_LEAST)
		doctor_say(doctor, HEALTH_PROBLEM, "memlock", why, fix,
			   "only %s of memory may be locked", text);
	else
		doctor_say(doctor, HEALTH_WARNING, "memlock", why, fix,
			   "%s of memory may be locked: a rank's weights and staging must fit",
			   text);
}

static void files(struct doctor *doctor)
{
	char fix[160];
	uint64_t soft, hard;

	if (!read_limit(doctor, "Max open files", &soft, &hard))
		return;
	uint64_t peers = soft > FILES_OF_OURS ? (soft - FILES_OF_OURS) / FILES_EACH_PEER : 0;
	if (soft >= FILES_ENOUGH) {
		doctor_say(doctor, HEALTH_OK, "files", "", "",
			   "%llu may be open, enough for about %llu peers over tcp",
			   (unsigned long long)soft, (unsigned long long)peers);
		return;
	}
	bool may_raise = hard >= FILES_ENOUGH;
	snprintf(fix, sizeof(fix), "`ulimit -n %llu`%s",
		 (unsigned long long)(may_raise ? MIN(hard, FILES_WANTED) : FILES_WANTED),
		 may_raise ? "" : ", after raising nofile in /etc/security/limits.conf");
	doctor_say(doctor, peers == 0 ? HEALTH_PROBLEM : HEALTH_WARNING, "files",
		   "a peer over tcp holds 22 of them for each pair of NICs", fix,
		   "only %llu may be open, enough for about %llu peers over tcp",
		   (unsigned long long)soft, (unsigned long long)peers);
}

/* The word in brackets: "always [madvise] never". */
static const char *chosen(struct doctor *doctor, const char *path)
{
	const char *text = host_read(doctor, path);
	const char *begin = text != NULL ? strchr(text, '[') : NULL;
	const char *end = begin != NULL ? strchr(begin, ']') : NULL;
	return end != NULL ? arena_copy(&doctor->arena, begin + 1, (size_t)(end - begin - 1))
			   : NULL;
}

static void hugepages(struct doctor *doctor)
{
	static const char why[] =
		"copies and registration are faster with 2 MiB pages than with 4 KiB";
	static const char fix_own[] =
		"`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`";
	static const char fix_others[] =
		"`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`";
	const char *own = chosen(doctor, "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
	const char *others = chosen(doctor, "/sys/kernel/mm/transparent_hugepage/enabled");
	char fix[sizeof(fix_own) + sizeof(fix_others) + 2];

	if (own == NULL || others == NULL) {
		doctor_say(doctor, HEALTH_NOTE, "hugepages", why,
			   "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
			   "this kernel has no transparent huge pages");
		return;
	}
	bool own_off = strcmp(own, "never") == 0 || strcmp(own, "deny") == 0;
	bool others_off = strcmp(others, "never") == 0;
	snprintf(fix, sizeof(fix), "%s%s%s", own_off ? fix_own : "",
		 own_off && others_off ? ", " : "", others_off ? fix_others : "");
	doctor_say(doctor, own_off || others_off ? HEALTH_NOTE : HEALTH_OK, "hugepages",
		   own_off || others_off ? why : "", fix, "shared memory: %s, other memory: %s",
		   own, others);
}

/* What follows size= in the mount's options; 0: half of the memory, the kernel's default. */
static uint64_t mount_bytes(const char *options)
{
	const char *size = strstr(options, "size=");
	char *end;
	if (size == NULL)
		return 0;
	uint64_t value = strtoull(size + 5, &end, 10);
	switch (*end) {
	case 'k':
		return value << 10;
	case 'm':
		return value << 20;
	case 'g':
		return value << 30;
	}
	return value;
}

static void shared_memory(struct doctor *doctor)
{
	static const char why[] =
		"weightsync's own memory isn't there (memfd), but NCCL's, PyTorch "
		"loaders' and libfabric's shm provider's is";
	const char *mounts = host_read(doctor, "/proc/self/mounts");
	const char *at = mounts != NULL ? strstr(mounts, " /dev/shm tmpfs ") : NULL;
	const char *options = at != NULL ? text_field(doctor, at, " /dev/shm tmpfs ") : NULL;
	char text[32];

	if (options == NULL) {
		doctor_say(doctor, HEALTH_NOTE, "shm", why, "mount a tmpfs there",
			   "there is no tmpfs at /dev/shm");
		return;
	}
	uint64_t bytes = mount_bytes(options);
	if (bytes == 0)
		snprintf(text, sizeof(text), "half of the memory");
	else
		format_binary(bytes, text, sizeof(text));
	if (bytes != 0 && bytes < SHM_ENOUGH)
		doctor_say(doctor, HEALTH_NOTE, "shm", why,
			   "`mount -o remount,size=8G /dev/shm`, --shm-size=8g for docker",
			   "/dev/shm has only %s", text);
	else
		doctor_say(doctor, HEALTH_OK, "shm", "", "", "/dev/shm has %s", text);
}

static void clocks(struct doctor *doctor)
{
	static const char *const fast[] = {"tsc", "kvm-clock", "arch_sys_counter",
					   "hyperv_clocksource_tsc_page"};
	const char *source = host_read(
		doctor, "/sys/devices/system/clocksource/clocksource0/current_clocksource");

	if (source == NULL)
		return;
	for (size_t i = 0; i < ARRAY_SIZE(fast); i++) {
		if (strcmp(source, fast[i]) == 0) {
			doctor_say(doctor, HEALTH_OK, "clock", "", "", "%s", source);
			return;
		}
	}
	doctor_say(doctor, HEALTH_WARNING, "clock",
		   "with it each look at the clock is a system call, and every poll looks",
		   "see why the kernel gave tsc up (`dmesg | grep -i clocksource`)",
		   "the clock source is %s", source);
}

static uint32_t count_list(const char *list)
{
	uint32_t count = 0;
	while (list != NULL && *list >= '0' && *list <= '9') {
		char *end;
		unsigned long first = strtoul(list, &end, 10), last = first;
		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		count += (uint32_t)(last - first + 1);
		list = *end == ',' ? end + 1 : end;
	}
	return count;
}

static void cores(struct doctor *doctor)
{
	const char *list =
		text_field(doctor, host_read(doctor, "/proc/self/status"), "Cpus_allowed_list:");
	uint32_t count = count_list(list);
	uint32_t online = count_list(host_read(doctor, "/sys/devices/system/cpu/online"));

	if (list == NULL)
		return;
	if (count == 1)
		doctor_say(
			doctor, HEALTH_WARNING, "cores",
			"a rank's I/O thread, its stage thread and the engine share it, and each "
			"waits for the others",
			online == 1 ? "a host with more of them"
				    : "`mpirun --bind-to numa` (or none), `srun "
				      "--cpus-per-task=4`, or a wider cpuset",
			online == 1 ? "this host has core %s only"
				    : "this process is bound to core %s",
			list);
	else
		doctor_say(doctor, HEALTH_OK, "cores", "", "", "%u (%s)", count, list);
}

void doctor_host(struct doctor *doctor)
{
	kernel(doctor);
	cores(doctor);
	memlock(doctor);
	files(doctor);
	hugepages(doctor);
	shared_memory(doctor);
	clocks(doctor);
}
