/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to lib/transport: the one table that each transport's file ends with, and what
 * the kernel knows of this host's network interfaces.
 */
#ifndef TABLES_H
#define TABLES_H

#include "lib/transport/transport.h"

extern const struct transport transport_fabric;
extern const struct transport transport_ipc;
extern const struct transport transport_loop;
extern const struct transport transport_verbs;
extern const struct transport transport_fault;

/* fault_rules.c, for tests: ports that are down by rule come up, NICs that are gone by rule can be
 * opened again. */
void fault_mend(void);

/* interfaces.c: an IPv4 address of a network interface of this host, or an interface without. */
struct interface {
	char name[32];
	char address[16]; /* empty: none */
	char subnet[24];  /* "192.0.2.0/24" */
	char bond[32];	  /* the bond that it is a slave of, or empty */
	uint64_t mbps;	  /* 0: the kernel doesn't say */
	uint32_t mtu;
	bool up, loopback;
	bool inside; /* a bridge with no card below it: it joins what is on this host */
};

/*
 * Finds the interface that is named so, or that has this IPv4 address (loopback has all of its
 * subnet).  -ENODEV where there is none; err may be NULL.
 */
int interface_find(const char *name_or_address, struct interface *found_out, struct ws_error *err);
/* One per IPv4 address, and one per card's interface without any; in the kernel's order. */
int interfaces_list(struct arena *arena, struct interface **interfaces_out, uint32_t *count_out,
		    struct ws_error *err);
/* The interface below a bond, VLAN or bridge; of several the first by name. */
bool interface_lower(const char *name, char lower_out[32]);
/* The interface whose address the first GID of an RDMA device's first port has; or "". */
void rdma_interface(const char *rdma, char name_out[32]);

/* What libfabric's provider offers here, one nic_info per domain and source address, appended to
 * the arena; *infos_out is NULL where it offers nothing. */
int fabric_offers(struct arena *arena, const char *provider, struct nic_info **infos_out,
		  uint32_t *count_out, struct ws_error *err);

/* The RDMA devices of this host, one nic_info per port; *infos_out is NULL where there is none. */
int verbs_offers(struct arena *arena, struct nic_info **infos_out, uint32_t *count_out,
		 struct ws_error *err);

#endif
