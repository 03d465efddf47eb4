/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text behind `--mesh`: "tp=2,pp=2,stages=8:8", keys in any order.  What a layout doesn't ask
 * for is a finding.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/describe.h"

void mesh_fault(struct mesh_text *mesh, const char *format, ...)
{
	char text[400];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	findings_add(mesh->findings, "mesh", mesh->layout, "%s", text);
	mesh->faults++;
}

void mesh_split(struct mesh_text *mesh, const char *text)
{
	char *rest = mesh->text;
	if (strlen(text) >= sizeof(mesh->text))
		return mesh_fault(mesh, "the mesh text is longer than %zu bytes",
				  sizeof(mesh->text) - 1);
	snprintf(mesh->text, sizeof(mesh->text), "%s", text);
	for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ",")) {
		char *value = strchr(item, '='), *end;
		if (value == NULL || value == item || value[1] == '\0')
			return mesh_fault(mesh, "'%s' isn't a mesh; a good one is \"dp=2,tp=2\"",
					  text);
		*value++ = '\0';
		if (mesh->count == MESH_KEY_MAX)
			return mesh_fault(mesh, "more than %d keys in '%s'", MESH_KEY_MAX, text);
		for (uint32_t i = 0; i < mesh->count; i++) {
			if (strcmp(mesh->entry[i].key, item) == 0)
				mesh_fault(mesh, "'%s' stands twice in '%s'", item, text);
		}
		unsigned long number =
			value[0] >= '0' && value[0] <= '9' ? strtoul(value, &end, 10) : 0;
		bool plain = number >= 1 && number <= RANKS_MAX && *end == '\0';
		mesh->entry[mesh->count].key = item;
		mesh->entry[mesh->count].value = value;
		mesh->entry[mesh->count++].number = plain ? (uint32_t)number : 0;
	}
}

const char *mesh_value(struct mesh_text *mesh, const char *key)
{
	for (uint32_t i = 0; i < mesh->count; i++) {
		if (strcmp(mesh->entry[i].key, key) != 0)
			continue;
		mesh->entry[i].used = true;
		return mesh->entry[i].value;
	}
	return NULL;
}

uint32_t mesh_size(struct mesh_text *mesh, const char *key, uint32_t fallback)
{
	for (uint32_t i = 0; i < mesh->count; i++) {
		if (strcmp(mesh->entry[i].key, key) != 0)
			continue;
		mesh->entry[i].used = true;
		if (mesh->entry[i].number == 0) {
			mesh_fault(mesh, "'%s=%s': a number from 1 to %d belongs there", key,
				   mesh->entry[i].value, RANKS_MAX);
			return fallback;
		}
		return mesh->entry[i].number;
	}
	return fallback;
}

void mesh_check_used(struct mesh_text *mesh, const char *keys)
{
	for (uint32_t i = 0; i < mesh->count; i++) {
		if (!mesh->entry[i].used)
			mesh_fault(mesh, "it has no mesh key '%s'; it takes %s", mesh->entry[i].key,
				   keys);
	}
}
