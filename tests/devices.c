/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NICs a rank uses: those that are named, as they are meant, or those that suit this host;
 * and that it is said what was chosen and why.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/engine/devices.h"
#include "lib/hub/host.h"
#include "tests/test.h"

static int find(struct devices *devices, const char *transport, const char *provider,
		const char *const *nics, uint32_t count, struct ws_error *err)
{
	const struct devices_wanted wanted = {
		.transport = transport, .provider = provider, .nics = nics, .nic_count = count};
	return devices_find(devices, &wanted, err);
}

static bool has(const struct devices *devices, const char *transport, const char *name)
{
	for (uint32_t i = 0; i < devices->count; i++)
		if (strcmp(devices->device[i].transport, transport) == 0 &&
		    strcmp(devices->device[i].name, name) == 0)
			return true;
	return false;
}

/* Those of this host that a transport offers, nobody skips and this process is near. */
static uint32_t offered(const char *transport, const char *provider)
{
	struct arena arena = {0};
	struct topology host;
	struct nic_info *infos;
	struct ws_error err;
	uint32_t count, used = 0;
	ck_ok(topology_load(&host, NULL, &err), err);
	ck_ok(nics_list(&arena, transport, provider, &infos, &count, &err), err);
	nics_place(&host, infos, count);
	ck_ok(nics_choose(&host, -1, infos, count, &err), err);
	for (uint32_t i = 0; i < count; i++)
		used += infos[i].skipped[0] == 0;
	topology_release(&host);
	arena_release(&arena);
	return used;
}

START_TEST(one_transport_is_named_and_only_that_is_used)
{
	static const char *const nics[] = {"127.0.0.1", "tcp/127.0.0.2", "fabric:127.0.0.3"};
	struct devices devices;
	struct ws_error err;
	ck_ok(find(&devices, "fabric", NULL, nics, 3, &err), err);
	ck_assert_uint_eq(devices.count, 3);
	ck_assert(has(&devices, "fabric", "tcp/127.0.0.1"));
	ck_assert(has(&devices, "fabric", "tcp/127.0.0.2"));
	ck_assert(has(&devices, "fabric", "tcp/127.0.0.3"));
	ck_assert_str_eq(devices.inside, "");
	ck_assert_str_eq(devices.choice,
			 "fabric tcp/127.0.0.1, tcp/127.0.0.2, tcp/127.0.0.3 (as named)");
	ck_ok(find(&devices, "ipc", NULL, NULL, 0, &err), err);
	ck_assert_uint_eq(devices.count, 1);
	ck_assert(has(&devices, "ipc", "host"));
	ck_assert_str_ne(devices.inside, "");
}
END_TEST

START_TEST(auto_joins_what_is_named_with_what_stays_inside_the_host)
{
	static const char *const nics[] = {"127.0.0.1", "loop:net/a"};
	struct devices devices;
	struct ws_error err;
	ck_ok(find(&devices, _i == 0 ? NULL : "auto", NULL, nics, 2, &err), err);
	ck_assert_uint_eq(devices.count, 3);
	ck_assert(has(&devices, "ipc", "host"));
	ck_assert(has(&devices, "fabric", "tcp/127.0.0.1"));
	ck_assert(has(&devices, "loop", "net/a"));
	ck_assert_str_eq(devices.choice, "ipc host; fabric tcp/127.0.0.1; loop net/a (as named)");
	/* Naming it again makes no second one. */
	ck_ok(find(&devices, "auto", NULL, (const char *const[]){"ipc:host"}, 1, &err), err);
	ck_assert_uint_eq(devices.count, 1);
}
END_TEST

/* Whatever this host has: one network at most, and why not a better one. */
START_TEST(auto_chooses_the_best_network_and_says_why_no_better_one)
{
	struct devices devices;
	struct ws_error err;
	uint32_t verbs = offered("verbs", NULL), efa = offered("fabric", "efa");
	uint32_t tcp = offered("fabric", "tcp"), wanted = 1;
	ck_ok(find(&devices, NULL, NULL, NULL, 0, &err), err);
	ck_assert(has(&devices, "ipc", "host"));
	wanted += verbs > 0 ? verbs : efa > 0 ? efa : tcp;
	ck_assert_uint_eq(devices.count, wanted);
	for (uint32_t i = 0; i < devices.count; i++) {
		const struct device *device = &devices.device[i];
		const char *provider = verbs > 0 ? "" : efa > 0 ? "efa/" : "tcp/";
		if (strcmp(device->transport, "ipc") == 0)
			continue;
		ck_assert_str_eq(device->transport, verbs > 0 ? "verbs" : "fabric");
		ck_assert_int_eq(strncmp(device->name, provider, strlen(provider)), 0);
		ck_assert_ptr_nonnull(strstr(devices.choice, device->name));
	}
	if (verbs == 0)
		ck_assert_msg(strstr(devices.choice, "RDMA device") != NULL ||
				      strstr(devices.choice, "not ") != NULL,
			      "%s", devices.choice);
	/* A provider that is named is libfabric's, and no other network is looked for. */
	ck_ok(find(&devices, NULL, "tcp", NULL, 0, &err), err);
	ck_assert_uint_eq(devices.count, 1 + tcp);
}
END_TEST

