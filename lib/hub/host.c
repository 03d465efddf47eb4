/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's identity.  The name alone isn't enough: cloned virtual machines share it; the boot
 * id alone would do, but says nothing to people.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/hub/host.h"

void host_identity(const char *inside, char text_out[HOST_TEXT_BYTES])
{
	char name[HOST_TEXT_BYTES] = "";
	void *boot = NULL;
	size_t bytes = 0;

	if (gethostname(name, sizeof(name)) != 0)
		snprintf(name, sizeof(name), "unnamed");
	name[sizeof(name) - 1] = 0;
	if (inside[0] != 0) {
		snprintf(text_out, HOST_TEXT_BYTES, "%.46s/%016llx", name,
			 (unsigned long long)digest_bytes(inside, strlen(inside), 0));
		return;
	}
	if (file_read("/proc/sys/kernel/random/boot_id", 256, &boot, &bytes, NULL) != 0)
		boot = NULL;
	snprintf(text_out, HOST_TEXT_BYTES, "%.46s/%.12s", name,
		 boot == NULL ? "" : (const char *)boot);
	mem_free(boot);
}
