/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GID a connection is made from: tables as vendors lay them out, and the reasons.  No device
 * is needed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "lib/transport/verbs.h"
#include "tests/test.h"

#define ENTRIES_MAX 8

struct table {
	struct ibv_gid_entry entries[ENTRIES_MAX];
	uint32_t count;
};

static void add(struct table *table, uint32_t index, enum ibv_gid_type type, const char *address)
{
	struct ibv_gid_entry *entry = &table->entries[table->count++];

	*entry = (struct ibv_gid_entry){.gid_index = index, .gid_type = type, .ndev_ifindex = 7};
	if (strchr(address, ':') != NULL) {
		ck_assert_int_eq(inet_pton(AF_INET6, address, entry->gid.raw), 1);
		return;
	}
	entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
	ck_assert_int_eq(inet_pton(AF_INET, address, entry->gid.raw + 12), 1);
}

static struct table table_mlx5(uint32_t first)
{
	struct table table = {0};

	add(&table, first, IBV_GID_TYPE_ROCE_V1, "fe80::5054:ff:fe12:1");
	add(&table, first + 1, IBV_GID_TYPE_ROCE_V2, "fe80::5054:ff:fe12:1");
	add(&table, first + 2, IBV_GID_TYPE_ROCE_V1, "10.0.1.1");
	add(&table, first + 3, IBV_GID_TYPE_ROCE_V2, "10.0.1.1");
	return table;
}

static struct verbs_gid chosen(const struct table *table, int wanted)
{
	struct verbs_gid gid;

	ck_assert_int_eq(verbs_gid_choose(table->entries, table->count, wanted, &gid), 0);
	ck_assert_ptr_nonnull(strstr(gid.reason, gid.address));
	return gid;
}

static void none_because(const struct table *table, int wanted, const char *reason)
{
	struct verbs_gid gid;

	ck_assert_int_eq(verbs_gid_choose(table->entries, table->count, wanted, &gid), -ENODEV);
	ck_assert_msg(strstr(gid.reason, reason) != NULL, "'%s' doesn't say '%s'", gid.reason,
		      reason);
}

START_TEST(the_routable_ipv4_one_of_roce_v2_is_taken_wherever_it_is)
{
	/* A link flap moves the table's entries. */
	struct table table = table_mlx5((uint32_t)_i);
	struct verbs_gid gid = chosen(&table, -1);

	ck_assert_uint_eq(gid.index, (unsigned)_i + 3);
	ck_assert_uint_eq(gid.type, IBV_GID_TYPE_ROCE_V2);
	ck_assert_uint_eq(gid.netdev, 7);
	ck_assert_str_eq(gid.address, "10.0.1.1");
	ck_assert_ptr_nonnull(strstr(gid.reason, "RoCE v2 over a routable IPv4 address"));
}
END_TEST

START_TEST(the_order_of_entries_doesnt_matter_and_the_lowest_index_wins)
{
	struct table table = {0};

	add(&table, 5, IBV_GID_TYPE_ROCE_V2, "10.0.2.1");
	add(&table, 4, IBV_GID_TYPE_ROCE_V2, "10.0.1.1");
	add(&table, 1, IBV_GID_TYPE_ROCE_V2, "fd00::1");
	add(&table, 0, IBV_GID_TYPE_ROCE_V1, "10.0.1.1");
	ck_assert_uint_eq(chosen(&table, -1).index, 4);
	for (uint32_t i = 0; i < table.count / 2; i++) {
		struct ibv_gid_entry other = table.entries[i];
		table.entries[i] = table.entries[table.count - 1 - i];
		table.entries[table.count - 1 - i] = other;
	}
	ck_assert_uint_eq(chosen(&table, -1).index, 4);
}
END_TEST

START_TEST(without_a_routable_ipv4_address_the_next_best_is_taken)
{
	struct table table = {0};

	add(&table, 0, IBV_GID_TYPE_ROCE_V2, "fe80::1");
	add(&table, 1, IBV_GID_TYPE_ROCE_V2, "169.254.3.4");
	add(&table, 2, IBV_GID_TYPE_ROCE_V1, "10.0.1.1");
	ck_assert_uint_eq(chosen(&table, -1).index, 2);
	add(&table, 3, IBV_GID_TYPE_IB, "fe80::2");
	ck_assert_uint_eq(chosen(&table, -1).index, 3);
	add(&table, 4, IBV_GID_TYPE_ROCE_V2, "2001:db8::1");
	struct verbs_gid gid = chosen(&table, -1);
	ck_assert_uint_eq(gid.index, 4);
	ck_assert_str_eq(gid.address, "2001:db8::1");
	ck_assert_ptr_nonnull(strstr(gid.reason, "there is no IPv4 one"));
}
END_TEST

START_TEST(infiniband_has_its_own_though_it_looks_link_local)
{
	struct table table = {0};

	add(&table, 0, IBV_GID_TYPE_IB, "fe80::e41d:2d03:7:1");
	struct verbs_gid gid = chosen(&table, -1);
	ck_assert_uint_eq(gid.type, IBV_GID_TYPE_IB);
	char subnet[NIC_NAME_MAX];
	verbs_subnet(&gid, subnet);
	ck_assert_str_eq(subnet, "ib fe80::/64");
}
END_TEST