START_TEST(what_cant_be_used_is_refused_with_a_sentence)
{
	static const char *const seventeen[] = {
		"net/a", "net/b", "net/c", "net/d", "net/e", "net/f", "net/g", "net/h", "net/i",
		"net/j", "net/k", "net/l", "net/m", "net/n", "net/o", "net/p", "net/q"};
	char long_name[NIC_NAME_MAX + 8];
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	const char *const long_one[] = {long_name};
	const struct {
		const char *transport;
		const char *const *nics;
		uint32_t count;
		int code;
		const char *says;
	} cases[] = {
		{"pigeon", NULL, 0, -ENODEV, "'pigeon'"},
		{"pigeon", (const char *const[]){"coop"}, 1, -ENODEV, "'pigeon'"},
		{"loop", NULL, 0, -ENODEV,
		 "'loop' has no NIC on this host; `weightsync nics` lists"},
		{"fabric", (const char *const[]){"verbs:mlx5_0/1"}, 1, -EINVAL, "'verbs:mlx5_0/1'"},
		{"verbs", (const char *const[]){"tcp0"}, 1, -ENODEV, "'tcp0'"},
		{"auto", (const char *const[]){"203.0.113.9"}, 1, -ENODEV, "'203.0.113.9'"},
		{"auto", (const char *const[]){"verbs:none_0/1"}, 1, -ENODEV, "'none_0'"},
		{"loop", seventeen, 17, -EINVAL, "16 NICs"},
		{"loop", long_one, 1, -EINVAL, "longer than"},
		{"fabric", long_one, 1, -EINVAL, "longer than"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct devices devices;
		struct ws_error err;
		ck_fails(find(&devices, cases[i].transport, NULL, cases[i].nics, cases[i].count,
			      &err),
			 cases[i].code, err);
		ck_assert_msg(strstr(err.text, cases[i].says) != NULL, "%zu: %s", i, err.text);
	}
}
END_TEST

/* The n-th allocation fails: that isn't a reason to choose something else. */
START_TEST(no_memory_is_no_reason_to_choose_otherwise)
{
	struct devices devices;
	struct ws_error err;
	int64_t nth = 0;
	int rc;
	do {
		mem_fail_nth(nth++);
		rc = find(&devices, "auto", NULL, NULL, 0, &err);
		mem_fail_nth(-1);
		ck_assert_msg(rc == 0 || rc == -ENOMEM, "%d: %s", rc, err.text);
		ck_assert_uint_eq(mem_live_count(), 0);
	} while (rc != 0 && nth < 1000);
	ck_assert_int_eq(rc, 0);
	ck_assert_int_gt(nth, 2);
}
END_TEST

START_TEST(hosts_are_told_apart_by_what_can_be_reached_inside_them)
{
	char a[HOST_TEXT_BYTES], b[HOST_TEXT_BYTES], c[HOST_TEXT_BYTES];
	host_identity("host 1 pid-ns 1", a);
	host_identity("host 1 pid-ns 1", b);
	ck_assert_str_eq(a, b);
	host_identity("host 1 pid-ns 2", b);
	ck_assert_str_ne(a, b);
	host_identity("", b);
	host_identity("", c);
	ck_assert_str_eq(b, c);
	ck_assert_str_ne(a, b);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("devices");
	TCase *cases = tcase_create("devices");
	tcase_set_timeout(cases, 120);
	tcase_add_test(cases, one_transport_is_named_and_only_that_is_used);
	tcase_add_loop_test(cases, auto_joins_what_is_named_with_what_stays_inside_the_host, 0, 2);
	tcase_add_test(cases, auto_chooses_the_best_network_and_says_why_no_better_one);
	tcase_add_test(cases, what_cant_be_used_is_refused_with_a_sentence);
	tcase_add_test(cases, no_memory_is_no_reason_to_choose_otherwise);
	tcase_add_test(cases, hosts_are_told_apart_by_what_can_be_reached_inside_them);
	suite_add_tcase(tests, cases);
	return tests;
}
