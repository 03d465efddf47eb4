/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes and scales twice: lib/convert makes them of whole tensors where the planner's forms put
 * them, the oracle says what must be there.  They share no arithmetic and no layout.  Checkpoints
 * are spoiled with NaN, infinities, subnormals and blocks of zeros.
 */
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "cli/roles.h"
#include "tests/quant_world.h"
#include "tests/test.h"

#define SPOILS 200    /* places in each file */
#define RUN    150000 /* elements that cover whole blocks */

static const struct kind {
	const char *model, *scale, *layout, *mesh, *quant, *trained;
} kinds[] = {
	{"qwen3-30b-a3b", "16384", "vllm", "tp=2", "fp8-block", "bf16"},
	{"qwen3-30b-a3b", "16384", "sglang", "tp=2,ep=2", "fp8-block", "f32"},
	{"qwen3-30b-a3b", "16384", "vllm", "tp=2,ep=2", "fp8-channel", "bf16"},
	{"qwen3-30b-a3b", "16384", "sglang", "tp=2", "fp8-tensor", "f32"},
	{"kimi-k2", "65536", "vllm", "tp=2", "fp8-block-ue8m0", "bf16"},
	{"kimi-k2", "65536", "sglang", "tp=2,ep=2", "fp8-block", "f16"},
};

struct scene {
	char folder[64];
	struct model *whole, *model;
	struct checkpoint checkpoint;
	struct writer trainer, rollout;
	struct manifest *manifest; /* the rollout's */
	enum ws_dtype trained;
};

/* Words of all kinds here and there; a run of zeros and one of subnormals that cover blocks. */
static void spoil(const char *path)
{
	static const uint16_t words[] = {0x7fc0, 0xffa1, 0x7f80, 0xff80, 0x0001, 0x8001,
					 0x8000, 0x7f7f, 0x0080, 0xff7f, 0x0000, 0x3f80};
	FILE *file = fopen(path, "r+b");
	uint64_t header = 0;
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fread(&header, sizeof(header), 1, file), 1);
	ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
	uint64_t begin = 8 + header, count = ((uint64_t)ftell(file) - begin) / 2;
	for (uint64_t run = 0; run < 2; run++) {
		static uint16_t same[RUN];
		uint64_t at = mix64(run) % count, length = MIN(count - at, (uint64_t)RUN);
		for (uint64_t i = 0; i < length; i++)
			same[i] = (uint16_t)run;
		ck_assert_int_eq(fseek(file, (long)(begin + at * 2), SEEK_SET), 0);
		ck_assert_uint_eq(fwrite(same, 2, length, file), length);
	}
	for (uint64_t i = 0; i < SPOILS; i++) {
		uint64_t at = mix64(i * 77 + 5) % count;
		ck_assert_int_eq(fseek(file, (long)(begin + at * 2), SEEK_SET), 0);
		ck_assert_uint_eq(fwrite(&words[i % ARRAY_SIZE(words)], 2, 1, file), 1);
	}
	ck_assert_int_eq(fclose(file), 0);
}

static void manifest_write(const struct scene *scene, const struct manifest_options *options,
			   struct writer *out)
{
	struct ws_error err = {0};
	*out = (struct writer)WRITER_INIT(64u << 20);
	ck_ok(manifest_make(scene->model, options, out, NULL, &err), err);
}

static void scene_make(struct scene *scene, const struct kind *kind)
{
	struct ws_error err = {0};
	char pattern[128];
	uint32_t count;
	uint64_t bytes;
	glob_t files;
	*scene = (struct scene){.folder = "/tmp/weightsync-oracle-XXXXXX",
				.trained = ws_dtype_parse(kind->trained)};
	ck_assert_ptr_nonnull(mkdtemp(scene->folder));
	ck_ok(model_builtin(&scene->whole, kind->model, &err), err);
	ck_ok(model_scale(&scene->model, scene->whole, 1, strtoull(kind->scale, NULL, 10), &err),
	      err);
	ck_ok(synth_write(scene->model, scene->folder, 7, &count, &bytes, &err), err);
	snprintf(pattern, sizeof(pattern), "%s/*.safetensors", scene->folder);
	ck_assert_int_eq(glob(pattern, 0, NULL, &files), 0);
	for (size_t i = 0; i < files.gl_pathc; i++)
		spoil(files.gl_pathv[i]);
	globfree(&files);
	ck_ok(checkpoint_open(&scene->checkpoint, scene->folder, &err), err);
	manifest_write(scene,
		       &(struct manifest_options){.side = SIDE_TRAINER,
						  .layout = "fsdp2",
						  .mesh = "dp=1",
						  .dtype = kind->trained},
		       &scene->trainer);
	manifest_write(scene,
		       &(struct manifest_options){.side = SIDE_ROLLOUT,
						  .layout = kind->layout,
						  .mesh = kind->mesh,
						  .quant = kind->quant},
		       &scene->rollout);
	ck_ok(manifest_parse(&scene->manifest, scene->rollout.bytes, scene->rollout.count, NULL,
			     &err),
	      err);
}

