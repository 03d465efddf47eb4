# SPDX-License-Identifier: Apache-2.0
#
# weightsync: one Makefile, in sections.  `make help` lists the goals.
#
#   make SAN=address,undefined    another build folder with sanitizers
#   make CC=clang                 another compiler (its own folder too)
#   make demo CHECKPOINT=/path    the demo on a real Hugging Face folder

# ---------------------------------------------------------------- Configuration
CC = gcc
SAN =
OPT = -O2 -g
PREFIX = /usr/local
VERSION = 0.1.0
BUILD := build$(if $(filter-out gcc cc,$(CC)),-$(notdir $(CC)))$(if $(SAN),-$(SAN))

LIBS_LINKED = libibverbs hwloc libzmq libcjson libxxhash
LIBS_NEEDED = libfabric $(LIBS_LINKED) # of libfabric the headers: lib/transport/libfabric.h says why
# Debian packages by name: to build, to run the demo, to run the tests, to run the whole matrix.  ?NAME may be missing.
APT_BUILD = gcc make pkg-config libfabric-dev libibverbs-dev ibverbs-providers libhwloc-dev libzmq3-dev libcjson-dev libxxhash-dev libc6-dev binutils
APT_demo = $(APT_BUILD) openmpi-bin
APT_check-roce = $(APT_BUILD) check python3 ?qemu-system-x86 ?busybox-static kmod cpio iproute2 rdma-core perftest
APT_check = $(APT_demo) $(APT_check-roce) python3-venv ?chromium-headless-shell
APT_check-gpu = $(APT_demo) check python3
APT_bench = $(APT_demo)
APT_ci = $(APT_check) clang clang-format clang-tidy libclang-rt-14-dev valgrind mandoc spin

WARN = -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror
CFLAGS_ALL = -std=c17 $(OPT) $(WARN) -D_GNU_SOURCE -DWS_VERSION='"$(VERSION)"' -I. -fvisibility=hidden -ffp-contract=off \
	-fno-omit-frame-pointer -pthread $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all) \
	$(PKG_CFLAGS) $(CFLAGS)
LDFLAGS_ALL = -pthread $(if $(SAN),-fsanitize=$(SAN)) $(LDFLAGS)
LDLIBS_ALL = $(PKG_LIBS) $(CUDA_LIBS) -lm -ldl $(LDLIBS)

# CUDA is built in where nvcc is; NVCC= leaves it out.  These arches, and PTX of the newest for what comes later.
comma := ,
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCHS = 80 90 100
ifneq ($(NVCC),)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_LIBS = -L$(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib)) -lcudart_static -lrt
endif
# Host code in .cu files is a few calls that launch kernels, so sanitizers leave it out.
NVCC_FLAGS = -std=c++20 -O2 -lineinfo -fmad=false -I. -Werror all-warnings \
	-Xcompiler -Wall,-Wextra,-Wno-unused-parameter,-Wno-missing-field-initializers,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-fno-omit-frame-pointer \
	$(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=[sm_$(arch)$(if $(filter $(arch),$(lastword $(CUDA_ARCHS))),$(comma)compute_$(arch))])

# Two cores build twice as fast as one; a -j of your own wins.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif

GOAL := $(firstword $(or $(MAKECMDGOALS),all))
ifeq ($(filter help clean layers format format-check,$(GOAL)),)
include $(BUILD)/config-$(if $(APT_$(GOAL)),$(GOAL),all).mk
endif

.DEFAULT_GOAL = all
.DELETE_ON_ERROR:
.SECONDARY:

# ---------------------------------------------------------------- Build
FOLDERS = lib/base lib/cuda lib/transport lib/convert lib/link lib/engine lib/hub planner \
	trainer_side rollout_side
