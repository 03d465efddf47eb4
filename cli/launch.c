/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank of which job this process is, and where ranks of one host meet without being told.
 *
 * The variables are those that the launchers document: Open MPI's OMPI_COMM_WORLD_*, Slurm's
 * SLURM_PROCID and SLURM_NTASKS, torchrun's RANK and WORLD_SIZE.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

struct launcher {
	const char *name, *rank, *world, *local_rank, *local_ranks;
	const char *node;   /* local_ranks lists them by node, and this is which; or NULL */
	const char *job[3]; /* the first that is set names the job */
};

/* mpirun inside a Slurm allocation sets both; the innermost comes first here, and outer ones with
 * more than one rank must agree. */
static const struct launcher launchers[] = {
	{"Open MPI",
	 "OMPI_COMM_WORLD_RANK",
	 "OMPI_COMM_WORLD_SIZE",
	 "OMPI_COMM_WORLD_LOCAL_RANK",
	 "OMPI_COMM_WORLD_LOCAL_SIZE",
	 NULL,
	 {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"}},
	{"torchrun",
	 "RANK",
	 "WORLD_SIZE",
	 "LOCAL_RANK",
	 "LOCAL_WORLD_SIZE",
	 NULL,
	 {"TORCHELASTIC_RUN_ID", "MASTER_PORT", NULL}},
	{"Slurm",
	 "SLURM_PROCID",
	 "SLURM_NTASKS",
	 "SLURM_LOCALID",
	 "SLURM_STEP_TASKS_PER_NODE",
	 "SLURM_NODEID",
	 {"SLURM_JOB_ID", NULL, NULL}},
};

_Static_assert(ARRAY_SIZE(launchers) == LAUNCHER_COUNT, "cli.h counts them");

bool launch_half_set(uint32_t launcher, const char **set_out, const char **unset_out)
{
	const char *rank = launchers[launcher].rank, *world = launchers[launcher].world;
	bool has_rank = getenv(rank) != NULL, has_world = getenv(world) != NULL;

	*set_out = has_rank ? rank : world;
	*unset_out = has_rank ? world : rank;
	return has_rank != has_world;
}

/* A whole number from the environment; -ENOENT if unset. */
static int read_variable(const char *name, uint32_t *value_out, struct ws_error *err)
{
	const char *text = getenv(name);
	char *end = NULL;
	if (text == NULL)
		return -ENOENT;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || value > RANKS_MAX || text[0] == '-')
		return ws_fail(err, -EINVAL, "%s is '%s', not a rank or size", name, text);
	*value_out = (uint32_t)value;
	return 0;
}

static void name_job(struct launch *launch, const char *id)
{
	char clean[64] = "";
	size_t used = 0;
	for (; id != NULL && *id != '\0' && used + 1 < sizeof(clean); id++)
		clean[used++] = strchr("/.: @", *id) == NULL ? *id : '-';
	snprintf(launch->job, sizeof(launch->job), "%u-%s", (unsigned)getuid(), clean);
}

static int check_rank(const struct launch *launch, struct ws_error *err)
{
	if (launch->world == 0 || launch->rank >= launch->world)
		return ws_fail(err, -EINVAL, "rank %u of a world of %u can't be (from %s)",
			       launch->rank, launch->world, launch->source);
	return 0;
}

static int launch_from_environment(struct launch *launch, struct ws_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(launchers); i++) {
		const struct launcher *launcher = &launchers[i];
		uint32_t rank = 0, world = 0;
		int rank_rc = read_variable(launcher->rank, &rank, err);
		int world_rc = read_variable(launcher->world, &world, err);
		if (rank_rc == -EINVAL || world_rc == -EINVAL)
			return -EINVAL;
		if (rank_rc != 0 || world_rc != 0)
			continue;
		if (launch->source != NULL && world > 1 &&
		    (rank != launch->rank || world != launch->world))
			return ws_fail(
				err, -EINVAL,
				"%s says rank %u of %u, but %s says rank %u of %u: unset one, or give "
				"--rank and --world",
				launch->source, launch->rank, launch->world, launcher->name, rank,
				world);
		if (launch->source != NULL)
			continue;
		*launch = (struct launch){.rank = rank, .world = world, .source = launcher->name};
		const char *id = NULL;
		for (size_t k = 0; id == NULL && k < ARRAY_SIZE(launcher->job) && launcher->job[k];
		     k++)
			id = getenv(launcher->job[k]);
		name_job(launch, id);
	}
	if (launch->source == NULL)
		return ws_fail(
			err, -ENOENT,
			"no launcher tells this process its rank (looked for OMPI_COMM_WORLD_RANK, "
			"RANK, SLURM_PROCID): start it under mpirun, srun or torchrun, or give --rank "
			"and --world");
	return 0;
}

