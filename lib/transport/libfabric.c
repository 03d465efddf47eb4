/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfabric's functions, found by name when they are first needed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/transport/libfabric.h"

#define LIBRARY "libfabric.so.1"

struct libfabric libfabric;
static const char *(*error_text)(int number);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ws_error why; /* it isn't loaded */
static int result;

/* psm's constructors leave SIGSEGV alone where these stand; what the user has set stays. */
static void *open_quietly(void)
{
	static const char *const names[] = {"IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE"};
	bool mine[ARRAY_SIZE(names)];

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		mine[i] = getenv(names[i]) == NULL && setenv(names[i], "1", 0) == 0;
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (mine[i])
			unsetenv(names[i]);
	return library;
}

static void load(void)
{
	void *library = open_quietly();

	if (library == NULL)
		result = ws_fail(&why, -ENOTSUP,
				 "this process can't load libfabric (%s): install it (Debian: "
				 "libfabric1), or name another transport",
				 dlerror());
	else if (!library_find(library, "fi_getinfo", &libfabric.getinfo) ||
		 !library_find(library, "fi_freeinfo", &libfabric.freeinfo) ||
		 !library_find(library, "fi_dupinfo", &libfabric.dupinfo) ||
		 !library_find(library, "fi_fabric", &libfabric.fabric) ||
		 !library_find(library, "fi_strerror", &error_text))
		result = ws_fail(&why, -ENOTSUP, "'%s' here lacks functions of libfabric 1",
				 LIBRARY);
}

int libfabric_load(struct ws_error *err)
{
	pthread_once(&once, load);
	return result == 0 ? 0 : ws_fail(err, result, "%s", why.text);
}

const char *libfabric_error(int rc)
{
	return error_text != NULL ? error_text(-rc) : strerror(-rc);
}
