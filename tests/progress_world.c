/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's processes.  What a member's end does with frames is done here once more, on
 * purpose: member.c isn't linked in, only word_applies() of it is shared.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/progress_world.h"

uint64_t model_draw(struct model *model)
{
	model->random += 0x9e3779b97f4a7c15u;
	return mix64(model->random);
}

bool model_chance(struct model *model, uint32_t in_1000)
{
	return model_draw(model) % 1000 < in_1000;
}

void model_broke(struct model *model, const char *what)
{
	if (model->broken[0] == '\0')
		snprintf(model->broken, sizeof(model->broken), "%s", what);
}

bool process_is_down(const struct model *model, const struct process *process)
{
	return process->back_ns > model->now_ns;
}

static bool acts(const struct model *model, const struct process *process)
{
	return !process_is_down(model, process) && process->frozen_ns <= model->now_ns;
}

static struct process *rank_of(struct model *model, uint32_t replica, uint32_t rank)
{
	return &model->process[TRAINERS + replica * model->ranks_each + rank];
}

/* S1: served memory is of one version.  S2: one version in a replica. */
static void served_check(struct model *model)
{
	for (uint32_t k = 0; k < model->replicas; k++) {
		const struct process *first = NULL;
		for (uint32_t rank = 0; rank < model->ranks_each; rank++) {
			const struct process *p = rank_of(model, k, rank);
			if (!p->serving)
				continue;
			for (uint32_t t = 0; t < TRAINERS; t++)
				if (p->current == 0 || p->live[t] != p->current)
					model_broke(model, "S1: served memory is torn");
			if (first != NULL && first->current != p->current)
				model_broke(model, "S2: two versions are served in one replica");
			first = p;
		}
	}
}

/* S6: nobody aborts, on the hub's word, what another rank of its replica has committed. */
static void agreement_check(struct model *model)
{
	for (uint32_t k = 0; k < model->replicas; k++)
		for (uint32_t i = 0; i < model->ranks_each; i++)
			for (uint32_t j = 0; j < model->ranks_each; j++)
				if (rank_of(model, k, i)->committed != 0 &&
				    rank_of(model, k, i)->committed ==
					    rank_of(model, k, j)->aborted)
					model_broke(model,
						    "S6: one rank committed what another aborted");
}

/* What an aborted or dropped rank does with its memory (DROP_RULE 1). */
static void give_up(struct model *model, struct process *p)
{
	enum rank_state state = p->up.state;
	p->bits = 0;
	p->up.state = RANK_IDLE;
	if (state >= RANK_READY && state <= RANK_PAUSED) {
		if (p->inplace)
			p->current = 0;
		p->serving = p->current != 0;
	} else if (state == RANK_COMMITTED || state == RANK_LIVE || state == RANK_BAD) {
		bool serves = model->mutant == MUTANT_DROP_SERVES && state == RANK_LIVE;
		p->current = serves ? p->version : 0;
		p->serving = serves;
		p->committed = serves ? p->committed : 0; /* poisoned: it serves neither */
	}
}

static void rank_begin(struct model *model, struct process *p, const struct beat_down *down)
{
	if (p->up.state == RANK_LIVE) { /* begin implies resume */
		p->current = p->version;
		p->serving = true;
		served_check(model);
	} else {
		give_up(model, p);
	}
	if (p->map != p->roster_map)
		model_broke(model, "M1: written by another manifest than it has");
	p->up.attempt = p->begun = down->word_attempt;
	p->version = down->version;
	p->up.state = RANK_READY;
	p->bits = 0;
	if (p->inplace) {
		p->serving = false;
		p->current = 0;
	}
}

static void rank_commit(struct model *model, struct process *p)
{
	p->up.state = RANK_COMMITTED;
	p->committed = p->up.attempt;
	agreement_check(model);
	if (!p->inplace)
		memcpy(p->live, p->spare, sizeof(p->live));
	served_check(model); /* the copy must not be under a serving engine */
}

