/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distances, and what holds of any host: topologies drawn by a seed.
 */
#include <stdio.h>
#include <string.h>

#include "lib/transport/topology.h"
#include "tests/test.h"

static struct ws_error err;

/* ---------------------------------------------------------------- distances */

START_TEST(shared_bridges_then_nodes_then_sockets_make_a_distance)
{
#define AT(node, socket, count, ...)                                                        \
	{                                                                                   \
		.numa = node, .package = socket, .depth = count, .bridges = { __VA_ARGS__ } \
	}
	static const struct {
		struct pci_place a, b;
		enum distance distance;
	} cases[] = {
		{AT(0, 0, 2, 1, 2), AT(0, 0, 2, 1, 2), DISTANCE_SWITCH},
		{AT(0, 0, 3, 1, 2, 3), AT(0, 0, 3, 1, 2, 4), DISTANCE_SWITCH},
		{AT(0, 0, 2, 1, 2), AT(0, 0, 2, 1, 3), DISTANCE_HOST_BRIDGE},
		{AT(0, 0, 1, 1, 0), AT(0, 0, 1, 1, 0), DISTANCE_HOST_BRIDGE},
		{AT(0, 0, 2, 1, 2), AT(0, 0, 2, 5, 6), DISTANCE_NODE},
		{AT(0, 0, 2, 1, 2), AT(1, 0, 2, 5, 6), DISTANCE_SOCKET},
		{AT(0, 0, 2, 1, 2), AT(1, 1, 2, 5, 6), DISTANCE_FAR},
		{AT(0, -1, 2, 1, 2), AT(1, -1, 2, 5, 6), DISTANCE_FAR},
		{AT(-1, -1, 2, 1, 2), AT(1, 1, 2, 5, 6), DISTANCE_UNKNOWN},
		{AT(-1, -1, 0, 0), AT(-1, -1, 0, 0), DISTANCE_UNKNOWN},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		ck_assert_int_eq(pci_distance(&cases[i].a, &cases[i].b), cases[i].distance);
		ck_assert_int_eq(pci_distance(&cases[i].b, &cases[i].a), cases[i].distance);
	}
}
END_TEST

/* ---------------------------------------------------------------- hosts by seed */

#define SEEDED_MAX 24

static uint32_t draw(uint64_t *seed, uint32_t below)
{
	*seed = mix64(*seed + 0x9e3779b97f4a7c15u);
	return (uint32_t)(*seed % below);
}

static struct pci_place place_draw(uint64_t *seed, uint32_t number)
{
	uint32_t node = draw(seed, 2), root = 10 + 2 * node + draw(seed, 2);
	struct pci_place place = {
		.numa = (int)node,
		.package = (int)node,
		.depth = 2 + draw(seed, 2),
		.bridges = {root, 100 + 10 * root + draw(seed, 2), 10000 + number},
	};
	snprintf(place.address, sizeof(place.address), "0000:%02x:00.0", number);
	return place;
}

static void infos_draw(uint64_t *seed, const struct topology *topology, struct nic_info *infos)
{
	for (uint32_t i = 0; i < topology->nic_count; i++) {
		infos[i] = (struct nic_info){.numa = topology->nics[i].at.numa};
		snprintf(infos[i].device, sizeof(infos[i].device), "%s", topology->nics[i].name);
		snprintf(infos[i].pci, sizeof(infos[i].pci), "%s", topology->nics[i].at.address);
		if (draw(seed, 6) == 0)
			snprintf(infos[i].skipped, sizeof(infos[i].skipped), "port 1 is down");
	}
}

static void host_draw(uint64_t *seed, struct topology *topology, struct topology_gpu *gpus,
		      struct topology_nic *nics)
{
	*topology = (struct topology){.saved = true,
				      .gpus = gpus,
				      .nics = nics,
				      .numa = -1,
				      .gpu_count = 1 + draw(seed, 8),
				      .nic_count = 1 + draw(seed, SEEDED_MAX)};
	for (uint32_t i = 0; i < topology->gpu_count; i++)
		gpus[i] = (struct topology_gpu){.at = place_draw(seed, i)};
	for (uint32_t i = 0; i < topology->nic_count; i++) {
		nics[i] = (struct topology_nic){.at = place_draw(seed, 64 + i), .rdma = true};
		snprintf(nics[i].name, sizeof(nics[i].name), "mlx5_%u", i);
	}
}

/* Whatever the host: a NIC that works serves each GPU, no nearer one is left out, each that isn't
 * chosen says why, and the order in which NICs are listed doesn't matter. */
