# Two commands: `make run` opens the app, `make test` runs every test that needs no GPU.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: run test lint gpu-check bench-tool screenshots clean

run: $(VENV)/.installed
	@if [ -t 1 ]; then exec $(BIN)/cs336-tui; \
	else exec $(BIN)/cs336-tui bench --preset quick --summary auto; fi

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# On a machine with a CUDA GPU: the GPU tests and the benchmarks of the tool, into one report file.
gpu-check: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu_check $(PARTS)

screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m docs.make_screenshots

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cs336-tui needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing cs336-tui and its pinned dependencies (torch is large; this happens once) ..."
	@$(PIP) install --editable .
	@$(BIN)/python -m compileall -q cs336_tui
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need ..."
	@$(PIP) install --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
