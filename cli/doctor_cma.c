/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May one rank write into another's memory (process_vm_writev)?  Tried for real between two
 * children: ranks are siblings, and Yama lets a parent do what it forbids to siblings.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/doctor.h"

#define TRY_MS 5000
#define END_MS 1000 /* for a killed child, beyond that */

struct board {
	char target[64];
	int error; /* of the writer; -1: it hasn't said */
};

/* Stops, to be written to and killed: by its parent, or with it. */
static _Noreturn void target_main(bool names_launcher)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (names_launcher)
		prctl(PR_SET_PTRACER, (unsigned long)getppid(), 0, 0, 0);
	kill(getpid(), SIGSTOP); /* now the parent knows that the lines above have been done */
	_exit(0);
}

static _Noreturn void writer_main(struct board *board, pid_t target, char *where)
{
	char text[sizeof(board->target)] = "written";
	struct iovec from = {.iov_base = text, .iov_len = sizeof(text)};
	struct iovec to = {.iov_base = where, .iov_len = sizeof(text)};
	ssize_t count = process_vm_writev(target, &from, 1, &to, 1, 0);
	board->error = count < 0 ? errno : count == (ssize_t)sizeof(text) ? 0 : EIO;
	_exit(0);
}

/* waitpid, no longer than that; 0: nothing has come of the child. */
static pid_t wait_until(pid_t child, int *status, int options, uint64_t until_ns)
{
	pid_t found;
	while ((found = waitpid(child, status, options | WNOHANG)) == 0 && clock_ns() < until_ns)
		sleep_ns(1000000);
	return found;
}

/* Even who is killed doesn't end while the kernel holds it; then it is left behind. */
static void end_child(pid_t child)
{
	kill(child, SIGKILL);
	wait_until(child, NULL, 0, deadline_in_ms(END_MS));
}

/* 0, or the errno with which one sibling may not write into the other.  names_launcher: the other
 * lets all that its parent has started, as transport ipc does. */
static int try_write(bool names_launcher)
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static char where[sizeof(((struct board *)0)->target)];
	uint64_t until = deadline_in_ms(TRY_MS);

	if (board == MAP_FAILED)
		return ENOMEM;
	board->error = EAGAIN;
	pid_t target = fork();
	if (target == 0)
		target_main(names_launcher);
	int status;
	if (target > 0 && wait_until(target, &status, WUNTRACED, until) == target &&
	    WIFSTOPPED(status)) {
		pid_t writer = fork();
		if (writer == 0)
			writer_main(board, target, where);
		if (writer > 0 && wait_until(writer, NULL, 0, until) == 0)
			end_child(writer);
		end_child(target);
	}
	int error = board->error;
	munmap(board, sizeof(*board));
	return error;
}

/* Who says no, as far as it can be known. */
static const char *who_refuses(struct doctor *doctor)
{
	const char *yama = host_read(doctor, "/proc/sys/kernel/yama/ptrace_scope");
	const char *filter = text_field(doctor, host_read(doctor, "/proc/self/status"), "Seccomp:");
	if (yama != NULL && yama[0] != '0')
		return arena_text(&doctor->arena, "Yama's ptrace_scope is %s", yama);
	if (filter != NULL && filter[0] == '2')
		return "a seccomp filter is on";
	return "neither Yama nor seccomp is on";
}

void doctor_cma(struct doctor *doctor)
{
	static const char why[] =
		"ranks of one host write into memory that the engine allocated by "
		"process_vm_writev; memory that weightsync allocated (memfd) doesn't need it";
	static const char fix[] = "`sysctl kernel.yama.ptrace_scope=0`; in a container, "
				  "--cap-add=SYS_PTRACE, or a seccomp profile that allows "
				  "process_vm_writev; or let weightsync allocate the memory";
	int error = try_write(false);

	if (error == 0) {
		doctor_say(doctor, HEALTH_OK, "cma", "", "",
			   "a process may write into its sibling's memory");
		return;
	}
	const char *who = who_refuses(doctor);
	if (try_write(true) == 0)
		doctor_say(
			doctor, HEALTH_OK, "cma", "", "",
			"a process may write into its sibling's memory, as transport ipc lets it "
			"(%s)",
			who != NULL ? who : "");
	else
		doctor_say(doctor, HEALTH_WARNING, "cma", why, fix,
			   "a process may not write into its sibling's memory: %s (%s)",
			   strerror(error), who != NULL ? who : "");
}
