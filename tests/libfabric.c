/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfabric is loaded when a NIC of it is looked for, and not before; what its dependencies do to
 * a process's signals doesn't happen; and a host without it is told so.  dlopen is this program's:
 * it lets libfabric be missing.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine/devices.h"
#include "lib/transport/libfabric.h"
#include "lib/transport/transport.h"
#include "tests/test.h"

static bool missing; /* libfabric isn't on this host */
static struct ws_error err;

void *dlopen(const char *file, int mode)
{
	void *(*real)(const char *file, int mode);

	*(void **)&real = dlsym(RTLD_NEXT, "dlopen");
	return real(missing && strstr(file, "libfabric") != NULL ? "libfabric-of-nobody.so" : file,
		    mode);
}

static bool is_loaded(const char *library)
{
	return dlopen(library, RTLD_NOW | RTLD_NOLOAD) != NULL;
}

START_TEST(a_process_that_looks_for_no_nic_of_it_has_no_libfabric)
{
	struct nic *nic;

	ck_ok(nic_open(&nic, "ipc", "host", &err), err);
	nic_close(nic);
	ck_assert(!is_loaded("libfabric.so.1"));
	ck_ok(nic_open(&nic, "fabric", "tcp/127.0.0.1", &err), err);
	nic_close(nic);
	ck_assert(is_loaded("libfabric.so.1"));
}
END_TEST

START_TEST(a_fault_stays_the_signal_that_it_is)
{
	struct sigaction before, after;

	unsetenv("IPATH_NO_BACKTRACE");
	unsetenv("HFI_NO_BACKTRACE");
	ck_assert_int_eq(sigaction(SIGSEGV, NULL, &before), 0);
	ck_ok(libfabric_load(&err), err);
	ck_assert_int_eq(sigaction(SIGSEGV, NULL, &after), 0);
	ck_assert(before.sa_handler == after.sa_handler);
	ck_assert_ptr_null(getenv("IPATH_NO_BACKTRACE"));
	ck_assert_ptr_null(getenv("HFI_NO_BACKTRACE"));
}
END_TEST

START_TEST(a_host_without_it_is_told_so_each_time)
{
	struct nic *nic;

	missing = true;
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(nic_open(&nic, "fabric", "tcp/127.0.0.1", &err), -ENOTSUP);
		ck_assert_ptr_null(nic);
		ck_assert_msg(strstr(err.text,
				     "cannot open 'tcp/127.0.0.1': this process can't load "
				     "libfabric (libfabric-of-nobody.so: ") == err.text &&
				      strstr(err.text, "name another transport") != NULL,
			      "%s", err.text);
	}
	ck_assert_str_eq(libfabric_error(-EINVAL), strerror(EINVAL));
	ck_ok(nic_open(&nic, "ipc", "host", &err), err);
	nic_close(nic);
}
END_TEST

/* Whoever buys a NIC of its kind is told; whoever stays inside the host needs none. */
START_TEST(a_host_without_it_still_has_what_stays_inside)
{
	const struct devices_wanted wanted = {.transport = "auto"};
	struct devices devices;

	missing = true;
	ck_ok(devices_find(&devices, &wanted, &err), err);
	for (uint32_t i = 0; i < devices.count; i++)
		ck_assert_str_ne(devices.device[i].transport, "fabric");
	ck_assert_msg(strstr(devices.choice, "ipc host") == devices.choice &&
			      (strstr(devices.choice, "can't load libfabric") != NULL ||
			       strstr(devices.choice, "verbs") != NULL),
		      "%s", devices.choice);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("libfabric");
	TCase *tests = tcase_create("libfabric");

	tcase_add_test(tests, a_process_that_looks_for_no_nic_of_it_has_no_libfabric);
	tcase_add_test(tests, a_fault_stays_the_signal_that_it_is);
	tcase_add_test(tests, a_host_without_it_is_told_so_each_time);
	tcase_add_test(tests, a_host_without_it_still_has_what_stays_inside);
	suite_add_tcase(all, tests);
	return all;
}
