/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both importers' fuzzers want of any bytes: a refusal comes with a sentence and findings, and
 * what is taken is a manifest of as many ranks as the dump has, the same each time.
 */
#ifndef FUZZ_IMPORT_H
#define FUZZ_IMPORT_H

#include <errno.h>

#include "tests/tiny_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static inline int fuzz_import(const char *from, const uint8_t *bytes, size_t count)
{
	static struct model *model; /* LeakSanitizer sees it */
	struct import_options options = {.side = SIDE_TRAINER, .from = from};
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct writer out = WRITER_INIT(64u << 20), again = WRITER_INIT(64u << 20);
	struct manifest *manifest;
	struct ws_error err = {0};
	if (model == NULL)
		model = tiny_model();
	int rc = manifest_import(model, &options, bytes, count, &out, &findings, &err);
	if (rc != 0) {
		assert(err.code == rc && err.text[0] != '\0');
		assert(rc == -EBADMSG || rc == -ENOSPC || (rc == -EINVAL && findings.count > 0));
	} else {
		assert(findings.count == 0);
		assert(manifest_parse(&manifest, out.bytes, out.count, NULL, &err) == 0);
		assert(manifest_rule_count(manifest) > 0);
		assert(manifest_import(model, &options, bytes, count, &again, NULL, &err) == 0);
		assert(out.count == again.count && memcmp(out.bytes, again.bytes, out.count) == 0);
		manifest_free(manifest);
	}
	writer_release(&out);
	writer_release(&again);
	arena_release(&arena);
	return 0;
}

#endif
