/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumps that can't be: a good one with one thing changed is refused, with a sentence that names
 * the fault and the param; and importing survives the failure of every allocation.
 */
#include <errno.h>

#include "tests/import_model.h"

static char *read_dump(const char *name, size_t *bytes_out)
{
	char path[128];
	void *text;
	struct ws_error err = {0};
	snprintf(path, sizeof(path), "tests/dumps/%s.json", name);
	ck_ok(file_read(path, 1u << 20, &text, bytes_out, &err), err);
	return text;
}

/* The text with the first `find` replaced, in the arena. */
static const char *change(struct arena *arena, const char *text, const char *find, const char *with)
{
	const char *at = strstr(text, find);
	ck_assert_msg(at != NULL, "the dump has no %s", find);
	size_t before = (size_t)(at - text), after = strlen(at + strlen(find));
	char *out = arena_alloc(arena, before + strlen(with) + after + 1);
	ck_assert_ptr_nonnull(out);
	memcpy(out, text, before);
	memcpy(out + before, with, strlen(with));
	memcpy(out + before + strlen(with), at + strlen(find), after);
	return out;
}

static const struct {
	const char *dump, *find, *with;
	const char *kind, *text; /* of some finding */
} faults[] = {
	{"dtensor_tp", "\"ws_dump\": \"dtensor\"", "\"ws_dump\": \"dcp\"", "dump",
	 "it must be \"dtensor\", as --from says"},
	{"dtensor_tp", "\"world\": 4", "\"world\": 0", "dump", "from 1 to 65536 ranks"},
	{"dtensor_tp", "\"world\": 4", "\"world\": 1000000000", "dump", "from 1 to 65536 ranks"},
	{"dtensor_tp", "\"world\": 4", "\"world\": 3", "mesh",
	 "doesn't factor the world of 3 ranks"},
	{"dtensor_tp", "\"rank\": 0", "\"rank\": 4", "dump", "it must be below 4"},
	{"dtensor_tp", "[[0, 1], [2, 3]]", "[[0, 1], [3, 2]]", "mesh", "one fixed step"},
	{"dtensor_tp", "[[0, 1], [2, 3]]", "[[0, 1], [2]]", "mesh", "2 nested lists"},
	{"dtensor_tp", "[[0, 1], [2, 3]]", "[]", "mesh", "1 nested list"},
	{"dtensor_tp", "\"ranks\": [0, 2]", "\"ranks\": [0, 3]", "mesh",
	 "doesn't factor the world"},
	{"dtensor_tp", "\"ranks\": [0, 2]", "\"ranks\": 7", "mesh", "it needs \"ranks\""},
	{"dtensor_tp", "\"Shard(dim=0)\"", "\"Partial(sum)\"", "placement",
	 "'Partial(sum)' isn't a placement"},
	{"dtensor_tp", "\"Shard(dim=0)\"", "\"Shard(dim=2)\"", "placement",
	 "of a weight of 2 dims"},
	{"dtensor_tp", "\"Shard(dim=0)\"", "7", "placement", "'' isn't a placement"},
	{"dtensor_tp", "sf=2", "sf=3", "placement", "split factor isn't the product"},
	{"dtensor_tp", "[\"_StridedShard(dim=0, sf=2)\", ", "[", "placement",
	 "it has 1 placements, and its mesh 2 dims"},
	{"dtensor_tp", "\"mesh\": 0", "\"mesh\": 2", "mesh", "\"mesh\" below 2"},
	{"dtensor_tp", "torch.float32", "torch.complex64", "dtype",
	 "'torch.complex64' is no dtype"},
	{"dtensor_tp", "\"shape\": [1000, 40]", "\"shape\": [1000, 41]", "shape",
	 "it is [1000, 41] in the dump, and [1000, 40] in model 'tiny'"},
	{"dtensor_tp", "\"shape\": [1000, 40]", "\"shape\": [-1, 40]", "dump",
	 "integers from 0 on"},
	{"dtensor_tp", "\"local\": [250, 40]", "\"local\": [125, 40]", "shape",
	 "at rank 0 it is [125, 40] in the dump, and [250, 40]"},
	{"dtensor_tp", "layers.0.self_attn.q_proj", "layers.0.self_attn.q_prj", "name",
	 "did you mean 'model.layers.{L}.self_attn.q_proj.weight'?"},
	{"dtensor_tp", "layers.0.self_attn.q_proj", "layers.0.self_attn.q_prj", "missing",
	 "no param of the dump holds it at layer 0"},
	{"dtensor_tp", "\"model.norm.weight\"", "\"quite.another.thing\"", "name",
	 "say what 'quite.another.thing' is made of"},
	{"dtensor_tp", "\"model.norm.weight\"", "\"rope.inv_freq\"", "missing",
	 "no param of the dump holds it"},
	{"dtensor_tp", "layers.0.mlp.experts.3.gate_proj", "layers.0.mlp.experts.2.gate_proj",
	 "doubled", "the dump has it twice at rank 0"},
	{"dtensor_tp", "layers.0.mlp.experts.3.gate_proj", "layers.0.mlp.experts.9.gate_proj",
	 "missing", "the dump has it at rank 0, where none of its rules puts it"},
	{"dtensor_tp", "layers.0.mlp.experts.3.gate_proj", "x.inv_freq", "missing",
	 "layer 0 has 7 of its 8 experts"},
	{"dtensor_ep", "\"params\": [", "\"params\": {}, \"more\": [", "dump", "a list of params"},
	{"dtensor_ep", "\"name\": \"", "\"nome\": \"", "dump", "\"name\" must be a text"},
	{"dtensor_pp", "\"rank\": 2", "\"rank\": 3", "dump", "ranks in equal steps"},
	{"dtensor_pp", "\"rank\": 2", "\"rank\": 1", "mesh", "doesn't factor the world"},
	{"dtensor_pp", "\"rank\": 2", "\"rank\": -2", "dump", "ranks in equal steps"},
	{"dtensor_pp", "\"ranks\": [{", "\"ranks\": 7, \"more\": [{", "dump",
	 "ranks in equal steps"},
	{"dtensor_pp", "model.layers.3.input_layernorm", "model.layers.1.input_layernorm", "stage",
	 "layer 1 is on stage 0 and on stage 1"},
	{"dtensor_pp", "\"lm_head.weight\"", "\"x.inv_freq\"", "missing",
	 "no param of the dump holds it"},
	{"megatron_tp_pp", "\"tp\": [0, 1]", "\"tp\": [0, 2]", "mesh", "another rank's"},
	{"megatron_tp_pp", "\"tp\": [0, 1]", "\"tp\": [1, 2]", "mesh", "must list rank 0"},
	{"megatron_tp_pp", "\"groups\": {", "\"groups\": [7], \"more\": {", "dump",
	 "must be an object of rank lists"},
	{"dtensor_tp", "{\"name\": \"model.norm.weight\"", "{\"name\": \"other.weight\"", "name",
	 "did you mean 'output.weight'?"},
	{"megatron_tp_pp", "\"tp\": [0, 1]", "\"tq\": [0, 1]", "dump", "\"groups\" has 'tq'"},
	{"megatron_tp_pp", "\"dp\": [0]", "\"dp\": [0, 1]", "mesh", "another rank's"},
	{"megatron_tp_pp", "\"world\": 4", "\"world\": 8", "mesh",
	 "make 4 ranks, and the world has 8"},
	{"megatron_tp_pp", "\"rank\": 2", "\"rank\": 7", "dump", "\"rank\" must be below 4"},
	{"megatron_tp_pp", "\"layers\": [0, 1]", "\"layers\": [0, 9]", "dump", "below 4"},
	{"megatron_tp_pp", "\"layers\": [0, 1]", "\"layers\": [0, 2]", "stage",
	 "layer 2 is on stage 0 and on stage 1"},
	{"megatron_tp_pp", "\"layers\": [0, 1]", "\"layers\": [0]", "stage",
	 "local layer 1, and its chunk at rank 0 lists 1 layers"},
	{"megatron_tp_pp", "\"layers\": [0, 1]", "\"layers\": [0, 0]", "stage",
	 "no dumped rank has layer 1"},
	{"megatron_tp_pp", "\"chunks\": [", "\"chunks\": 7, \"more\": [", "dump",
	 "\"chunks\" must be a list"},
	{"megatron_tp_pp", "\"ranks\": [", "\"ranks\": [], \"more\": [", "dump",
	 "one rank of each pipeline stage"},
	{"megatron_tp_pp", "\"partition_dim\": 1", "\"partition_dim\": 0", "partition",
	 "partition_dim 0, and Megatron's own is cut along dim 1"},
	{"megatron_tp_pp", "\"partition_dim\": 1", "\"partition_dim\": 2", "partition",
	 "needs partition_dim below 2"},
	{"megatron_tp_pp", "\"partition_stride\": 1", "\"partition_stride\": 3", "partition",
	 "partition_stride 3, and it is made of 1 part"},
	{"megatron_tp_pp", "\"expert\": false", "\"expert\": true", "partition", "as an expert's"},
	{"megatron_tp_pp", "\"expert\": false", "\"parallel_mode\": \"row\"", "partition",
	 "parallel_mode 'row', and Megatron's own isn't"},
	{"megatron_tp_pp", "self_attention.linear_proj", "self_attention.linear_prj", "name",
	 "did you mean 'decoder.layers.{L}.self_attention.linear_proj.weight'?"},
	{"megatron_tp_pp", "\"shape\": [40, 32]", "\"shape\": [40, 64]", "shape",
	 "at rank 0 it is [40, 64] in the dump, and [40, 32]"},
	{"megatron_tp_pp", "\"output_layer.weight\"", "\"x._extra_state\"", "missing",
	 "no param of the dump holds it"},
	{"megatron_tp_pp", "layers.0.mlp.router.weight", "layers.1.mlp.router.weight", "missing",
	 "no param of the dump holds it at layer 0"},
};

START_TEST(a_dump_with_one_fault_is_refused)
{
	struct model *model = tiny_model();
	struct arena arena = {0};
	struct findings findings = {.arena = &arena};
	struct writer out = WRITER_INIT(16u << 20);
	struct ws_error err = {0};
	bool dtensor = strncmp(faults[_i].dump, "dtensor", 7) == 0, said = false;
	struct import_options options = {.side = SIDE_TRAINER,
					 .from = dtensor ? "dtensor" : "megatron"};
	size_t bytes;
	char *good = read_dump(faults[_i].dump, &bytes);
	const char *bad = change(&arena, good, faults[_i].find, faults[_i].with);
	ck_fails(manifest_import(model, &options, bad, strlen(bad), &out, &findings, &err), -EINVAL,
		 err);
	for (const struct finding *it = findings.first; it != NULL; it = it->next)
		said = said || (strcmp(it->kind, faults[_i].kind) == 0 &&
				strstr(it->text, faults[_i].text) != NULL);
	ck_assert_msg(said, "%s: %s", findings.first->kind, err.text);
	mem_free(good);
	writer_release(&out);
	arena_release(&arena);
	model_free(model);
	ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

static const char *const every_nth[] = {"dtensor_ep", "megatron_tp_pp"};

START_TEST(every_allocation_may_fail)
{
	struct model *model = tiny_model();
	struct import_options options = {.side = SIDE_TRAINER,
					 .from = _i == 0 ? "dtensor" : "megatron"};
	size_t bytes;
	char *text = read_dump(every_nth[_i], &bytes);
	uint64_t live = mem_live_count();
	int rc = -ENOMEM;
	for (int64_t n = 0; rc != 0 && n < 100000; n++) {
		struct writer out = WRITER_INIT(16u << 20);
		struct ws_error err = {0};
		mem_fail_nth(n);
		rc = manifest_import(model, &options, text, bytes, &out, NULL, &err);
		mem_fail_nth(-1);
		ck_assert_msg(rc == 0 || (rc == -ENOMEM && err.text[0] != '\0'), "%lld: %d: %s",
			      (long long)n, rc, err.text);
		writer_release(&out);
		ck_assert_uint_eq(mem_live_count(), live);
	}
	ck_assert_int_eq(rc, 0);
	mem_free(text);
	model_free(model);
}
END_TEST

START_TEST(a_dump_of_another_kind_is_refused)
{
	struct model *model = tiny_model();
	struct import_options options = {.from = "dcp"};
	struct writer out = WRITER_INIT(1u << 20);
	struct ws_error err = {0};
	ck_fails(manifest_import(model, &options, "{}", 2, &out, NULL, &err), -EINVAL, err);
	ck_assert_str_eq(err.text, "there is no dump 'dcp'; there are dtensor and megatron");
	options.from = "dtensor";
	ck_fails(manifest_import(model, &options, "[", 1, &out, NULL, &err), -EBADMSG, err);
	ck_fails(manifest_import(model, &options, "7", 1, &out, NULL, &err), -EINVAL, err);
	writer_release(&out);
	model_free(model);
}
END_TEST

Suite *suite(void)
{
	Suite *s = suite_create("import faults");
	TCase *t = tcase_create("import faults");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, a_dump_with_one_fault_is_refused, 0, ARRAY_SIZE(faults));
	tcase_add_loop_test(t, every_allocation_may_fail, 0, ARRAY_SIZE(every_nth));
	tcase_add_test(t, a_dump_of_another_kind_is_refused);
	suite_add_tcase(s, t);
	return s;
}
