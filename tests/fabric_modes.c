/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lib/transport decides from an fi_info, fed with one as EFA makes it, which isn't here:
 * libfabric 1.22's offers on a p5, as its documents and users describe them.
 */
#include <errno.h>
#include <string.h>

#include "lib/transport/fabric.h"
#include "tests/test.h"

static struct ws_error err;

/* An offer with all its parts in place; nothing is allocated. */
struct offer {
	struct fi_info info;
	struct fi_fabric_attr fabric;
	struct fi_domain_attr domain;
	struct fi_ep_attr ep;
	char provider[16], fabric_name[16], domain_name[32];
};

static void offer_make(struct offer *offer, const char *provider, const char *fabric,
		       const char *domain)
{
	memset(offer, 0, sizeof(*offer));
	strcpy(offer->provider, provider);
	strcpy(offer->fabric_name, fabric);
	strcpy(offer->domain_name, domain);
	offer->fabric.prov_name = offer->provider;
	offer->fabric.name = offer->fabric_name;
	offer->domain.name = offer->domain_name;
	offer->domain.cq_data_size = 4;
	offer->domain.mr_key_size = 4;
	offer->domain.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	offer->ep.max_msg_size = UINT64_MAX;
	offer->info.fabric_attr = &offer->fabric;
	offer->info.domain_attr = &offer->domain;
	offer->info.ep_attr = &offer->ep;
}

static void modes_of(const struct offer *offer, struct fabric_modes *modes)
{
	ck_ok(fabric_modes_choose(&offer->info, "efa/rdmap0s6-rdm", false, modes, &err), err);
}

START_TEST(efa_gets_one_endpoint_per_peer_a_warm_up_and_ops_of_a_gibibyte)
{
	struct fabric_modes modes;
	struct offer offer;

	offer_make(&offer, "efa", "efa", "rdmap0s6-rdm");
	modes_of(&offer, &modes);
	ck_assert(modes.joined && modes.warm_up && modes.own_descriptor);
	ck_assert(modes.refuses_emulation);
	ck_assert(!modes.delivery_complete && !modes.ends_alone);
	ck_assert_uint_eq(modes.op_bytes_max, 1u << 30);
	ck_assert_uint_ge(modes.queue_room, 16384);
}
END_TEST

START_TEST(efa_direct_needs_neither_handshake_nor_doubt)
{
	struct fabric_modes modes;
	struct offer offer;

	offer_make(&offer, "efa", "efa-direct", "rdmap0s6-rdm");
	offer.info.mode = FI_CONTEXT2;
	offer.ep.max_msg_size = 1u << 20;
	modes_of(&offer, &modes);
	ck_assert(modes.joined && !modes.warm_up && !modes.refuses_emulation);
	ck_assert_uint_eq(modes.op_bytes_max, 1u << 20);
}
END_TEST

START_TEST(gpu_memory_is_reached_where_the_nic_itself_does_it)
{
	static const struct {
		const char *provider;
		uint64_t caps;
		bool reached;
	} cases[] = {{"efa", FI_HMEM, true}, {"efa", 0, false}, {"shm", FI_HMEM, false}};
	struct fabric_modes modes;
	struct offer offer;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		offer_make(&offer, cases[i].provider, cases[i].provider, "a domain");
		offer.info.caps = cases[i].caps;
		offer.domain.mr_mode |= cases[i].caps != 0 ? FI_MR_HMEM : 0;
		modes_of(&offer, &modes);
		ck_assert(modes.gpu_memory == cases[i].reached);
	}
}
END_TEST

START_TEST(efa_direct_is_preferred_on_the_same_domain_only)
{
	struct offer plain, other, direct;

	offer_make(&plain, "efa", "efa", "rdmap0s6-rdm");
	offer_make(&other, "efa", "efa-direct", "rdmap1s6-rdm");
	offer_make(&direct, "efa", "efa-direct", "rdmap0s6-rdm");
	plain.info.next = &other.info;
	ck_assert_ptr_eq(fabric_offer_pick(&plain.info, "rdmap0s6-rdm"), &plain.info);
	other.info.next = &direct.info;
	ck_assert_ptr_eq(fabric_offer_pick(&plain.info, "rdmap0s6-rdm"), &direct.info);
	ck_assert_ptr_null(fabric_offer_pick(&plain.info, "rdmap9s6-rdm"));
	ck_assert_ptr_null(fabric_offer_pick(NULL, NULL));
}
END_TEST

