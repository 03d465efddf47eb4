/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Topologies of hosts that aren't here (tests/topologies, written by make.py): which NICs serve
 * which GPU, why the others don't, and where I/O threads run.  The expected maps are by hand.
 */
#include <errno.h>
#include <sched.h>

#include "tests/folder.h"
#include "tests/topology_saved.h"

/* ---------------------------------------------------------------- maps */

START_TEST(eight_gpus_and_eight_nics_pair_up)
{
	static const char *const map[] = {"mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_3/1",
					  "mlx5_4/1", "mlx5_5/1", "mlx5_6/1", "mlx5_7/1"};
	struct saved saved;

	saved_open(&saved, "hgx", "verbs", "", 2);
	ck_assert_uint_eq(saved.count, 10);
	expect_map(&saved, map, 8);
	expect_reason(&saved, "mlx5_2/1", "");
	ck_assert_str_eq(info_find(&saved, "mlx5_2/1")->near, "same switch");
	ck_assert_str_eq(info_find(&saved, "mlx5_2/1")->pci, "0000:14:00.0");
	expect_reason(&saved, "mlx5_3/1", "serves GPU 3, not GPU 2");
	expect_reason(&saved, "mlx5_7/1", "serves GPU 7, not GPU 2");
	expect_reason(&saved, "mlx5_8/1", "mlx5_2/1 is nearer to GPU 2 (same switch)");
	expect_reason(&saved, "mlx5_9/1", "port 1 is down");
	saved_release(&saved);
}
END_TEST

START_TEST(storage_nics_of_another_socket_say_so)
{
	struct saved saved;

	saved_open(&saved, "hgx", "verbs", "", 6);
	expect_reason(&saved, "mlx5_8/1", "behind another socket than GPU 6");
	expect_reason(&saved, "mlx5_9/1", "port 1 is down");
	saved_release(&saved);
}
END_TEST

/* The NIC that GPU 2 used is down: the other one below its switch serves both. */
START_TEST(a_nic_that_is_down_leaves_its_gpu_to_the_next_nearest)
{
	struct saved saved;

	saved_load(&saved, "hgx");
	saved_list(&saved, "verbs", "");
	snprintf(info_find(&saved, "mlx5_2/1")->skipped, 32, "port 1 is down");
	saved_choose(&saved, 2);
	ck_assert_str_eq(serving(&saved, 2), "mlx5_3/1");
	ck_assert_str_eq(serving(&saved, 3), "mlx5_3/1");
	ck_assert_str_eq(serving(&saved, 1), "mlx5_1/1");
	expect_reason(&saved, "mlx5_2/1", "port 1 is down");
	saved_release(&saved);
}
END_TEST

START_TEST(each_gpu_of_a_p5_has_the_four_efas_of_its_switch)
{
	static const char *const map[] = {
		"efa/rdmap0s0-rdm efa/rdmap1s0-rdm efa/rdmap2s0-rdm efa/rdmap3s0-rdm",
		"efa/rdmap4s0-rdm efa/rdmap5s0-rdm efa/rdmap6s0-rdm efa/rdmap7s0-rdm",
		"efa/rdmap8s0-rdm efa/rdmap9s0-rdm efa/rdmap10s0-rdm efa/rdmap11s0-rdm",
		"efa/rdmap12s0-rdm efa/rdmap13s0-rdm efa/rdmap14s0-rdm efa/rdmap15s0-rdm",
		"efa/rdmap16s0-rdm efa/rdmap17s0-rdm efa/rdmap18s0-rdm efa/rdmap19s0-rdm",
		"efa/rdmap20s0-rdm efa/rdmap21s0-rdm efa/rdmap22s0-rdm efa/rdmap23s0-rdm",
		"efa/rdmap24s0-rdm efa/rdmap25s0-rdm efa/rdmap26s0-rdm efa/rdmap27s0-rdm",
		"efa/rdmap28s0-rdm efa/rdmap29s0-rdm efa/rdmap30s0-rdm efa/rdmap31s0-rdm"};
	struct saved saved;

	saved_open(&saved, "p5", "fabric", "efa", 7);
	ck_assert_uint_eq(saved.count, 32);
	expect_map(&saved, map, 8);
	/* EFA has no RC queue pairs. */
	saved_list(&saved, "verbs", "");
	ck_assert_uint_eq(saved.count, 0);
	saved_release(&saved);
}
END_TEST

START_TEST(each_gpu_of_a_p5en_has_two_efas_and_all_share_one_ena)
{
	static const char *const map[] = {
		"efa/rdmap0s0-rdm efa/rdmap1s0-rdm",   "efa/rdmap2s0-rdm efa/rdmap3s0-rdm",
		"efa/rdmap4s0-rdm efa/rdmap5s0-rdm",   "efa/rdmap6s0-rdm efa/rdmap7s0-rdm",
		"efa/rdmap8s0-rdm efa/rdmap9s0-rdm",   "efa/rdmap10s0-rdm efa/rdmap11s0-rdm",
		"efa/rdmap12s0-rdm efa/rdmap13s0-rdm", "efa/rdmap14s0-rdm efa/rdmap15s0-rdm"};
	struct saved saved;

	saved_open(&saved, "p5en", "fabric", "efa", 0);
	expect_map(&saved, map, 8);
	saved_list(&saved, "fabric", "tcp");
	saved_choose(&saved, 5);
	ck_assert_uint_eq(saved.count, 1);
	ck_assert_uint_eq(saved.infos[0].gpus, 0xff);
	ck_assert_str_eq(saved.infos[0].device, "tcp/ens5");
	ck_assert_str_eq(saved.infos[0].near, "another socket");
	saved_release(&saved);
}
END_TEST

START_TEST(one_nic_serves_the_two_gpus_of_its_switch)
{
	static const char *const map[] = {"mlx5_0/1", "mlx5_0/1", "mlx5_1/1", "mlx5_1/1"};
	struct saved saved;

	saved_open(&saved, "one_nic", "verbs", "", 0);
	expect_map(&saved, map, 4);
	expect_reason(&saved, "mlx5_1/1", "serves GPUs 2 and 3, not GPU 0");
	saved_release(&saved);
}
END_TEST

/* By number the other would be first: the bridges decide. */
START_TEST(below_one_switch_the_own_leaf_is_nearer)
{
	static const char *const map[] = {"mlx5_7/1", "mlx5_3/1"};
	struct saved saved;

	saved_open(&saved, "nested", "verbs", "", 0);
	expect_map(&saved, map, 2);
	saved_release(&saved);
}
END_TEST

START_TEST(a_bonded_pair_is_one_device_and_its_slaves_are_skipped)
{
	static const char *const map[] = {"mlx5_bond_0/1", "mlx5_bond_0/1"};
	struct saved saved;

	saved_open(&saved, "bond", "verbs", "", 1);
	ck_assert_uint_eq(saved.count, 1);
	expect_map(&saved, map, 2);
	saved_list(&saved, "fabric", "tcp");
	saved_choose(&saved, 1);
	ck_assert_uint_eq(saved.count, 3);
	expect_reason(&saved, "tcp/ens1f0", "slave of mlx5_bond_0's bond");
	expect_reason(&saved, "tcp/ens1f1", "slave of mlx5_bond_0's bond");
	expect_reason(&saved, "tcp/eno1", "");
	ck_assert_uint_eq(info_find(&saved, "tcp/ens1f1")->gpus, 0);
	saved_release(&saved);
}
END_TEST

/* ---------------------------------------------------------------- host memory */

START_TEST(host_memory_uses_all_nics_of_a_process_that_is_not_bound)
{
	struct saved saved;

	saved_open(&saved, "no_gpu", "verbs", "", -1);
	ck_assert_int_eq(saved.topology.numa, -1);
	ck_assert_uint_eq(saved.topology.numa_count, 2);
	ck_assert_str_eq(serving(&saved, -1), "mlx5_0/1 mlx5_1/1 mlx5_2/1");
	expect_reason(&saved, "mlx5_3/1", "port 1 is down");
	saved_release(&saved);
}
END_TEST

START_TEST(host_memory_uses_the_nics_of_the_node_that_its_process_is_bound_to)
{
	struct saved saved;

	saved_load(&saved, "no_gpu");
	saved.topology.numa = 1;
	saved_list(&saved, "verbs", "");
	saved_choose(&saved, -1);
	ck_assert_str_eq(serving(&saved, -1), "mlx5_2/1");
	ck_assert_str_eq(info_find(&saved, "mlx5_2/1")->near, "same NUMA node");
	expect_reason(&saved, "mlx5_0/1",
		      "behind another socket: on NUMA node 0, and this process is bound to node 1");
	/* None there that works: better a far one than none. */
	saved_list(&saved, "verbs", "");
	snprintf(info_find(&saved, "mlx5_2/1")->skipped, 32, "no usable GID");
	saved_choose(&saved, -1);
	ck_assert_str_eq(serving(&saved, -1), "mlx5_0/1 mlx5_1/1");
	saved_release(&saved);
}
END_TEST

