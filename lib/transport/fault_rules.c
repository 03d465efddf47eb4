/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a fault NIC: their text, what they draw for an op, and its port. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/transport/fault.h"
#include "lib/transport/tables.h"

static const char *const rule_names[RULE_COUNT] = {
	[DROP] = "drop", [DUP] = "dup",	    [FAIL] = "fail",	   [DELAY] = "delay",
	[LOST] = "lost", [STALE] = "stale", [CORRUPT] = "corrupt", [CUT] = "cut",
};

/* The rules of the NIC as a whole.  NULL: key is none of them. */
static uint64_t *nic_rule(struct rules *rules, const char *key)
{
	return strcmp(key, "down_nth") == 0	? &rules->down_nth
	       : strcmp(key, "down_polls") == 0 ? &rules->down_polls
	       : strcmp(key, "gone_nth") == 0	? &rules->gone_nth
	       : strcmp(key, "silent_nth") == 0 ? &rules->silent_nth
						: NULL;
}

static int rule_parse(struct rules *rules, const char *key, const char *value, struct ws_error *err)
{
	char *end;

	if (strcmp(key, "seed") == 0) {
		rules->random = strtoull(value, &end, 10);
		return *end == 0 && *value != 0
			       ? 0
			       : ws_fail(err, -EINVAL, "seed='%s' isn't a number", value);
	}
	uint64_t *number = nic_rule(rules, key);
	if (number != NULL) {
		*number = strtoull(value, &end, 10);
		return *end == 0 && *number > 0
			       ? 0
			       : ws_fail(err, -EINVAL, "%s='%s' isn't a number from 1", key, value);
	}
	for (int rule = 0; rule < RULE_COUNT; rule++) {
		size_t count = strlen(rule_names[rule]);
		if (strncmp(key, rule_names[rule], count) != 0)
			continue;
		if (strcmp(key + count, "_nth") == 0) {
			rules->nth[rule] = strtoull(value, &end, 10);
			if (*end == 0 && rules->nth[rule] > 0)
				return 0;
			return ws_fail(err, -EINVAL, "%s='%s' isn't the number of an op, from 1",
				       key, value);
		}
		if (key[count] != 0)
			continue;
		rules->chance[rule] = strtod(value, &end);
		if (*end == 0 && *value != 0 && rules->chance[rule] >= 0 &&
		    rules->chance[rule] <= 1)
			return 0;
		return ws_fail(err, -EINVAL, "%s='%s' isn't a chance between 0 and 1", key, value);
	}
	return ws_fail(err, -EINVAL,
		       "no fault rule is named '%s'; there are seed, drop, dup, fail, delay, lost, "
		       "stale, corrupt, cut, and each but seed with _nth; down_nth, down_polls, "
		       "gone_nth, silent_nth",
		       key);
}

int rules_parse(struct rules *rules, const char *from, size_t count, struct ws_error *err)
{
	char text[256], *rest = text;

	*rules = (struct rules){.random = 1};
	if (count >= sizeof(text))
		return ws_fail(err, -EINVAL, "fault rules of more than %zu bytes",
			       sizeof(text) - 1);
	snprintf(text, sizeof(text), "%.*s", (int)count, from);
	for (char *rule = strsep(&rest, ","); rule != NULL; rule = strsep(&rest, ",")) {
		char *equals = strchr(rule, '=');
		if (*rule == 0 && rest == NULL && rule == text)
			break; /* no rules at all */
		if (equals == NULL)
			return ws_fail(err, -EINVAL, "fault rule '%s' has no '='", rule);
		*equals = 0;
		int rc = rule_parse(rules, rule, equals + 1, err);
		if (rc != 0)
			return rc;
	}
	return 0;
}

bool rules_have(const struct rules *rules, enum rule rule)
{
	return rules->chance[rule] > 0 || rules->nth[rule] > 0;
}

uint64_t rules_random(struct rules *rules)
{
	rules->random += UINT64_C(0x9e3779b97f4a7c15);
	return mix64(rules->random);
}

bool rules_chance(struct rules *rules, enum rule rule)
{
	double roll = (double)(rules_random(rules) >> 11) / (double)(UINT64_C(1) << 53);

	return roll < rules->chance[rule];
}

void rules_decide(struct rules *rules, bool does_out[RULE_COUNT])
{
	rules->op_count++;
	for (enum rule rule = 0; rule < RULE_COUNT; rule++)
		does_out[rule] = rules_chance(rules, rule) || rules->nth[rule] == rules->op_count;
}

/* ---------------------------------------------------------------- the port */

static _Atomic uint32_t mends; /* calls of fault_mend */
static _Atomic bool any_gone;  /* since the last one */

void fault_mend(void)
{
	atomic_store(&any_gone, false);
	atomic_fetch_add(&mends, 1);
}

bool port_is_kept_away(const struct rules *rules)
{
	return rules->gone_nth > 0 && atomic_load(&any_gone);
}

void port_traffic(struct port *port, const struct rules *rules)
{
	port->traffic++;
	if (port->traffic == rules->down_nth) {
		port->down = port->news = true;
		port->polls_left = rules->down_polls;
		port->mends_seen = atomic_load(&mends);
	}
	if (port->traffic == rules->silent_nth) {
		port->silent = true;
		port->mends_seen = atomic_load(&mends);
	}
	if (port->traffic == rules->gone_nth) {
		port->gone = true;
		atomic_store(&any_gone, true);
	}
}

bool port_is_silent(const struct port *port)
{
	return port->silent && port->mends_seen == atomic_load(&mends);
}

bool port_poll(struct port *port, const struct rules *rules)
{
	bool in_time = rules->down_polls > 0 && port->polls_left == 0;
	bool news = port->news;

	port->polls_left -= port->polls_left > 0;
	port->news = false;
	if (news || !port->down || !(in_time || port->mends_seen != atomic_load(&mends)))
		return news;
	port->down = false;
	return true;
}
