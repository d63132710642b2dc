# Everything a person runs. Only Python >= 3.11 and make are needed first; docs/development.md explains the variables:
#   VENV=.venv  PYTHON=python3.12  TORCH=torch==2.13.0  TORCH_INDEX=URL|default  ARGS="more arguments for pytest or the demo"  JOBS=2 (processes of tests)
.DEFAULT_GOAL := help
VENV ?= .venv
ARGS ?=
JOBS ?= 2
RUN := $(abspath $(VENV))/bin/python
export VENV PYTHON TORCH TORCH_INDEX

.PHONY: help demo test check lint format types wheel packages setup setup-dev clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/:/' | awk -F': *' '{ printf "  make %-10s %s\n", $$1, $$2 }'

demo: setup  ## set everything up and show tool calls on a real model
	@$(RUN) -m agentkit.demo $(ARGS)

test: setup-dev  ## set everything up and run the tests
	@$(RUN) -m agentkit.cli warmup
	@$(RUN) -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: lint types test  ## all that CI checks

lint: setup-dev  ## ruff (rules, formatting) and the list of packages
	@$(RUN) .ci/packages.py
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

format: setup-dev  ## let ruff mend what it can
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

types: setup-dev  ## mypy, strict, over the wheel (where the four folders are one package)
	@$(RUN) .ci/check_types.py

wheel: setup-dev  ## build sdist and wheel into dist/
	@$(RUN) .ci/distribution.py dist

packages: setup-dev  ## rewrite the list of packages in pyproject.toml
	@$(RUN) .ci/packages.py --write

setup:  ## make the virtual environment, install agentkit
	@sh .ci/setup base

setup-dev:  ## the same with what development needs
	@sh .ci/setup dev

clean:  ## remove what was built (the environment stays)
	@rm -rf build dist agentkit.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