START_TEST(a_user_who_insists_gets_that_one)
{
	struct table table = table_mlx5(0);

	for (int i = 0; i < 4; i++)
		ck_assert_uint_eq(chosen(&table, i).index, (unsigned)i);
	ck_assert_ptr_nonnull(strstr(chosen(&table, 1).reason, "asked for"));
	none_because(&table, 4, "nothing at index 4");
}
END_TEST

START_TEST(where_none_is_usable_the_reason_says_what_to_do)
{
	struct table table = {0};

	none_because(&table, -1, "empty");
	add(&table, 0, IBV_GID_TYPE_ROCE_V2, "::");
	none_because(&table, -1, "empty");
	none_because(&table, 0, "nothing at index 0");
	add(&table, 1, IBV_GID_TYPE_ROCE_V1, "fe80::1");
	add(&table, 2, IBV_GID_TYPE_ROCE_V2, "fe80::1");
	add(&table, 3, IBV_GID_TYPE_ROCE_V2, "169.254.1.1");
	none_because(&table, -1, "all 3 GIDs are link-local; give the interface an address");
}
END_TEST

START_TEST(rails_are_paired_by_the_subnet_of_the_gid)
{
	static const char *const expected[][2] = {
		{"127.0.0.9", "127.0.0.0/8"},	   /* an interface of this host */
		{"203.0.113.7", "203.0.113.7/32"}, /* none of it: the mask isn't known */
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
	};
	char subnet[NIC_NAME_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
		struct table table = {0};
		add(&table, 0, IBV_GID_TYPE_ROCE_V2, expected[i][0]);
		struct verbs_gid gid = chosen(&table, 0);
		verbs_subnet(&gid, subnet);
		ck_assert_str_eq(subnet, expected[i][1]);
	}
}
END_TEST

START_TEST(a_devices_name_is_read_or_refused_with_a_sentence)
{
	static const char *const bad[] = {
		"",	     "/1",	   "?gid=1",	  "a/",	     "a/0",
		"a/x",	     "a/256",	   "a/1?",	  "a/1?gid", "a/1?gid=",
		"a/1?gid=x", "a/1?gid=-1", "a/1?mtu=300", "a/1?x=1", "a/1?subnet="};
	struct verbs_options options;
	struct ws_error err;

	ck_ok(verbs_options_parse(&options, "mlx5_0", &err), err);
	ck_assert_str_eq(options.device, "mlx5_0");
	ck_assert_uint_eq(options.port, 0);
	ck_assert_int_eq(options.gid, -1);
	ck_ok(verbs_options_parse(&options, "mlx5_0/2?gid=3&mtu=1024&subnet=blue&retries=1", &err),
	      err);
	ck_assert_uint_eq(options.port, 2);
	ck_assert_int_eq(options.gid, 3);
	ck_assert_int_eq(options.mtu, 1024);
	ck_assert_int_eq(options.retries, 1);
	ck_assert_str_eq(options.subnet, "blue");
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		memset(&err, 0, sizeof(err));
		int rc = verbs_options_parse(&options, bad[i], &err);
		ck_assert_msg(rc == -EINVAL, "'%s': %d", bad[i], rc);
		ck_assert_str_ne(err.text, "");
	}
}
END_TEST

START_TEST(a_ports_rate_is_its_lanes_times_their_speed)
{
	static const struct {
		uint8_t speed, width;
		uint64_t mbps;
	} expected[] = {{1, 1, 2500},	  {32, 1, 25000},   {32, 2, 100000}, {64, 2, 200000},
			{128, 2, 400000}, {128, 4, 800000}, {99, 2, 0}};

	for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
		struct ibv_port_attr attr = {.active_speed = expected[i].speed,
					     .active_width = expected[i].width};
		ck_assert_uint_eq(verbs_mbps(&attr), expected[i].mbps);
	}
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("verbs_gid");
	TCase *tests = tcase_create("verbs_gid");

	tcase_add_loop_test(tests, the_routable_ipv4_one_of_roce_v2_is_taken_wherever_it_is, 0, 4);
	tcase_add_test(tests, the_order_of_entries_doesnt_matter_and_the_lowest_index_wins);
	tcase_add_test(tests, without_a_routable_ipv4_address_the_next_best_is_taken);
	tcase_add_test(tests, infiniband_has_its_own_though_it_looks_link_local);
	tcase_add_test(tests, a_user_who_insists_gets_that_one);
	tcase_add_test(tests, where_none_is_usable_the_reason_says_what_to_do);
	tcase_add_test(tests, rails_are_paired_by_the_subnet_of_the_gid);
	tcase_add_test(tests, a_devices_name_is_read_or_refused_with_a_sentence);
	tcase_add_test(tests, a_ports_rate_is_its_lanes_times_their_speed);
	suite_add_tcase(all, tests);
	return all;
}
