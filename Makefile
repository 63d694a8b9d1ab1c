# Sheaf: one entrance for people. Everything below drives CMake (see CMakePresets.json) and the scripts in tools/ and test/.

SANITIZE ?=
PRECOMPILED ?=
JOBS     ?= $(shell nproc)
PREFIX   ?= /usr/local
PYTORCH  ?=
READERS  ?=
BROWSER  ?= /opt/venv-browser/bin/python
RUNS     ?= 200000
ALL      ?=
BENCH    ?=
# CPU counts on make's command line alone, since some shells export one of their own.
CPU      := $(if $(filter command line,$(origin CPU)),$(CPU))
# Folders of other versions' nccl.h (tools/nccl_headers.py), and a CUDA toolkit 12.8 or 12.9 for the kit.
NCCL_HEADERS ?=
CUDA12   ?= $(firstword $(wildcard /usr/local/cuda-12.8 /usr/local/cuda-12.9))

preset := $(or $(SANITIZE),release)
folder := build/$(preset)
ifeq ($(filter $(SANITIZE),address thread),$(SANITIZE))
else
  $(error SANITIZE is '$(SANITIZE)'; it takes address or thread)
endif

.PHONY: help setup configured processor build demo test quick test-browser readme headers format fuzz rows converge mutants bits kills attacks breaks bench predict docs dist wheel deb kit install clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: SANITIZE=address|thread (build, test), JOBS=N, PREFIX=DIR (install), RUNS=N (fuzz),"
	@echo "           PRECOMPILED=1 (with SANITIZE), precompiled headers: builds in a quarter of the time, misses a missing #include"
	@echo "           ALL=1 (test), all end-to-end cases: more than an hour"
	@echo "           CPU=avx2|avx512 (test, quick), the instruction set that the tests are limited to"
	@echo "           READERS=/path/to/venv/bin/python (test), a Python that has tensorboard and prometheus_client"
	@echo "           BROWSER=/path/to/venv/bin/python (test, test-browser), a Python for the tests in Chromium"
	@echo "           PYTORCH=/path/to/venv/bin/python (bench; test: the wheel; docs/testing.md has what that Python needs), BENCH='options of test/bench/bench.py',"
	@echo "           CUDA12=DIR (kit: also for drivers before 580, by the toolkit 12.8 or 12.9 in DIR)"

setup: ## install what is missing (apt; root or sudo)
	@tools/setup.sh

configured: setup
	@cmake --preset $(preset) -Wno-dev --log-level=NOTICE $(if $(SANITIZE),-DSHEAF_PRECOMPILED_HEADERS=$(if $(PRECOMPILED),ON,OFF)) $(if $(NCCL_HEADERS),-DSHEAF_NCCL_HEADERS=$(NCCL_HEADERS))

build: configured ## the tools: build/bin/{sheaf,sheaf-run,sheaf-opt}
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf sheaf-run sheaf-opt sheaf_cpu sheaf_mpi
	@if [ $(preset) = release ]; then ln -sfn release/bin build/bin; fi

demo: build ## compile a GPT for four ranks with ZeRO-3, train it, explain its memory and loss
	@python3 tools/demo/demo.py --tools build/bin --out build/demo

processor: setup
	@python3 test/processor.py "$(CPU)"

test: processor build ## format check, lit, GoogleTest, end to end (a third of the cases outside the core; ALL=1: all)
	@cmake --build $(folder) --parallel $(JOBS)
	@$(if $(PYTORCH),cmake --build $(folder) --parallel $(JOBS) --target sheaf_portable)
	@$(if $(READERS),SHEAF_READERS=$(READERS)) $(if $(PYTORCH),SHEAF_PYTORCH=$(PYTORCH)) SHEAF_BROWSER=$(BROWSER) python3 test/check.py --build $(folder) --jobs $(JOBS) $(if $(ALL),--all) $(if $(CPU),--cpu "$(CPU)")

quick: processor build ## format, lit, quick GoogleTests, a fifth of the end-to-end cases: for the edit loop, minutes
	@cmake --build $(folder) --parallel $(JOBS)
	@python3 test/check.py --build $(folder) --jobs $(JOBS) --quick $(if $(CPU),--cpu "$(CPU)")

test-browser: build ## pages of `sheaf report` in Chromium, and graphs in Netron (installs Chromium and a virtual environment for BROWSER)
	@test/browser/setup.sh $(BROWSER)
	@SHEAF_BROWSER=$(BROWSER) python3 test/e2e/run.py --tools $(folder)/bin --scratch $(folder)/browser --jobs 1 --only '^report/' --verbose

readme: setup ## type README's blocks from `git clone` on, and print the time of each command (PYTORCH: also Python's)
	@python3 test/e2e/readme_blocks.py --repository $(CURDIR) --out build/readme $(if $(PYTORCH),--pytorch $(PYTORCH))

