/* SPDX-License-Identifier: Apache-2.0 */
/* The small manifest that tests of manifests start from, and change in one place. */
#ifndef MANIFEST_TEXT_H
#define MANIFEST_TEXT_H

#include <stdio.h>
#include <string.h>

#include "planner/planner.h"
#include "tests/test.h"

/* A small MoE of 2 dense, 2 expert layers and an MTP one, on 2 stages of 4 ranks. */
#define HEAD \
	"\"ws_manifest\":1,\"side\":\"rollout\",\"framework\":\"f\",\"model\":\"m\",\"world\":8"
#define SYM "\"sym\":{\"num_hidden_layers\":4,\"vocab_div\":8}"
#define TENSORS                                                                             \
	"\"tensors\":[{\"name\":\"embed\",\"dtype\":\"bf16\",\"shape\":[20,8]},"            \
	"{\"name\":\"l.{L}.norm\",\"dtype\":\"bf16\",\"shape\":[8],\"layers\":[0,5]},"      \
	"{\"name\":\"l.{L}.up\",\"dtype\":\"bf16\",\"shape\":[16,8],\"layers\":[0,2]},"     \
	"{\"name\":\"l.{L}.bias\",\"dtype\":\"f32\",\"shape\":[6],\"layers\":[2,5]},"       \
	"{\"name\":\"l.{L}.e.{E}.up\",\"dtype\":\"bf16\",\"shape\":[4,8],\"layers\":[2,5]," \
	"\"experts\":[0,6]},"                                                               \
	"{\"name\":\"l.{L}.h\",\"dtype\":\"bf16\",\"shape\":[8],\"layers\":[4,5]}]"
#define MESHES                                                                 \
	"\"meshes\":{\"dense\":{\"axes\":[[\"pp\",2],[\"dp\",2],[\"tp\",2]]}," \
	"\"expert\":{\"axes\":[[\"pp\",2],[\"ep\",4]]}}"
#define AXES "\"axes\":{\"all\":[\"dp\",\"tp\"],\"one\":1,\"head\":\"tp\"}"
#define SETS \
	"\"layers\":{\"all\":[0,5],\"dense\":[0,2],\"moe\":[[2,4],[4,5]],\"mtp\":[4,5],\"no\":[]}"
#define STAGES	"\"stages\":{\"axis\":\"pp\",\"of\":[0,0,1,1,1]}"
#define EXPERTS "\"experts\":{\"axis\":\"ep\"}"
#define PARAMS                                                                                   \
	"\"params\":["                                                                           \
	"{\"p\":\"emb\",\"mesh\":\"dense\",\"stage\":\"first\","                                 \
	"\"x\":[\"s\",[\"p\",[\"t\",\"embed\"],0,\"$vocab_div*all\"],0,\"all\"]},"               \
	"{\"p\":\"head\",\"mesh\":\"dense\",\"stage\":\"last\",\"x\":[\"t\",\"embed\"]},"        \
	"{\"p\":\"b.{L}.norm\",\"mesh\":\"dense\",\"each\":{\"L\":\"all\"},"                     \
	"\"x\":[\"t\",\"l.{L}.norm\"]},"                                                         \
	"{\"p\":\"b.{L}.up\",\"mesh\":\"dense\",\"each\":{\"L\":\"dense\"},"                     \
	"\"x\":[\"s\",[\"t\",\"l.{L}.up\"],0,\"head\"]},"                                        \
	"{\"p\":\"b.{L}.bias\",\"mesh\":\"dense\",\"each\":{\"L\":\"moe\"},\"kind\":\"buffer\"," \
	"\"x\":[\"t\",\"l.{L}.bias\"]},"                                                         \
	"{\"p\":\"b.{L}.w\",\"mesh\":\"expert\",\"each\":{\"L\":\"moe\"},\"post\":\"shuffle\","  \
	"\"x\":[\"k\",\"E\",[\"t\",\"l.{L}.e.{E}.up\"]]},"                                       \
	"{\"p\":\"b.{L}.e.{e}\",\"mesh\":\"expert\",\"each\":{\"L\":\"moe\",\"E\":\"ep\"},"      \
	"\"x\":[\"t\",\"l.{L}.e.{E}.up\"]},"                                                     \
	"{\"p\":\"mtp.{L-nl}.h\",\"mesh\":\"dense\",\"each\":{\"L\":\"mtp\"},"                   \
	"\"model\":\"draft\",\"x\":[\"t\",\"l.{L}.h\"]},"                                        \
	"{\"p\":\"nowhere.{L}\",\"mesh\":\"dense\",\"each\":{\"L\":\"no\"},"                     \
	"\"x\":[\"t\",\"not there\"]}]"
#define GOOD                                                                             \
	"{" HEAD "," SYM "," TENSORS "," MESHES "," AXES "," SETS "," STAGES "," EXPERTS \
	"," PARAMS "}"

#define MAP(l2, l3, l4) \
	"\"experts\":{\"axis\":\"ep\",\"map_layers\":[2,5],\"map\":[" l2 "," l3 "," l4 "]}"
#define PLAIN "[[0,1],[2,3],[4,5],[0,3]]"

#define ROWS(rows)                                                          \
	"{" HEAD ","                                                        \
	"\"tensors\":[{\"name\":\"w\",\"dtype\":\"bf16\",\"shape\":[8,8]}," \
	"{\"name\":\"layers.{L}.v\",\"dtype\":\"bf16\",\"shape\":[8],\"layers\":[0,4]}]," rows "}"

/* GOOD with one part in place of another. */
static inline char *changed(const char *from, const char *to)
{
	const char *at = strstr(GOOD, from);
	ck_assert_ptr_nonnull(at);
	size_t room = strlen(GOOD) + strlen(to) + 1;
	char *text = mem_alloc(room);
	snprintf(text, room, "%.*s%s%s", (int)(at - GOOD), GOOD, to, at + strlen(from));
	return text;
}

static inline struct manifest *parse(const char *text)
{
	struct ws_error err = {0};
	struct manifest *manifest;
	ck_ok(manifest_parse(&manifest, text, strlen(text), NULL, &err), err);
	return manifest;
}

#endif