static void scene_end(struct scene *scene)
{
	char command[128];
	checkpoint_close(&scene->checkpoint);
	manifest_free(scene->manifest);
	model_free(scene->model);
	model_free(scene->whole);
	writer_release(&scene->trainer);
	writer_release(&scene->rollout);
	snprintf(command, sizeof(command), "rm -rf %s", scene->folder);
	ck_assert_int_eq(system(command), 0);
}

/* A canonical weight as a trainer holds it. */
static void whole_read(const struct scene *scene, struct whole *whole, const char *name)
{
	struct ws_error err;
	const struct st_tensor *tensor = checkpoint_find(&scene->checkpoint, name);
	ck_assert_ptr_nonnull(tensor);
	void *stored = mem_alloc(tensor->bytes);
	ck_ok(checkpoint_read(&scene->checkpoint, tensor, 0, stored, tensor->bytes, &err), err);
	convert_move(&(struct move){.src = stored,
				    .dst = whole->data,
				    .dim_count = 1,
				    .extent = {whole->element_count},
				    .src_stride = {(int64_t)ws_dtype_bytes(tensor->dtype)},
				    .dst_stride = {(int64_t)ws_dtype_bytes(whole->trained)},
				    .from = tensor->dtype,
				    .to = whole->trained});
	mem_free(stored);
}

/* One piece of a quantized weight, or of its scale. */
static void fill_piece(const struct scene *scene, const struct param *param, uint32_t rank,
		       const struct piece *piece, uint8_t *memory)
{
	const struct manifest *manifest = scene->manifest;
	const struct tensor_rule *rules[FELLOWS_MAX];
	uint32_t count = whole_fellows(manifest, rank, param, piece, rules);
	struct whole wholes[FELLOWS_MAX];
	char name[512];
	for (uint32_t i = 0; i < count; i++) {
		tensor_name(rules[i], param->layer,
			    param_expert(manifest, rank, param, piece->slot), name, sizeof(name));
		whole_open(&wholes[i], rules[i], scene->trained,
			   manifest_scheme(manifest, param->rule));
		whole_read(scene, &wholes[i], name);
		whole_find_maxima(&wholes[i]);
		if (i > 0)
			whole_share(&wholes[0], &wholes[i]);
	}
	whole_put(&wholes[0], param->dtype, piece, manifest_rule(manifest, param->rule)->is_scale,
		  memory);
	for (uint32_t i = 0; i < count; i++)
		whole_close(&wholes[i]);
}

/* Params of the rank that are quantized: how many, and how many of their bytes are wrong. */
static uint32_t check_params(const struct scene *scene, uint32_t rank,
			     const struct rank_memory *memory, struct oracle *oracle,
			     uint64_t *different_out)
{
	struct ws_error err = {0}, first = {0};
	uint32_t count = 0;
	for (uint32_t i = 0; i < memory->params.count; i++) {
		const struct param *param = &memory->params.params[i];
		const struct param_rule *rule = manifest_rule(scene->manifest, param->rule);
		uint8_t *at = param_memory(memory, i).base;
		uint64_t bytes, different;
		if (rule->quant == NULL)
			continue;
		for (uint32_t p = 0; p < param->form->piece_count; p++)
			fill_piece(scene, param, rank, &param->form->pieces[p], at);
		ck_ok(oracle_compare(oracle, param->name, param->dtype, at, param->bytes, 0, &bytes,
				     &different, &first, &err),
		      err);
		ck_assert_msg(different == 0, "%s", first.text);
		at[param->bytes / 2] ^= 1;
		ck_ok(oracle_compare(oracle, param->name, param->dtype, at, param->bytes, 0, &bytes,
				     &different, NULL, &err),
		      err);
		*different_out += different;
		count++;
	}
	return count;
}

START_TEST(codes_and_scales_of_two_implementations_agree)
{
	struct ws_error err = {0};
	struct scene scene;
	scene_make(&scene, &kinds[_i]);
	uint32_t rank = manifest_world(scene.manifest) - 1;
	struct rank_memory memory;
	struct oracle *oracle;
	uint64_t different = 0;
	ck_ok(rank_memory_make(&memory, scene.manifest, rank, NULL, NULL, &err), err);
	ck_ok(oracle_open(&oracle, scene.trainer.bytes, scene.trainer.count, scene.rollout.bytes,
			  scene.rollout.count, rank, &scene.checkpoint, &err),
	      err);
	uint32_t count = check_params(&scene, rank, &memory, oracle, &different);
	/* Each param had one wrong byte in the end. */
	ck_assert_uint_ge(count, 8);
	ck_assert_uint_eq(different, count);
	oracle_close(oracle);
	rank_memory_release(&memory);
	scene_end(&scene);
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("oracle_quant");
	TCase *all = tcase_create("all");
	tcase_set_timeout(all, 300);
	tcase_add_loop_test(all, codes_and_scales_of_two_implementations_agree, 0,
			    (int)ARRAY_SIZE(kinds));
	suite_add_tcase(tests, all);
	return tests;
}
