/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/describe.h"

void parse_rows(struct parse *parse, const struct json *json)
{
	if (json != NULL)
		findings_add(&parse->found, "rows", "rows", "explicit rows aren't read yet");
}
