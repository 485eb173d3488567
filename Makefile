# Every target makes the virtual environment by itself and leaves it alone when nothing has changed.
#   PYTHON    the Python that makes it (3.11 to 3.13)    VENV   its folder
#   SCENARIO  a name in scenarios/, or a YAML file       ARGS   more arguments for the command
#   PARTS     optional parts for `make install`: peers, wandb, mlflow, deepspeed, docs, nccl (with a GPU)
#   TIER      of `make holdout`: external, figures that other people published; occasions
#   VLLM=no   makes `make test` and `make test-all` leave vLLM (4 GB) out; its tests are then skipped

VENV ?= .venv
PYTHON ?= $(shell $(VENV)/bin/python -c "print('$(VENV)/bin/python')" 2>/dev/null || echo python3)
SCENARIO ?= quickstart
PARTS ?=
ARGS ?=
VLLM ?= yes

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SETUP = $(PYTHON) -m harness.setup
WITH_VLLM = @$(SETUP) install --venv $(VENV) --part vllm
SCENARIO_FILE = $(if $(filter %.yaml %.yml,$(SCENARIO)),$(SCENARIO),scenarios/$(SCENARIO).yaml)

.DEFAULT_GOAL := help
.PHONY: help bench sweep compare docs test test-all test-sglang check faults fuzz holdout gpu-check install install-vllm clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml harness/constraints.txt
	@$(SETUP) install --venv $(VENV)

bench: $(STAMP)  ## run a scenario and show where the time went (SCENARIO=quickstart)
	$(if $(findstring vllm,$(SCENARIO)),$(WITH_VLLM))
	$(if $(findstring vs_trl,$(SCENARIO)),@$(SETUP) install --venv .venv-trl --part peers)
	$(BIN)/python -m harness run $(SCENARIO_FILE) $(ARGS)

sweep: $(STAMP)  ## run a sweep, or go on with it where it was stopped (SCENARIO=learning_rates)
	$(BIN)/python -m harness sweep $(if $(filter-out file,$(origin SCENARIO)),$(SCENARIO_FILE),scenarios/learning_rates.yaml) $(ARGS)

compare: $(STAMP)  ## compare the runs in results/
	$(BIN)/python -m harness compare results/ $(ARGS)

test: $(STAMP)  ## run the tests, without the slow ones
	$(if $(filter yes,$(VLLM)),$(WITH_VLLM) --where-possible)
	$(BIN)/python -m pytest --benchmark-disable -m "not slow" $(ARGS)

test-all: $(STAMP)  ## run every test
	$(if $(filter yes,$(VLLM)),$(WITH_VLLM) --where-possible)
	$(BIN)/python -m pytest --benchmark-disable $(ARGS)

test-sglang:  ## test the SGLang engine, on a CPU too, in an environment of its own (.venv-sglang, 4 GB)
	@$(SETUP) install --venv .venv-sglang
	.venv-sglang/bin/pip install --quiet --no-deps sglang==0.5.23
	.venv-sglang/bin/pip install --quiet --constraint harness/constraints.txt --requirement tests/sglang_cpu/requirements.txt
	PYTHONPATH=tests/sglang_cpu/stand_ins .venv-sglang/bin/python -m pytest -W default --benchmark-skip \
	  tests/contract/test_engine_contract.py tests/engines/test_engine_sglang.py -k sglang $(ARGS)

docs: $(STAMP)  ## build the documentation site into build/site; every warning is an error
	@$(SETUP) install --venv $(VENV) --part docs
	$(BIN)/python docs/site/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/site/mkdocs.yml

check: $(STAMP)  ## check formatting, lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

faults: $(STAMP)  ## check the loop on ten thousand drawn schedules of faults (SCHEDULES=10000)
	SCHEDULES=$(or $(SCHEDULES),10000) $(BIN)/python -m pytest -s tests/loop/test_fault_schedules.py $(ARGS)

fuzz: $(STAMP)  ## draw damaged files for every reader until time is up (SECONDS=60)
	$(BIN)/python -m tests.hostile.fuzz --seconds $(or $(SECONDS),60) $(ARGS)

holdout: $(STAMP)  ## examine the simulator on runs it has not seen, write docs/ (ARGS=--check, TIER=external)
	$(BIN)/python -m tests.holdout$(addprefix .,$(TIER)) $(ARGS)

gpu-check:  ## check a machine with a GPU; installs nothing (ARGS="--phase parity", also without a GPU)
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m harness gpu-check $(ARGS)

install:  ## make the virtual environment (PARTS: peers, wandb, mlflow, deepspeed, docs, nccl)
	@$(SETUP) install --venv $(VENV) $(addprefix --part ,$(PARTS))
	@$(SETUP) parts

install-vllm:  ## add the vLLM engine: CPU build, or CUDA build where there is a driver
	$(WITH_VLLM)

clean:  ## remove caches and build leftovers; keeps results/ and the virtual environment
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find harness tests -name __pycache__ -type d -prune -exec rm -rf {} +