static bool mutant_applies(const struct model *model, const struct process *p)
{
	const struct beat_down *down = &p->down;
	if (down->word_attempt != p->up.attempt)
		return false;
	if (model->mutant == MUTANT_COMMIT_EARLY && down->word == WORD_COMMIT)
		return p->up.state == RANK_READY || p->up.state == RANK_LANDED;
	if (model->mutant == MUTANT_ABORT_LATE && down->word == WORD_ABORT)
		return p->up.state == RANK_COMMITTED || p->up.state == RANK_LIVE;
	return false;
}

static void rank_obey(struct model *model, struct process *p)
{
	const struct beat_down *down = &p->down;
	if (down->in != p->incarnation ||
	    !(word_applies(down->word, down->word_attempt, p->up.state, p->up.attempt, 0) ||
	      mutant_applies(model, p)))
		return;
	switch (down->word) {
	case WORD_NONE:
		return;
	case WORD_BEGIN:
		if (down->attempt_generation == p->up.generation)
			rank_begin(model, p, down);
		return;
	case WORD_PAUSE:
		p->serving = p->serving && model->mutant == MUTANT_NO_PAUSE;
		p->up.state = RANK_PAUSED;
		return;
	case WORD_COMMIT:
		rank_commit(model, p);
		return;
	case WORD_RESUME:
		p->current = p->version;
		p->serving = true;
		p->up.state = RANK_RESUMED;
		served_check(model);
		return;
	case WORD_ABORT:
		p->aborted = p->up.attempt;
		agreement_check(model);
		if (p->up.state > RANK_PAUSED) { /* only a mutant's */
			p->current = p->version;
			p->serving = true;
			p->up.state = RANK_IDLE;
		} else {
			give_up(model, p);
		}
		served_check(model);
		return;
	}
}

static void trainer_obey(struct model *model, struct process *p)
{
	const struct beat_down *down = &p->down;
	struct beat_up *up = &p->up;
	uint64_t joined = up->joined;
	if (down->attempt > up->attempt_seen && down->in == p->incarnation) {
		up->attempt_seen = down->attempt;
		if (down->attempt_generation == up->generation && down->version != 0 &&
		    up->want != 0) {
			if (up->want_attempt == 0)
				up->want_attempt = down->attempt;
			trainer_join(model, p, down->attempt);
		}
	}
	armed_hear(model, p);
	if (up->joined != joined) {
		p->joined_hub = p->hub;
		p->joined_as = p->incarnation;
	}
	bool spent = up->want != 0 && up->joined > p->want_joined;
	if (spent && (down->attempt > up->joined || (down->attempt == up->joined && down->over))) {
		p->result =
			down->attempt == up->joined ? down->attempt_error : (struct ws_error){0};
		if (down->attempt != up->joined) {
			p->result.code = -ECONNRESET;
			if (p->joined_hub == p->hub && p->joined_as == p->incarnation)
				model_broke(model, "T1: a trainer missed how its attempt ended");
		}
		up->want = 0;
		up->sent = up->joined;
	}
}

static void renew(struct process *p, uint64_t above)
{
	p->incarnation = MAX(p->incarnation, above) + 1;
	p->up.generation = p->up.quiet = p->up.wired = p->up.armed = 0;
	p->up.failure_serial = 0;
	p->up.describes = false;
	p->joined = p->was_in = false;
	p->begun = 0;
	p->down = (struct beat_down){0};
}

static bool is_calm(const struct process *p)
{
	return p->up.state == RANK_IDLE || p->up.state == RANK_RESUMED;
}

/* One manifest after the other; what its memory holds then nobody knows. */
static void rank_describe(struct model *model, struct process *p)
{
	while (p->map < model->map)
		p->history = mix64(p->history ^ mix64(7 + p->map++)) | 1;
	p->up.state = RANK_IDLE;
	p->current = 0;
	p->serving = false;
	p->frozen_ns = model->now_ns + model_draw(model) % LOST_NS;
	model->described++;
}

