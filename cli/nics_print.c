/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host's view as tables for people and as JSON lines for scripts.
 */
#include <errno.h>
#include <string.h>

#include "cli/nics.h"

/* ---------------------------------------------------------------- a table */

#define COLUMNS_MAX 12
#define FOLDED_MIN  16 /* narrower, a folded cell is worse than a broken line */

/* Cells are texts in an arena; a column that is empty below its title isn't shown. */
struct table {
	const char *titles[COLUMNS_MAX];
	const char *(*rows)[COLUMNS_MAX];
	uint32_t row_count;
	uint32_t columns; /* of the screen: the last cells are folded there */
	bool failed;	  /* a text found no memory */
};

static const char *cell(const char *text)
{
	return text != NULL ? text : "";
}

static size_t column_width(const struct table *table, uint32_t column)
{
	size_t width = 0;

	for (uint32_t i = 0; i < table->row_count; i++)
		width = MAX(width, strlen(cell(table->rows[i][column])));
	return width == 0 ? 0 : MAX(width, strlen(table->titles[column]));
}

static void row_put(const struct table *table, const char *const *cells, struct writer *out)
{
	size_t blanks = 0, at = 0;
	const char *last = "";

	for (uint32_t column = 0; column < COLUMNS_MAX && table->titles[column] != NULL; column++) {
		size_t width = column_width(table, column), length = strlen(cell(cells[column]));
		if (width == 0)
			continue;
		if (column + 1 == COLUMNS_MAX || table->titles[column + 1] == NULL) {
			last = cell(cells[column]);
			break;
		}
		if (length > 0) {
			write_format(out, "%*s%s", (int)blanks, "", cells[column]);
			blanks = 0;
		}
		blanks += width - length + 2;
		at += width + 2;
	}
	if (last[0] != '\0')
		write_format(out, "%*s", (int)blanks, "");
	put_folded(out, last, (uint32_t)at,
		   at + FOLDED_MIN <= table->columns ? table->columns : UINT32_MAX);
}

static int table_put(const struct table *table, struct writer *out, struct ws_error *err)
{
	row_put(table, table->titles, out);
	for (uint32_t i = 0; i < table->row_count; i++)
		row_put(table, table->rows[i], out);
	write_format(out, "\n");
	return table->failed ? ws_fail(err, -ENOMEM, "no memory for a table") : 0;
}

static int table_make(struct table *table, struct arena *arena, uint32_t rows, struct ws_error *err)
{
	table->rows = arena_array(arena, rows, sizeof(*table->rows));
	table->row_count = rows;
	return table->rows != NULL ? 0 : ws_fail(err, -ENOMEM, "no memory for a table");
}

/* ---------------------------------------------------------------- cells */

static const char *number_text(struct arena *arena, uint64_t number)
{
	return number == 0 ? "" : arena_text(arena, "%llu", (unsigned long long)number);
}

static const char *numa_text(struct arena *arena, int numa)
{
	return numa < 0 ? "" : arena_text(arena, "%d", numa);
}

/* "0-3,7" */
static const char *gpus_text(struct arena *arena, uint64_t gpus)
{
	const char *text = "";

	for (uint32_t i = 0, end; text != NULL && i < GPUS_MAX; i = end + 1) {
		for (end = i; end < GPUS_MAX && (gpus >> end & 1) != 0;)
			end++;
		if (end == i)
			continue;
		text = arena_text(arena, "%s%s%u", text, text[0] != '\0' ? "," : "", i);
		if (text != NULL && end > i + 1)
			text = arena_text(arena, "%s%s%u", text, end == i + 2 ? "," : "-", end - 1);
	}
	return text;
}

/* "mlx5_0/1, mlx5_1/1 (same switch), tcp/ens5 (same NUMA node)" */
static const char *served_text(struct arena *arena, const struct gpu_view *gpu)
{
	const char *text = gpu->count == 0 ? "none" : "";

	for (uint32_t i = 0; text != NULL && i < gpu->count; i++) {
		const struct nic_info *info = &gpu->infos[i];
		bool last = i + 1 == gpu->count || strcmp(info[0].near, info[1].near) != 0;
		text = arena_text(arena, "%s%s%s%s%s%s", text, i > 0 ? ", " : "", info->device,
				  last ? " (" : "", last ? info->near : "", last ? ")" : "");
	}
	return text;
}