START_TEST(every_gpu_is_served_by_its_nearest_in_any_order_of_the_list)
{
	struct topology topology;
	struct topology_gpu gpus[8];
	struct topology_nic nics[SEEDED_MAX];
	struct nic_info infos[SEEDED_MAX], turned[SEEDED_MAX];
	uint64_t seed = mix64((uint64_t)_i + 1);

	host_draw(&seed, &topology, gpus, nics);
	infos_draw(&seed, &topology, infos);
	uint32_t count = topology.nic_count, usable = 0;
	for (uint32_t i = 0; i < count; i++) {
		turned[count - 1 - i] = infos[i];
		usable += infos[i].skipped[0] == '\0' ? 1 : 0;
	}
	uint32_t gpu = draw(&seed, topology.gpu_count);
	ck_ok(nics_choose(&topology, (int)gpu, infos, count, &err), err);
	ck_ok(nics_choose(&topology, (int)gpu, turned, count, &err), err);
	uint64_t served = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct nic_info *info = &infos[i];
		ck_assert_uint_eq(info->gpus, turned[count - 1 - i].gpus);
		ck_assert_str_eq(info->skipped, turned[count - 1 - i].skipped);
		ck_assert_int_eq((info->gpus >> gpu & 1) != 0, info->skipped[0] == '\0');
		served |= info->gpus;
		for (uint32_t k = 0; k < count; k++)
			ck_assert(infos[k].skipped[0] != '\0' ||
				  strcmp(info->skipped, "port 1 is down") == 0 ||
				  nic_distance(&topology, &infos[k], gpu) <=
					  nic_distance(&topology, info, gpu));
	}
	ck_assert_uint_eq(served, usable == 0 ? 0 : (UINT64_C(1) << topology.gpu_count) - 1);
}
END_TEST

/* All equally near: the most and the least that a GPU has, or a NIC serves, differ by one. */
START_TEST(equally_near_nics_are_shared_evenly)
{
	struct topology topology;
	struct topology_gpu gpus[8];
	struct topology_nic nics[SEEDED_MAX];
	struct nic_info infos[SEEDED_MAX];
	uint64_t seed = mix64((uint64_t)_i + 1000);
	uint32_t gpu_least = UINT32_MAX, gpu_most = 0, nic_least = UINT32_MAX, nic_most = 0;

	host_draw(&seed, &topology, gpus, nics);
	for (uint32_t i = 0; i < topology.gpu_count; i++)
		gpus[i].at.depth = 0, gpus[i].at.numa = 0;
	for (uint32_t i = 0; i < topology.nic_count; i++)
		nics[i].at.depth = 0, nics[i].at.numa = 0;
	infos_draw(&seed, &topology, infos);
	infos[0].skipped[0] = '\0';
	ck_ok(nics_choose(&topology, 0, infos, topology.nic_count, &err), err);
	for (uint32_t gpu = 0; gpu < topology.gpu_count; gpu++) {
		uint32_t has = 0;
		for (uint32_t i = 0; i < topology.nic_count; i++)
			has += (infos[i].gpus >> gpu & 1) != 0 ? 1 : 0;
		gpu_least = MIN(gpu_least, has);
		gpu_most = MAX(gpu_most, has);
	}
	for (uint32_t i = 0; i < topology.nic_count; i++) {
		if (strcmp(infos[i].skipped, "port 1 is down") == 0)
			continue;
		uint32_t serves = (uint32_t)__builtin_popcountll(infos[i].gpus);
		nic_least = MIN(nic_least, serves);
		nic_most = MAX(nic_most, serves);
	}
	ck_assert_uint_ge(gpu_least, 1);
	ck_assert_uint_ge(nic_least, 1);
	ck_assert_uint_le(gpu_most - gpu_least, 1);
	ck_assert_uint_le(nic_most - nic_least, 1);
}
END_TEST

/* Two interfaces of one address, on no card: neither is nearer, and both are named alike. */
START_TEST(nics_of_one_name_are_told_apart)
{
	struct topology_gpu gpus[2] = {0};
	const struct topology topology = {.gpus = gpus, .numa = -1, .gpu_count = 2};
	struct nic_info infos[2];

	for (int gpu = 0; gpu < 2; gpu++) {
		for (int i = 0; i < 2; i++)
			infos[i] = (struct nic_info){.device = "tcp/192.0.2.1", .numa = -1};
		ck_ok(nics_choose(&topology, gpu, infos, 2, &err), err);
		ck_assert_str_eq(infos[gpu].skipped, "");
		ck_assert_str_ne(infos[1 - gpu].skipped, "");
	}
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("affinity");
	TCase *all = tcase_create("all");

	tcase_set_timeout(all, 60);
	tcase_add_test(all, shared_bridges_then_nodes_then_sockets_make_a_distance);
	tcase_add_loop_test(all, every_gpu_is_served_by_its_nearest_in_any_order_of_the_list, 0,
			    100);
	tcase_add_loop_test(all, equally_near_nics_are_shared_evenly, 0, 100);
	tcase_add_test(all, nics_of_one_name_are_told_apart);
	suite_add_tcase(s, all);
	return s;
}