START_TEST(others_keep_two_endpoints_and_their_own_limit)
{
	struct fabric_modes modes;
	struct offer offer;

	offer_make(&offer, "tcp;ofi_rxm", "192.0.2.0/24", "eth0");
	offer.domain.mr_mode = 0;
	offer.domain.cq_data_size = 8;
	modes_of(&offer, &modes);
	ck_assert(!modes.joined && !modes.warm_up && !modes.own_descriptor);
	ck_assert(modes.delivery_complete && modes.ends_alone && !modes.refuses_emulation);
	ck_assert_uint_eq(modes.op_bytes_max, UINT64_MAX);
	ck_assert_uint_eq(modes.queue_room, 0);
	offer_make(&offer, "verbs;ofi_rxm", "IB-0xfe80000000000000", "mlx5_0");
	modes_of(&offer, &modes);
	ck_assert(!modes.joined && modes.own_descriptor && !modes.ends_alone);
}
END_TEST

START_TEST(what_isnt_built_in_is_refused_with_a_sentence)
{
	struct fabric_modes modes;
	struct offer offer;

	offer_make(&offer, "efa", "efa", "rdmap0s6-rdm");
	offer.domain.cq_data_size = 2;
	ck_fails(fabric_modes_choose(&offer.info, "efa/x", false, &modes, &err), -ENOTSUP, err);
	ck_assert_ptr_nonnull(strstr(err.text, "2 bytes"));
	offer_make(&offer, "efa", "efa", "rdmap0s6-rdm");
	offer.domain.mr_mode |= FI_MR_ENDPOINT;
	ck_fails(fabric_modes_choose(&offer.info, "efa/x", false, &modes, &err), -ENOTSUP, err);
	offer_make(&offer, "efa", "efa", "rdmap0s6-rdm");
	offer.info.mode = FI_MSG_PREFIX;
	ck_fails(fabric_modes_choose(&offer.info, "efa/x", false, &modes, &err), -ENOTSUP, err);
}
END_TEST

START_TEST(writes_by_messages_are_refused)
{
	const struct nic nic = {.name = "efa rdmap0s6-rdm"};

	ck_ok(fabric_emulation_check(&nic, 0, false, &err), err);
	ck_fails(fabric_emulation_check(&nic, 0, true, &err), -ENOTSUP, err);
	ck_assert_ptr_nonnull(strstr(err.text, "emulate"));
	ck_fails(fabric_emulation_check(&nic, -FI_ENOPROTOOPT, false, &err), -ENOTSUP, err);
	ck_assert_ptr_nonnull(strstr(err.text, "1.18"));
	ck_fails(fabric_emulation_check(&nic, -FI_EBUSY, false, &err), -EIO, err);
}
END_TEST

Suite *suite(void)
{
	Suite *all = suite_create("fabric_modes");
	TCase *tests = tcase_create("fabric_modes");

	tcase_add_test(tests, efa_gets_one_endpoint_per_peer_a_warm_up_and_ops_of_a_gibibyte);
	tcase_add_test(tests, efa_direct_needs_neither_handshake_nor_doubt);
	tcase_add_test(tests, gpu_memory_is_reached_where_the_nic_itself_does_it);
	tcase_add_test(tests, efa_direct_is_preferred_on_the_same_domain_only);
	tcase_add_test(tests, others_keep_two_endpoints_and_their_own_limit);
	tcase_add_test(tests, what_isnt_built_in_is_refused_with_a_sentence);
	tcase_add_test(tests, writes_by_messages_are_refused);
	suite_add_tcase(all, tests);
	return all;
}
