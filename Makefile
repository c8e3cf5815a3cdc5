# SPDX-License-Identifier: Apache-2.0
#
# `make doctor` looks at this host, `make test` tests the project; both first set up what is missing.
# make PYTHON=python3.12 … picks the interpreter, make doctor ARGS="--json" passes options on.

.DEFAULT_GOAL := help
.PHONY: help doctor test lint bench lab vm docs clean

BIN := .venv/bin
SCRIPTS := scripts/setup .ci/run
ARGS ?=
export PYTHON

help: ## say what the targets do
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-8s %s\n' "$$name" "$$text"; done

doctor: ## examine this host and say what is wrong with its GPUs, and why
	@scripts/setup run
	@$(BIN)/gpuiso doctor $(ARGS)

test: lint ## lint, check types and layers, then run every test that this machine can
	@$(BIN)/python -m pytest $(ARGS)

lint: ## check formatting, style, types and layers
	@scripts/setup dev
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); else echo "no shellcheck: scripts not checked"; fi
	@$(BIN)/python -m pytest --quiet --no-header tests/project/test_layers.py

bench: ## measure: start-up, doctor, memory (ARGS="--json" for programs)
	@scripts/setup dev
	@$(BIN)/python -m benchmarks $(ARGS)

lab: ## a shell in a container host that boots inside namespaces (root)
	@scripts/setup lab
	@$(BIN)/python -m tests.lab shell $(ARGS)

vm: ## the same host as a virtual machine (root)
	@scripts/setup vm
	@$(BIN)/python -m tests.lab vm $(ARGS)

docs: ## write docs/rules.md again, and what the commands in README.md print
	@scripts/setup dev
	@$(BIN)/gpuiso doctor --rules --markdown >docs/rules.md.new && mv docs/rules.md.new docs/rules.md
	@$(BIN)/python -m tests.project.readme

clean: ## remove what the targets above made here
	@rm -rf .venv dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +
