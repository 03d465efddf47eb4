/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nets of loop NICs: who is in which, their dice, and the time that lines need.
 *
 * A NIC with a speed sends its ops one after the other.  The net's clock isn't the wall's: it jumps
 * to the next end of an op as soon as all that is due has been reported and answered, so that
 * shares of NICs are those of their speeds on any machine.  A sender that doesn't poll stops the
 * clock of its net.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/loop.h"

static pthread_mutex_t nets_lock = PTHREAD_MUTEX_INITIALIZER;
static struct net *nets; /* those with NICs */

static uint64_t random_next(struct net *net)
{
	net->random += UINT64_C(0x9e3779b97f4a7c15);
	return mix64(net->random);
}

uint64_t net_digest(const struct net *net)
{
	return digest_bytes(net->name, strlen(net->name), 0);
}

bool net_coin(struct net *net)
{
	return (random_next(net) >> 17 & 1) != 0;
}

void net_leave(struct loop *loop)
{
	struct net *net = loop->net;

	pthread_mutex_lock(&nets_lock);
	for (struct loop **at = &net->nics; *at != NULL; at = &(*at)->next)
		if (*at == loop) {
			*at = loop->next;
			break;
		}
	if (net->nics == NULL) {
		for (struct net **at = &nets; *at != NULL; at = &(*at)->next)
			if (*at == net) {
				*at = net->next;
				break;
			}
		pthread_mutex_destroy(&net->lock);
		mem_free(net);
	}
	pthread_mutex_unlock(&nets_lock);
	loop->net = NULL;
}

/* With nets_lock held. */
static struct net *net_find_or_make(const char *name, uint64_t seed)
{
	for (struct net *net = nets; net != NULL; net = net->next)
		if (strcmp(net->name, name) == 0)
			return net;
	struct net *net = mem_alloc(sizeof(*net));
	if (net == NULL)
		return NULL;
	snprintf(net->name, sizeof(net->name), "%s", name);
	net->random = seed;
	pthread_mutex_init(&net->lock, NULL);
	net->next = nets;
	nets = net;
	return net;
}

int net_join(struct loop *loop, const struct loop_device *device, struct ws_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&nets_lock);
	struct net *net = net_find_or_make(device->net, device->seed);
	if (net == NULL)
		rc = ws_fail(err, -ENOMEM, "no memory for the loop net '%s'", device->net);
	for (struct loop *i = net != NULL ? net->nics : NULL; i != NULL; i = i->next)
		if (strcmp(i->name, loop->name) == 0)
			rc = ws_fail(err, -EINVAL, "loop net '%s' has a NIC '%s' already",
				     device->net, loop->name);
	if (net != NULL && rc == 0) {
		pthread_mutex_lock(&net->lock);
		loop->serial = ++net->serial;
		loop->next = net->nics;
		net->nics = loop;
		loop->net = net;
		pthread_mutex_unlock(&net->lock);
	}
	pthread_mutex_unlock(&nets_lock);
	return rc;
}

/* ---------------------------------------------------------------- devices */

/* "seed=7&mbps=1000"; false: it isn't. */
static bool query_parse(struct loop_device *out, const char *query)
{
	while (*query != 0) {
		uint64_t *number = strncmp(query, "seed=", 5) == 0   ? &out->seed
				   : strncmp(query, "mbps=", 5) == 0 ? &out->mbps
								     : NULL;
		char *end;
		if (number == NULL || query[5] == 0)
			return false;
		*number = strtoull(query + 5, &end, 10);
		if (*end != 0 && (*end != '&' || end[1] == 0))
			return false;
		query = *end == 0 ? end : end + 1;
	}
	return true;
}

int loop_device_parse(struct loop_device *out, const char *device, struct ws_error *err)
{
	const char *slash = strchr(device, '/');
	const char *query = slash != NULL ? strchr(slash, '?') : NULL;
	size_t net_count = slash != NULL ? (size_t)(slash - device) : 0;
	size_t name_count = slash == NULL   ? 0
			    : query != NULL ? (size_t)(query - slash) - 1
					    : strlen(slash + 1);

	*out = (struct loop_device){.seed = 1};
	if (net_count == 0 || net_count >= sizeof(out->net) || name_count == 0 ||
	    name_count >= sizeof(out->name) ||
	    (query != NULL && (query[1] == 0 || !query_parse(out, query + 1))))
		return ws_fail(err, -EINVAL,
			       "'%s' isn't a loop device; write net/name or "
			       "net/name?seed=7&mbps=1000",
			       device);
	memcpy(out->net, device, net_count);
	memcpy(out->name, slash + 1, name_count);
	return 0;
}

/* ---------------------------------------------------------------- time */

uint64_t net_line_take(struct loop *loop, uint64_t bytes)
{
	if (loop->nic.mbps == 0)
		return 0;
	loop->free_ns = MAX(loop->free_ns, loop->net->now_ns) + bytes * 8000 / loop->nic.mbps;
	return loop->free_ns;
}

void net_time_pass(struct net *net)
{
	uint64_t next_ns = UINT64_MAX;

	for (struct loop *loop = net->nics; loop != NULL; loop = loop->next) {
		if (loop->nic.mbps == 0)
			continue;
		if (loop->told)
			return;
		for (struct peer *peer = loop->peers; peer != NULL; peer = peer->next)
			for (uint32_t i = peer->first; i != NONE; i = loop->slots[i].next) {
				const struct slot *slot = &loop->slots[i];
				if (slot->due_ns > net->now_ns)
					next_ns = MIN(next_ns, slot->due_ns);
				else if (slot->end_due)
					return;
			}
	}
	if (next_ns != UINT64_MAX)
		net->now_ns = next_ns;
}
