/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to verbs*.c, the only files that include libibverbs' headers.
 *
 * verbs_gid.c      which entry of a port's GID table, and why (pure)
 * verbs_device.c   which device and port a name means; what this host offers
 */
#ifndef TRANSPORT_VERBS_H
#define TRANSPORT_VERBS_H

#include <infiniband/verbs.h>

#include "lib/transport/transport.h"

#define VERBS_GIDS_MAX 256 /* entries of one port's table that are looked at */

/* ---------------------------------------------------------------- verbs_gid.c */

/* What connections of a port are made from.  On InfiniBand the LID routes, and the GID serves
 * only between subnets; on Ethernet the GID is everything. */
struct verbs_gid {
	union ibv_gid raw;
	uint8_t index;
	uint8_t type;		      /* enum ibv_gid_type */
	uint32_t netdev;	      /* interface index; 0: none */
	char address[48];	      /* "10.0.1.1", "fd00::1" */
	char reason[NIC_TROUBLE_MAX]; /* "GID 1 (RoCE v2, 10.0.1.1), the first with ..." */
};

/*
 * Chooses from a port's table: RoCE v2 with a routable IPv4 address, then IPv6, then an InfiniBand
 * GID, then RoCE v1 that isn't link-local; within a kind the lowest index.  wanted is the index
 * that the user insists on, or negative.  -ENODEV: reason says what is there instead.
 */
int verbs_gid_choose(const struct ibv_gid_entry *entries, uint32_t count, int wanted,
		     struct verbs_gid *gid_out);

/* ---------------------------------------------------------------- verbs_device.c */

/* A device's name as nic_open gets it: "mlx5_0/1?gid=3&mtu=1024". */
struct verbs_options {
	char device[64];
	uint8_t port; /* 0: the first that is active */
	char subnet[NIC_NAME_MAX];
	int gid; /* -1: chosen from the table */
	int mtu; /* bytes; 0: the port's */
	int service_level, traffic_class;
	int timeout, retries;
	/* For tests */
	int rnr_retries;
	int cq;	      /* entries; 0: what everything in flight needs */
	int receives; /* -1: what all windows need */
};

struct verbs_port {
	uint8_t number;
	struct ibv_port_attr attr;
	struct verbs_gid gid;
	char reason[NIC_TROUBLE_MAX]; /* why this port: "the first active of 2" */
};

int verbs_options_parse(struct verbs_options *options, const char *device, struct ws_error *err);
/* *context_out is the caller's to close, also where the rest fails. */
int verbs_port_open(const struct verbs_options *options, struct ibv_context **context_out,
		    struct verbs_port *port_out, struct ws_error *err);
/* Reads the port's GID table again. */
int verbs_gid_scan(struct ibv_context *context, const struct verbs_port *port, int wanted,
		   struct verbs_gid *gid_out);
/* Where the rails of a run are paired: "10.0.1.0/24", "fd00:0:0:1::/64", "ib fe80::/64". */
void verbs_subnet(const struct verbs_gid *gid, char subnet[NIC_NAME_MAX]);
uint64_t verbs_mbps(const struct ibv_port_attr *attr); /* 0 where the code is unknown */

#endif