static void down_take(struct model *model, struct process *p, const struct down_frame *frame)
{
	if (frame->hub < p->hub || frame->incarnation != p->incarnation)
		return;
	if (frame->hub > p->hub) {
		p->hub = frame->hub;
		p->joined = false;
		p->down_sequence = 0;
		p->down = (struct beat_down){0};
		p->up.view_seen = 0;
	}
	if (frame->is_roster) {
		if (frame->generation <= p->up.generation)
			return;
		/* Wiring itself always works here; what it needs of others is the hub's business.
		 */
		p->up.generation = p->up.quiet = p->up.wired = frame->generation;
		p->was_in = true;
		p->roster_map = frame->map;
		return;
	}
	if (frame->beat.sequence <= p->down_sequence)
		return;
	p->down_sequence = frame->beat.sequence;
	p->down = frame->beat;
	if (frame->beat.has_views)
		p->up.view_seen = frame->beat.view_serial;
	p->joined = frame->beat.joined == p->incarnation;
	if (frame->beat.dropped >= p->incarnation) {
		if (!p->trains && p->up.describes)
			rank_describe(model, p);
		else if (!p->trains)
			give_up(model, p);
		renew(p, frame->beat.dropped);
		served_check(model);
	} else if (p->trains) {
		trainer_obey(model, p);
	} else {
		rank_obey(model, p);
	}
}

/* ---- the network: a frame goes into any place, over one that is lost there, and comes out of
 * any place, in any order. */
static void up_send(struct model *model, struct process *p)
{
	struct up_frame *frame = &p->up_flight[model_draw(model) % FLIGHT_MAX];
	p->up.sequence++;
	p->up.live_version = p->serving ? p->current : 0;
	*frame = (struct up_frame){.used = true,
				   .is_join = !p->joined,
				   .hub = p->hub,
				   .incarnation = p->incarnation,
				   .map = p->map,
				   .history = p->history,
				   .beat = p->up};
}

static struct down_frame *down_place(struct model *model, struct process *p)
{
	return &p->down_flight[model_draw(model) % FLIGHT_MAX];
}

static void hello_send(struct model *model, struct process *p, uint64_t incarnation)
{
	const struct progress *progress = &model->progress;
	uint32_t seat = progress_seat(progress, p->id);
	struct down_frame *frame = down_place(model, p);
	*frame = (struct down_frame){
		.used = true, .hub = model->hub_incarnation, .incarnation = incarnation};
	frame->beat.sequence = ++model->progress.down_sequence;
	if (seat != UINT32_MAX && incarnation <= progress->seats[seat].out)
		frame->beat.dropped = progress->seats[seat].out;
}

static void up_take(struct model *model, struct process *p, const struct up_frame *frame)
{
	struct join join = {.protocol = HUB_PROTOCOL,
			    .role = member_id_role(p->id),
			    .rank = member_id_rank(p->id),
			    .replica = member_id_replica(p->id),
			    .world = p->trains ? TRAINERS : model->ranks_each,
			    .inplace = p->inplace,
			    .manifest_digest = frame->map,
			    .history = frame->history};
	struct ws_error err;
	uint32_t seat;
	if (frame->is_join) {
		enum join_verdict verdict = progress_join(
			&model->progress, &join, frame->incarnation, model->now_ns, &seat, &err);
		if (verdict == JOIN_DROPPED)
			hello_send(model, p, frame->incarnation);
		if (verdict == JOIN_REFUSED && join.history != 0)
			model_broke(model, err.text);
		return;
	}
	if (frame->hub != model->hub_incarnation ||
	    !progress_hear(&model->progress, p->id, frame->incarnation, &frame->beat,
			   model->now_ns))
		hello_send(model, p, frame->incarnation);
}

