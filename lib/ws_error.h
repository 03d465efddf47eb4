/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How every fallible call of weightsync speaks: it returns 0 or a negative errno, and writes
 * one sentence for the human into a struct that the caller owns.  The library never prints.
 */
#ifndef WS_ERROR_H
#define WS_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define WS_API __attribute__((visibility("default")))

/*
 * code is 0 or the negative errno that the call returned:
 *
 *   -EINVAL             the call or its input is wrong         fix the caller
 *   -ENOMEM, -ENOSPC    memory, or a stated limit              smaller, or close something
 *   -ENODEV, -ENOTSUP   no such NIC; not built in              choose another
 *   -EPROTO             the peer sent nonsense                 close the peer
 *   -ESTALE             manifests or versions moved on         describe again
 *   -ETIMEDOUT          the deadline passed                    push again
 *   -ECONNRESET         the peer is gone                       reconnect
 *   -EIO                a write or a file failed               push again; look at the disk
 *   -ENOENT, -EACCES    a file isn't there or may not be read  another path
 *   -EBADMSG            a file's contents break its format     another file
 *   -EAGAIN             not yet; the call says when to ask again
 *   -ECANCELED          the caller asked for the end (a signal, close)
 *
 * text always ends with NUL, is cut to fit, begins lower case and has no full stop.
 */
struct ws_error {
	int code;
	char text[508];
};

/* The number of bytes of a struct ws_error is part of the ABI. */
#define WS_ERROR_BYTES 512

/*
 * Writes code and sentence into err (which may be NULL) and returns code, so that a failing
 * function ends with `return ws_fail(err, -ENODEV, "no NIC is named '%s'", name);`.
 */
WS_API int ws_fail(struct ws_error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Puts what the caller was doing in front of err's present sentence and returns code:
 * ws_fail_in(err, rc, "cannot push version %llu", v) yields "cannot push version 7: ...".
 */
WS_API int ws_fail_in(struct ws_error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif

#endif
