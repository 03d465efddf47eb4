/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers of the model that write to each other (block maxima), before they write to rollouts. */
#include "tests/progress_world.h"

void trainer_join(struct model *model, struct process *p, uint64_t attempt)
{
	p->up.joined = attempt;
	if (!model->exchange || p->up.want != p->down.version)
		return;
	p->armed = p->up.armed = attempt;
	p->maxima = p->given = 0;
}

/* Whose ready was heard stays known until another attempt begins. */
void armed_hear(struct model *model, struct process *p)
{
	const struct beat_down *down = &p->down;
	if (down->attempt != p->up.attempt_seen || down->attempt_generation != p->up.generation)
		return;
	if (p->heard_attempt != down->attempt && model->mutant != MUTANT_READY_STALE)
		p->heard = 0;
	p->heard_attempt = down->attempt;
	for (uint32_t i = 0; i < down->armed_count; i++)
		if (bit_get(down->armed, i))
			p->heard |= 1u << i;
}

/* X2: codes are made with maxima of their own version. */
bool maxima_are_here(struct model *model, const struct process *trainer)
{
	uint32_t self = member_id_rank(trainer->id);
	if (!model->exchange)
		return true;
	if ((trainer->maxima | 1u << self) != (1u << TRAINERS) - 1)
		return false;
	for (uint32_t t = 0; t < TRAINERS; t++)
		if (t != self && trainer->inbox[t] != trainer->up.want)
			model_broke(model, "X2: codes are made with maxima of another version");
	return true;
}

/* X1: a trainer is written to in the attempt that it is armed for, and in no other.  Who is in
 * another wiring isn't connected. */
void maxima_write(struct model *model, struct process *p)
{
	uint32_t self = member_id_rank(p->id);
	for (uint32_t t = 0; t < TRAINERS; t++) {
		struct process *to = &model->process[t];
		if (t == self || (p->given >> t & 1) != 0 || (p->heard >> t & 1) == 0 ||
		    p->armed != p->up.want_attempt || p->heard_attempt != p->armed ||
		    p->up.generation == 0 || to->up.generation != p->up.generation ||
		    !model_chance(model, 300))
			continue;
		if (to->armed != p->armed)
			model_broke(model, "X1: a trainer that isn't ready is written to");
		p->given |= 1u << t;
		to->inbox[self] = p->up.want;
		to->maxima |= 1u << self;
	}
}