static bool read_number(const char **text, uint32_t *value_out)
{
	char *end = NULL;
	unsigned long value = strtoul(*text, &end, 10);
	bool read = isdigit((unsigned char)**text) && value <= RANKS_MAX;

	*value_out = read ? (uint32_t)value : 0;
	*text = end;
	return read;
}

/* "8(x2),4": 8 on nodes 0 and 1, 4 on node 2.  Without a number of the node all must have as many.
 */
static bool read_by_node(const char *text, const uint32_t *node, uint32_t *value_out)
{
	uint32_t first = 0, count = 0, times = 0, entries = 0;
	bool found = false;

	do {
		times = 1;
		if (!read_number(&text, &count))
			return false;
		if (strncmp(text, "(x", 2) == 0) {
			text += 2;
			if (!read_number(&text, &times) || *text++ != ')')
				return false;
		}
		if (node == NULL ? entries == 0 : *node >= first && *node - first < times) {
			*value_out = count;
			found = true;
		}
		first += times;
		entries++;
	} while (*text++ == ',');
	return found && text[-1] == '\0' && (node != NULL || entries == 1);
}

static bool read_local(const char *name, uint32_t *value_out)
{
	const char *text = getenv(name);

	return text != NULL && read_number(&text, value_out) && *text == '\0';
}

static bool read_local_ranks(const struct launcher *launcher, uint32_t *value_out)
{
	const char *text = getenv(launcher->local_ranks);
	uint32_t node = 0;

	if (launcher->node == NULL || text == NULL)
		return read_local(launcher->local_ranks, value_out);
	return read_by_node(text, read_local(launcher->node, &node) ? &node : NULL, value_out);
}

void launch_find_local(uint32_t *local_rank_out, uint32_t *local_ranks_out)
{
	*local_rank_out = *local_ranks_out = 0;
	for (size_t i = 0; i < ARRAY_SIZE(launchers); i++)
		if (read_local(launchers[i].local_rank, local_rank_out) &&
		    read_local_ranks(&launchers[i], local_ranks_out) &&
		    *local_rank_out < *local_ranks_out)
			return;
	*local_rank_out = *local_ranks_out = 0;
}

int launch_find(struct launch *launch, bool rank_given, uint32_t rank, uint32_t world,
		const char *job, struct ws_error *err)
{
	*launch = (struct launch){0};
	if (rank_given) {
		*launch = (struct launch){.rank = rank, .world = world, .source = "--rank/--world"};
		name_job(launch, job);
		return check_rank(launch, err);
	}
	int rc = launch_from_environment(launch, err);
	if (rc != 0)
		return rc;
	if (job != NULL)
		name_job(launch, job);
	launch_find_local(&launch->local_rank, &launch->local_ranks);
	return check_rank(launch, err);
}

int launch_gpu(struct launch *launch, const char **gpu, struct ws_error *err)
{
	if (*gpu == NULL || strcmp(*gpu, "local") != 0)
		return 0;
	if (launch->local_ranks == 0)
		return ws_fail(err, -EINVAL,
			       "--gpu local needs a launcher that numbers the ranks of a host, and "
			       "%s doesn't: give the GPU's number",
			       launch->source != NULL ? launch->source : "this shell");
	snprintf(launch->local_text, sizeof(launch->local_text), "%u", launch->local_rank);
	*gpu = launch->local_text;
	return 0;
}

