/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: my half per NIC, the pairing of rails, and the regions that a peer advertised.
 * What is decoded here came from another process and is believed only after it was checked.
 */
#include <errno.h>
#include <string.h>

#include "lib/engine/engine_internal.h"

struct remote_nic {
	char name[NIC_NAME_MAX], subnet[NIC_NAME_MAX];
	uint64_t protocol;
	uint64_t life;	  /* 0: this NIC is out of use, and has no address */
	uint64_t doubted; /* the life of mine that it leaves out */
	struct address address;
};

struct remote_address {
	uint32_t ordinal, nic_count;
	struct remote_nic nics[NICS_MAX];
	uint32_t avoid_mine, avoid_theirs; /* bit per NIC: of a rail that one end doubts */
};

uint32_t engine_peer_region_count(const struct engine_peer *peer)
{
	return peer->remote_region_count;
}

void engine_peer_quiet(struct engine *engine, struct engine_peer *peer)
{
	(void)engine;
	peer->quiet = true;
}

void engine_peer_abandon(struct engine *engine, struct engine_peer *peer)
{
	(void)engine;
	peer->abandoned = true;
}

void peer_free(struct engine_peer *peer)
{
	mem_free(peer->name);
	mem_free(peer->remote_bytes);
	mem_free(peer->remote_keys);
	mem_free(peer);
}

struct engine_peer *peer_of(const struct engine *engine, uint32_t nic, const struct peer *peer)
{
	for (uint32_t i = 0; peer != NULL && i < engine->peer_count; i++)
		if (engine->peers[i]->rails[nic].peer == peer)
			return engine->peers[i];
	return NULL;
}

/* ---------------------------------------------------------------------------- open */

static int peer_room_make(struct engine *engine, struct ws_error *err)
{
	if (engine->peer_count < engine->peer_room)
		return 0;
	if (engine->peer_count == ENGINE_PEERS_MAX)
		return ws_fail(err, -ENOSPC, "all %d peers are in use", ENGINE_PEERS_MAX);
	uint32_t room = engine->peer_room == 0 ? 16 : 2 * engine->peer_room;
	void *grown = mem_grow(engine->peers, engine->peer_room * sizeof(struct engine_peer *),
			       room * sizeof(struct engine_peer *));
	if (grown == NULL)
		return ws_fail(err, -ENOMEM, "no memory for a table of %u peers", room);
	engine->peers = grown;
	engine->peer_room = room;
	return 0;
}

/* From here on the peer is in the table, and a fence or close ends what it has. */
static int peer_add(struct engine *engine, const char *name, struct engine_peer **peer_out,
		    struct ws_error *err)
{
	int rc = peer_room_make(engine, err);
	if (rc != 0)
		return rc;
	struct engine_peer *peer = mem_alloc(sizeof(*peer));
	char *copy = mem_copy_text(name);
	if (peer == NULL || copy == NULL) {
		mem_free(peer);
		mem_free(copy);
		return ws_fail(err, -ENOMEM, "no memory for peer '%s'", name);
	}
	*peer = (struct engine_peer){.name = copy,
				     .ordinal = engine->peer_ordinal++,
				     .first_send = NONE,
				     .last_send = NONE,
				     .send = NONE,
				     .staged_first = NONE,
				     .staged_last = NONE};
	engine->peers[engine->peer_count++] = peer;
	*peer_out = peer;
	return 0;
}

int engine_peer_open(struct engine *engine, const char *name, struct engine_peer **peer_out,
		     struct writer *address_out, struct ws_error *err)
{
	struct engine_peer *peer = NULL;
	*peer_out = NULL;
	int rc = peer_add(engine, name, &peer, err);
	if (rc != 0 || peer == NULL)
		return rc;
	write_u32(address_out, peer->ordinal);
	write_u32(address_out, engine->nic_count);
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		bool usable = !engine->nics[i].out && nic_reaches_all(engine, i);
		struct nic *nic = usable ? engine->nics[i].nic : NULL;
		struct address address = {0};
		if (nic != NULL) {
			rc = nic->transport->peer_open(nic, &peer->rails[i].peer, &address, err);
			if (rc != 0)
				return ws_fail_in(err, rc,
						  "cannot open a connection to '%s' on '%s'", name,
						  nic->name);
		}
		write_text(address_out, nic != NULL ? nic->name : "");
		write_text(address_out, nic != NULL ? nic->subnet : "");
		write_u64(address_out, nic != NULL ? nic->protocol : 0);
		peer->rails[i].doubted = doubt_of(engine, peer, i);
		write_u64(address_out, nic != NULL ? engine->nics[i].life : 0);
		write_u64(address_out, peer->rails[i].doubted);
		write_u16(address_out, address.count);
		write_bytes(address_out, address.bytes, address.count);
	}
	if (address_out->failed)
		return ws_fail(err, -ENOMEM, "no room for the address that is meant for '%s'",
			       name);
	*peer_out = peer;
	return 0;
}

