/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's constants: names, units, sources, and reading them from a file.  Those of a network
 * are fitted on a table of point-to-point measurements, nothing else.
 */
#include "planner/simulate_internal.h"

#define KIB 1024.0

/* arXiv 2510.27656, one GPU to one GPU: 400 Gb/s as one ConnectX-7 port, or as two of EFA. */
static const struct sim_fabric fabrics[] = {
	{
		.name = "cx7",
		.single = {{64, 44}, {256, 116}, {1024, 245}, {32768, 378}},
		.paged = {{1, 91}, {8, 320}, {16, 367}, {64, 370}},
	},
	{
		.name = "efa",
		.single = {{64, 16}, {256, 54}, {1024, 145}, {32768, 336}},
		.paged = {{1, 17}, {8, 138}, {16, 274}, {64, 364}},
	},
};

#define FABRIC_GBPS 400

static const struct sim_constant list[] = {
	{"nic_gbps", "Gb/s", "line rate of a GPU's NICs (ConnectX-7, or EFA 2 x 200)",
	 offsetof(struct sim_constants, nic_gbps), 0.001, 1e5},
	{"nic_efficiency", "share", "fit on the point-to-point table of arXiv 2510.27656",
	 offsetof(struct sim_constants, nic_efficiency), 0.001, 1},
	{"op_ns", "ns", "the same table: 1 KiB writes, many in flight",
	 offsetof(struct sim_constants, op_ns), 0, 1e9},
	{"write_latency_ns", "ns", "fit on the same table: a single write in flight",
	 offsetof(struct sim_constants, write_latency_ns), 0, 1e9},
	{"nvlink_gbytes_s", "GB/s", "measured, 2 x H200: batched copy kernel into a peer's mapping",
	 offsetof(struct sim_constants, nvlink_gbytes_s), 0.001, 1e5},
	{"pcie_gbytes_s", "GB/s", "PCIe 5.0 x16: 63 GB/s less the headers of 128-byte packets",
	 offsetof(struct sim_constants, pcie_gbytes_s), 0.001, 1e5},
	{"hbm_gbytes_s", "GB/s", "measured, H200: amax and FP8 kernel, read and written bytes",
	 offsetof(struct sim_constants, hbm_gbytes_s), 0.001, 1e6},
	{"launch_ns", "ns", "measured, H200: 18,432 copies against one of the same bytes",
	 offsetof(struct sim_constants, launch_ns), 0, 1e9},
	{"control_ns", "ns", "assumed: a message by way of the hub, with its threads' wake-ups",
	 offsetof(struct sim_constants, control_ns), 0, 1e11},
	{"eager_ns", "ns", "measured, H200: FP8 blocks of 18,576 tensors in PyTorch eager, 2.1 s",
	 offsetof(struct sim_constants, eager_ns), 0, 1e9},
};

const struct sim_fabric *sim_fabric_at(uint32_t index)
{
	return index < ARRAY_SIZE(fabrics) ? &fabrics[index] : NULL;
}

int sim_fabric_find(const char *name, const struct sim_fabric **fabric_out, struct ws_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(fabrics); i++)
		if (strcmp(fabrics[i].name, name) == 0) {
			*fabric_out = &fabrics[i];
			return 0;
		}
	return ws_fail(err, -EINVAL, "the measured fabrics are cx7 and efa, not '%s'", name);
}

/*
 * A single write takes latency + bytes * pace; many in flight take bytes * pace each, if they
 * are large.  Least squares of the relative error over both, a 2 x 2 system.
 */
void sim_fabric_fit(const struct sim_fabric *fabric, struct sim_constants *constants)
{
	double ll = 0, lp = 0, pp = 0, l1 = 0, p1 = 0;
	uint32_t largest = ARRAY_SIZE(fabric->paged) - 1;

	for (uint32_t i = 0; i <= ARRAY_SIZE(fabric->single); i++) {
		bool single = i < ARRAY_SIZE(fabric->single);
		const struct sim_point *point =
			single ? &fabric->single[i] : &fabric->paged[largest];
		double bytes = point->kib * KIB, seconds = bytes * 8 / (point->gbps * 1e9);
		double l = single ? 1 / seconds : 0, p = bytes / seconds;
		ll += l * l;
		lp += l * p;
		pp += p * p;
		l1 += l;
		p1 += p;
	}
	double determinant = ll * pp - lp * lp;
	double latency = (l1 * pp - p1 * lp) / determinant;
	double pace = (ll * p1 - lp * l1) / determinant;
	const struct sim_point *small = &fabric->paged[0];

	constants->nic_gbps = FABRIC_GBPS;
	constants->nic_efficiency = 8 / pace / 1e9 / FABRIC_GBPS;
	constants->write_latency_ns = latency * 1e9;
	constants->op_ns = small->kib * KIB * 8 / small->gbps;
}

struct sim_constants sim_constants_default(void)
{
	struct sim_constants constants = {
		.nvlink_gbytes_s = 371,
		.pcie_gbytes_s = 55,
		.hbm_gbytes_s = 3576,
		.launch_ns = 2300,
		.control_ns = 1e6,
		.eager_ns = 113e3,
	};

	sim_fabric_fit(&fabrics[0], &constants);
	return constants;
}

const struct sim_constant *sim_constant_list(uint32_t *count_out)
{
	*count_out = ARRAY_SIZE(list);
	return list;
}

static int take(struct sim_constants *constants, const struct json *item, struct ws_error *err)
{
	const struct sim_constant *constant = NULL;
	const struct json *value = item->type == JSON_OBJECT ? json_get(item, "value") : item;

	for (size_t i = 0; i < ARRAY_SIZE(list); i++)
		if (strcmp(list[i].name, item->key) == 0)
			constant = &list[i];
	if (constant == NULL)
		return ws_fail(err, -EINVAL,
			       "no constant is named '%s': simulate --print-constants names all",
			       item->key);
	if (value == NULL || value->type != JSON_NUMBER || !(value->number >= constant->min) ||
	    !(value->number <= constant->max))
		return ws_fail(err, -EINVAL, "constant '%s' must be a number from %g to %g (%s)",
			       constant->name, constant->min, constant->max, constant->unit);
	memcpy((char *)constants + constant->offset, &value->number, sizeof(double));
	return 0;
}

int sim_constants_parse(struct sim_constants *constants, const void *text, size_t bytes,
			struct ws_error *err)
{
	const struct json_limits limits = {
		.bytes_max = 1 << 20, .depth_max = 4, .node_count_max = 1000};
	struct sim_constants changed = *constants;
	const struct json *object = NULL;
	struct arena arena = {0};

	int rc = json_parse(&arena, text, bytes, &limits, &object, err);
	if (rc == 0 && object->type != JSON_OBJECT)
		rc = ws_fail(err, -EINVAL, "constants are one JSON object of names and numbers");
	for (const struct json *item = rc == 0 ? object->first : NULL; rc == 0 && item != NULL;
	     item = item->next)
		rc = take(&changed, item, err);
	if (rc == 0)
		*constants = changed;
	arena_release(&arena);
	return rc;
}

void sim_constants_json(const struct sim_constants *constants, struct json_writer *json)
{
	json_begin_object(json, NULL);
	for (size_t i = 0; i < ARRAY_SIZE(list); i++) {
		double value;
		memcpy(&value, (const char *)constants + list[i].offset, sizeof(value));
		json_begin_object(json, list[i].name);
		json_put_number(json, "value", value, -1);
		json_put_text(json, "unit", list[i].unit);
		json_put_text(json, "source", list[i].source);
		json_end_object(json);
	}
	json_end_object(json);
}
