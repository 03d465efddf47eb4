/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What run, push and serve share besides the roles: signals, and the end of a job.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/roles.h"

static volatile sig_atomic_t signal_seen;
static _Atomic(struct ws_trainer *) cancelled; /* whom a signal interrupts */
static _Atomic bool ends_at_once;
static char last_words[96];

static _Noreturn void end_now(void)
{
	(void)!write(STDERR_FILENO, last_words, strlen(last_words));
	_exit(EXIT_FAILED);
}

static void on_signal(int number)
{
	if (signal_seen)
		_exit(128 + number);
	signal_seen = number;
	if (atomic_load(&ends_at_once))
		end_now();
	struct ws_trainer *trainer = atomic_load(&cancelled);
	if (trainer != NULL)
		ws_trainer_cancel(trainer);
}

void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

bool stop_asked(void)
{
	return signal_seen != 0;
}

void cancel_on_signal(struct ws_trainer *trainer)
{
	atomic_store(&cancelled, trainer);
	if (trainer != NULL && signal_seen)
		ws_trainer_cancel(trainer); /* it came before there was anybody to tell */
}

void end_on_signal(const char *who)
{
	if (who != NULL)
		snprintf(last_words, sizeof(last_words), "weightsync: %s: stopped by a signal\n",
			 who);
	atomic_store(&ends_at_once, who != NULL);
	if (who != NULL && signal_seen)
		end_now();
}

int job_find_rank(struct job *job, const struct command *command, uint32_t rank, uint32_t world,
		  const char *nics, struct arena *arena)
{
	struct ws_error err = {0};

	if ((rank == UINT32_MAX) != (world == UINT32_MAX))
		return say_usage(command, "--rank and --world go together");
	if (launch_find(&job->launch, rank != UINT32_MAX, rank, world, NULL, &err) != 0 ||
	    launch_gpu(&job->launch, &job->gpu, &err) != 0)
		return say_usage(command, "%s", err.text);
	job->rank = job->launch.rank;
	job->world = job->launch.world;
	if (nics != NULL && split_list(arena, nics, &job->nics, &job->nic_count) != 0)
		return say_failure(&(struct ws_error){.text = "no memory for the list of NICs"});
	return -1;
}

void say_nics(const char *who, const char *choice)
{
	say("weightsync: %s: NICs: %s", who, choice);
}

void say_core(const char *who, const char *core)
{
	if (core[0] != '\0')
		say("weightsync: %s: I/O thread: %s", who, core);
}

void sent_add(struct sent *sent, const struct ws_nic *nics, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t before = sent->nics[i].bytes_sent;
		sent->bytes += nics[i].bytes_sent;
		sent->nics[i] = nics[i];
		sent->nics[i].bytes_sent += before;
	}
	sent->nic_count = MAX(sent->nic_count, count);
}

void say_sent(const char *who, const struct sent *sent)
{
	struct writer text = WRITER_INIT(65536);
	char size[32];

	for (uint32_t i = 0; sent->bytes > 0 && i < sent->nic_count; i++) {
		const struct ws_nic *nic = &sent->nics[i];
		bool says_it = strncmp(nic->name, nic->transport, strlen(nic->transport)) == 0;
		write_format(&text, "%s%s over %s%s%s (%u connections)", i > 0 ? ", " : "",
			     format_bytes(nic->bytes_sent, size, sizeof(size)),
			     says_it ? "" : nic->transport, says_it ? "" : " ", nic->name,
			     nic->peer_count);
	}
	if (text.count > 0)
		say("weightsync: %s: sent %.*s", who, (int)text.count, (const char *)text.bytes);
	writer_release(&text);
}

void job_release(struct job *job)
{
	checkpoint_close(&job->checkpoint);
	manifest_free(job->trainer);
	manifest_free(job->rollout);
	mem_free(job->trainer_text);
	mem_free(job->rollout_text);
	job->trainer = job->rollout = NULL;
	job->trainer_text = job->rollout_text = NULL;
}