START_TEST(a_rank_is_given_no_more_nics_than_it_can_have)
{
	struct saved saved;

	saved_open(&saved, "p5", "fabric", "efa", -1);
	uint32_t chosen = 0;
	for (uint32_t i = 0; i < saved.count; i++)
		chosen += saved.infos[i].skipped[0] == '\0' ? 1 : 0;
	ck_assert_uint_eq(chosen, NICS_CHOSEN_MAX);
	expect_reason(&saved, "efa/rdmap31s0-rdm",
		      "a rank uses 8 NICs at most unless they are named");
	saved_release(&saved);
}
END_TEST

/* ---------------------------------------------------------------- names of GPUs */

START_TEST(a_gpu_is_found_by_number_and_by_pci_address)
{
	static const struct {
		const char *name;
		int index;
	} good[] = {{"0", 0},
		    {"7", 7},
		    {"0000:32:00.0", 4},
		    {"32:00.0", 4},
		    {"00000000:32:00.0", 4}, /* nvidia-smi's */
		    {"0000:43:00.0", 7}};
	static const char *const bad[] = {"8", "-1", "", "0x1", "1 ", "0000:44:00.0", "GPU-1"};
	struct saved saved;
	int index;

	saved_load(&saved, "hgx");
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		ck_ok(topology_gpu_find(&saved.topology, good[i].name, &index, &err), err);
		ck_assert_int_eq(index, good[i].index);
	}
	ck_ok(topology_gpu_find(&saved.topology, NULL, &index, &err), err);
	ck_assert_int_eq(index, -1);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		ck_fails(topology_gpu_find(&saved.topology, bad[i], &index, &err), -ENODEV, err);
		ck_assert_ptr_nonnull(strstr(err.text, "GPUs 0 to 7, from 0000:02:00.0 on"));
	}
	saved_release(&saved);
	saved_load(&saved, "no_gpu");
	ck_fails(topology_gpu_find(&saved.topology, "0", &index, &err), -ENODEV, err);
	ck_assert_str_eq(err.text, "there is no GPU '0': this host has none");
	saved_release(&saved);
}
END_TEST

/* ---------------------------------------------------------------- cores */

/* 16 cores a node, 8 ranks: each near its own NIC, all different, from each node's end. */
START_TEST(io_threads_are_spread_over_the_cores_near_their_nics)
{
	static const int cpus[] = {8, 9, 10, 11, 28, 29, 30, 31};
	struct saved saved;
	struct core_choice choice;

	saved_load(&saved, "hgx");
	for (int rank = 0; rank < 8; rank++) {
		saved_list(&saved, "verbs", "");
		saved_choose(&saved, rank);
		core_choose(&saved.topology, saved.infos, saved.count, (uint32_t)rank, 8, &choice);
		ck_assert_int_eq(choice.cpu, cpus[rank]);
	}
	ck_assert_str_eq(choice.why, "core 31, on NUMA node 1 beside its NICs");
	saved_release(&saved);
}
END_TEST

/* Which ranks may use which cores, and where all NICs are. */
static const struct {
	const char *host;
	int numa;	     /* of all NICs; -1: where they are */
	uint32_t ranks;	     /* of this host */
	uint32_t allowed[2]; /* in even and in odd ranks, the first cores that may not be used */
	uint32_t bound;	     /* how many ranks get a core */
} crowds[] = {
	{"hgx", -1, 8, {0, 0}, 8},    /* 32 cores on two nodes */
	{"hgx", 0, 8, {0, 0}, 8},     /* 16 on this one */
	{"one_nic", 1, 4, {0, 0}, 4}, /* 8 on this one */
	{"hgx", 0, 8, {0, 12}, 6},    /* of the last 4 of them two are odd ranks' */
	{"hgx", 0, 8, {8, 14}, 5},    /* of the last 2 only one is an odd rank's */
	{"hgx", 0, 5, {0, 0}, 5},     {"bond", 0, 1, {0, 0}, 1}, {"hgx", 0, 1, {15, 0}, 1},
};

