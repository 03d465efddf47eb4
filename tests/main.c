/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main of every test program.  A test file defines only `Suite *suite(void)`; NULL means
 * that what it needs isn't on this machine, and that its last line says so: exit 77, which the
 * runner counts as a skip and shows with that line.
 */
#include <signal.h>
#include <stdlib.h>

#include "tests/test.h"

int main(void)
{
	/* Timeouts are for tests that hang; a loaded machine isn't to be taken for one. */
	setenv("CK_DEFAULT_TIMEOUT", "60", 0);
	setenv("CK_TIMEOUT_MULTIPLIER", "4", 0);
	signal(SIGPIPE, SIG_IGN);
	Suite *tests = suite();
	if (tests == NULL)
		return 77;
	SRunner *runner = srunner_create(tests);
	srunner_run_all(runner, CK_NORMAL);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? 0 : 1;
}
