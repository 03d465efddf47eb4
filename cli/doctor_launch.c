/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's environment: does it say who this process is? */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"

static void half_set(struct doctor *doctor)
{
	for (uint32_t i = 0; i < LAUNCHER_COUNT; i++) {
		const char *set, *unset;
		if (!launch_half_set(i, &set, &unset))
			continue;
		char fix[160];
		snprintf(fix, sizeof(fix), "unset %s, or set %s too", set, unset);
		doctor_say(doctor, HEALTH_WARNING, "launcher",
			   "a rank without its world (or the other way round) is ignored", fix,
			   "%s is set, but %s isn't", set, unset);
	}
}

void doctor_launch(struct doctor *doctor, const struct launch *launch, int rc,
		   const struct ws_error *err)
{
	half_set(doctor);
	if (rc == 0)
		doctor_say(doctor, HEALTH_OK, "launcher", "", "", "%s: %u rank%s", launch->source,
			   launch->world, launch->world == 1 ? "" : "s");
	else if (rc == -ENOENT)
		doctor_say(doctor, HEALTH_OK, "launcher", "", "",
			   "none: this process is looked at alone");
	else
		doctor_say(doctor, HEALTH_PROBLEM, "launcher",
			   "`run` takes a process's role from its rank",
			   "start it under one launcher", "%s", err->text);
}
