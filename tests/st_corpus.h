/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The corpus of facts/faults.md 2.1 and 2.2: each named case with the exact verdict, in the
 * order in which the reader's rules are checked.
 */
#ifndef ST_CORPUS_H
#define ST_CORPUS_H

#include <errno.h>
#include <string.h>

#include "lib/base/safetensors.h"
#include "tests/test.h"

#define T(name, dtype, shape, offsets)                                                           \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets \
	"]}"
#define A4	   T("a", "F32", "1", "0,4")
#define TEXT(text) .header = (text), .header_count = sizeof(text) - 1

/* Where the Rust reader's verdict is another on purpose; lib/base/README.md says why. */
#define STRICTER .differs = true

struct verdict_case {
	const char *name;
	const char *header; /* NULL: made by make */
	size_t header_count;
	void (*make)(struct writer *header);
	size_t data_bytes;
	bool has_length; /* the 8 bytes say `length`, not the header's own */
	uint64_t length;
	size_t cut_to; /* the file's bytes, if not 0 */
	int code;
	const char *rule; /* part of the sentence; NULL: accepted */
	bool differs;
};

static void put_times(struct writer *out, const char *text, uint32_t count)
{
	char many[4096];
	size_t text_count = strlen(text), each = sizeof(many) / text_count;
	for (size_t i = 0; i < each; i++)
		memcpy(many + i * text_count, text, text_count);
	for (size_t left = count; left > 0; left -= MIN(left, each))
		write_bytes(out, many, MIN(left, each) * text_count);
}