static void down_send(struct model *model, struct process *p)
{
	struct progress *progress = &model->progress;
	struct replica_view views[REPLICAS_MAX];
	uint32_t seat = progress_seat(progress, p->id);
	if (seat == UINT32_MAX || progress->seats[seat].joined == 0)
		return;
	struct down_frame frame = {.used = true,
				   .hub = model->hub_incarnation,
				   .incarnation = progress->seats[seat].joined};
	progress_beat_down(progress, seat, views, &frame.beat);
	frame.beat.views = NULL;
	if (model->mutant == MUTANT_READY_EARLY)
		frame.beat.armed[0] = (uint8_t)((1u << frame.beat.armed_count) - 1);
	if (progress_owes_roster(progress, seat) && model_chance(model, 500)) {
		frame.is_roster = true;
		frame.generation = progress->generation;
		frame.map = progress->manifest_digest;
	}
	*down_place(model, p) = frame;
}

static void network_step(struct model *model, struct process *p)
{
	struct up_frame *up = &p->up_flight[model_draw(model) % FLIGHT_MAX];
	struct down_frame *down = &p->down_flight[model_draw(model) % FLIGHT_MAX];
	if (up->used && !(model->faults && model_chance(model, 100)))
		up_take(model, p, up);
	up->used = false;
	if (!acts(model, p))
		return; /* its socket keeps what came */
	if (down->used && !(model->faults && model_chance(model, 100)))
		down_take(model, p, down);
	down->used = false;
}

/* ---- what processes do by themselves */
static void rank_step(struct model *model, struct process *p)
{
	for (uint32_t t = 0; t < TRAINERS; t++) {
		const struct process *trainer = &model->process[t];
		/* Not into an attempt of another version than its own. */
		bool writes = trainer->up.joined == p->up.attempt &&
			      trainer->up.want == p->version && acts(model, trainer) &&
			      trainer->up.generation == p->up.generation &&
			      maxima_are_here(model, trainer);
		if (p->up.state != RANK_READY || (p->bits >> t & 1) != 0 || !writes ||
		    !model_chance(model, 300))
			continue;
		(p->inplace ? p->live : p->spare)[t] = trainer->up.want;
		p->bits |= 1u << t;
		p->up.bytes++;
		served_check(model);
	}
	p->up.describes = p->map < model->map && is_calm(p);
	bool landed = p->bits == (1u << TRAINERS) - 1;
	if (model->mutant == MUTANT_LANDED_LIE)
		landed = p->bits != 0;
	if (p->up.state == RANK_READY && landed)
		p->up.state = RANK_LANDED;
	if (p->up.state == RANK_COMMITTED && model_chance(model, 300)) {
		if (model->faults && model_chance(model, 30)) {
			p->up.state = RANK_BAD;
			p->current = 0;
			model->fault_count++;
		} else {
			p->up.state = RANK_LIVE;
			p->live_attempt = p->up.attempt;
		}
	}
}

static void trainer_step(struct model *model, struct process *p)
{
	struct beat_up *up = &p->up;
	if (up->want != 0) {
		up->bytes++; /* it is never the one that stands still */
		maxima_write(model, p);
		return;
	}
	if (p->tried >= model->goal || !model_chance(model, 100))
		return;
	p->tried = model->goal;
	p->want_joined = up->joined;
	up->want = model->goal * 2 +
		   (model->faults && model_chance(model, 20)); /* now and then another version */
	up->want_attempt = 0;
	p->result = (struct ws_error){.code = -EAGAIN};
	/* The begin is known already: it joins at once. */
	const struct beat_down *down = &p->down;
	if (down->version == up->want && !down->over && down->attempt == up->attempt_seen &&
	    down->attempt > up->joined && down->attempt_generation == up->generation) {
		up->want_attempt = down->attempt;
		trainer_join(model, p, down->attempt);
	}
}

bool model_trainers_idle(const struct model *model)
{
	for (uint32_t t = 0; t < TRAINERS; t++)
		if (model->process[t].up.want != 0 || model->process[t].tried < model->goal)
			return false;
	return true;
}

/* S4: the hub says resume only when all ranks have been live in that attempt. */
static void hub_step(struct model *model)
{
	struct progress *progress = &model->progress;
	progress_tick(progress, model->now_ns);
	model_mutant_step(model);
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		const struct replica *replica = &progress->replicas[i];
		for (uint32_t rank = 0; rank < model->ranks_each && replica->word == WORD_RESUME;
		     rank++) {
			const struct process *p = rank_of(model, replica->id, rank);
			const struct seat *seat = &progress->seats[replica_seat(progress, i, rank)];
			if (p->live_attempt < replica->attempt && p->incarnation == seat->in)
				model_broke(model, "S4: resumed before all ranks were live");
		}
	}
}