static int rendezvous_name(struct rendezvous *meet, const struct launch *launch,
			   struct ws_error *err)
{
	const char *base = getenv("TMPDIR");
	if (base == NULL || base[0] != '/')
		base = "/tmp";
	if (launch->job[strlen(launch->job) - 1] == '-')
		return ws_fail(
			err, -EINVAL,
			"%s doesn't name the job: give --job NAME, the same for all ranks, or --hub "
			"and --key",
			launch->source);
	int length =
		snprintf(meet->folder, sizeof(meet->folder), "%s/weightsync-%s", base, launch->job);
	if (length < 0 || (size_t)length >= sizeof(meet->folder))
		return ws_fail(err, -EINVAL, "TMPDIR '%s' is too long for the job's folder", base);
	snprintf(meet->key_file, sizeof(meet->key_file), "%s/key", meet->folder);
	snprintf(meet->hub_file, sizeof(meet->hub_file), "%s/hub", meet->folder);
	return 0;
}

/* The folder must be ours alone: anybody may make names in /tmp. */
static int check_folder(const char *folder, struct ws_error *err)
{
	struct stat info;
	if (lstat(folder, &info) != 0)
		return ws_fail(err, -errno, "cannot look at '%s': %s", folder, strerror(errno));
	if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0)
		return ws_fail(
			err, -EACCES,
			"'%s' isn't a folder of this user with mode 0700: remove it, or set TMPDIR",
			folder);
	return 0;
}

/* Whether the file names a hub whose process lives: a run of the same name that was killed while
 * it met leaves its file, and rank 0 of this run may come later than we do. */
static bool read_hub(const struct rendezvous *meet, char *endpoint_out, size_t room)
{
	void *text = NULL;
	size_t bytes = 0;
	bool found = false;
	if (file_read(meet->hub_file, room - 1, &text, &bytes, NULL) == 0) {
		memcpy(endpoint_out, text, bytes);
		endpoint_out[bytes] = '\0';
		char *blank = strchr(endpoint_out, ' ');
		long pid = blank != NULL ? strtol(blank + 1, NULL, 10) : 0;
		found = pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
		if (found)
			*blank = '\0';
	}
	mem_free(text);
	return found;
}

int rendezvous_make(struct rendezvous *meet, const struct launch *launch, struct ws_error *err)
{
	struct run_key key;
	char endpoint[160];
	*meet = (struct rendezvous){0};
	int rc = rendezvous_name(meet, launch, err);
	if (rc != 0)
		return rc;
	if (mkdir(meet->folder, 0700) != 0 && errno != EEXIST)
		return ws_fail(err, -errno, "cannot make '%s': %s", meet->folder, strerror(errno));
	rc = check_folder(meet->folder, err);
	if (rc != 0)
		return rc;
	if (read_hub(meet, endpoint, sizeof(endpoint)))
		return ws_fail(
			err, -EBUSY,
			"another run of this name is starting, '%s' has its hub: give another "
			"--job, or remove that file",
			meet->hub_file);
	meet->mine = true;
	/* A run that was killed leaves its files; its hub is gone with it. */
	unlink(meet->hub_file);
	unlink(meet->key_file);
	rc = run_key_make(&key, err);
	if (rc == 0)
		rc = run_key_write(&key, meet->key_file, err);
	run_key_wipe(&key);
	return rc;
}

int rendezvous_say_hub(const struct rendezvous *meet, const char *endpoint, struct ws_error *err)
{
	char text[160];
	int length = snprintf(text, sizeof(text), "%s %ld", endpoint, (long)getpid());
	if (length < 0 || (size_t)length >= sizeof(text))
		return ws_fail(err, -EINVAL, "the hub's endpoint '%s' is too long", endpoint);
	return file_write(meet->hub_file, text, (size_t)length, 0600, err);
}

int rendezvous_find(struct rendezvous *meet, const struct launch *launch, char *endpoint_out,
		    size_t room, uint64_t until_ns, struct ws_error *err)
{
	*meet = (struct rendezvous){0};
	int rc = rendezvous_name(meet, launch, err);
	if (rc != 0)
		return rc;
	for (;;) {
		if (read_hub(meet, endpoint_out, room))
			return check_folder(meet->folder, err);
		if (clock_ns() > until_ns)
			return ws_fail(
				err, -ETIMEDOUT,
				"rank 0 hasn't written its hub's address to '%s': is it running on "
				"this host? several hosts need --hub and --key",
				meet->hub_file);
		sleep_ns(20000000);
	}
}

void rendezvous_end(struct rendezvous *meet)
{
	if (!meet->mine)
		return;
	unlink(meet->hub_file);
	unlink(meet->key_file);
	rmdir(meet->folder);
	meet->mine = false;
}