static void make_rank_1000(struct writer *out)
{
	write_format(out, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1");
	put_times(out, ",1", 999);
	write_format(out, "],\"data_offsets\":[0,1]}}");
}

static void make_deep(struct writer *out)
{
	write_format(out, "{\"a\":");
	put_times(out, "[", 2000);
	put_times(out, "]", 2000);
	write_format(out, "}");
}

static void make_extra_127_deep(struct writer *out)
{
	write_format(out, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":");
	put_times(out, "[", 125);
	put_times(out, "]", 125);
	write_format(out, "}}");
}

static void make_node_bomb(struct writer *out)
{
	write_format(out, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1");
	put_times(out, ",1", 400000);
	write_format(out, "],\"data_offsets\":[0,1]}}");
}

static void make_array_bomb(struct writer *out)
{
	write_format(out, "[1");
	put_times(out, ",1", 400000);
	write_format(out, "]");
}

static void make_long_number(struct writer *out)
{
	write_format(out, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1");
	put_times(out, "0", 100);
	write_format(out, "],\"data_offsets\":[0,1]}}");
}

/* The order of the columns is the order of the checks. */
static const struct verdict_case cases[] = {
	/* What the format allows. */
	{"one tensor", TEXT("{" A4 "}"), .data_bytes = 4},
	{"no tensor", TEXT("{}")},
	{"two tensors out of order", TEXT("{" T("b", "U8", "2", "4,6") "," A4 "}"),
	 .data_bytes = 6},
	{"zero sized tensor", TEXT("{" T("z", "F32", "2,0", "0,0") "}")},
	{"zero sized tensors between",
	 TEXT("{" A4 "," T("z", "F32", "0", "4,4") "," T("b", "U8", "1", "4,5") "}"),
	 .data_bytes = 5},
	{"rank 0", TEXT("{" T("a", "F32", "", "0,4") "}"), .data_bytes = 4},
	{"rank 8", TEXT("{" T("a", "U8", "1,1,1,1,1,1,1,2", "0,2") "}"), .data_bytes = 2},
	{"white space behind", TEXT("{" A4 "}   \t\n\r "), .data_bytes = 4},
	{"white space inside",
	 TEXT("{ \"a\" : { \"dtype\" : \"F32\" ,\n\"shape\" : [ 1 ] ,\t"
	      "\"data_offsets\" : [ 0 , 4 ] } }"),
	 .data_bytes = 4},
	{"metadata", TEXT("{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}," A4 "}"),
	 .data_bytes = 4},
	{"metadata alone", TEXT("{\"__metadata__\":{}}")},
	{"metadata null", TEXT("{\"__metadata__\":null," A4 "}"), .data_bytes = 4},
	{"names in UTF-8 and escaped",
	 TEXT("{" T("\xc3\xa9\xf0\x9f\x98\x80", "U8", "1", "0,1") "," T("\\ud83d\\ude01\\n", "U8",
									"1", "1,2") "}"),
	 .data_bytes = 2},
	{"empty name", TEXT("{" T("", "U8", "1", "0,1") "}"), .data_bytes = 1},
	{"another field in a tensor",
	 TEXT("{\"a\":{\"dtype\":\"U8\",\"x\":[{}],\"shape\":[1],\"data_offsets\":[0,1]}}"),
	 .data_bytes = 1},
	{"another field 127 deep", .make = make_extra_127_deep, .data_bytes = 1},
	{"F4 even", TEXT("{" T("a", "F4", "2", "0,1") "}"), .data_bytes = 1},
	{"F6 by four",
	 TEXT("{" T("a", "F6_E2M3", "4", "0,3") "," T("b", "F6_E3M2", "4", "3,6") "}"),
	 .data_bytes = 6},
	{"C64", TEXT("{" T("a", "C64", "1", "0,8") "}"), .data_bytes = 8},
	{"F8 variants",
	 TEXT("{" T("a", "F8_E4M3", "1", "0,1") "," T("b", "F8_E5M2", "1",
						      "1,2") "," T("c", "F8_E8M0", "1", "2,3") "}"),
	 .data_bytes = 3},
	/* The file's first 8 bytes. */
	{"empty file", TEXT(""), .cut_to = 0, .has_length = true, .code = -EBADMSG,
	 .rule = "too small for a header"},
	{"file of 7 bytes", TEXT("{}"), .cut_to = 7, .code = -EBADMSG,
	 .rule = "too small for a header"},
	{"N too large", TEXT("{" A4 "}"), .data_bytes = 4, .has_length = true, .length = 100000001,
	 .code = -EBADMSG, .rule = "header is too large"},
	{"N of all ones", TEXT("{" A4 "}"), .data_bytes = 4, .has_length = true,
	 .length = UINT64_MAX, .code = -EBADMSG, .rule = "header is too large"},
	{"N at its limit, beyond the file", TEXT("{" A4 "}"), .data_bytes = 4, .has_length = true,
	 .length = 100000000, .code = -EBADMSG, .rule = "more than the file"},
	{"N one more than the file", TEXT("{}"), .has_length = true, .length = 3, .code = -EBADMSG,
	 .rule = "more than the file"},
	{"N = 0", TEXT(""), .data_bytes = 4, .code = -EBADMSG, .rule = "header is empty"},
	/* UTF-8. */
	{"not UTF-8", TEXT("{" T("\xff", "U8", "1", "0,1") "}"), .data_bytes = 1, .code = -EBADMSG,
	 .rule = "isn't valid UTF-8"},
	{"overlong UTF-8 of two bytes", TEXT("{" T("\xc0\xaf", "U8", "1", "0,1") "}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "isn't valid UTF-8"},
	{"overlong UTF-8 of three bytes", TEXT("{" T("\xe0\x80\xaf", "U8", "1", "0,1") "}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "isn't valid UTF-8"},
	{"overlong UTF-8 of four bytes", TEXT("{" T("\xf0\x80\x80\xaf", "U8", "1", "0,1") "}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "isn't valid UTF-8"},
	{"a surrogate in UTF-8", TEXT("{" T("\xed\xa0\x80", "U8", "1", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "isn't valid UTF-8"},
	{"UTF-8 beyond U+10FFFF", TEXT("{" T("\xf4\x90\x80\x80", "U8", "1", "0,1") "}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "isn't valid UTF-8"},
	{"UTF-8 cut short", TEXT("{\"\xe2\x82"), .code = -EBADMSG, .rule = "isn't valid UTF-8"},
	/* JSON. */
	{"BOM", TEXT("\xef\xbb\xbf{" A4 "}"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "doesn't begin with '{'"},
	{"white space in front", TEXT(" {" A4 "}"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "doesn't begin with '{'", STRICTER},
	{"an array", TEXT("[]"), .code = -EBADMSG, .rule = "doesn't begin with '{'"},
	{"an array of very many", .make = make_array_bomb, .code = -EBADMSG,
	 .rule = "doesn't begin with '{'"},
	{"not JSON", TEXT("{not json}"), .code = -EBADMSG, .rule = "a string must stand here"},
	{"cut JSON", TEXT("{" A4), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "',' or '}' must stand here"},
	{"comma at the end", TEXT("{" A4 ",}"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "a string must stand here"},
	{"garbage behind", TEXT("{" A4 "}GARBAGE"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "something follows the value"},
	{"NUL behind", TEXT("{" A4 "}\0"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "something follows the value"},
	{"a control byte as white space", TEXT("{\x01" A4 "}"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "a string must stand here"},
	{"a control byte in a name", TEXT("{" T("a\x01", "U8", "1", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "control byte"},
	{"a raw NUL in a name", TEXT("{\"a\0b\":{}}"), .code = -EBADMSG, .rule = "control byte"},
	{"an escaped NUL in a name", TEXT("{" T("a\\u0000b", "U8", "1", "0,1") "}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "holds a NUL", STRICTER},
	{"bad hex in an escape", TEXT("{" T("\\uZZZZ", "U8", "1", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "four hexadecimal digits"},
	{"an unknown escape", TEXT("{" T("\\x41", "U8", "1", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "no such escape"},
	{"a lone high surrogate", TEXT("{" T("\\ud800", "U8", "1", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "half of a surrogate pair"},
	{"a lone low surrogate", TEXT("{" T("\\udc00", "U8", "1", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "half of a surrogate pair"},
	{"deep nesting", .make = make_deep, .code = -ENOSPC, .rule = "too deeply nested"},
	{"a leading zero", TEXT("{" T("a", "F32", "007", "0,28") "}"), .data_bytes = 28,
	 .code = -EBADMSG, .rule = "needless 0"},
	{"a point without digits", TEXT("{" T("a", "F32", "1.", "0,4") "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "a digit must stand here"},
	{"a plus sign", TEXT("{" T("a", "F32", "+1", "0,4") "}"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "no JSON value begins like this"},
	{"NaN", TEXT("{" T("a", "F32", "NaN", "0,4") "}"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "no JSON value begins like this"},
	{"a key twice", TEXT("{" A4 "," A4 "}"), .data_bytes = 4, .code = -EBADMSG,
	 .rule = "the key 'a' twice", STRICTER},
	{"a key twice, with other ranges", TEXT("{" A4 "," T("a", "U8", "1", "4,5") "}"),
	 .data_bytes = 5, .code = -EBADMSG, .rule = "the key 'a' twice"},
	{"a key twice by escape", TEXT("{" A4 "," T("\\u0061", "F32", "1", "0,4") "}"),
	 .data_bytes = 4, .code = -EBADMSG, .rule = "the key 'a' twice", STRICTER},
	{"metadata twice", TEXT("{\"__metadata__\":{},\"__metadata__\":{}}"), .code = -EBADMSG,
	 .rule = "the key '__metadata__' twice"},
	{"a metadata key twice", TEXT("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}"),
	 .code = -EBADMSG, .rule = "has the key 'a' twice", STRICTER},
	{"metadata with a number", TEXT("{\"__metadata__\":{\"a\":1}," A4 "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "is no string"},
	{"metadata with an object", TEXT("{\"__metadata__\":{\"a\":{}}," A4 "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "is no string"},
	{"metadata is a string", TEXT("{\"__metadata__\":\"x\"," A4 "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "__metadata__ is no object"},
	/* One tensor. */
	{"a tensor is a number", TEXT("{\"a\":1}"), .code = -EBADMSG, .rule = "it is no object"},
	{"a tensor is an array", TEXT("{\"a\":[\"U8\",[1],[0,1]]}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "it is no object", STRICTER},
	{"very many values", .make = make_node_bomb, .data_bytes = 1, .code = -ENOSPC,
	 .rule = "too many values", STRICTER},
	{"a field twice",
	 TEXT("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "has the key 'dtype' twice"},
	{"no dtype", TEXT("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "dtype is missing"},
	{"an unknown dtype", TEXT("{" T("a", "F128", "1", "0,16") "}"), .data_bytes = 16,
	 .code = -EBADMSG, .rule = "dtype 'F128' is unknown"},
	{"a dtype in small letters", TEXT("{" T("a", "f32", "1", "0,4") "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "dtype 'f32' is unknown"},
	{"Dtype for dtype", TEXT("{\"a\":{\"Dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "dtype is missing"},
	{"no shape", TEXT("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "shape is missing"},
	{"a negative dim", TEXT("{" T("a", "U8", "-1", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "shape holds something else"},
	{"minus zero", TEXT("{" T("a", "U8", "-0", "0,0") "}"), .code = -EBADMSG,
	 .rule = "shape holds something else"},
	{"a dim with a fraction", TEXT("{" T("a", "U8", "1.0", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "shape holds something else"},
	{"a dim is a string", TEXT("{" T("a", "U8", "\"1\"", "0,1") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "shape holds something else"},
	{"rank 9", TEXT("{" T("a", "U8", "1,1,1,1,1,1,1,1,1", "0,1") "}"), .data_bytes = 1,
	 .code = -ENOSPC, .rule = "it has 9 dimensions", STRICTER},
	{"rank 1000", .make = make_rank_1000, .data_bytes = 1, .code = -ENOSPC,
	 .rule = "it has 1000 dimensions", STRICTER},
	{"a number of 100 digits", .make = make_long_number, .data_bytes = 1, .code = -EBADMSG,
	 .rule = "more than 60 characters"},
	{"1e400", TEXT("{" T("a", "U8", "1e400", "0,1") "}"), .data_bytes = 1, .code = -EBADMSG,
	 .rule = "beyond every double"},
	{"no data_offsets", TEXT("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}"), .code = -EBADMSG,
	 .rule = "data_offsets is missing"},
	{"one data_offset", TEXT("{" T("a", "U8", "1", "0") "}"), .code = -EBADMSG,
	 .rule = "data_offsets is missing"},
	{"three data_offsets", TEXT("{" T("a", "U8", "1", "0,1,2") "}"), .code = -EBADMSG,
	 .rule = "data_offsets is missing"},
	{"offsets like 1e5", TEXT("{" T("a", "U8", "100000", "0,1e5") "}"), .data_bytes = 100000,
	 .code = -EBADMSG, .rule = "data_offsets holds something else"},
	{"offset 2^53+1", TEXT("{" T("a", "U8", "9007199254740993", "0,9007199254740993") "}"),
	 .data_bytes = 1, .code = -EBADMSG, .rule = "shape holds something else"},
	{"offset 2^53", TEXT("{" T("a", "U8", "1", "0,9007199254740992") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "data_offsets holds something else"},
	{"offset 2^53-1 is a number",
	 TEXT("{" T("a", "U8", "9007199254740991", "0,9007199254740991") "}"), .data_bytes = 1,
	 .code = -EBADMSG, .rule = "the tensors cover"},
	{"[0, 2^63]", TEXT("{" T("a", "U8", "0,9223372036854775808", "0,0") "}"), .code = -EBADMSG,
	 .rule = "shape holds something else", STRICTER},
	/* The ranges. */
	{"overlap", TEXT("{" A4 "," T("b", "F32", "1", "2,6") "}"), .data_bytes = 6,
	 .code = -EBADMSG, .rule = "don't continue at 4"},
	{"two over the same bytes", TEXT("{" A4 "," T("b", "F32", "1", "0,4") "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "don't continue at 4"},
	{"gap first", TEXT("{" T("a", "F32", "1", "4,8") "}"), .data_bytes = 8, .code = -EBADMSG,
	 .rule = "don't continue at 0"},
	{"gap in the middle", TEXT("{" A4 "," T("b", "F32", "1", "8,12") "}"), .data_bytes = 12,
	 .code = -EBADMSG, .rule = "don't continue at 4"},
	{"gap at the end", TEXT("{" A4 "}"), .data_bytes = 8, .code = -EBADMSG,
	 .rule = "the tensors cover 4 bytes"},
	{"backward range", TEXT("{" A4 "," T("b", "U8", "1", "4,3") "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "don't continue at 4"},
	{"shape overflows", TEXT("{" T("a", "U8", "4503599627370496,4503599627370496", "0,4") "}"),
	 .data_bytes = 4, .code = -EBADMSG, .rule = "overflows 64 bits"},
	{"shape overflows as bits", TEXT("{" T("a", "F64", "4503599627370496,4096", "0,4") "}"),
	 .data_bytes = 4, .code = -EBADMSG, .rule = "overflows 64 bits"},
	{"[2^40, 2^40, 0]", TEXT("{" T("a", "U8", "1099511627776,1099511627776,0", "0,0") "}"),
	 .code = -EBADMSG, .rule = "overflows 64 bits"},
	{"[0, 2^40, 2^40]", TEXT("{" T("a", "U8", "0,1099511627776,1099511627776", "0,0") "}")},
	{"F4 odd", TEXT("{" T("a", "F4", "3", "0,2") "}"), .data_bytes = 2, .code = -EBADMSG,
	 .rule = "no whole bytes"},
	{"F6 by three", TEXT("{" T("a", "F6_E2M3", "3", "0,3") "}"), .data_bytes = 3,
	 .code = -EBADMSG, .rule = "no whole bytes"},
	{"size and shape differ", TEXT("{" T("a", "F32", "2", "0,4") "}"), .data_bytes = 4,
	 .code = -EBADMSG, .rule = "dtype and shape make 8 bytes"},
	{"trailing byte", TEXT("{" A4 "}"), .data_bytes = 5, .code = -EBADMSG,
	 .rule = "the tensors cover 4 bytes"},
	{"truncated by a byte", TEXT("{" A4 "}"), .data_bytes = 3, .code = -EBADMSG,
	 .rule = "the tensors cover 4 bytes"},
	{"data without tensors", TEXT("{}"), .data_bytes = 1, .code = -EBADMSG,
	 .rule = "the tensors cover 0 bytes"},
};

/* The bytes of a case's whole file. */
static void make_case(const struct verdict_case *each, struct writer *out)
{
	struct writer header = WRITER_INIT(200u << 20);
	if (each->make != NULL)
		each->make(&header);
	else
		write_bytes(&header, each->header, each->header_count);
	write_u64(out, each->has_length ? each->length : header.count);
	write_bytes(out, header.bytes, header.count);
	for (size_t i = 0; i < each->data_bytes; i++)
		write_u8(out, (uint8_t)i);
	ck_assert(!out->failed && !header.failed);
	bool empty = each->has_length && each->length == 0;
	if (each->cut_to != 0 || empty)
		out->count = each->cut_to;
	writer_release(&header);
}

#endif
