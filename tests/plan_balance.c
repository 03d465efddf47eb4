/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The busiest sender against the best fractional assignment.  The optimum is found here on its
 * own: who holds which element comes from the params of both sides, cut into the cells of a grid;
 * cells with one holder set are a class; and the least load at which every class's bytes flow to
 * its holders is searched with Dinic's max-flow.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench/plan_jobs.h"
#include "planner/plan_internal.h"
#include "tests/test.h"

#define RANK_WORDS 4 /* 256 trainers */
#define BORDER_MAX 1024

struct mask {
	uint64_t word[RANK_WORDS];
};

/* A rank's box of one tensor of one layer and expert. */
struct source {
	struct box box;
	uint32_t rank, next; /* index + 1 in the unit's list; 0 ends */
};

struct unit {
	uint32_t first, last; /* index + 1 */
	uint64_t digest;      /* of its boxes */
};

struct class
{
	struct mask holders;
	uint64_t bytes;
};

/* What a target box takes out of which class, found once for equal boxes over equal sources. */
struct taken {
	uint32_t class;
	uint64_t elements;
};

struct known {
	size_t first;
	uint32_t count;
};

struct classes {
	struct idmap unit_map, class_map, known_map;
	struct vec units, sources, classes, taken, knowns, near;
};

static void classes_release(struct classes *classes)
{
	idmap_release(&classes->unit_map);
	idmap_release(&classes->class_map);
	idmap_release(&classes->known_map);
	vec_release(&classes->units);
	vec_release(&classes->sources);
	vec_release(&classes->classes);
	vec_release(&classes->taken);
	vec_release(&classes->knowns);
	vec_release(&classes->near);
}

static uint64_t tensor_key(const struct manifest *manifest, uint32_t rank,
			   const struct param *param, const struct piece *piece)
{
	char name[512];
	const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);

	tensor_name(rule, param->layer, param_expert(manifest, rank, param, piece->slot), name,
		    sizeof(name));
	return digest_bytes(name, strlen(name), 0);
}

static struct box piece_box(const struct piece *piece)
{
	struct box box = {.dim_count = piece->dim_count};

	memcpy(box.offset, piece->offset, sizeof(box.offset));
	memcpy(box.extent, piece->extent, sizeof(box.extent));
	for (uint32_t d = piece->dim_count; d < BOX_DIM_MAX; d++)
		box.offset[d] = box.extent[d] = 0;
	return box;
}

static void sources_add(struct classes *classes, const struct manifest *manifest, uint32_t rank,
			const struct param *param)
{
	for (uint32_t i = 0; i < param->form->piece_count; i++) {
		const struct piece *piece = &param->form->pieces[i];
		uint64_t key = tensor_key(manifest, rank, param, piece);
		uint32_t index = idmap_get(&classes->unit_map, key);
		struct source *source = vec_add(&classes->sources, sizeof(*source));
		if (index == NONE) {
			index = (uint32_t)classes->units.count;
			ck_assert_ptr_nonnull(vec_add(&classes->units, sizeof(struct unit)));
			ck_assert_int_eq(idmap_put(&classes->unit_map, key, index), 0);
		}
		struct unit *unit = (struct unit *)classes->units.items + index;
		*source = (struct source){.box = piece_box(piece), .rank = rank};
		struct source *all = classes->sources.items;
		if (unit->first == 0)
			unit->first = (uint32_t)classes->sources.count;
		else
			all[unit->last - 1].next = (uint32_t)classes->sources.count;
		unit->last = (uint32_t)classes->sources.count;
		unit->digest = digest_bytes(&source->box, sizeof(source->box), unit->digest + rank);
	}
}