/* ---------------------------------------------------------------- halves left over */

/* Both ends come to the same pairs, so nobody writes over these. */
void peer_close_spare(struct engine *engine)
{
	engine->has_spare = false;
	for (uint32_t p = 0; p < engine->peer_count; p++)
		for (uint32_t i = 0; i < engine->nic_count; i++) {
			struct rail *rail = &engine->peers[p]->rails[i];
			struct nic *nic = engine->nics[i].nic;
			if (!rail->spare || rail->peer == NULL)
				continue;
			int rc = nic->transport->peer_close(nic, rail->peer, true, false);
			if (rc == 0)
				rail->peer = NULL;
			engine->has_spare |= rc == -EAGAIN;
		}
}

/* What this peer opened and can't use.  Where closing it would end others' connections too, it
 * stays until the fence. */
static void spare_find(struct engine *engine, struct engine_peer *peer)
{
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		struct rail *rail = &peer->rails[i];
		rail->spare =
			rail->peer != NULL && !rail->paired && engine->nics[i].nic->fences_one_peer;
	}
	peer_close_spare(engine);
}

/* ------------------------------------------------------------------------- connect */

static bool address_decode(struct remote_address *remote, const void *bytes, size_t count)
{
	struct reader in = reader_make(bytes, count);
	remote->ordinal = read_u32(&in);
	remote->nic_count = read_u32(&in);
	if (in.failed || remote->nic_count == 0 || remote->nic_count > NICS_MAX)
		return false;
	for (uint32_t i = 0; i < remote->nic_count; i++) {
		struct remote_nic *nic = &remote->nics[i];
		read_text(&in, nic->name, sizeof(nic->name));
		read_text(&in, nic->subnet, sizeof(nic->subnet));
		nic->protocol = read_u64(&in);
		nic->life = read_u64(&in);
		nic->doubted = read_u64(&in);
		nic->address.count = read_u16(&in);
		if (in.failed || nic->address.count > ADDRESS_BYTES_MAX ||
		    (nic->life == 0) != (nic->address.count == 0))
			return false;
		const void *address = read_bytes(&in, nic->address.count);
		if (address == NULL)
			return false;
		memcpy(nic->address.bytes, address, nic->address.count);
	}
	return reader_done(&in);
}

/* Verbs and libfabric may serve one subnet, and don't understand each other. */
static bool same_net(const char *subnet, uint64_t protocol, const struct nic *with)
{
	return protocol == with->protocol && strcmp(subnet, with->subnet) == 0;
}

/* My NICs, and the remote ones, that can be joined with NICs of a network. */
struct net {
	uint32_t mine[NICS_MAX], theirs[NICS_MAX];
	uint32_t mine_count, theirs_count;
};

/* Of the network that my NIC with this index is in. */
static void net_find(struct net *net, const struct engine *engine, const struct engine_peer *peer,
		     const struct remote_address *remote, uint32_t index)
{
	const struct nic *first = engine->nics[index].nic;
	net->mine_count = net->theirs_count = 0;
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		const struct nic *nic = engine->nics[i].nic;
		bool usable = (remote->avoid_mine >> i & 1) == 0 && !peer->rails[i].failed;
		if (usable && peer->rails[i].peer != NULL &&
		    same_net(nic->subnet, nic->protocol, first))
			net->mine[net->mine_count++] = i;
	}
	for (uint32_t i = 0; i < remote->nic_count; i++) {
		const struct remote_nic *nic = &remote->nics[i];
		bool usable = (remote->avoid_theirs >> i & 1) == 0;
		if (usable && nic->address.count > 0 && same_net(nic->subnet, nic->protocol, first))
			net->theirs[net->theirs_count++] = i;
	}
}

static bool some_failed(const struct engine *engine, const struct engine_peer *peer)
{
	bool failed = false;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		failed |= peer->rails[i].failed;
	return failed;
}

/* A rail of several that doesn't reach the peer isn't used; *err says why.  A second one ends it:
 * each may have blocked for two seconds, and the hub mustn't take this side for lost. */
