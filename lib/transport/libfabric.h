/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to fabric*.c and the benchmark beside it: libfabric's headers, and its library, which is
 * loaded when a NIC is first looked for.  A process that only uses RDMA devices or ipc needs none,
 * and what a distribution's libfabric brings along stays out of it: Debian's has psm and psm2
 * behind it, whose constructors sleep for 0.1 s each and take over the process's SIGSEGV.
 *
 * All else of libfabric's interface is inline calls through its objects; of those fi_allocinfo
 * calls the library: use dupinfo(NULL).  Each fi_info must come from getinfo or dupinfo: newer
 * libraries append members.
 */
#ifndef TRANSPORT_LIBFABRIC_H
#define TRANSPORT_LIBFABRIC_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "lib/ws_error.h"

/* fabric.h of libfabric says what they take. */
struct libfabric {
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
		       const struct fi_info *hints, struct fi_info **info);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
};

/* Empty until libfabric_load has been well. */
extern struct libfabric libfabric;

/* From any thread; the first call loads the library, for the rest of the process.  -ENOTSUP: this
 * host has none. */
int libfabric_load(struct ws_error *err);

/* What one of its errors means, with or without the library.  rc is negative, as it returns it. */
const char *libfabric_error(int rc);

#endif