static const char *used_text(struct arena *arena, const struct nic_info *info)
{
	if (info->skipped[0] != '\0')
		return arena_text(arena, "no: %s", info->skipped);
	return info->near[0] == '\0' ? "yes" : arena_text(arena, "yes: %s", info->near);
}

static const char *core_text(struct arena *arena, const struct core_choice *core)
{
	return core->cpu < 0 ? "any" : arena_text(arena, "%d", core->cpu);
}

/* ---------------------------------------------------------------- tables */

static int gpus_put(struct host_view *view, uint32_t columns, struct writer *out,
		    struct ws_error *err)
{
	struct arena *arena = &view->arena;
	struct table table = {.titles = {"GPU", "PCI", "NUMA", "name", "I/O core", "NICs"},
			      .columns = columns};

	int rc = table_make(&table, arena, view->topology.gpu_count, err);
	for (uint32_t i = 0; rc == 0 && i < view->topology.gpu_count; i++) {
		const struct topology_gpu *gpu = &view->topology.gpus[i];
		const char *const cells[] = {
			arena_text(arena, "%u", i),
			gpu->at.address,
			numa_text(arena, gpu->at.numa),
			gpu->name,
			core_text(arena, &view->gpus[i].core),
			served_text(arena, &view->gpus[i]),
		};
		for (uint32_t k = 0; k < ARRAY_SIZE(cells); k++) {
			table.rows[i][k] = cells[k];
			table.failed |= cells[k] == NULL;
		}
	}
	return rc == 0 ? table_put(&table, out, err) : rc;
}

static int nics_put(struct host_view *view, uint32_t columns, struct writer *out,
		    struct ws_error *err)
{
	struct arena *arena = &view->arena;
	const char *used = view->gpu < 0 ? "used for host memory"
					 : arena_text(arena, "used for GPU %d", view->gpu);
	struct table table = {.titles = {"transport", "device", "interface", "PCI", "NUMA",
					 "subnet", "Mb/s", "MTU", "GPUs", cell(used)},
			      .columns = columns};

	int rc = table_make(&table, arena, view->count, err);
	for (uint32_t i = 0; rc == 0 && i < view->count; i++) {
		const struct nic_info *info = &view->infos[i];
		const char *const cells[] = {
			info->transport,
			info->device,
			info->netdev,
			info->pci,
			numa_text(arena, info->numa),
			info->subnet,
			number_text(arena, info->mbps),
			number_text(arena, info->mtu),
			gpus_text(arena, info->gpus),
			used_text(arena, info),
		};
		for (uint32_t k = 0; k < ARRAY_SIZE(cells); k++) {
			table.rows[i][k] = cells[k];
			table.failed |= cells[k] == NULL;
		}
	}
	return rc == 0 ? table_put(&table, out, err) : rc;
}

static uint32_t cores_allowed(const struct topology *topology)
{
	uint32_t allowed = 0;

	for (uint32_t i = 0; i < topology->core_count; i++)
		allowed += topology->cores[i].allowed ? 1 : 0;
	return allowed;
}

static void host_put(const struct host_view *view, struct writer *out)
{
	const struct topology *topology = &view->topology;

	write_format(out, "%s%s: %u core%s on %u NUMA node%s", topology->host,
		     topology->saved ? " (saved)" : "", topology->core_count,
		     topology->core_count == 1 ? "" : "s", topology->numa_count,
		     topology->numa_count == 1 ? "" : "s");
	if (cores_allowed(topology) < topology->core_count)
		write_format(out, ", %u for this process", cores_allowed(topology));
	if (topology->gpu_count == 0)
		write_format(out, ", no GPU\n\n");
	else
		write_format(out, ", %u GPU%s\n\n", topology->gpu_count,
			     topology->gpu_count == 1 ? "" : "s");
}

int host_view_put_table(struct host_view *view, uint32_t columns, struct writer *out,
			struct ws_error *err)
{
	int rc = 0;

