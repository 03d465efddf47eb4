/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks that a check looks at: their params, listed again from the manifests without names,
 * and where the pieces of their forms lie.
 */
#include "planner/check.h"

enum side check_side(const struct plan *plan, uint32_t member, uint32_t *rank_out)
{
	if (member < plan->trainer_count) {
		*rank_out = member;
		return SIDE_TRAINER;
	}
	*rank_out = (member - plan->trainer_count) % plan->rollout_count;
	return SIDE_ROLLOUT;
}

/* Rules, then layers, then experts: the numbering that rank_params has. */
static int peer_list(struct checking *checking, struct peer *peer, bool count_only)
{
	const struct manifest *manifest = peer->manifest;

	peer->count = 0;
	for (uint32_t i = 0; i < manifest_rule_count(manifest); i++) {
		const struct param_rule *rule = manifest_rule(manifest, i);
		const struct form *form = NULL;
		const int32_t *layers, *experts = NULL;
		uint32_t layer_count = manifest_layers(manifest, i, peer->rank, &layers);
		int rc = layer_count == 0 || count_only
				 ? 0
				 : manifest_form(manifest, i, peer->rank, &form, checking->err);
		if (rc != 0)
			return rc;
		for (uint32_t l = 0; l < layer_count; l++) {
			uint32_t each = 1;
			if (rule->each_expert)
				each = manifest_experts(manifest, i, peer->rank, layers[l],
							&experts);
			for (uint32_t e = 0; !count_only && e < each; e++) {
				struct param *param = &peer->params[peer->count + e];
				*param = (struct param){.rule = i,
							.layer = layers[l],
							.expert = -1,
							.slot = -1,
							.dtype = rule->dtype,
							.form = form,
							.bytes = form->element_count *
								 ws_dtype_bytes(rule->dtype)};
				peer->each[peer->count + e] = each;
				if (rule->each_expert) {
					param->expert = experts[e];
					param->slot = (int32_t)e;
				}
			}
			peer->count += each;
		}
	}
	return 0;
}

struct peer *check_peer(struct checking *checking, enum side side, uint32_t rank)
{
	const struct plan *plan = checking->plan;
	struct peer *peer = &checking->peers[side][rank];

	if (peer->known)
		return peer;
	peer->manifest = side == SIDE_TRAINER ? plan->input.trainer : plan->input.rollout;
	peer->rank = rank;
	if (peer_list(checking, peer, true) != 0)
		return NULL;
	size_t count = peer->count;
	peer->params = arena_array(&checking->arena, count, sizeof(*peer->params));
	peer->reach = arena_array(&checking->arena, count, sizeof(*peer->reach));
	peer->kind = arena_array(&checking->arena, count, sizeof(*peer->kind));
	peer->each = arena_array(&checking->arena, count, sizeof(*peer->each));
	if (peer->params == NULL || peer->reach == NULL || peer->kind == NULL ||
	    peer->each == NULL) {
		plan_no_memory(checking->err);
		return NULL;
	}
	if (peer_list(checking, peer, false) != 0)
		return NULL;
	peer->known = true;
	return peer;
}

struct peer *check_member_peer(struct checking *checking, uint32_t member)
{
	uint32_t rank;
	enum side side = check_side(checking->plan, member, &rank);

	return check_peer(checking, side, rank);
}

const char *check_param_name(struct checking *checking, const struct peer *peer, uint32_t param)
{
	struct rank_params params;

	if (manifest_params(peer->manifest, peer->rank, &checking->arena, &params, NULL) != 0 ||
	    param >= params.count)
		return "?";
	return params.params[param].name;
}

/* The reaches of a form are made once. */
static const struct reach *form_reach(struct checking *checking, const struct form *form)
{
	uint64_t key = (uint64_t)(uintptr_t)form;
	uint32_t index = idmap_get(&checking->reach_map, key);

	if (index != NONE)
		return ((const struct reach **)checking->reaches.items)[index];
	struct reach *list = arena_array(&checking->arena, form->piece_count, sizeof(*list));
	const struct reach **kept = vec_add(&checking->reaches, sizeof(*kept));
	if (list == NULL || kept == NULL ||
	    idmap_put(&checking->reach_map, key, (uint32_t)checking->reaches.count - 1) != 0)
		return NULL;
	account_reach(form, list);
	*kept = list;
	return list;
}

int check_spot(struct checking *checking, struct spot_param *spot, struct peer *peer,
	       uint32_t param)
{
	if (spot->peer == peer && spot->param == &peer->params[param])
		return 0;
	if (peer->reach[param] == NULL)
		peer->reach[param] = form_reach(checking, peer->params[param].form);
	*spot = (struct spot_param){
		.peer = peer, .param = &peer->params[param], .reach = peer->reach[param]};
	return spot->reach == NULL ? -ENOMEM : 0;
}
