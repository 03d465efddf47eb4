/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a fuzz target each file that it is called with: the corpus without a fuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES_MAX (16u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");
		uint8_t *bytes = malloc(BYTES_MAX); /* not ours: targets count mem_alloc */
		if (file == NULL || bytes == NULL) {
			perror(argv[i]);
			return 1;
		}
		size_t count = fread(bytes, 1, BYTES_MAX, file);
		uint8_t *exact = realloc(bytes, count > 0 ? count : 1);
		LLVMFuzzerTestOneInput(exact, count);
		free(exact);
		fclose(file);
	}
	printf("%d files\n", argc - 1);
	return 0;
}
