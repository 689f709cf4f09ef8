# The commands of the house. `make env` runs by itself; PYTHON=... chooses the interpreter of the environment.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do $$name -c '' 2>/dev/null && echo $$name && break; done)
# Processes that share the tests; 0: none but the one that is started.
WORKERS ?= auto
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help env demo test test-all lint format vendor clean

help:
	@echo "make demo    ResNet-50 and BERT-base next to PyTorch, then the command line"
	@echo "make test    run the tests (PYTEST_ARGS='-k name' for some of them)"
	@echo "make test-all  the tests, with all that make test takes a share of"
	@echo "make lint    style, types and layers"
	@echo "make format  rewrite the files in the house style"
	@echo "make vendor  fetch the scripts that dcir view's page is made with again (npm)"
	@echo "make env     the environment in .venv, which the others make when needed"
	@echo "make clean   remove .venv and what tools left"

env: $(READY)

$(READY): setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,cuda-test,architectures,lint]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(BIN)/python -m tests.processors -n $(WORKERS) --dist worksteal)

test-all: export DCIR_TEST_ALL = 1
test-all: test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

vendor:
	$(PYTHON) .ci/vendor.py

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