static int rail_connect(struct engine *engine, struct engine_peer *peer, uint32_t mine,
			const struct remote_address *remote, uint32_t theirs, struct ws_error *err)
{
	struct nic *nic = engine->nics[mine].nic;
	struct rail *rail = &peer->rails[mine];
	const struct remote_nic *other = &remote->nics[theirs];
	int rc = nic->transport->peer_connect(nic, rail->peer, &other->address, err);
	rail->remote_nic = theirs;
	rail->paired = rc == 0;
	if (rc == 0)
		return 0;
	ws_fail_in(err, rc, "cannot connect '%s' to '%s' of '%s'", nic->name, other->name,
		   peer->name);
	if (rc != -ETIMEDOUT && rc != -ECONNRESET)
		return rc;
	bool second = some_failed(engine, peer);
	doubt_unreachable(engine, peer, mine, strerror(-rc));
	return second ? rc : 0;
}

/*
 * The side with fewer NICs uses all of its own, in order; which of the other side's it meets
 * moves on from peer to peer, by a number that the side with more NICs counts, so both ends
 * come to the same pairs and no NIC is left idle.
 */
static int net_connect(struct engine *engine, struct engine_peer *peer, const struct net *net,
		       const struct remote_address *remote, struct ws_error *err)
{
	uint32_t a = net->mine_count, b = net->theirs_count;
	for (uint32_t r = 0; r < MIN(a, b); r++) {
		uint64_t i = r, k = r;
		if (a <= b)
			k = ((uint64_t)remote->ordinal * a + r) % b;
		else
			i = ((uint64_t)peer->ordinal * b + r) % a;
		int rc = rail_connect(engine, peer, net->mine[i], remote, net->theirs[k], err);
		if (rc != 0)
			return rc;
	}
	return 0;
}

static int nets_connect(struct engine *engine, struct engine_peer *peer, bool same_host,
			const struct remote_address *remote, struct ws_error *err)
{
	for (uint32_t i = 0; i < engine->nic_count; i++) {
		struct net net;
		if (peer->rails[i].peer == NULL || engine->nics[i].nic->same_host != same_host)
			continue;
		net_find(&net, engine, peer, remote, i);
		if (net.mine_count == 0 || net.mine[0] != i)
			continue; /* done with the first of its network */
		int rc = net_connect(engine, peer, &net, remote, err);
		if (rc != 0)
			return rc;
	}
	return 0;
}

static bool is_paired(const struct engine *engine, const struct engine_peer *peer)
{
	bool paired = false;
	for (uint32_t i = 0; i < engine->nic_count; i++)
		paired |= peer->rails[i].paired;
	return paired;
}

/* Both ends know of the same rails that are doubted, and leave both NICs of each alone. */
static void doubts_mark(const struct engine *engine, const struct engine_peer *peer,
			struct remote_address *remote)
{
	for (uint32_t i = 0; i < engine->nic_count; i++)
		for (uint32_t k = 0; k < remote->nic_count; k++) {
			const struct remote_nic *other = &remote->nics[k];
			bool doubted = other->life != 0 && (peer->rails[i].doubted == other->life ||
							    other->doubted == engine->nics[i].life);
			remote->avoid_mine |= (doubted ? 1u : 0) << i;
			remote->avoid_theirs |= (doubted ? 1u : 0) << k;
		}
}

/* Inside the host nothing else is needed; and a rail that is doubted is better than none. */
static int rails_connect(struct engine *engine, struct engine_peer *peer,
			 struct remote_address *remote, struct ws_error *err)
{
	int rc = 0;
	doubts_mark(engine, peer, remote);
	for (uint32_t turn = 0; turn < 2 && rc == 0 && !is_paired(engine, peer); turn++) {
		rc = nets_connect(engine, peer, true, remote, err);
		if (rc == 0 && !is_paired(engine, peer))
			rc = nets_connect(engine, peer, false, remote, err);
		remote->avoid_mine = remote->avoid_theirs = 0;
	}
	return rc;
}

/* A subnet that both are in, with NICs that don't understand each other. */
static int no_common_protocol(const struct engine *engine, const struct engine_peer *peer,
			      const struct remote_address *remote, struct ws_error *err)
{
	for (uint32_t i = 0; i < engine->nic_count; i++)
		for (uint32_t k = 0; peer->rails[i].peer != NULL && k < remote->nic_count; k++) {
			const struct nic *nic = engine->nics[i].nic;
			const struct remote_nic *other = &remote->nics[k];
			if (other->address.count > 0 && strcmp(nic->subnet, other->subnet) == 0)
				return ws_fail(
					err, -EPROTO,
					"'%s' here and '%s' of '%s' speak different protocols "
					"(%016llx and %016llx): use the same transport, provider "
					"and library version at both ends",
					nic->name, other->name, peer->name,
					(unsigned long long)nic->protocol,
					(unsigned long long)other->protocol);
		}
	return 0;
}

