/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bodies of the frames between hub and members, as structs, with encode and decode.
 * Private to lib/hub.  Decoders take bytes from outside: they check every count against what is
 * there before they believe it, and return -EPROTO.
 *
 * The frame's header (lib/link) already names hub incarnation, member and member incarnation.
 */
#ifndef HUB_FRAMES_H
#define HUB_FRAMES_H

#include <string.h>

#include "lib/hub/hub.h"

_Static_assert(sizeof(struct member_rails) == 16 + 16 * NICS_MAX, "it has no padding");

#define HUB_PROTOCOL	     4
#define MANIFEST_BYTES_MAX   (24u << 20) /* both and the roster fit a link body */
#define RULES_BYTES_MAX	     (1u << 20)
#define JOIN_NICS_BYTES	     512
#define READY_BODY_BYTES_MAX (4u << 20)

static inline bool bit_get(const uint8_t *bits, uint32_t index)
{
	return (bits[index / 8] >> (index % 8) & 1) != 0;
}

static inline void bit_set(uint8_t *bits, uint32_t index)
{
	bits[index / 8] = (uint8_t)(bits[index / 8] | 1u << (index % 8));
}

static inline void bit_clear(uint8_t *bits, uint32_t index)
{
	bits[index / 8] = (uint8_t)(bits[index / 8] & ~(1u << (index % 8)));
}

enum hub_frame {
	/* from members */
	FRAME_JOIN = 1,
	FRAME_BEAT_UP,
	FRAME_LEAVE,	  /* empty */
	FRAME_STATUS_ASK, /* empty */
	/* both ways */
	FRAME_PAIR,
	FRAME_READY,
	/* from the hub */
	FRAME_BEAT_DOWN,
	FRAME_ROSTER,
	FRAME_OVER,
	FRAME_STATUS /* JSON */
};

/* The frames' member number. */
static inline uint64_t member_id(enum member_role role, uint32_t replica, uint32_t rank)
{
	return (uint64_t)role << 56 | (uint64_t)(replica & 0xffffffu) << 24 | (rank & 0xffffffu);
}

static inline enum member_role member_id_role(uint64_t id)
{
	return (enum member_role)(id >> 56);
}

static inline uint32_t member_id_replica(uint64_t id)
{
	return (uint32_t)(id >> 24) & 0xffffffu;
}

static inline uint32_t member_id_rank(uint64_t id)
{
	return (uint32_t)id & 0xffffffu;
}

#define MEMBER_NAME_BYTES 32
/* "trainer 2", "rollout 1.0". */
void member_name(uint64_t id, char name_out[MEMBER_NAME_BYTES]);
const char *rank_state_name(enum rank_state state);
const char *replica_word_name(enum replica_word word);

/* Whether a rank whose state in `attempt` is `state` acts on the hub's word (update_model.pml,
 * receive()).  begun: the last attempt whose BEGIN was passed on, though no state says so yet. */
bool word_applies(enum replica_word word, uint64_t word_attempt, enum rank_state state,
		  uint64_t attempt, uint64_t begun);

struct join {
	uint16_t protocol;
	enum member_role role;
	uint32_t rank, replica, world;
	char host[64];
	char nics[JOIN_NICS_BYTES]; /* for people */
	bool inplace;
	uint64_t manifest_digest;
	uint64_t history;     /* of the manifests it described before, a hash; 0: none */
	bool admitted;	      /* some roster had this process already */
	const void *manifest; /* borrowed; NULL when the text isn't included */
	uint32_t manifest_bytes;
};

