/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's params for a job without a framework: filled from a checkpoint by the manifest's forms,
 * and changed from version to version so that every element tells which version, tensor and place
 * it is from.
 */
#include <errno.h>
#include <string.h>

#include "cli/roles.h"
#include "lib/convert/convert.h"

/* Calls visit for each piece of each param, with its canonical tensor's name. */
typedef int visit_fn(void *arg, const struct tensor_rule *rule, const char *name,
		     const struct param *param, const struct piece *piece, struct ws_error *err);

static int visit_pieces(const struct rank_memory *memory, const struct manifest *manifest,
			uint32_t rank, visit_fn *visit, void *arg, struct ws_error *err)
{
	for (uint32_t i = 0; i < memory->params.count; i++) {
		const struct param *param = &memory->params.params[i];
		for (uint32_t p = 0; p < param->form->piece_count; p++) {
			const struct piece *piece = &param->form->pieces[p];
			const struct tensor_rule *rule = manifest_tensor(manifest, piece->tensor);
			int32_t expert = param_expert(manifest, rank, param, piece->slot);
			char name[512];
			tensor_name(rule, param->layer, expert, name, sizeof(name));
			int rc = visit(arg, rule, name, param, piece, err);
			if (rc != 0)
				return rc;
		}
	}
	return 0;
}

struct filling {
	const struct rank_memory *memory;
	const struct checkpoint *checkpoint;
	struct progress_line *line;
	uint64_t done_bytes, all_bytes;
	void *buffer; /* owned; one tensor's wanted rows */
	size_t buffer_bytes;
};

/* Where a piece's first element lies, and its strides in bytes. */
static void aim_move(const struct filling *filling, const struct param *param,
		     const struct piece *piece, struct move *move)
{
	int64_t each = (int64_t)ws_dtype_bytes(param->dtype);
	move->dst = (char *)filling->memory->host.base + param->arena_offset +
		    piece->place * (uint64_t)each;
	move->dim_count = piece->dim_count;
	move->to = param->dtype;
	for (uint32_t d = 0; d < piece->dim_count; d++) {
		move->extent[d] = piece->extent[d];
		move->dst_stride[d] = piece->stride[d] * each;
	}
}

static int fill_piece(void *arg, const struct tensor_rule *rule, const char *name,
		      const struct param *param, const struct piece *piece, struct ws_error *err)
{
	struct filling *filling = arg;
	const struct st_tensor *tensor = checkpoint_find(filling->checkpoint, name);
	struct move move = {0};

	if (tensor == NULL)
		return ws_fail(err, -ENOENT,
			       "the checkpoint has no tensor '%s', which param '%s' needs", name,
			       param->name);
	if (!convert_can(&(struct move){.from = tensor->dtype, .to = param->dtype}))
		return ws_fail(err, -ENOTSUP,
			       "tensor '%s' is %s, param '%s' %s: no cast from one to the other",
			       name, tensor->dtype_name, param->name, ws_dtype_name(param->dtype));
	int64_t stride = (int64_t)ws_dtype_bytes(tensor->dtype);
	uint64_t inside = 0;
	bool same_shape = tensor->dim_count == rule->dim_count;
	for (uint32_t d = rule->dim_count; same_shape && d-- > 0;) {
		same_shape = tensor->dim[d] == rule->dim[d];
		move.src_stride[d] = stride;
		if (d > 0)
			inside += piece->offset[d] * (uint64_t)stride;
		if (d > 0)
			stride *= (int64_t)rule->dim[d];
	}
	if (!same_shape)
		return ws_fail(
			err, -EINVAL,
			"tensor '%s' of the checkpoint has another shape than the manifest says",
			name);
	/* Whole rows of dim 0 are read, the box is cut out of them. */
	uint64_t row_bytes = (uint64_t)stride, rows = rule->dim_count == 0 ? 1 : piece->extent[0];
	uint64_t first_row = rule->dim_count == 0 ? 0 : piece->offset[0];
	if (rows * row_bytes > filling->buffer_bytes) {
		void *grown = mem_grow(filling->buffer, filling->buffer_bytes, rows * row_bytes);
		if (grown == NULL)
			return ws_fail(err, -ENOMEM, "no memory to read '%s'", name);
		filling->buffer = grown;
		filling->buffer_bytes = rows * row_bytes;
	}
	int rc = checkpoint_read(filling->checkpoint, tensor, first_row * row_bytes,
				 filling->buffer, rows * row_bytes, err);
	if (rc != 0)
		return rc;
	aim_move(filling, param, piece, &move);
	move.src = (const char *)filling->buffer + inside;
	move.from = tensor->dtype;
	convert_move(&move);
	filling->done_bytes += rows * row_bytes;
	progress_line_say(filling->line, "reading the checkpoint: %.2f of %.2f GB",
			  (double)filling->done_bytes / 1e9, (double)filling->all_bytes / 1e9);
	return 0;
}