static uint32_t class_find(struct classes *classes, const struct mask *holders)
{
	uint64_t key = digest_bytes(holders, sizeof(*holders), 7);
	uint32_t index = idmap_get(&classes->class_map, key);

	if (index != NONE)
		return index;
	struct class *class = vec_add(&classes->classes, sizeof(*class));
	class->holders = *holders;
	index = (uint32_t)classes->classes.count - 1;
	ck_assert_int_eq(idmap_put(&classes->class_map, key, index), 0);
	return index;
}

static int number_order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The borders of the sources near a target box, on one dim. */
static uint32_t borders(const struct classes *classes, const struct box *box, uint32_t d,
			uint64_t *out)
{
	const struct source *const *near = classes->near.items;
	uint64_t lo = box->offset[d], hi = lo + box->extent[d];
	uint32_t count = 0, kept = 1;

	out[count++] = lo;
	out[count++] = hi;
	for (size_t i = 0; i < classes->near.count; i++) {
		uint64_t ends[] = {near[i]->box.offset[d],
				   near[i]->box.offset[d] + near[i]->box.extent[d]};
		for (int e = 0; e < 2; e++)
			if (ends[e] > lo && ends[e] < hi) {
				ck_assert_uint_lt(count, BORDER_MAX);
				out[count++] = ends[e];
			}
	}
	qsort(out, count, sizeof(*out), number_order);
	for (uint32_t i = 1; i < count; i++)
		if (out[i] != out[kept - 1])
			out[kept++] = out[i];
	return kept;
}

/* One cell of the grid: who holds all of it. */
static void cell_take(struct classes *classes, const struct box *cell, struct known *known)
{
	const struct source *const *near = classes->near.items;
	struct mask holders = {0};
	bool held = false;

	for (size_t i = 0; i < classes->near.count; i++) {
		struct box common;
		if (!box_intersect(&near[i]->box, cell, &common) ||
		    box_volume(&common) != box_volume(cell))
			continue;
		holders.word[near[i]->rank / 64] |= 1ull << near[i]->rank % 64;
		held = true;
	}
	ck_assert(held);
	struct taken *taken = vec_add(&classes->taken, sizeof(*taken));
	*taken = (struct taken){class_find(classes, &holders), box_volume(cell)};
	known->count++;
}

static void grid_take(struct classes *classes, const struct box *box, struct known *known)
{
	static uint64_t ends[BOX_DIM_MAX][BORDER_MAX];
	uint32_t count[BOX_DIM_MAX], at[BOX_DIM_MAX] = {0};
	bool more = true;

	for (uint32_t d = 0; d < box->dim_count; d++)
		count[d] = borders(classes, box, d, ends[d]) - 1;
	while (more) {
		struct box cell = {.dim_count = box->dim_count};
		for (uint32_t d = 0; d < box->dim_count; d++) {
			cell.offset[d] = ends[d][at[d]];
			cell.extent[d] = ends[d][at[d] + 1] - cell.offset[d];
		}
		cell_take(classes, &cell, known);
		more = false;
		for (uint32_t d = box->dim_count; d > 0 && !more; d--) {
			more = ++at[d - 1] < count[d - 1];
			if (!more)
				at[d - 1] = 0;
		}
	}
}

static void target_take(struct classes *classes, const struct unit *unit, const struct box *box,
			uint64_t element_bytes)
{
	const struct source *sources = classes->sources.items;
	uint64_t key = digest_bytes(box, sizeof(*box), unit->digest);
	uint32_t index = idmap_get(&classes->known_map, key);
	struct box common;

	if (index == NONE) {
		struct known *known = vec_add(&classes->knowns, sizeof(*known));
		index = (uint32_t)classes->knowns.count - 1;
		ck_assert_int_eq(idmap_put(&classes->known_map, key, index), 0);
		known->first = classes->taken.count;
		classes->near.count = 0;
		for (uint32_t s = unit->first; s != 0; s = sources[s - 1].next)
			if (box_intersect(&sources[s - 1].box, box, &common))
				*(const struct source **)vec_add(&classes->near, sizeof(void *)) =
					&sources[s - 1];
		grid_take(classes, box, known);
	}
	const struct known *known = (const struct known *)classes->knowns.items + index;
	for (uint32_t i = 0; i < known->count; i++) {
		const struct taken *taken =
			(const struct taken *)classes->taken.items + known->first + i;
		((struct class *)classes->classes.items)[taken->class].bytes +=
			taken->elements * element_bytes;
	}
}