static int no_rail(const struct engine *engine, const struct engine_peer *peer,
		   const struct remote_address *remote, struct ws_error *err)
{
	int rc = no_common_protocol(engine, peer, remote, err);
	if (rc != 0)
		return rc;
	char text[400];
	struct writer list = writer_fixed(text, sizeof(text) - 1);
	for (uint32_t i = 0; i < engine->nic_count; i++)
		if (peer->rails[i].peer != NULL)
			write_format(&list, "%s'%s' (%s)", list.count > 0 ? ", " : "",
				     engine->nics[i].nic->name, engine->nics[i].nic->subnet);
	write_format(&list, "; there are ");
	for (uint32_t i = 0; i < remote->nic_count; i++)
		write_format(&list, "%s'%s' (%s)", i > 0 ? ", " : "", remote->nics[i].name,
			     remote->nics[i].subnet);
	text[list.count] = 0;
	return ws_fail(err, -ENODEV,
		       "no subnet joins this host and '%s': name NICs of one transport that can "
		       "reach each other; here are %s",
		       peer->name, text);
}

int engine_peer_connect(struct engine *engine, struct engine_peer *peer, const void *address,
			size_t bytes, struct ws_error *err)
{
	struct remote_address remote = {0};
	if (!address_decode(&remote, address, bytes))
		return ws_fail(err, -EPROTO, "'%s' sent an address of %zu bytes that isn't one",
			       peer->name, bytes);
	if (peer->address_nic_count != 0)
		return ws_fail(err, -EINVAL, "'%s' is connected already", peer->name);
	if (peer->remote_nic_count != 0 && peer->remote_nic_count != remote.nic_count)
		return ws_fail(err, -EPROTO, "'%s' sent regions of %u NICs and an address of %u",
			       peer->name, peer->remote_nic_count, remote.nic_count);
	peer->address_nic_count = remote.nic_count;
	for (uint32_t i = 0; i < remote.nic_count; i++)
		peer->remote_lives[i] = remote.nics[i].life;
	struct ws_error why = {0};
	int rc = rails_connect(engine, peer, &remote, &why);
	if (rc == 0 && !is_paired(engine, peer))
		rc = why.code != 0 ? why.code : no_rail(engine, peer, &remote, &why);
	if (rc != 0)
		return ws_fail(err, rc, "%s", why.text);
	spare_find(engine, peer);
	doubts_settle(engine, peer);
	return 0;
}

/* ------------------------------------------------------------------------- regions */

/* Keeps the old table on failure. */
static int room_grow(void **table, size_t *room, size_t count, size_t each)
{
	if (count <= *room)
		return 0;
	void *grown = mem_grow(*table, *room * each, count * each);
	if (grown == NULL)
		return -ENOMEM;
	*table = grown;
	*room = count;
	return 0;
}

int engine_peer_regions(struct engine *engine, struct engine_peer *peer, const void *regions,
			size_t bytes, struct ws_error *err)
{
	struct reader in = reader_make(regions, bytes);
	uint32_t nics = read_u32(&in);
	(void)engine;
	if (in.failed || nics == 0 || nics > NICS_MAX)
		return ws_fail(err, -EPROTO, "'%s' sent regions of %u NICs; 1 to %d can be",
			       peer->name, nics, NICS_MAX);
	if (peer->address_nic_count != 0 && peer->address_nic_count != nics)
		return ws_fail(err, -EPROTO, "'%s' sent regions of %u NICs and an address of %u",
			       peer->name, nics, peer->address_nic_count);
	size_t each = 8 + nics * 16u;
	uint32_t count = read_count(&in, each, ENGINE_REGIONS_MAX);
	if (in.failed || reader_left(&in) != count * each)
		return ws_fail(err, -EPROTO,
			       "'%s' sent %zu bytes of regions that don't hold %u of them",
			       peer->name, bytes, count);
	void *table_bytes = peer->remote_bytes, *table_keys = peer->remote_keys;
	int rc = room_grow(&table_bytes, &peer->remote_bytes_room, count,
			   sizeof(*peer->remote_bytes));
	peer->remote_bytes = table_bytes;
	if (rc == 0)
		rc = room_grow(&table_keys, &peer->remote_keys_room, (size_t)count * nics,
			       sizeof(*peer->remote_keys));
	peer->remote_keys = table_keys;
	if (rc != 0)
		return ws_fail(err, rc, "no memory for the %u regions of '%s'", count, peer->name);
	for (uint32_t i = 0; i < count; i++) {
		peer->remote_bytes[i] = read_u64(&in);
		for (uint32_t n = 0; n < nics; n++) {
			struct remote_key *key = &peer->remote_keys[(size_t)i * nics + n];
			key->key = read_u64(&in);
			key->base = read_u64(&in);
		}
	}
	peer->remote_nic_count = nics;
	peer->remote_region_count = count;
	return 0;
}
