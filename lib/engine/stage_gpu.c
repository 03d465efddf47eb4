/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage thread where a GPU does the work: requests become moves, as many as there are become
 * one launch, and while the GPU is at some of these the next is put together.  All launches are on
 * one stream, its own or the side's, so they end in the order of the requests, and so do the
 * results.
 */
#include <errno.h>
#include <sched.h>

#include "lib/convert/device.h"
#include "lib/cuda/cuda.h"
#include "lib/engine/engine_internal.h"

#define FLIGHTS	      4u    /* launches under way, or being put together */
#define AHEAD	      2u    /* with so many under way, what comes is kept for one launch */
#define MOVES_MAX     4096u /* of a launch */
#define REQUESTS_MAX  64u   /* of a launch: the first shall not wait for too many others */
#define GATHERS_LEAST 4u    /* of a launch: one alone keeps no GPU busy */

struct flight {
	struct device_batch *batch; /* owned */
	uint32_t moves;
	bool finds; /* some of them are QUANTIZE_WHOLE: maxima that scales may be made of next */
	uint32_t result_end; /* results in front of it are done when this launch is */
	uint64_t launched_ns;
};

struct stage_gpu {
	struct CUstream_st *stream; /* owned unless borrowed */
	bool borrowed;
	struct flight flights[FLIGHTS];
	uint32_t first, count; /* launched */
	uint32_t result_end;   /* of requests that were taken */
	uint64_t ended_ns;     /* the last launch that has */
	uint64_t busy_ns;      /* of launches whose results weren't told yet */
	bool stuck;	       /* given up: it isn't asked any more */
	struct ws_error error; /* the first, for ever; code 0: none */
};

int stage_gpu_open(struct stage *stage, int device, struct CUstream_st *stream,
		   struct ws_error *err)
{
	struct stage_gpu *gpu = mem_alloc(sizeof(*gpu));
	int rc = 0;
	if (gpu == NULL)
		return ws_fail(err, -ENOMEM, "no memory for the launches of GPU %d", device);
	stage->gpu = gpu;
	gpu->stream = stream;
	gpu->borrowed = stream != NULL;
	if (!gpu->borrowed)
		rc = cuda_stream_open(device, &gpu->stream, err);
	for (uint32_t i = 0; rc == 0 && i < FLIGHTS; i++)
		rc = device_batch_open(&gpu->flights[i].batch, device, MOVES_MAX, err);
	return rc;
}

void stage_gpu_close(struct stage *stage)
{
	struct stage_gpu *gpu = stage->gpu;
	if (gpu == NULL)
		return;
	int before = cuda_current(); /* of whoever closes the side */
	/* Also what others have put on the side's stream: freeing memory would wait for ever. */
	if (gpu->stream != NULL)
		(void)cuda_stream_settle(gpu->stream, stage->engine->staging.device, NULL);
	for (uint32_t i = 0; i < FLIGHTS; i++)
		device_batch_close(gpu->flights[i].batch);
	if (!gpu->borrowed)
		cuda_stream_close(gpu->stream);
	cuda_leave(before);
	mem_free(gpu);
	stage->gpu = NULL;
}

const char *stage_gpu_reason(const struct stage *stage)
{
	return stage->gpu->error.text;
}

void stage_gpu_zero(struct stage *stage, void *at, uint64_t bytes)
{
	struct stage_gpu *gpu = stage->gpu;

	if (gpu->error.code == 0 && cuda_use(stage->engine->staging.device, &gpu->error) == 0)
		(void)cuda_fill(at, 0, bytes, gpu->stream, &gpu->error);
}

/* The one being put together. */
static struct flight *flight_next(struct stage_gpu *gpu)
{
	return &gpu->flights[(gpu->first + gpu->count) % FLIGHTS];
}

/* Results up to end are there to be taken.  They share the time that the GPU was at them. */
static void results_publish(struct stage *stage, uint32_t end)
{
	struct stage_gpu *gpu = stage->gpu;
	uint32_t tail = atomic_load_explicit(&stage->result_tail.at, memory_order_relaxed);
	if (end == tail)
		return;
	for (uint32_t i = tail; i != end; i++) {
		struct stage_result *result = &stage->results[i % STAGE_ROOM];
		result->failed = result->done && gpu->error.code != 0;
		result->ns = gpu->busy_ns / (end - tail);
	}
	gpu->busy_ns = 0;
	atomic_store_explicit(&stage->result_tail.at, end, memory_order_release);
	stage_tell(stage);
}

/* Also after an error: what is told as failed must not be written to any more. */
static bool is_under_way(struct stage_gpu *gpu, const struct flight *flight)
{
	struct ws_error *err = gpu->error.code == 0 ? &gpu->error : NULL;
	return !gpu->stuck && device_batch_done(flight->batch, err) == -EAGAIN;
}

