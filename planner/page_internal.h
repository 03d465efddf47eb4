/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page's own: page.c puts it together, page_data.c writes what it shows as JSON,
 * page_matrix.c packs who sends how much to whom, page_timeline.c when.  page/ has its HTML, CSS
 * and JavaScript.
 */
#ifndef PAGE_INTERNAL_H
#define PAGE_INTERNAL_H

#include "planner/plan_internal.h"

/* One JSON object, as page/data.js reads it.  -ENOMEM. */
int page_data(const struct page *page, struct json_writer *json);
/* Packed numbers: seven bits a byte, lowest first; and bytes as a base64 text.  -ENOMEM. */
void page_varint(struct writer *out, uint64_t value);
int page_base64(const struct writer *packed, const char *key, struct json_writer *json);

/* "matrix": bytes on the wire by sender and receiver, in at most so much base64.  -ENOMEM. */
#define MATRIX_BYTES_MAX (1536u << 10)
int page_matrix(const struct plan *all, struct json_writer *json);

/* "simulation": when each member does what, in at most so much base64 (of up to some thousand
 * members).  -ENOMEM. */
#define TIMELINE_BYTES_MAX (768u << 10)
int page_timeline(const struct simulation *simulation, struct json_writer *json);

#endif