/* R1: an attempt begins on the rails that its members have, as far as the hub has heard. */
static void rails_check(struct model *model)
{
	const struct progress *progress = &model->progress;
	struct roster_member member;
	for (uint32_t i = 0; i < progress->roster_count; i++) {
		const struct seat *seat = &progress->seats[progress->roster[i]];
		progress_roster_member(progress, i, &member);
		if (progress->generation != model->generation)
			model->roster_rails[i] = member.rails;
		if (progress->attempt == model->attempt || !seat_is_in(seat))
			continue;
		if (!rails_same(&model->roster_rails[i], &seat->up.rails))
			model_broke(model, "R1: planned for other NICs than there are");
		if (rails_are_gone(seat))
			model_broke(model, "R2: begun with a member that has no NIC left");
	}
	model->generation = progress->generation;
	model->attempt = progress->attempt;
}

void model_step(struct model *model)
{
	model->now_ns += STEP_NS;
	model_fault_step(model);
	for (uint32_t i = 0; i < model->process_count; i++) {
		struct process *p = &model->process[i];
		network_step(model, p);
		if (acts(model, p)) {
			if (p->trains)
				trainer_step(model, p);
			else
				rank_step(model, p);
			if (model_chance(model, 400))
				up_send(model, p);
		}
		if (model_chance(model, 400))
			down_send(model, p);
	}
	hub_step(model);
	rails_check(model);
	served_check(model);
	if (model_trainers_idle(model) && model->progress.wired) {
		model->pushes_ok += model->goal != 0 && model->process[0].result.code == 0;
		model->goal += model->faults;
	}
}

void model_open(struct model *model, uint64_t seed, enum mutant mutant)
{
	*model = (struct model){
		.random = seed, .now_ns = 1000000000u, .faults = true, .mutant = mutant};
	model->chain = seed % 3 == 0;
	model->exchange = seed % 2 == 0;
	model->ranks_each = 1 + (uint32_t)(model_draw(model) % 4 != 0);
	model->replicas = 1 + (uint32_t)(model_draw(model) % 2);
	model->barrier = model_chance(model, 300);
	model->inplace = model_chance(model, 400);
	model->process_count = TRAINERS + model->replicas * model->ranks_each;
	for (uint32_t i = 0; i < model->process_count; i++) {
		uint32_t at = i < TRAINERS ? i : i - TRAINERS;
		struct process *p = &model->process[i];
		p->trains = i < TRAINERS;
		p->id = p->trains ? member_id(ROLE_TRAINER, 0, at)
				  : member_id(ROLE_ROLLOUT, at / model->ranks_each,
					      at % model->ranks_each);
		p->incarnation = 1;
		p->inplace = !p->trains && model->inplace;
		process_rails(p, 2);
	}
	model_hub_start(model);
}

void model_close(struct model *model)
{
	progress_release(&model->progress);
}

void model_calm(struct model *model)
{
	model->faults = false;
	for (uint32_t i = 0; i < model->process_count; i++)
		process_rails(&model->process[i], 2);
	uint64_t until_ns = model->now_ns + 6 * (uint64_t)PHASE_NS;
	while (model->now_ns < until_ns)
		model_step(model);
}

bool model_last_push(struct model *model)
{
	model->goal++;
	for (uint32_t i = 0; i < 4000 && !model_trainers_idle(model); i++)
		model_step(model);
	bool ok = model_trainers_idle(model);
	for (uint32_t t = 0; t < TRAINERS; t++)
		ok = ok && model->process[t].result.code == 0;
	for (uint32_t i = TRAINERS; i < model->process_count; i++)
		ok = ok && model->process[i].serving &&
		     model->process[i].current == model->goal * 2;
	return ok;
}