format: setup ## rewrite our C++ files with clang-format
	@git ls-files '*.cpp' '*.h' | xargs clang-format-14 -i

headers: build ## compile each of our headers alone, without precompiled headers: it must include what it uses
	@python3 test/structure/headers.py --build $(folder) --jobs $(JOBS)

fuzz: build ## RUNS mutated models, plans, texts, data and state files, none of which may crash
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf-fuzz
	@python3 test/fuzz/corpus.py --tools $(folder)/bin --out $(folder)/fuzz
	@$(folder)/test/bin/sheaf-fuzz --corpus $(folder)/fuzz --runs $(RUNS) --jobs $(JOBS)

converge: build ## trainings to their end by both sides, over five seeds (PYTORCH, some four hours; goes on where it stopped)
	@$(PYTORCH) test/bench/converge.py --tools $(folder)/bin --out build/converge

rows: build ## losses in which rows meet, by both of PyTorch's exporters, however the batch is divided (PYTORCH, some 30 minutes)
	@$(PYTORCH) test/e2e/rows.py --tools $(folder)/bin

mutants: build ## every mutant of the plans of all small models: the proof must refuse what changes an order or a byte
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf-mutants sheaf-leaf-mutants
	@python3 test/e2e/run.py --tools $(folder)/bin --scratch $(folder)/mutants --jobs $(JOBS) --only "^(proof|same)/mutants/" --every-mutant --verbose

bits: build ## all divisions of a batch among ranks, micro-batches, processes: the same weights after 100 steps; nodes and offload with every model; all of offload on emulated GPUs; hours
	@python3 test/e2e/run.py --tools $(folder)/bin --scratch $(folder)/bits --jobs $(JOBS) --only '^(divisions|micro-batch-groups|nodes|offload|update-on|gpu-offload)/|^same/.*/(f32|bf16|f16)|^families/.*/leaves' --every-division --verbose

kills: build ## 400 kills of runs with all state in files, half of them on emulated GPUs: each goes on with the same bits, at most two steps back
	@python3 test/e2e/run.py --tools $(folder)/bin --scratch $(folder)/kills --jobs 1 --only '^(gpu-)?durable/kills/' --kills 100 --verbose

attacks: build ## attack jobs: connections, resource limits, concurrent writers, long models
	@python3 test/attacks/run.py --tools $(folder)/bin --scratch $(folder)/attacks

breaks: configured ## break a copy of the code by each patch of test/breaks and see the test that guards it fail
	@python3 test/breaks/breaks.py run --build $(folder) --jobs $(JOBS)

bench: build ## training speed and memory; against PyTorch if PYTORCH names a Python that has torch, transformers, deepspeed, ninja
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf-floor
	@python3 test/bench/bench.py --tools $(folder)/bin --out build/bench $(if $(PYTORCH),--pytorch $(PYTORCH)) $(BENCH)

predict: build ## predicted and measured steps, on this machine
	@python3 test/bench/predict.py --tools $(folder)/bin

docs: build ## build/release/pages: dialects, passes and operators, generated from the sources
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf-docs

dist: build ## build/sheaf-runtime-VERSION-linux-x86_64.tar.xz: sheaf-run and its devices, for machines without MLIR and ONNX
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf_devices
	@python3 tools/dist.py --build $(folder) --out build

wheel: build ## build/sheaf-VERSION-py3-none-manylinux_2_36_x86_64.whl: the tools, the runtime and the Python package
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf_devices sheaf_portable
	@python3 tools/wheel.py --build $(folder) --out build

deb: build ## build/sheaf_VERSION_amd64.deb: what `make install` installs, for Debian 12
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf_devices
	@python3 tools/deb.py --build $(folder) --out build

kit: build ## build/gpu-kit.tar.xz: tests and benchmarks for a machine with a GPU, to be carried there (needs a CUDA toolkit here)
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf_cuda cuda_gpu_test cuda_functions_gpu_test
	@if [ -n "$(CUDA12)" ]; then \
	  cmake --preset $(preset) -B build/cuda12 -Wno-dev --log-level=NOTICE -DSHEAF_NVCC=$(CUDA12)/bin/nvcc && \
	  cmake --build build/cuda12 --parallel $(JOBS) --target sheaf_cuda cuda_gpu_test cuda_functions_gpu_test; fi
	@python3 test/gpu/kit.py --build $(folder) $(if $(CUDA12),--cuda12 build/cuda12 --toolkit $(CUDA12)) --out build/gpu-kit.tar.xz

install: build ## into PREFIX: tools, device libraries, man pages, completion for bash and zsh
	@cmake --build $(folder) --parallel $(JOBS) --target sheaf_devices
	@cmake --install $(folder) --prefix $(PREFIX)

clean: ## remove build/
	rm -rf build
