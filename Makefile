# make run         environment + the main example on device `neuron`
# make test        environment + the fast tier      make test-full   everything
# make lint        ruff, mypy, clang-format         make bench       benchmarks, JSON lines
# make docs        generated documents              make clean       build products (keeps .venv)
#
# Variables: PYTHON (interpreter of the environment), VENV, TORCH (requirement), PYTEST_ARGS,
# WORKERS (test processes).
# Where pip downloads from is pip's own configuration (PIP_INDEX_URL, pip.conf).

PYTHON ?= python3.11
VENV ?= .venv
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=
# Test processes, one a core; a file's tests stay together. WORKERS=0 runs them in one process.
WORKERS ?= auto

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DONE := $(VENV)/.done
CPP := $(shell find csrc -name '*.cc' -o -name '*.h')

.PHONY: run test test-full lint bench docs clean env
.DELETE_ON_ERROR:

env: $(DONE)/torchneuron

run: $(DONE)/torchneuron
	$(BIN)/python examples/train_gpt.py

test: $(DONE)/torchneuron $(DONE)/test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not full and not clients" $(PYTEST_ARGS)

test-full: $(DONE)/torchneuron $(DONE)/test $(DONE)/clients $(DONE)/vision $(DONE)/torch-mlir
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

lint: $(DONE)/torchneuron $(DONE)/lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

bench: $(DONE)/torchneuron
	@set -e; for file in benchmarks/[!_]*.py; do $(BIN)/python $$file; done

docs: $(DONE)/torchneuron
	$(BIN)/python -m torch_neuronx.config > docs/environment.md
	$(BIN)/python tools/generate_compatibility.py
	$(BIN)/python tools/clients.py page > docs/clients.md
	$(BIN)/python tools/suites.py page > docs/suites.md
	$(BIN)/python tools/generate_sweep.py
	$(BIN)/python tools/generate_cuda_to_neuron.py > docs/cuda-to-neuron.md

clean:
	rm -rf build dist out src/*.egg-info src/torch_neuronx/_build_info.py src/torch_neuronx/_C*.so
	rm -f $(DONE)/torchneuron

# The environment, one stamp per step. torch comes first and the build is not isolated, so that
# the extension is built against this torch and no second one is fetched.
$(DONE)/venv:
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(DONE) && touch $@

$(DONE)/torch: $(DONE)/venv
	$(PIP) install '$(TORCH)'
	@touch $@

$(DONE)/plugins: requirements/plugins.txt $(DONE)/build-tools
	$(PIP) install --no-deps --require-hashes -r requirements/plugins.txt
	@touch $@

$(DONE)/build-tools: $(DONE)/torch
	$(PIP) install 'setuptools>=77.0.3' wheel ninja 'jaxlib==0.10.*'
	@touch $@

$(DONE)/torchneuron: pyproject.toml setup.py $(CPP) $(DONE)/plugins
	$(PIP) install --no-build-isolation -e .
	@touch $@

# Beside the environment, not in it: requirements/vision.txt says why.
$(DONE)/vision: requirements/vision.txt $(DONE)/torch
	$(PIP) install --no-deps --upgrade --target $(VENV)/vision -r $<
	@touch $@

$(DONE)/test $(DONE)/clients $(DONE)/lint $(DONE)/torch-mlir: $(DONE)/%: requirements/%.txt $(DONE)/torch
	$(PIP) install -r $<
	@touch $@
