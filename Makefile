# Every target sets up what it needs: a virtual environment in .venv, the package, nothing global.
SHELL := /bin/bash -o pipefail
export OMP_WAIT_POLICY ?= PASSIVE
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

# The strict editable install links each file, so the list of package files is what the install depends on.
FILES := $(shell find envs agents trainer -name '*.py' | sort | cksum | cut -d' ' -f1)
DEPENDENCIES := $(VENV)/.dependencies
INSTALLED := $(VENV)/.installed-$(FILES)

.PHONY: demo test test-quick test-long check format bench setup clean

setup: $(INSTALLED)

$(DEPENDENCIES): setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt --upgrade pip "setuptools>=80" wheel
	$(BIN)/python -m pip install -q -c constraints.txt torch
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -c constraints.txt -e ".[test,dev]" --config-settings editable_mode=strict
	touch $@

$(INSTALLED): $(DEPENDENCIES)
	rm -f $(VENV)/.installed-*
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e . --config-settings editable_mode=strict
	touch $@

demo: setup
	$(BIN)/python examples/math_agent.py

test-quick: setup
	$(BIN)/python -m pytest -q -m "not slow and not long"

test: setup
	$(BIN)/python -m pytest -q -m "not long" --durations=10
	$(BIN)/python -m pytest -q --doctest-modules -o consider_namespace_packages=true --pyargs turngym.envs turngym.agents turngym.trainer

test-long: setup
	$(BIN)/python -m pytest -q -m "long" --timeout 3600

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	for script in $(filter-out benchmarks/report.py,$(wildcard benchmarks/*.py)); do \
		$(BIN)/python $$script | tee /dev/stderr | tail -n 1 >> benchmarks/results.jsonl || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info