/* All classes of a job, with the bytes that one replica takes out of each. */
static void classes_make(struct classes *classes, const struct plan_input *input)
{
	struct ws_error err = {0};

	for (int side = 0; side < 2; side++) {
		const struct manifest *manifest = side == 0 ? input->trainer : input->rollout;
		for (uint32_t rank = 0; rank < manifest_world(manifest); rank++) {
			struct arena arena = {0};
			struct rank_params params;
			ck_ok(manifest_params(manifest, rank, &arena, &params, &err), err);
			for (uint32_t p = 0; p < params.count; p++) {
				const struct param *param = &params.params[p];
				if (side == 0)
					sources_add(classes, manifest, rank, param);
				for (uint32_t i = 0; side == 1 && i < param->form->piece_count;
				     i++) {
					const struct piece *piece = &param->form->pieces[i];
					struct box box = piece_box(piece);
					uint32_t unit =
						idmap_get(&classes->unit_map,
							  tensor_key(manifest, rank, param, piece));
					ck_assert_uint_ne(unit, NONE);
					target_take(classes,
						    (struct unit *)classes->units.items + unit,
						    &box, ws_dtype_bytes(param->dtype));
				}
			}
			arena_release(&arena);
		}
	}
}

/* ---- Dinic: source 0, sink 1, then ranks, then classes. */
struct edge {
	uint32_t to, back;
	uint64_t room;
};

struct flow_graph {
	uint32_t node_count;
	struct vec *edges; /* by node, of struct edge */
	int32_t *level;
	uint32_t *next, *queue;
};

static void edge_add(struct flow_graph *graph, uint32_t from, uint32_t to, uint64_t room)
{
	struct edge *edge = vec_add(&graph->edges[from], sizeof(*edge));
	struct edge *back = vec_add(&graph->edges[to], sizeof(*back));

	*edge = (struct edge){to, (uint32_t)graph->edges[to].count - 1, room};
	*back = (struct edge){from, (uint32_t)graph->edges[from].count - 1, 0};
}

static bool levels(struct flow_graph *graph)
{
	uint32_t head = 0, tail = 0;

	for (uint32_t i = 0; i < graph->node_count; i++)
		graph->level[i] = -1;
	graph->level[0] = 0;
	graph->queue[tail++] = 0;
	while (head < tail) {
		uint32_t node = graph->queue[head++];
		const struct edge *edges = graph->edges[node].items;
		for (size_t i = 0; i < graph->edges[node].count; i++)
			if (edges[i].room > 0 && graph->level[edges[i].to] < 0) {
				graph->level[edges[i].to] = graph->level[node] + 1;
				graph->queue[tail++] = edges[i].to;
			}
	}
	return graph->level[1] >= 0;
}

static uint64_t augment(struct flow_graph *graph, uint32_t node, uint64_t room)
{
	struct edge *edges = graph->edges[node].items;

	if (node == 1)
		return room;
	for (; graph->next[node] < graph->edges[node].count; graph->next[node]++) {
		struct edge *edge = &edges[graph->next[node]];
		if (edge->room == 0 || graph->level[edge->to] != graph->level[node] + 1)
			continue;
		uint64_t sent = augment(graph, edge->to, MIN(room, edge->room));
		if (sent == 0)
			continue;
		edge->room -= sent;
		((struct edge *)graph->edges[edge->to].items)[edge->back].room += sent;
		return sent;
	}
	return 0;
}

static uint64_t max_flow(struct flow_graph *graph)
{
	uint64_t flow = 0, sent;

	while (levels(graph)) {
		memset(graph->next, 0, graph->node_count * sizeof(*graph->next));
		while ((sent = augment(graph, 0, UINT64_MAX)) > 0)
			flow += sent;
	}
	return flow;
}

/* Whether all bytes can be sent when rank i sends at most level * weights[i]. */
static bool feasible(const struct classes *classes, uint32_t ranks, uint32_t replicas,
		     const uint64_t *weights, double level)
{
	const struct class *list = classes->classes.items;
	uint32_t nodes = 2 + ranks + (uint32_t)classes->classes.count;
	struct flow_graph graph = {.node_count = nodes};
	uint64_t needed = 0;

	graph.edges = mem_alloc(nodes * sizeof(struct vec));
	graph.level = mem_alloc(nodes * sizeof(int32_t));
	graph.next = mem_alloc(nodes * sizeof(uint32_t));
	graph.queue = mem_alloc(nodes * sizeof(uint32_t));
	for (uint32_t r = 0; r < ranks; r++)
		edge_add(&graph, 2 + r, 1, (uint64_t)(level * (double)weights[r]));
	for (uint32_t c = 0; c < classes->classes.count; c++) {
		edge_add(&graph, 0, 2 + ranks + c, list[c].bytes * replicas);
		needed += list[c].bytes * replicas;
		for (uint32_t r = 0; r < ranks; r++)
			if ((list[c].holders.word[r / 64] >> r % 64 & 1) != 0)
				edge_add(&graph, 2 + ranks + c, 2 + r, UINT64_MAX);
	}
	bool all = max_flow(&graph) == needed;
	for (uint32_t i = 0; i < nodes; i++)
		vec_release(&graph.edges[i]);
	mem_free(graph.edges);
	mem_free(graph.level);
	mem_free(graph.next);
	mem_free(graph.queue);
	return all;
}

static double optimum(const struct classes *classes, uint32_t ranks, uint32_t replicas,
		      const uint64_t *weights)
{
	double lo = 0, hi = 1;

	while (!feasible(classes, ranks, replicas, weights, hi))
		hi *= 2;
	lo = hi / 2;
	for (int i = 0; i < 14; i++) {
		double middle = (lo + hi) / 2;
		if (feasible(classes, ranks, replicas, weights, middle))
			hi = middle;
		else
			lo = middle;
	}
	return hi;
}

/* ---- Jobs. */
#define SLOWER 2 /* every third trainer's NICs, in the last job */

static const struct plan_job jobs[] = {
	{.model = "kimi-k2",
	 .trainer = "megatron",
	 .trainer_mesh = "tp=8,cp=4,pp=8,ep=32,etp=1,last=5",
	 .rollout = "vllm",
	 .rollout_mesh = "tp=16,ep=16"},
	{.model = "qwen3-30b-a3b",
	 .trainer = "fsdp2",
	 .trainer_mesh = "rep=4,dp=6",
	 .rollout = "vllm",
	 .rollout_mesh = "tp=2"},
	{.model = "qwen3-30b-a3b",
	 .trainer = "megatron",
	 .trainer_mesh = "tp=2,pp=3,dp=8,ep=8,etp=1",
	 .rollout = "sglang",
	 .rollout_mesh = "tp=4,ep=4"},
	{.model = "llama-3-70b",
	 .trainer = "megatron",
	 .trainer_mesh = "tp=4,pp=4,dp=3",
	 .rollout = "vllm",
	 .rollout_mesh = "tp=8"},
	{.model = "deepseek-v3",
	 .trainer = "megatron",
	 .trainer_mesh = "tp=4,cp=2,pp=4,ep=16,etp=1,dp=2,first=16,last=15",
	 .rollout = "sglang",
	 .rollout_mesh = "tp=8,dp=4,ep=8"},
	{.model = "qwen3-32b",
	 .trainer = "fsdp2",
	 .trainer_mesh = "rep=3,dp=4",
	 .rollout = "vllm",
	 .rollout_mesh = "tp=4"},
};

