/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers inside a plan, for tests that make them wrong one at a time. */
#ifndef PLAN_WRONG_H
#define PLAN_WRONG_H

#include <string.h>

#include "tests/plan_digests.h"
#include "tests/test.h"

#define FIELDS_MAX 96

struct field {
	const char *name;
	void *at;
	size_t bytes;
};

struct fields {
	struct field list[FIELDS_MAX];
	uint32_t count;
};

static inline void field_add(struct fields *fields, const char *name, void *at, size_t bytes)
{
	ck_assert_uint_lt(fields->count, FIELDS_MAX);
	fields->list[fields->count++] = (struct field){name, at, bytes};
}

#define FIELD(fields, object, member) \
	field_add(fields, #object "." #member, &(object)->member, sizeof((object)->member))

/* All that a walk reads of a part. */
static inline void part_fields(struct fields *fields, struct plan_part *part,
			       struct part_rules *rules)
{
	FIELD(fields, part, src_param);
	FIELD(fields, part, dst_param);
	FIELD(fields, part, dim_count);
	FIELD(fields, part, src_offset);
	FIELD(fields, part, dst_offset);
	FIELD(fields, part, from);
	FIELD(fields, part, to);
	FIELD(fields, part, kind);
	FIELD(fields, part, whole);
	FIELD(fields, part, wire_offset);
	for (uint32_t d = 0; d < part->dim_count; d++) {
		FIELD(fields, part, extent[d]);
		FIELD(fields, part, src_stride[d]);
		FIELD(fields, part, dst_stride[d]);
	}
	FIELD(fields, rules, src_rule);
	FIELD(fields, rules, dst_rule);
	FIELD(fields, rules, src_each);
	FIELD(fields, rules, dst_each);
}

/* So much more; a flag is turned round. */
static inline void field_change(const struct field *field, uint64_t by)
{
	uint64_t number = 0;

	memcpy(&number, field->at, field->bytes);
	number = field->bytes == 1 ? number ^ 1 : number + by;
	memcpy(field->at, &number, field->bytes);
}

#endif
