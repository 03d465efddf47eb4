/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page's own: page.c puts it together, page_data.c writes what it shows as JSON,
 * page_matrix.c packs who sends how much to whom.  page/ has its HTML, CSS and JavaScript.
 */
#ifndef PAGE_INTERNAL_H
#define PAGE_INTERNAL_H

#include "planner/plan_internal.h"

/* One JSON object, as page/data.js reads it.  -ENOMEM. */
int page_data(const struct page *page, struct json_writer *json);

/* "matrix": bytes on the wire by sender and receiver, in at most MATRIX_BYTES_MAX of base64. */
#define MATRIX_BYTES_MAX (1800u << 10)
int page_matrix(const struct plan *all, struct json_writer *json);

#endif
