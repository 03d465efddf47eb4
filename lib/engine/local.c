/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sends wait for besides peers and credits: gates, held shut by locals (my own work at the
 * beginning of an attempt) and by receives.  Locals go to the stage thread in order, and only a few
 * at a time: it works first come, first served, and what may be gathered meanwhile gets its turn.
 */
#include <string.h>

#include "lib/engine/engine_internal.h"

/* One in work, one next, so that the thread needn't wait for me; a GPU takes many at once. */
#define LOCALS_AHEAD	 2
#define LOCALS_AHEAD_GPU 256

bool gate_is_open(const struct engine *engine, uint32_t gate)
{
	const struct gate *at = &engine->program.gates[gate];
	return gate == 0 || (at->locals_left == 0 && at->receives_left == 0);
}

static bool waits_for_receives(const struct gate *gate)
{
	return gate->locals_left == 0 && gate->receives_left > 0;
}

/* Counts a gate that receives alone hold from now on, or don't any more. */
static void gated_change(struct engine *engine, bool before, bool now)
{
	struct program *program = &engine->program;
	if (before == now)
		return;
	if (now && program->gated++ == 0)
		program->gated_since_ns = engine->now_ns;
	if (before && --program->gated == 0)
		engine->progress.gated_ns += engine->now_ns - program->gated_since_ns;
}

void gate_received(struct engine *engine, uint32_t gate)
{
	struct gate *at = &engine->program.gates[gate];
	bool before = waits_for_receives(at);
	if (gate == 0)
		return;
	at->receives_left--;
	gated_change(engine, before, waits_for_receives(at));
}

void locals_arm(struct engine *engine)
{
	struct program *program = &engine->program;
	const struct engine_program *given = &program->given;
	if (given->tables_bytes > 0 && engine->staging.place == WS_CUDA)
		stage_gpu_zero(engine->stage, given->tables, given->tables_bytes);
	else if (given->tables_bytes > 0)
		memset(given->tables, 0, given->tables_bytes);
	program->locals_put = program->locals_done = program->gated = 0;
	engine->now_ns = clock_ns();
	for (uint32_t i = 1; i <= given->gate_count; i++) {
		struct gate *gate = &program->gates[i];
		gate->locals_left = gate->local_count;
		gate->receives_left = gate->receive_count;
		gated_change(engine, false, waits_for_receives(gate));
	}
}

void locals_issue(struct engine *engine)
{
	struct program *program = &engine->program;
	uint32_t ahead = engine->staging.place == WS_CUDA ? LOCALS_AHEAD_GPU : LOCALS_AHEAD;
	while (program->locals_put < program->given.local_count &&
	       program->locals_put - program->locals_done < ahead &&
	       stage_room(engine->stage) > 0 && offload_take_local(engine, program->locals_put)) {
		stage_put(engine->stage, &(struct stage_request){.kind = STAGE_LOCAL,
								 .serial = engine->serial,
								 .index = program->locals_put++});
		engine->moved = true;
	}
}

void local_staged(struct engine *engine, const struct stage_result *result)
{
	const struct local *local = &engine->program.given.locals[result->request.index];
	engine->progress.quantize_ns += result->ns;
	engine->program.locals_done++;
	for (uint32_t i = 0; i < ARRAY_SIZE(local->gates); i++) {
		struct gate *gate = &engine->program.gates[local->gates[i]];
		bool before = waits_for_receives(gate);
		if (local->gates[i] == 0)
			continue;
		gate->locals_left--;
		gated_change(engine, before, waits_for_receives(gate));
	}
}