# What is built in: of each of these, the one or the other.
CUDA_SOURCES = lib/cuda/runtime.c lib/cuda/share.c $(wildcard $(addsuffix /*.cu,$(FOLDERS)))
CUDA_ABSENT = $(wildcard $(addsuffix /absent.c,$(FOLDERS)))
SOURCES := $(filter-out $(CUDA_SOURCES) $(CUDA_ABSENT),$(wildcard $(addsuffix /*.c,$(FOLDERS)))) \
	$(if $(NVCC),$(CUDA_SOURCES),$(CUDA_ABSENT))
CLI_SOURCES := $(wildcard cli/*.c)
BENCH_SOURCES := $(wildcard bench/*.c)
TEST_HELPERS = tests/main.c tests/even_clock.c $(wildcard tests/gen*.c)
TEST_SHARED = $(wildcard tests/*_world.c) tests/link_ends.c
TEST_SOURCES := $(filter-out $(TEST_HELPERS) $(TEST_SHARED),$(wildcard tests/*.c))
EXAMPLE_SOURCES := $(wildcard examples/*.c)
DATA := $(wildcard planner/presets/*.json planner/models/*.json planner/page/*)

# A line per file; V=1 prints the commands.
SAY = $(if $(V),,@echo '  $(1)  $(2)' && )

objects = $(patsubst %,$(BUILD)/%.o,$(basename $(1)))
OBJECTS := $(call objects,$(SOURCES)) $(if $(DATA),$(BUILD)/planner/builtin_data.o)
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SOURCES))
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/examples/%,$(EXAMPLE_SOURCES))

all: $(BUILD)/weightsync $(BUILD)/libweightsync.a $(EXAMPLES) ## the command, the library and the examples

tests: $(TESTS) ## builds the test programs without running them

# What the command, tests and benches link: every object, internal names visible.
$(BUILD)/internal.a: $(OBJECTS)
	$(call SAY,AR,$@)rm -f $@ && ar rcs $@ $^

# What is installed: one relocatable object whose hidden names are local.
$(BUILD)/libweightsync.a: $(OBJECTS)
	$(call SAY,AR,$@)ld -r -o $(BUILD)/weightsync.o $^ && objcopy --localize-hidden $(BUILD)/weightsync.o && \
		rm -f $@ && ar rcs $@ $(BUILD)/weightsync.o

# The commands and benches, for the command and for tests of them.
$(BUILD)/commands.a: $(call objects,$(filter-out cli/main.c,$(CLI_SOURCES)) $(BENCH_SOURCES))
	$(call SAY,AR,$@)rm -f $@ && ar rcs $@ $^

$(BUILD)/weightsync: $(BUILD)/cli/main.o $(BUILD)/commands.a $(BUILD)/internal.a
	$(call SAY,LD,$@)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LDLIBS_ALL)

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(call objects,$(wildcard $(TEST_HELPERS))) $(BUILD)/commands.a \
		$(BUILD)/internal.a
	$(call SAY,LD,$@)$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS_ALL) $(CHECK_LIBS)

$(BUILD)/tests/engine $(BUILD)/tests/engine_fault $(BUILD)/tests/engine_pairs: $(BUILD)/tests/engine_world.o
$(BUILD)/tests/engine_rails $(BUILD)/tests/engine_silent $(BUILD)/tests/engine_chains: $(BUILD)/tests/ends_world.o
$(BUILD)/tests/link $(BUILD)/tests/link_door: $(BUILD)/tests/link_ends.o
$(BUILD)/tests/hub $(BUILD)/tests/hub_fault $(BUILD)/tests/hub_forward $(BUILD)/tests/hub_rails: \
	$(BUILD)/tests/hub_world.o
$(BUILD)/tests/update $(BUILD)/tests/update_rails $(BUILD)/tests/update_fault $(BUILD)/tests/update_describe \
		$(BUILD)/tests/update_quant $(BUILD)/tests/update_exchange $(BUILD)/tests/update_post \
		$(BUILD)/tests/update_late $(BUILD)/tests/gpu_stream: \
	$(BUILD)/tests/update_world.o $(BUILD)/tests/update_remap_world.o $(BUILD)/tests/update_bytes_world.o \
	$(BUILD)/tests/update_post_world.o $(BUILD)/tests/update_gpu_world.o $(BUILD)/tests/quant_world.o
$(BUILD)/tests/oracle_quant: $(BUILD)/tests/quant_world.o
$(BUILD)/tests/progress: $(BUILD)/tests/progress_world.o $(BUILD)/tests/progress_fault_world.o \
	$(BUILD)/tests/progress_exchange_world.o
$(BUILD)/tests/plan_properties $(BUILD)/tests/plan_mutations $(BUILD)/tests/plan_digest: \
	$(BUILD)/tests/plan_world.o
$(BUILD)/tests/plan $(BUILD)/tests/plan_quant $(BUILD)/tests/plan_digest $(BUILD)/tests/plan_real \
		$(BUILD)/tests/plan_fanout $(BUILD)/tests/plan_rails $(BUILD)/tests/simulate: \
	$(BUILD)/tests/plan_pair_world.o
$(BUILD)/tests/page: $(BUILD)/tests/plan_pair_world.o
$(BUILD)/tests/plan_maxima: $(BUILD)/tests/maxima_world.o $(BUILD)/tests/plan_pair_world.o \
	$(BUILD)/tests/quant_world.o $(BUILD)/tests/shards_world.o
$(BUILD)/tests/plan_maxima_mutations: $(BUILD)/tests/shards_world.o
$(BUILD)/tests/convert $(BUILD)/tests/convert_quant $(BUILD)/tests/convert_avx2 $(BUILD)/tests/convert_avx512 \
		$(BUILD)/tests/gpu_convert $(BUILD)/tests/gpu_quantize: $(BUILD)/tests/convert_world.o
$(BUILD)/tests/convert_quant $(BUILD)/tests/gpu_quantize: $(BUILD)/tests/convert_tensor_world.o
$(BUILD)/tests/gpu_convert $(BUILD)/tests/gpu_quantize: $(BUILD)/tests/gpu_arena_world.o

$(BUILD)/examples/%: $(BUILD)/examples/%.o $(BUILD)/libweightsync.a
	$(call SAY,LD,$@)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LDLIBS_ALL)

$(BUILD)/%.o: %.c Makefile | $(BUILD)/config-$(if $(APT_$(GOAL)),$(GOAL),all).mk
	@mkdir -p $(@D)
	$(call SAY,CC,$<)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

$(BUILD)/lib/cuda/runtime.o $(BUILD)/lib/cuda/share.o: CFLAGS += -isystem $(CUDA_HOME)/include

# Where ccache stands before gcc, it stands before nvcc.
$(BUILD)/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call SAY,NVCC,$<)$(if $(findstring ccache,$(PATH)),ccache )$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(BUILD)/planner/%.o: $(BUILD)/planner/%.c
	$(call SAY,CC,$<)$(CC) $(CFLAGS_ALL) -c -o $@ $<

# The presets, the models and the page's files, as one C table of strings, so that the binary needs no files.
$(BUILD)/planner/builtin_data.c: planner/embed.sh $(DATA)
	@mkdir -p $(@D)
	sh planner/embed.sh $(DATA) > $@

-include $(wildcard $(addsuffix /*.d,$(addprefix $(BUILD)/,$(FOLDERS) cli tests bench examples)))

# ---------------------------------------------------------------- Dependencies
# Finds the libraries once.  demo, check, bench and ci install what is missing first.
$(BUILD)/config-%.mk: Makefile
	@mkdir -p $(@D)
	@sh .ci/packages '$(APT_$*)' $(LIBS_NEEDED)
	@{ echo "PKG_CFLAGS = $$(pkg-config --cflags $(LIBS_NEEDED))"; \
	   echo "PKG_LIBS = $$(pkg-config --libs $(LIBS_LINKED))"; \
	   echo "CHECK_LIBS = $$(pkg-config --libs check 2>/dev/null)"; } > $@

# ---------------------------------------------------------------- Test
TEST_RUN = sh tests/run.sh

check: all $(TESTS) ## installs what is missing, builds, runs every test, also under asan+ubsan
	$(TEST_RUN) check

ROCE_TESTS = contract contract_close verbs_faults
check-roce: all $(addprefix $(BUILD)/tests/,$(ROCE_TESTS)) ## real verbs: two virtual machines with two RoCE rails each
	@MAKEFLAGS= $(MAKE) -s SAN=address,undefined $(ROCE_TESTS:%=build-address,undefined/tests/%)
	sh tests/roce.sh $(BUILD) '$(PATTERN)'

check-gpu: all $(filter $(BUILD)/tests/gpu_%,$(TESTS)) ## on a machine with GPUs: their tests, compute-sanitizer, PyTorch's bits, updates
	sh tests/gpu.sh $(BUILD) '$(PATTERN)'
	sh tests/gpu_updates.sh $(BUILD) '$(PATTERN)'

demo: all ## installs what is missing, builds, and moves a checkpoint's weights between 7 processes
	sh tests/demo.sh $(BUILD)/weightsync '$(CHECKPOINT)'

layers: ## checks that no include points up and that foreign headers have one home
	@sh tests/layers.sh

ci: all $(TESTS) ## the whole matrix: clang, tsan, nth allocation, valgrind, tidy, format
	$(TEST_RUN) ci

bench: all ## every benchmark against its baseline
	$(BUILD)/weightsync bench transfer
	for memory in shared 2m 4k; do $(BUILD)/weightsync bench transfer --transport ipc --memory $$memory || exit 1; done
	$(BUILD)/weightsync bench plan
	$(BUILD)/weightsync bench convert

format: ## rewrites the sources in the house style
	clang-format -i $(FORMAT_FILES)

format-check:
	clang-format --dry-run -Werror $(FORMAT_FILES)

FORMAT_FILES = $(wildcard $(foreach d,lib $(FOLDERS) cli tests bench examples tests/fuzz,$(d)/*.c $(d)/*.h $(d)/*.cu $(d)/*.cuh))

tidy: $(patsubst %.c,$(BUILD)/%.tidy,$(filter %.c,$(SOURCES)) $(CLI_SOURCES) $(BENCH_SOURCES)) ## clang-tidy over the product's sources

# An object knows the headers; what was tidy when they last changed isn't looked at again.
$(BUILD)/%.tidy: $(BUILD)/%.o .clang-tidy
	$(call SAY,TIDY,$*.c)clang-tidy --quiet $*.c -- $(CFLAGS_ALL) >$@.log 2>&1 || { cat $@.log; exit 1; }; touch $@

# ---------------------------------------------------------------- Install
INCLUDE = $(DESTDIR)$(PREFIX)/include/weightsync
install: all ## the command, the library, its headers and the man page below PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man1
	install $(BUILD)/weightsync $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(BUILD)/libweightsync.a $(DESTDIR)$(PREFIX)/lib
	for header in lib/ws_*.h planner/ws_*.h trainer_side/ws_*.h rollout_side/ws_*.h; do \
		install -D -m 644 $$header $(INCLUDE)/$$header || exit 1; done
	install -m 644 cli/weightsync.1 $(DESTDIR)$(PREFIX)/share/man/man1
	printf '%s\n' 'prefix=$(PREFIX)' 'Name: weightsync' 'Description: weights from trainers to rollouts' 'Version: $(VERSION)' \
		'Requires: $(LIBS_LINKED)' 'Libs: -L$${prefix}/lib -lweightsync $(CUDA_LIBS) -pthread -lm -ldl' \
		'Cflags: -I$${prefix}/include/weightsync' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/weightsync.pc

libs: ## what a program links beside the library; tests/fuzz.sh and fuzz_seeds.sh ask
	@echo $(LDLIBS_ALL) -pthread

clean: ## removes every build folder
	rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 18

.PHONY: all tests check check-roce check-gpu demo layers ci bench format format-check tidy install libs clean help