START_TEST(two_ranks_of_a_host_never_have_one_core)
{
	bool taken[64] = {false};
	struct saved saved;
	struct core_choice choice;
	uint32_t bound = 0;

	saved_load(&saved, crowds[_i].host);
	for (uint32_t rank = 0; rank < crowds[_i].ranks; rank++) {
		saved_list(&saved, "verbs", "");
		saved_choose(&saved, (int)(rank % saved.topology.gpu_count));
		for (uint32_t i = 0; i < saved.count && crowds[_i].numa >= 0; i++)
			saved.infos[i].numa = crowds[_i].numa;
		for (uint32_t i = 0; i < saved.topology.core_count; i++)
			saved.topology.cores[i].allowed = i >= crowds[_i].allowed[rank % 2];
		core_choose(&saved.topology, saved.infos, saved.count, rank, crowds[_i].ranks,
			    &choice);
		if (choice.cpu < 0)
			continue;
		ck_assert_msg(!taken[choice.cpu], "rank %u takes core %d, too", rank, choice.cpu);
		taken[choice.cpu] = true;
		ck_assert_ptr_nonnull(strstr(choice.why, "beside its NICs"));
		bound++;
	}
	ck_assert_uint_eq(bound, crowds[_i].bound);
	saved_release(&saved);
}
END_TEST

START_TEST(who_has_no_core_to_spare_is_not_bound_and_says_why)
{
	struct saved saved;
	struct core_choice choice;

	saved_open(&saved, "hgx", "verbs", "", 0);
	core_choose(&saved.topology, saved.infos, saved.count, 0, 0, &choice);
	ck_assert_int_eq(choice.cpu, -1);
	ck_assert_str_eq(choice.why, "not bound: how many ranks this host has isn't known");
	core_choose(&saved.topology, saved.infos, saved.count, 3, 9, &choice);
	ck_assert_int_eq(choice.cpu, -1);
	ck_assert_str_eq(choice.why, "not bound: 32 cores for 9 ranks on this host, and 4 for each "
				     "are needed to spare one");
	/* mpirun binds a rank to a core. */
	for (uint32_t i = 0; i < saved.topology.core_count; i++)
		saved.topology.cores[i].allowed = i == 3;
	core_choose(&saved.topology, saved.infos, saved.count, 0, 1, &choice);
	ck_assert_int_eq(choice.cpu, -1);
	ck_assert_str_eq(choice.why,
			 "not bound: this process may use 1 core, and 4 are needed to spare one");
	/* It is bound to the other node than its NIC's. */
	for (uint32_t i = 0; i < saved.topology.core_count; i++)
		saved.topology.cores[i].allowed = saved.topology.cores[i].numa == 1;
	core_choose(&saved.topology, saved.infos, saved.count, 0, 1, &choice);
	ck_assert_int_eq(choice.cpu, -1);
	ck_assert_str_eq(choice.why,
			 "not bound: no core that this process may use on NUMA node 0, where its "
			 "NICs are, is left to it");
	saved_release(&saved);
}
END_TEST

/* ---------------------------------------------------------------- files */

static const char *torn_file(size_t bytes)
{
	const char *path = in_folder("torn.xml");
	void *text;
	size_t count;

	ck_ok(file_read("tests/topologies/nested.xml", 1 << 20, &text, &count, &err), err);
	ck_ok(file_write(path, text, MIN(bytes, count), 0600, &err), err);
	mem_free(text);
	return path;
}

