# Needs python3 (3.11 or newer) and make, nothing else. Extra arguments: make test ARGS="-k heartbeat -x"

PYTHON ?= python3
ARGS ?=
# Most tests wait for processes and sockets, so two at once take little more than half the time.
JOBS ?= 2
PYTEST := -m pytest -n $(JOBS) --dist worksteal
BIN := .venv/bin
BUILD_TOOLS := hatchling editables
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-slow check fmt lint wheel bench clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@echo "make demo       show a run that survives its worker"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that take longer"
	@echo "make check      run everything that must pass before a change lands"
	@echo "make fmt        format the code and mend what can be mended"
	@echo "make bench      run the benchmarks"
	@echo "make clean      remove environments, caches and builds"

# --- the environment: a stamp for what `demo` needs, another with the tools of a developer (which covers the first)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "outlast needs Python 3.11 or newer")'
	$(PYTHON) -m venv --clear .venv

.venv/.stamp-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt $(BUILD_TOOLS)
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[all]'
	@touch $@

.venv/.stamp-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt $(BUILD_TOOLS)
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[all,dev]'
	@touch .venv/.stamp-demo $@

# --- what people run

demo: .venv/.stamp-demo
	@$(BIN)/outlast demo $(ARGS)

test: .venv/.stamp-dev
	$(BIN)/python $(PYTEST) $(ARGS)

test-slow: .venv/.stamp-dev
	$(BIN)/python $(PYTEST) -m slow $(ARGS)

bench: .venv/.stamp-dev
	$(BIN)/python benchmarks/run.py $(ARGS)

fmt: .venv/.stamp-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test wheel

# The editable install hides a package or file that the wheel lacks: build it, and run the tests against it in an
# environment and a folder from which the source tree cannot be imported.
wheel: .venv/.stamp-dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python .ci/check_wheel.py dist/*.whl
	test -x .venv-wheel/bin/python || $(PYTHON) -m venv --clear .venv-wheel
	.venv-wheel/bin/python -m pip install -q -c constraints.txt "$$(ls dist/*.whl)[all,dev]"
	.venv-wheel/bin/python -m pip install -q --no-deps --force-reinstall dist/*.whl
	@set -e; copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	cp -R tests examples README.md pyproject.toml "$$copy"; \
	python="$$PWD/.venv-wheel/bin/python"; cd "$$copy"; \
	"$$python" -c 'import outlast; assert ".venv-wheel" in outlast.__file__, outlast.__file__'; \
	echo "tests against the wheel:"; "$$python" $(PYTEST) $(ARGS)

clean:
	rm -rf .venv .venv-wheel dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
