/* SPDX-License-Identifier: Apache-2.0 */
/* What every test file includes: Check, and the one function it defines. */
#ifndef TEST_H
#define TEST_H

#include <check.h>

Suite *suite(void);

/* Whether a sanitizer slows the program down. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZED true
#elif defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

/* How long a test waits for what must come: far beyond what a loaded machine needs.  No test waits
 * for it to pass. */
#define PATIENCE_MS 60000

/* Turn after turn, until the condition holds. */
#define ck_until(condition, turn)                                                         \
	do {                                                                              \
		uint64_t ck_deadline = deadline_in_ms(PATIENCE_MS);                       \
		while (!(condition)) {                                                    \
			ck_assert_msg(clock_ns() < ck_deadline, "never: %s", #condition); \
			turn;                                                             \
		}                                                                         \
	} while (0)

/* A call that must succeed: the sentence of its error is the failure's text. */
#define ck_ok(call, err)                                                           \
	do {                                                                       \
		int ck_rc = (call);                                                \
		ck_assert_msg(ck_rc == 0, "%s: %d: %s", #call, ck_rc, (err).text); \
	} while (0)

/* A call that must fail with this code. */
#define ck_fails(call, want, err)                                                          \
	do {                                                                               \
		int ck_rc = (call);                                                        \
		ck_assert_msg(ck_rc == (want), "%s: %d, not %d: %s", #call, ck_rc, (want), \
			      (err).text);                                                 \
	} while (0)

#endif
