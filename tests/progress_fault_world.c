/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong in the model of progress_world.c, and the rules that are taken away. */
#include <errno.h>
#include <string.h>

#include "tests/progress_world.h"

void process_rails(struct process *process, uint32_t count)
{
	struct member_rails *rails = &process->up.rails;
	*rails = (struct member_rails){.count = count, .nic_count = 2};
	for (uint32_t i = 0; i < count; i++)
		rails->rail[i] = (struct nic_speed){1 + i, 1000};
}

static void process_die(struct model *model, struct process *p)
{
	uint64_t incarnation = p->incarnation, id = p->id;
	bool trains = p->trains;
	*p = (struct process){.id = id,
			      .trains = trains,
			      .inplace = model->inplace,
			      .incarnation = incarnation + 1,
			      .map = model->map,
			      .tried = trains ? model->goal : 0,
			      .back_ns =
				      model->now_ns + model_draw(model) % (3 * (uint64_t)LOST_NS)};
	process_rails(p, 2);
}

void model_hub_start(struct model *model)
{
	struct ws_error err;
	struct progress_options options = {.incarnation = ++model->hub_incarnation,
					   .trainer_count = TRAINERS,
					   .replica_ranks = model->ranks_each,
					   .min_replicas = 1,
					   .barrier = model->barrier,
					   .forward = model->chain ? HUB_FORWARD_CHAIN
								   : HUB_FORWARD_NONE,
					   .join_ns = UINT64_MAX / 2,
					   .lost_ns = LOST_NS,
					   .phase_ns = PHASE_NS};
	progress_release(&model->progress);
	if (progress_init(&model->progress, &options, model->now_ns, &err) != 0)
		model_broke(model, err.text);
	model->hub_count++;
}

static void failure_say(struct model *model, struct process *p)
{
	struct beat_up *up = &p->up;
	up->failure_serial++;
	up->failure_kind = model_chance(model, 500) ? FAILURE_OP : FAILURE_ATTEMPT;
	up->failure_attempt = p->trains ? up->joined : up->attempt;
	up->failure_about = model->process[model_draw(model) % model->process_count].id;
	ws_fail(&up->failure, -EIO, "a model's failure");
}

void model_fault_step(struct model *model)
{
	struct process *p = &model->process[model_draw(model) % model->process_count];
	if (!model->faults || !model_chance(model, 12) || process_is_down(model, p))
		return;
	model->fault_count++;
	switch (model_draw(model) % 9) {
	case 0:
		process_die(model, p);
		break;
	case 1:
	case 2:
		p->frozen_ns = model->now_ns + model_draw(model) % (3 * (uint64_t)LOST_NS);
		break;
	case 3:
		model_hub_start(model);
		break;
	case 4:
		if (p->joined && p->up.attempt + p->up.joined != 0)
			failure_say(model, p);
		break;
	case 6: /* engines move experts, each rank when it may */
		model->map++;
		break;
	case 7: /* a NIC goes, or comes back */
	case 8:
		process_rails(p, p->up.rails.count == 1 && model_chance(model, 200) ? 0
				 : p->up.rails.count == 2			    ? 1
										    : 2);
		break;
	case 5: /* long silence of the network: all that is under way is lost */
		memset(p->up_flight, 0, sizeof(p->up_flight));
		memset(p->down_flight, 0, sizeof(p->down_flight));
		break;
	}
}

/* Rules that are taken away at the hub. */
void model_mutant_step(struct model *model)
{
	struct progress *progress = &model->progress;
	for (uint32_t i = TRAINERS;
	     model->mutant == MUTANT_MAPS_MIX && i < progress_seat_count(progress); i++)
		progress->seats[i].info.manifest_digest = progress->manifest_digest;
	for (uint32_t i = 0;
	     model->mutant == MUTANT_RAILS_STALE && i < progress_seat_count(progress); i++)
		progress->seats[i].rails = progress->seats[i].up.rails;
	for (uint32_t i = 0; i < progress->replica_count; i++) {
		struct replica *replica = &progress->replicas[i];
		for (uint32_t rank = 0; rank < model->ranks_each; rank++) {
			const struct seat *seat = &progress->seats[replica_seat(progress, i, rank)];
			bool here = seat_is_in(seat) && seat->up.attempt == replica->attempt;
			if (model->mutant == MUTANT_COMMIT_EARLY && replica->word == WORD_BEGIN &&
			    here && seat->up.state == RANK_LANDED)
				replica->word = WORD_COMMIT;
			if (model->mutant == MUTANT_RESUME_EARLY && replica->word == WORD_COMMIT &&
			    here && seat->up.state == RANK_LIVE)
				replica->word = WORD_RESUME;
			if (model->mutant == MUTANT_ABORT_LATE && replica->word == WORD_COMMIT &&
			    model_chance(model, 20))
				replica->word = WORD_ABORT;
			if (model->mutant == MUTANT_DOUBT_ABORT && progress->attempt == 0 &&
			    replica->word == WORD_COMMIT)
				replica->word = WORD_ABORT;
		}
	}
	for (uint32_t i = 0; model->mutant == MUTANT_NO_DROP && i < progress_seat_count(progress);
	     i++) {
		struct seat *seat = &progress->seats[i];
		if (seat->rival > seat->joined && seat->joined == seat->in && seat->in != 0)
			seat->in = seat->joined = seat->rival;
	}
}
