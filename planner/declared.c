/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a param says of itself against what it is: the order of gate and up rows, which its name
 * or "order" tells, and the post step by which a staged param becomes the engine's own.
 */
#include <string.h>

#include "planner/describe.h"

enum gate_order { ORDER_UNKNOWN, ORDER_GATE_UP, ORDER_UP_GATE };

static const char *const order_words[] = {"", "gate rows, then up rows", "up rows, then gate rows"};

/* The first tensor that an expression reads.  Recurses at most EXPR_DEPTH_MAX deep. */
static const char *first_tensor(const struct expr *expr)
{
	while (expr->op != OP_T && expr->child_count > 0)
		expr = expr->child[0];
	return expr->op == OP_T && expr->rule != NULL ? expr->rule->name : "";
}

/* Of a concatenation's parts: which of gate and up comes first. */
static enum gate_order order_of(const struct expr *expr)
{
	bool gate = false, up = false;
	for (uint32_t i = 0; i < expr->child_count && expr->op == OP_C; i++) {
		const char *name = first_tensor(expr->child[i]);
		bool is_gate = strstr(name, ".gate_proj.") != NULL;
		bool is_up = strstr(name, ".up_proj.") != NULL;
		if ((is_gate && up) || (is_up && gate))
			return up ? ORDER_UP_GATE : ORDER_GATE_UP;
		gate = gate || is_gate;
		up = up || is_up;
	}
	for (uint32_t i = 0; i < expr->child_count; i++) {
		enum gate_order order = order_of(expr->child[i]);
		if (order != ORDER_UNKNOWN)
			return order;
	}
	return ORDER_UNKNOWN;
}

/* What engines and trainers mean by such a name (layouts facts 2.3, 3.1, 3.3). */
static enum gate_order order_of_name(const char *name)
{
	static const struct {
		const char *part;
		enum gate_order order;
	} parts[] = {{"w3_w1", ORDER_UP_GATE},	 {"w31", ORDER_UP_GATE},
		     {"up_gate", ORDER_UP_GATE}, {"w13", ORDER_GATE_UP},
		     {"gate_up", ORDER_GATE_UP}, {"linear_fc1", ORDER_GATE_UP}};
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		if (strstr(name, parts[i].part) != NULL)
			return parts[i].order;
	}
	return ORDER_UNKNOWN;
}

static void check_order(struct parse *parse, const struct json *order, const struct rule *rule)
{
	const char *text = order != NULL && order->type == JSON_STRING ? order->text : "";
	enum gate_order is = order_of(rule->expr);
	enum gate_order said = strcmp(text, "w13") == 0	  ? ORDER_GATE_UP
			       : strcmp(text, "w31") == 0 ? ORDER_UP_GATE
							  : order_of_name(rule->view.name);
	if (order != NULL && strcmp(text, "w13") != 0 && strcmp(text, "w31") != 0)
		findings_add(
			&parse->found, "order", rule->view.name,
			"\"order\" must be \"w13\" (gate, then up) or \"w31\" (up, then gate)");
	else if (is != ORDER_UNKNOWN && said != ORDER_UNKNOWN && is != said)
		findings_add(&parse->found, "order", rule->view.name,
			     "its expression has %s, and %s says %s; change one, or say \"order\": "
			     "\"%s\" where the engine has it so",
			     order_words[is], order != NULL ? "\"order\"" : "its name",
			     order_words[said], is == ORDER_GATE_UP ? "w13" : "w31");
}

void check_declared(struct parse *parse, const struct json *json, const struct rule *rule)
{
	uint32_t before = parse->found.count;
	if (rule->expr != NULL)
		check_order(parse, json_get(json, "order"), rule);
	if (!rule->view.inplace && rule->view.post == NULL)
		findings_add(
			&parse->found, "post", rule->view.name,
			"it is staged, and no \"post\" step is declared that makes the engine's "
			"own param of it");
	parse->readable += parse->found.count - before;
}