int fill_params(const struct rank_memory *memory, const struct manifest *manifest, uint32_t rank,
		const struct checkpoint *checkpoint, struct ws_error *err)
{
	struct progress_line line;
	struct filling filling = {.memory = memory,
				  .checkpoint = checkpoint,
				  .line = &line,
				  .all_bytes = memory->params.bytes};
	progress_line_start(&line);
	int rc = visit_pieces(memory, manifest, rank, fill_piece, &filling, err);
	progress_line_end(&line);
	mem_free(filling.buffer);
	return rc;
}

uint32_t change_mask(enum ws_dtype dtype, uint32_t bits, uint64_t hash, uint64_t element,
		     uint64_t version)
{
	uint32_t mantissa = dtype == WS_F32    ? 0x7fffff
			    : dtype == WS_F16  ? 0x3ff
			    : dtype == WS_BF16 ? 0x7f
					       : 0;
	uint32_t exponent = dtype == WS_F32 ? 0x7f800000 : dtype == WS_F16 ? 0x7c00 : 0x7f80;
	if (version == 0 || mantissa == 0 || (bits & exponent) == exponent)
		return 0;
	return (uint32_t)mix64(
		       hash ^ (element * 0x9e3779b97f4a7c15ULL + version * 0xd1b54a32d192ed03ULL)) &
	       mantissa;
}

struct changing {
	const struct rank_memory *memory;
	uint64_t from, to, hash;
	const struct tensor_rule *rule;
	const struct param *param;
	const struct piece *piece;
};

static void change_element(const struct changing *change, uint64_t place, uint64_t element)
{
	size_t each = ws_dtype_bytes(change->param->dtype);
	char *at = (char *)change->memory->host.base + change->param->arena_offset + place * each;
	uint32_t bits = 0;
	memcpy(&bits, at, MIN(each, sizeof(bits)));
	bits ^= change_mask(change->param->dtype, bits, change->hash, element, change->from);
	bits ^= change_mask(change->param->dtype, bits, change->hash, element, change->to);
	memcpy(at, &bits, MIN(each, sizeof(bits)));
}

/* Row-major over the box; element counts in the whole canonical tensor. */
static void change_box(const struct changing *change, uint32_t dim, uint64_t place,
		       uint64_t element)
{
	const struct piece *piece = change->piece;
	if (dim == piece->dim_count) {
		change_element(change, place, element);
		return;
	}
	for (uint64_t i = 0; i < piece->extent[dim]; i++)
		change_box(change, dim + 1, place + (uint64_t)((int64_t)i * piece->stride[dim]),
			   element * change->rule->dim[dim] + piece->offset[dim] + i);
}

static int change_piece(void *arg, const struct tensor_rule *rule, const char *name,
			const struct param *param, const struct piece *piece, struct ws_error *err)
{
	struct changing *change = arg;
	(void)err;
	change->hash = digest_bytes(name, strlen(name), 0);
	change->rule = rule;
	change->param = param;
	change->piece = piece;
	change_box(change, 0, piece->place, 0);
	return 0;
}

void change_params(const struct rank_memory *memory, const struct manifest *manifest, uint32_t rank,
		   uint64_t from, uint64_t to)
{
	struct changing change = {.memory = memory, .from = from, .to = to};
	visit_pieces(memory, manifest, rank, change_piece, &change, NULL);
}