	host_put(view, out);
	if (view->topology.gpu_count > 0)
		rc = gpus_put(view, columns, out, err);
	if (rc == 0 && view->count > 0)
		rc = nics_put(view, columns, out, err);
	else if (rc == 0)
		write_format(out, "no NIC of the transports asked for\n\n");
	for (uint32_t i = 0; rc == 0 && i < view->count; i++)
		if (view->infos[i].gid[0] != '\0')
			write_format(out, "%s: %s\n", view->infos[i].device, view->infos[i].gid);
	write_format(out, "I/O thread: %s\n", view->core.why);
	return rc;
}

/* ---------------------------------------------------------------- JSON */

static void json_line_end(struct json_writer *json)
{
	json_end_object(json);
	write_format(json->out, "\n");
}

static void host_put_json(const struct host_view *view, struct writer *out)
{
	const struct topology *topology = &view->topology;
	struct json_writer json = {.out = out};

	json_begin_object(&json, NULL);
	json_put_text(&json, "kind", "host");
	json_put_text(&json, "host", topology->host);
	json_put_bool(&json, "saved", topology->saved);
	json_put_u64(&json, "cores", topology->core_count);
	json_put_u64(&json, "cores_allowed", cores_allowed(topology));
	json_put_u64(&json, "numa_nodes", topology->numa_count);
	json_put_integer(&json, "numa", topology->numa);
	json_put_u64(&json, "gpus", topology->gpu_count);
	json_put_integer(&json, "io_cpu", view->core.cpu);
	json_put_text(&json, "io_why", view->core.why);
	json_line_end(&json);
}

static void gpu_put_json(const struct topology_gpu *gpu, uint32_t number,
			 const struct gpu_view *view, struct writer *out)
{
	struct json_writer json = {.out = out};

	json_begin_object(&json, NULL);
	json_put_text(&json, "kind", "gpu");
	json_put_u64(&json, "gpu", number);
	json_put_text(&json, "name", gpu->name);
	json_put_text(&json, "pci", gpu->at.address);
	json_put_integer(&json, "numa", gpu->at.numa);
	json_begin_array(&json, "nics");
	for (uint32_t i = 0; i < view->count; i++) {
		json_begin_object(&json, NULL);
		json_put_text(&json, "transport", view->infos[i].transport);
		json_put_text(&json, "device", view->infos[i].device);
		json_put_text(&json, "distance", view->infos[i].near);
		json_end_object(&json);
	}
	json_end_array(&json);
	json_put_integer(&json, "io_cpu", view->core.cpu);
	json_put_text(&json, "io_why", view->core.why);
	json_line_end(&json);
}

static void nic_put_json(const struct nic_info *info, struct writer *out)
{
	struct json_writer json = {.out = out};

	json_begin_object(&json, NULL);
	json_put_text(&json, "kind", "nic");
	json_put_text(&json, "transport", info->transport);
	json_put_text(&json, "device", info->device);
	json_put_text(&json, "rdma", info->rdma);
	json_put_text(&json, "netdev", info->netdev);
	json_put_text(&json, "driver", info->driver);
	json_put_text(&json, "pci", info->pci);
	json_put_integer(&json, "numa", info->numa);
	json_put_text(&json, "subnet", info->subnet);
	json_put_text(&json, "state", info->state);
	json_put_u64(&json, "mbps", info->mbps);
	json_put_u64(&json, "mtu", info->mtu);
	json_put_text(&json, "gid", info->gid);
	json_begin_array(&json, "gpus");
	for (uint32_t i = 0; i < GPUS_MAX; i++)
		if ((info->gpus >> i & 1) != 0)
			json_put_u64(&json, NULL, i);
	json_end_array(&json);
	json_put_text(&json, "distance", info->near);
	json_put_text(&json, "skipped", info->skipped);
	json_line_end(&json);
}

void host_view_put_json(const struct host_view *view, struct writer *out)
{
	host_put_json(view, out);
	for (uint32_t i = 0; i < view->topology.gpu_count; i++)
		gpu_put_json(&view->topology.gpus[i], i, &view->gpus[i], out);
	for (uint32_t i = 0; i < view->count; i++)
		nic_put_json(&view->infos[i], out);
}