/* Ends the oldest launch if it is done, or never will be; false: it isn't yet. */
static bool flight_end(struct stage *stage)
{
	struct stage_gpu *gpu = stage->gpu;
	struct flight *flight = &gpu->flights[gpu->first];
	if (gpu->count == 0)
		return false;
	/* The clock first: this process may be stopped in between, and the launch end meanwhile. */
	uint64_t now = clock_ns(), ns = now - MAX(flight->launched_ns, gpu->ended_ns);
	bool under_way = is_under_way(gpu, flight);
	int device = stage->engine->staging.device;
	if (under_way && ns < cuda_stuck_ns() && !cuda_is_given_up(device))
		return false;
	gpu->stuck |= under_way;
	if (under_way)
		cuda_stuck(device, gpu->error.code == 0 ? &gpu->error : NULL);
	gpu->busy_ns += ns;
	gpu->ended_ns = now;
	device_batch_clear(flight->batch);
	flight->moves = 0;
	flight->finds = false;
	gpu->first = (gpu->first + 1) % FLIGHTS;
	gpu->count--;
	results_publish(stage, flight->result_end);
	return true;
}

/* Launches what was put together; what was taken up to result_end is done behind it. */
static void flight_launch(struct stage *stage, uint32_t result_end)
{
	struct stage_gpu *gpu = stage->gpu;
	struct flight *flight = flight_next(gpu);
	flight->result_end = result_end;
	flight->launched_ns = clock_ns();
	if (gpu->error.code == 0 && flight->moves > 0)
		(void)device_batch_launch(flight->batch, gpu->stream, &gpu->error);
	gpu->count++;
	/* One is kept to put the next together. */
	while (gpu->count == FLIGHTS && !flight_end(stage))
		sched_yield();
}

static int move_take(void *arg, const struct move *given)
{
	struct stage *stage = arg;
	const struct ring *ring = offload_ring(stage->engine);
	struct move moved = *given, *move = &moved;
	struct stage_gpu *gpu = stage->gpu;
	struct ws_error full = {0};
	if (gpu->error.code != 0)
		return -EIO;
	if (ring != NULL)
		moved.src = ring_source(ring, given);
	/* Moves of a launch have no order, and launches do. */
	if (move->kind == MOVE_SCALE && flight_next(gpu)->finds)
		flight_launch(stage, gpu->result_end);
	int rc = device_batch_add(flight_next(gpu)->batch, move, &full);
	if (rc == -ENOSPC && flight_next(gpu)->moves > 0) {
		flight_launch(stage, gpu->result_end);
		full = (struct ws_error){0};
		rc = device_batch_add(flight_next(gpu)->batch, move, &full);
	}
	if (rc == 0) {
		flight_next(gpu)->moves++;
		flight_next(gpu)->finds |= move->kind == MOVE_QUANTIZE_WHOLE;
	} else if (gpu->error.code == 0) { /* its text may be told already, and be read */
		gpu->error = full;
	}
	return rc;
}

static void moves_take(struct stage *stage, const struct move *moves, uint32_t count)
{
	for (uint32_t i = 0; i < count && move_take(stage, &moves[i]) == 0; i++)
		;
}

/* Puts a request's moves into launches; its result is written, and told when they are done. */
static void request_take(struct stage *stage, const struct stage_request *request,
			 struct stage_result *result)
{
	struct engine *engine = stage->engine;
	const struct engine_program *given = &engine->program.given;
	*result = (struct stage_result){.request = *request};
	if (!stage_is_live(stage, request->serial))
		return;
	result->done = true;
	switch (request->kind) {
	case STAGE_GATHER: {
		const struct send *send = &given->sends[request->index];
		uint64_t op_bytes = engine_op_bytes(engine, send->op_bytes);
		uint64_t from = request->op * op_bytes;
		uint64_t bytes = cut_op_bytes(send->bytes, op_bytes, request->op);
		(void)cut_boxes(send->moves, send->move_count, from, from + bytes,
				engine_block_memory(engine, request->block), move_take, stage);
		break;
	}
	case STAGE_HASH: /* engine_open refuses digests */
		break;
	case STAGE_RECEIVE: {
		const struct receive *receive = &given->receives[request->index];
		result->done = imm_is_whole(&engine->imm, request->index);
		moves_take(stage, receive->moves, result->done ? receive->move_count : 0);
		break;
	}
	case STAGE_LOCAL: {
		const struct local *local = &given->locals[request->index];
		moves_take(stage, local->moves, local->move_count);
		break;
	}
	}
}

bool stage_gpu_turn(struct stage *stage)
{
	struct stage_gpu *gpu = stage->gpu;
	uint32_t head = atomic_load_explicit(&stage->request_head.at, memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(&stage->request_tail.at, memory_order_acquire);
	uint32_t most = gpu->count < AHEAD ? MIN(tail - head, REQUESTS_MAX) : 0;
	uint32_t count = 0, gathers = 0;
	/* A quarter of staging at most: the next is gathered while the last is written. */
	uint32_t gathers_most = MAX(stage->engine->block_count / FLIGHTS, GATHERS_LEAST);
	while (count < most && gathers < gathers_most) {
		const struct stage_request *request =
			&stage->requests[(head + count++) % STAGE_ROOM];
		gathers += request->kind == STAGE_GATHER;
		request_take(stage, request, &stage->results[gpu->result_end % STAGE_ROOM]);
		gpu->result_end++; /* not before: the request may end a launch in front of itself */
	}
	atomic_store_explicit(&stage->request_head.at, head + count, memory_order_release);
	if (count > 0)
		flight_launch(stage, gpu->result_end);
	while (flight_end(stage))
		;
	if (count == 0 && gpu->count > 0)
		sched_yield();
	/* What was kept goes next, also if nothing is under way any more: nobody wakes me again. */
	return tail != head || gpu->count > 0;
}
