/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two evaluators of the expression language that share no code: the planner's forms fill a
 * rollout's params, the oracle says what they must hold.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/roles.h"
#include "tests/test.h"

static const struct layout {
	const char *model, *scale, *layout, *mesh;
	uint32_t ranks;
} layouts[] = {
	{"llama-3-70b", "8192", "vllm", "tp=2", 2},
	{"llama-3-70b", "8192", "megatron", "tp=2", 2},
	{"qwen3-32b", "8192", "vllm", "tp=4", 4},
	{"qwen3-30b-a3b", "8192", "vllm", "tp=2,ep=2", 2},
	{"qwen3-30b-a3b", "8192", "sglang", "tp=2,ep=2", 2},
	{"qwen3-30b-a3b", "8192", "megatron", "tp=2,pp=2,ep=2", 8},
	{"deepseek-v3", "65536", "vllm", "tp=2", 2},
	{"deepseek-v3", "65536", "sglang", "tp=2", 2},
	{"kimi-k2", "65536", "megatron", "tp=2,ep=2", 4},
	{"qwen3-30b-a3b", "8192", "fsdp2", "dp=3", 3},
	{"qwen3-32b", "8192", "fsdp2", "dp=2,tp=2", 4},
	{"glm-4.5", "65536", "vllm", "tp=2", 2},
};

struct scene {
	char folder[64];
	struct model *whole, *model;
	struct checkpoint checkpoint;
	struct writer text;
	struct manifest *manifest;
};

static void scene_make(struct scene *scene, const struct layout *layout)
{
	struct ws_error err = {0};
	uint32_t count;
	uint64_t bytes;
	*scene = (struct scene){.folder = "/tmp/weightsync-oracle-XXXXXX",
				.text = WRITER_INIT(64u << 20)};
	ck_assert_ptr_nonnull(mkdtemp(scene->folder));
	ck_ok(model_builtin(&scene->whole, layout->model, &err), err);
	ck_ok(model_scale(&scene->model, scene->whole, 1, strtoull(layout->scale, NULL, 10), &err),
	      err);
	ck_ok(synth_write(scene->model, scene->folder, 7, &count, &bytes, &err), err);
	ck_ok(checkpoint_open(&scene->checkpoint, scene->folder, &err), err);
	struct manifest_options wanted = {
		.side = SIDE_ROLLOUT, .layout = layout->layout, .mesh = layout->mesh};
	if (strcmp(layout->layout, "fsdp2") == 0 || strcmp(layout->layout, "megatron") == 0)
		wanted.side = SIDE_TRAINER;
	ck_ok(manifest_make(scene->model, &wanted, &scene->text, NULL, &err), err);
	ck_ok(manifest_parse(&scene->manifest, scene->text.bytes, scene->text.count, NULL, &err),
	      err);
	ck_assert_uint_eq(manifest_world(scene->manifest), layout->ranks);
}

static void scene_end(struct scene *scene)
{
	char command[128];
	checkpoint_close(&scene->checkpoint);
	manifest_free(scene->manifest);
	model_free(scene->model);
	model_free(scene->whole);
	writer_release(&scene->text);
	snprintf(command, sizeof(command), "rm -rf %s", scene->folder);
	ck_assert_int_eq(system(command), 0);
}

/* Bytes that the oracle says are wrong in all params of a rank. */
static uint64_t count_different(const struct scene *scene, uint32_t rank,
				const struct rank_memory *memory, uint64_t version)
{
	struct ws_error err = {0}, first = {0};
	struct oracle *oracle = NULL;
	uint64_t all = 0;
	ck_ok(oracle_open(&oracle, scene->text.bytes, scene->text.count, scene->text.bytes,
			  scene->text.count, rank, &scene->checkpoint, &err),
	      err);
	for (uint32_t i = 0; i < memory->params.count; i++) {
		const struct param *param = &memory->params.params[i];
		uint64_t bytes, different;
		ck_ok(oracle_compare(oracle, param->name, param->dtype,
				     param_memory(memory, i).base, param->bytes, version, &bytes,
				     &different, &first, &err),
		      err);
		ck_assert_uint_eq(bytes, param->bytes);
		all += different;
	}
	oracle_close(oracle);
	return all;
}

START_TEST(the_planners_forms_and_the_oracle_agree_on_every_byte)
{
	struct ws_error err = {0};
	struct scene scene;
	scene_make(&scene, &layouts[_i]);
	for (uint32_t rank = 0; rank < layouts[_i].ranks; rank++) {
		struct rank_memory memory;
		ck_ok(rank_memory_make(&memory, scene.manifest, rank, NULL, NULL, &err), err);
		ck_ok(fill_params(&memory, scene.manifest, rank, &scene.checkpoint, &err), err);
		if (rank == 0)
			ck_assert_uint_eq(count_different(&scene, rank, &memory, 0), 0);
		change_params(&memory, scene.manifest, rank, 0, 5);
		/* one wrong byte is one wrong byte, and no other differs */
		struct ws_memory last = param_memory(&memory, memory.params.count - 1);
		if (last.bytes > 0)
			((uint8_t *)last.base)[last.bytes - 1] ^= 1;
		ck_assert_uint_eq(count_different(&scene, rank, &memory, 5), last.bytes > 0);
		/* another version's bytes are another version's bytes */
		if (rank == 0)
			ck_assert_uint_gt(count_different(&scene, rank, &memory, 6),
					  memory.params.bytes / 8);
		rank_memory_release(&memory);
	}
	scene_end(&scene);
}
END_TEST

START_TEST(a_change_keeps_every_value_finite)
{
	for (uint32_t bits = 0; bits < 65536; bits++) {
		uint32_t changed = bits ^ change_mask(WS_BF16, bits, 99, bits, 3);
		ck_assert_uint_eq(bits & 0xff80, changed & 0xff80);
		if ((bits & 0x7f80) == 0x7f80)
			ck_assert_uint_eq(bits, changed);
	}
}
END_TEST

Suite *suite(void)
{
	Suite *tests = suite_create("oracle");
	TCase *all = tcase_create("all");
	tcase_set_timeout(all, 120);
	tcase_add_loop_test(all, the_planners_forms_and_the_oracle_agree_on_every_byte, 0,
			    (int)ARRAY_SIZE(layouts));
	tcase_add_test(all, a_change_keeps_every_value_finite);
	suite_add_tcase(tests, all);
	return tests;
}