START_TEST(a_torn_file_is_an_error_that_names_it)
{
	struct topology topology;
	const char *path = torn_file((size_t)_i * 149);

	ck_fails(topology_load(&topology, path, &err), -EINVAL, err);
	ck_assert_ptr_nonnull(strstr(err.text, "torn.xml"));
	topology_release(&topology);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

START_TEST(a_file_that_is_not_there_is_an_error_that_names_it)
{
	struct topology topology;

	ck_fails(topology_load(&topology, "no/such.xml", &err), -ENOENT, err);
	ck_assert_ptr_nonnull(strstr(err.text, "no/such.xml"));
	topology_release(&topology);
}
END_TEST

/* ---------------------------------------------------------------- this host */

START_TEST(this_host_has_cores_and_its_interfaces_are_placed)
{
	struct saved here = {0};
	cpu_set_t mine;

	ck_ok(topology_load(&here.topology, NULL, &err), err);
	ck_assert_uint_ge(here.topology.core_count, 1);
	ck_assert_uint_ge(here.topology.numa_count, 1);
	ck_assert_int_eq(sched_getaffinity(0, sizeof(mine), &mine), 0);
	for (uint32_t i = 0; i < here.topology.core_count; i++)
		ck_assert(!here.topology.cores[i].allowed ||
			  CPU_ISSET(here.topology.cores[i].cpu, &mine));
	ck_ok(nics_list(&here.arena, "fabric", "tcp", &here.infos, &here.count, &err), err);
	nics_place(&here.topology, here.infos, here.count);
	saved_choose(&here, -1);
	const struct nic_info *loopback = info_find(&here, "tcp/127.0.0.1");
	ck_assert_str_eq(loopback->netdev, "lo");
	ck_assert_str_eq(loopback->pci, "");
	ck_assert_uint_ge(loopback->mtu, 1500);
	ck_assert_str_eq(loopback->skipped, "loopback: name it to use it");
	for (uint32_t i = 0; i < here.count; i++)
		for (uint32_t k = 0; k < here.topology.nic_count; k++)
			if (strcmp(here.infos[i].netdev, here.topology.nics[k].name) == 0)
				ck_assert_str_eq(here.infos[i].pci,
						 here.topology.nics[k].at.address);
	saved_release(&here);
}
END_TEST

START_TEST(every_failed_allocation_is_a_sentence)
{
	bool failed = true;
	int64_t n = 0;

	for (; failed; n++) {
		struct saved saved = {0};
		ck_assert_int_lt(n, 100);
		mem_fail_nth(n);
		int rc = topology_load(&saved.topology, "tests/topologies/bond.xml", &err);
		if (rc == 0)
			rc = topology_nics(&saved.topology, &saved.arena, "verbs", "", &saved.infos,
					   &saved.count, &err);
		if (rc == 0)
			nics_place(&saved.topology, saved.infos, saved.count);
		if (rc == 0)
			rc = nics_choose(&saved.topology, 0, saved.infos, saved.count, &err);
		mem_fail_nth(-1);
		failed = rc != 0;
		ck_assert(rc == 0 || rc == -ENOMEM);
		ck_assert(rc == 0 || err.text[0] != '\0');
		saved_release(&saved);
	}
	ck_assert_int_gt(n, 4);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("topology");
	TCase *maps = tcase_create("maps");
	TCase *loads = tcase_create("loads");

	tcase_set_timeout(maps, 60);
	tcase_add_test(maps, eight_gpus_and_eight_nics_pair_up);
	tcase_add_test(maps, storage_nics_of_another_socket_say_so);
	tcase_add_test(maps, a_nic_that_is_down_leaves_its_gpu_to_the_next_nearest);
	tcase_add_test(maps, each_gpu_of_a_p5_has_the_four_efas_of_its_switch);
	tcase_add_test(maps, each_gpu_of_a_p5en_has_two_efas_and_all_share_one_ena);
	tcase_add_test(maps, one_nic_serves_the_two_gpus_of_its_switch);
	tcase_add_test(maps, below_one_switch_the_own_leaf_is_nearer);
	tcase_add_test(maps, a_bonded_pair_is_one_device_and_its_slaves_are_skipped);
	tcase_add_test(maps, host_memory_uses_all_nics_of_a_process_that_is_not_bound);
	tcase_add_test(maps, host_memory_uses_the_nics_of_the_node_that_its_process_is_bound_to);
	tcase_add_test(maps, a_rank_is_given_no_more_nics_than_it_can_have);
	tcase_add_test(maps, a_gpu_is_found_by_number_and_by_pci_address);
	tcase_add_test(maps, io_threads_are_spread_over_the_cores_near_their_nics);
	tcase_add_loop_test(maps, two_ranks_of_a_host_never_have_one_core, 0,
			    (int)ARRAY_SIZE(crowds));
	tcase_add_test(maps, who_has_no_core_to_spare_is_not_bound_and_says_why);
	suite_add_tcase(s, maps);

	tcase_set_timeout(loads, 60);
	tcase_add_checked_fixture(loads, make_folder, remove_folder);
	tcase_add_loop_test(loads, a_torn_file_is_an_error_that_names_it, 0, 30);
	tcase_add_test(loads, a_file_that_is_not_there_is_an_error_that_names_it);
	tcase_add_test(loads, this_host_has_cores_and_its_interfaces_are_placed);
	tcase_add_test(loads, every_failed_allocation_is_a_sentence);
	suite_add_tcase(s, loads);
	return s;
}