static const uint32_t replica_counts[] = {1, 3, 5, 8};

static struct place *places_make(struct arena *arena, uint32_t trainers, uint32_t members)
{
	struct place *places = arena_array(arena, members, sizeof(*places));

	for (uint32_t i = 0; i < members; i++) {
		snprintf(places[i].host, sizeof(places[i].host), "h%u", i / 8);
		places[i].nic_count = 1;
		places[i].mbps = i < trainers && i % 3 == 0 ? 400000 / SLOWER : 400000;
	}
	return places;
}

static void check_balance(const struct classes *classes, const struct plan *plan,
			  const uint64_t *weights)
{
	const struct class *list = classes->classes.items;
	uint32_t ranks = plan->trainer_count, replicas = plan->input.replica_count;
	double best = optimum(classes, ranks, replicas, weights), busiest = 0;

	for (uint32_t r = 0; r < ranks; r++) {
		bool useful = false;
		for (uint32_t c = 0; c < classes->classes.count; c++)
			useful = useful || (list[c].holders.word[r / 64] >> r % 64 & 1) != 0;
		ck_assert_msg(!useful || plan->sent[r] > 0,
			      "trainer %u is idle and holds something", r);
		busiest = MAX(busiest, (double)plan->sent[r] / (double)weights[r]);
	}
	ck_assert_msg(busiest <= 1.02 * best, "%" PRIu32 " replicas: %.4f of the optimum", replicas,
		      busiest / best);
	ck_assert_msg(busiest >= 0.999 * best, "below the optimum: %f < %f", busiest, best);
}

START_TEST(the_busiest_sender_is_near_the_fractional_optimum)
{
	const struct plan_job *job = &jobs[(size_t)_i % ARRAY_SIZE(jobs)];
	bool slower = (size_t)_i >= ARRAY_SIZE(jobs);
	struct classes classes = {0};
	struct manifest *manifests[2] = {0};
	struct arena arena = {0};
	struct ws_error err = {0};
	uint32_t replicas[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct plan_input input = {.replicas = replicas, .rules = RULES_DEFAULT};

	for (int side = 0; side < 2; side++) {
		struct writer out = WRITER_INIT(16u << 20);
		ck_ok(plan_job_manifest(job, (enum side)side, &out, NULL, &err), err);
		ck_ok(manifest_parse(&manifests[side], out.bytes, out.count, NULL, &err), err);
		writer_release(&out);
	}
	input.trainer = manifests[SIDE_TRAINER];
	input.rollout = manifests[SIDE_ROLLOUT];
	classes_make(&classes, &input);
	uint32_t trainers = manifest_world(input.trainer);
	uint64_t *weights = arena_array(&arena, trainers, sizeof(*weights));
	for (uint32_t i = 0; i < trainers; i++)
		weights[i] = slower && i % 3 == 0 ? 1 : slower ? SLOWER : 1;
	for (size_t i = 0; i < ARRAY_SIZE(replica_counts); i++) {
		struct plan *plan = NULL;
		input.replica_count = replica_counts[i];
		if (slower)
			input.places = places_make(
				&arena, trainers,
				trainers + replica_counts[i] * manifest_world(input.rollout));
		ck_ok(plan_make(&plan, &input, PLAN_ALL, NULL, &err), err);
		check_balance(&classes, plan, weights);
		plan_free(plan);
	}
	classes_release(&classes);
	manifest_free(manifests[0]);
	manifest_free(manifests[1]);
	arena_release(&arena);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("plan_balance");
	TCase *real = tcase_create("real jobs");

	tcase_set_timeout(real, 300);
	tcase_add_loop_test(real, the_busiest_sender_is_near_the_fractional_optimum, 0,
			    2 * (int)ARRAY_SIZE(jobs));
	suite_add_tcase(tests, real);
	return tests;
}
