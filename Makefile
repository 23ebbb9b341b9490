# `make demo` shows an incident end to end, `make test` runs every check. Both set themselves up; a second run is fast.
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.set-up
READY_TO_TEST := $(VENV)/.set-up-tests

.PHONY: demo test lint setup bench docs clean

demo: setup
	$(VENV)/bin/gpuwatch demo

test: lint
	bash scripts/test_tools.sh
	$(PY) -m pytest -n 2 --dist loadfile

lint: $(READY_TO_TEST)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# What demo and test share: the environment with gpuwatch and its engine.
setup: $(READY)

bench: $(READY_TO_TEST)
	$(PY) -m tests.bench

docs: $(READY_TO_TEST)
	$(PY) -m scripts.docs

$(READY): pyproject.toml scripts/setup.sh
	bash scripts/setup.sh $(VENV)
	touch $@

$(READY_TO_TEST): $(READY)
	$(PY) -m pip install -q --disable-pip-version-check --group test
	touch $@

clean:
	rm -rf $(VENV)
