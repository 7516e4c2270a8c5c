# make demo and make test each do all of their own set-up; `make help` lists everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_ROOT ?= runs

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints/ci.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"himori needs Python 3.11 to 3.13, {sys.executable} is {v[0]}.{v[1]}; name another: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints/ci.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints/ci.txt -e '.[dev]'
	touch $@

.PHONY: venv
venv: $(STAMP)  ## the virtual environment of the project

.PHONY: demo
demo: $(STAMP)  ## train a small GPT on four ranks of this machine and show what came of it
	$(BIN)/himori run experiment=demo cluster=local run_root=$(RUN_ROOT)

.PHONY: mlflow-server
mlflow-server: $(STAMP)  ## an MLflow server for a team, with a login; see docs/tracking-server.md
	$(BIN)/himori server start

.PHONY: test
test: $(STAMP)  ## everything that gates a change, a real Slurm cluster included where it can be had
	$(BIN)/python -m pytest

.PHONY: check
check: $(STAMP)  ## style, types, layers, YAML, shell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict .
	$(BIN)/shellcheck $$(git ls-files '*.sh' .ci/run ':!tests/golden')
	# A value in single quotes is meant as it stands.
	$(BIN)/shellcheck --exclude=SC2016 $$(git ls-files 'tests/golden/*.sh')

.PHONY: golden
golden: $(STAMP)  ## write the golden files anew; read the diff before you commit it
	HIMORI_WRITE_GOLDEN=1 $(BIN)/python -m pytest tests/golden

.PHONY: faults
faults: $(STAMP)  ## kill any process of running jobs at random moments (10 minutes)
	$(BIN)/python -m pytest -m faults

.PHONY: soak
soak: $(STAMP)  ## one run for many minutes; HIMORI_SOAK_MINUTES=10
	$(BIN)/python -m pytest -m soak

.PHONY: validate
validate: check  ## all tiers, before a release; RUNS=table.csv also judges the planner by measured runs
	$(if $(RUNS),$(BIN)/python tests/validation/validate.py $(RUNS) --write docs/validation.md)
	-$(BIN)/python -m pytest -m '' --junitxml=.pytest_cache/validate.xml
	$(BIN)/python tests/record_release.py .pytest_cache/validate.xml docs/releases.md

.PHONY: bench
bench: $(STAMP)  ## what tracking, composing and planning cost, beside what people use for it today
	$(BIN)/python benchmarks/host.py

.PHONY: bench-gpu
bench-gpu: $(STAMP)  ## one GPU: our worker and Megatron-LM's loop, turn by turn (15 minutes; needs himori[gpu])
	$(BIN)/python -W ignore benchmarks/gpu_rows.py -o $(RUN_ROOT)/bench-gpu.jsonl
	$(BIN)/python benchmarks/table.py $(RUN_ROOT)/bench-gpu.jsonl

.PHONY: cluster
cluster:  ## a real Slurm with four nodes on this machine (root, Debian or Ubuntu)
	bash slurm/dev/install.sh
	bash slurm/dev/up.sh

.PHONY: cluster-down
cluster-down:  ## stop it
	bash slurm/dev/down.sh
