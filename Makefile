# Every target sets itself up: it needs Python 3.11+ with its venv module, and nothing else.
#
#   make demo    answer questions about pictures with 0, 50 and 75 % of the picture dropped
#   make test    the tests
#   make lint    ruff and mypy --strict
#   make families  the model families' tests; writes docs/families.json and the README's table
#   make bench   every figure of docs/performance.md, rivals included
#   make cpp-test   the C++ library: built, run under sanitizers, and compared with Python (needs Debian's packages too)
#   make clean   remove all that these made
#
# PYTHON chooses the interpreter, VENV the folder of the environment, ARGS is passed on (make test ARGS="-m slow").

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Bytecode is left to the first import: compiling all of torch and transformers takes longer than copying them.
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test lint families bench cpp-test clean
.DEFAULT_GOAL := demo
.DELETE_ON_ERROR:

setup: $(READY)

# One recipe makes the whole environment, so `make -j` cannot run its steps side by side. The stamp comes last: a set-up
# that was interrupted is taken up again. torch comes first because it is the largest, and its pin then holds for the rest.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: expected Python 3.11 or newer; run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setup: environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "setup: $$(grep '^torch==' constraints.txt)"
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@echo "setup: fastv-trt and its pinned dependencies"
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/fastv-trt demo --out demo-output $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

families: $(READY)
	FASTV_FAMILIES_JSON=docs/families.json $(BIN)/python -m pytest -m families tests/families $(ARGS)
	$(BIN)/python -m tests.families.table

# Everything in docs/performance.md, in under half an hour on a quiet machine; the models are kept in build/.
RESULTS ?= benchmarks/results
bench: $(READY)
	$(BIN)/fastv-trt flops --preset paper
	$(BIN)/python benchmarks/prefill.py --json $(RESULTS)/prefill.json --plot $(RESULTS)/prefill.png $(ARGS)
	$(BIN)/python benchmarks/load.py --json $(RESULTS)/load.json
	$(BIN)/python benchmarks/compare.py --json $(RESULTS)/compare.json --plot $(RESULTS)/compare.png
	$(BIN)/python benchmarks/scaling.py --json $(RESULTS)/scaling.json --plot $(RESULTS)/scaling.png

cpp-test: $(READY)
	cpp/setup.sh build/cpp/deps $(BIN)/python
	cpp/test.sh build/cpp $(BIN)/python

clean:
	rm -rf $(VENV) .ci/venv demo-output build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
