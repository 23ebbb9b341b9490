# `make demo` shows an incident end to end, `make test` runs every check. Both set themselves up; a second run is fast.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.set-up

.PHONY: demo test setup lint clean

demo: setup
	$(VENV)/bin/gpuwatch demo

test: setup lint
	$(PY) -m pytest -n 2 --dist loadfile

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	bash scripts/setup.sh $(VENV)
	touch $@

clean:
	rm -rf $(VENV)