static inline bool rails_same(const struct member_rails *a, const struct member_rails *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

void join_encode(const struct join *join, struct writer *out);
int join_decode(struct join *join_out, const void *bytes, size_t count, struct ws_error *err);

/* What a member repeats.  Register semantics: the newest replaces all before. */
struct beat_up {
	uint64_t sequence; /* rises; a late one is dropped */
	uint64_t generation, quiet, wired;
	uint64_t manifest_held[2]; /* digests of the trainers' and the rollouts' text I hold; 0:
				      none */
	uint64_t view_seen;	   /* trainers: beat_down.view_serial I know */
	uint64_t attempt_seen; /* trainers: last attempt whose BEGIN was yielded or passed over */
	/* trainers */
	uint64_t want, want_attempt; /* version; the attempt it was spent on, 0: none yet */
	uint64_t joined, sent;	     /* attempts */
	uint64_t armed;		     /* attempt in which other trainers may write here; 0: none */
	uint64_t bytes;		     /* sent, or received */
	struct member_rails rails;
	char trouble[MEMBER_TROUBLE_BYTES]; /* of NICs and rails; or empty */
	bool degraded;			    /* some of them aren't in use */
	uint64_t from_rollouts;		    /* of those received: what other rollouts forwarded */
	uint64_t ready_attempt;
	uint32_t
		ready_count; /* rollouts in my roster; bit i: its READY for ready_attempt is here */
	uint8_t ready[HUB_MEMBERS_MAX / 8];
	/* rollouts */
	enum rank_state state;
	uint64_t attempt, live_version;
	uint64_t step_age_ms; /* since step was last called; UINT64_MAX: never */
	bool describes;	      /* asks to be dropped, to come back with another manifest */
	uint64_t verified_version, verified_bytes, verified_different; /* the last check */
	char waits[MEMBER_WAITS_BYTES];				       /* what for; or empty */
	/* a failure not yet acknowledged; serial 0: none */
	uint64_t failure_serial, failure_attempt,
		failure_about; /* about: member number, 0: nobody */
	enum failure_kind failure_kind;
	struct ws_error failure;
};

void beat_up_encode(const struct beat_up *beat, struct writer *out);
int beat_up_decode(struct beat_up *beat_out, const void *bytes, size_t count, struct ws_error *err);

/* What rollout ranks have said of one version. */
struct verified {
	uint64_t version, bytes, different;
	uint32_t ranks;
};
#define VERIFIED_MAX 4 /* versions told at once: the highest */

/* What the hub repeats. */
struct beat_down {
	uint64_t sequence;
	uint64_t joined;  /* the incarnation whose join was taken; another: join (again) */
	uint64_t in;	  /* the incarnation in the roster; words are for it */
	uint64_t dropped; /* this incarnation and those below are out: join as a newer one */
	struct ws_error dropped_error;
	bool need_manifest; /* join with the text */
	uint32_t lost_ms;
	uint64_t generation;
	bool quiet, wired;
	uint64_t failure_serial, ready_attempt; /* acknowledged */
	uint64_t attempt, attempt_generation, version;
	bool over;
	struct ws_error attempt_error; /* of an attempt that is over */
	struct ws_error waits;	       /* for whom start, wiring or begin wait */
	enum replica_word word;
	uint64_t word_attempt;
	struct ws_error word_error;
	/* Trainers: bit i: trainer i may be written to in attempt. */
	uint32_t armed_count;
	uint8_t armed[HUB_MEMBERS_MAX / 8];
	char trouble[MEMBER_TROUBLE_BYTES]; /* trainers: whose NICs are out of use; or empty */
	bool next_gone;			    /* rollouts: of the replica behind mine in a chain */
	uint64_t view_serial;
	bool has_views;
	uint32_t view_count, view_room; /* room: of the caller's array, before decoding */
	struct replica_view *views;	/* borrowed */
	uint32_t verified_count;	/* with the views */
	struct verified verified[VERIFIED_MAX];
};

void beat_down_encode(const struct beat_down *beat, struct writer *out);
/* views and view_room are the caller's, set before.  More views than room: -EPROTO. */
int beat_down_decode(struct beat_down *beat_out, const void *bytes, size_t count,
		     struct ws_error *err);

struct roster {
	uint64_t generation;
	uint32_t member_count, trainer_count, replica_count;
	const struct roster_member *members; /* decoded: in the arena */
	const uint32_t *replicas;
	uint64_t manifest_digest[2];
	const void *manifest[2]; /* NULL: not included, the member holds it; decoded: borrowed */
	uint32_t manifest_bytes[2];
	const void *rules;
	uint32_t rules_bytes;
};

void roster_encode(const struct roster *roster, struct writer *out);
int roster_decode(struct roster *roster_out, struct arena *arena, const void *bytes, size_t count,
		  struct ws_error *err);

/* PAIR: both numbers are roster indices.  READY: from the rollout, to is unused. */
struct passage {
	uint64_t generation, attempt;
	uint32_t from, to;
	bool answer;
	const void *body; /* borrowed */
	uint32_t body_bytes;
};

void passage_encode(const struct passage *passage, struct writer *out);
int passage_decode(struct passage *passage_out, const void *bytes, size_t count,
		   struct ws_error *err);

void over_encode(const struct ws_error *error, struct writer *out);
int over_decode(struct ws_error *error_out, const void *bytes, size_t count, struct ws_error *err);

#endif
