# Two commands: `make run` opens the app, `make test` runs every test that needs no GPU.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# Each worker of the tests, and each process that they start, would otherwise compile the same files again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run dev console test tests test-torch lint hooks snapshots docs dist gpu-check gpu-sim cast screenshots clean

run: $(VENV)/.installed
	@if [ -t 1 ]; then exec $(BIN)/cs336-tui; \
	else exec $(BIN)/cs336-tui bench --preset quick --summary auto; fi

# The app with Textual's console: `make console` in another terminal shows what the app prints and logs.
dev: $(VENV)/.installed-tools
	$(BIN)/textual run --dev -c $(BIN)/cs336-tui

console: $(VENV)/.installed-tools
	$(BIN)/textual console

# Lint takes one core for most of its time: the tests begin beside it.
test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 lint tests

tests: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal

# The tests that run torch, against another release of it: make test-torch TORCH=2.6.0
TORCH ?= 2.6.0
OTHER := .venv-torch-$(TORCH)
TORCH_TESTS ?= tests/worker tests/runner tests/selftest tests/cli tests/endtoend
# Each release of torch asks for these in versions of its own.
PINNED_BY_TORCH := torch|triton|sympy|mpmath|networkx|fsspec|filelock|Jinja2|typing_extensions|setuptools

test-torch: $(OTHER)/.installed
	$(OTHER)/bin/python -m pytest $(TORCH_TESTS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# From now on each commit runs what `make lint` runs.
hooks: $(VENV)/.installed-tools
	$(BIN)/pre-commit install

# The first run writes what changed, before beside after, into snapshot_report.html; the second keeps it.
SNAPSHOTS ?= tests/tui/test_snapshots.py tests/export
snapshots: $(VENV)/.installed-dev
	-$(BIN)/python -m pytest -q $(SNAPSHOTS)
	$(BIN)/python -m pytest -q --snapshot-update $(SNAPSHOTS)
	@git --no-pager diff --stat -- tests

# The pages of docs/ as a site in site/; fails on a dead link. The reference and the man pages in share/man are written
# anew from the code.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.man
	$(BIN)/zensical build --clean --strict

# Sdist and wheel in dist/, checked by twine, and installed by uv and pipx to see that they run.
dist: $(VENV)/.installed-dev
	$(BIN)/python -m tools.dist

# On a machine with a CUDA GPU: the GPU tests and the benchmarks of the tool, into one report file. With the torch that
# $(PYTHON) has, which fits the machine's driver; the pinned one, of the newest CUDA, only where there is none.
GPU := .venv-gpu-check
gpu-check: $(GPU)/.installed
	$(GPU)/bin/python -m benchmarks.gpu_check $(PARTS)

# Without a GPU: the GPU tests, and tests of times, memory and faults, on a simulated one. In an environment of its own,
# which is kept, with a CUDA build of torch: make gpu-sim, make gpu-sim TORCH=2.6.0, make gpu-sim PARTS=times
gpu-sim:
	$(PYTHON) -m tests.simgpu $(if $(filter command line,$(origin TORCH)),--torch $(TORCH)) $(SIM) $(PARTS)

# docs/demo.cast and docs/demo.svg: a real run in a real terminal, driven with keys. On a quiet machine.
cast: $(VENV)/.installed-dev
	$(BIN)/python -m tools.cast

screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m tools.screenshots

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

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing what builds the documentation ..."
	@$(PIP) install --editable '.[docs]'
	@touch $@

$(VENV)/.installed-tools: $(VENV)/.installed-dev
	@echo "installing Textual's console and pre-commit ..."
	@$(PIP) install --editable '.[tools]'
	@touch $@

$(OTHER)/.installed: pyproject.toml constraints.txt
	@echo "creating $(OTHER) with torch $(TORCH) ..."
	@$(PYTHON) -m venv $(OTHER)
	@grep -vE '^($(PINNED_BY_TORCH))==' constraints.txt > $(OTHER)/constraints.txt
	@PIP_CONSTRAINT=$(CURDIR)/$(OTHER)/constraints.txt \
	  $(OTHER)/bin/python -m pip --disable-pip-version-check --quiet install 'torch==$(TORCH)' --editable '.[dev]'
	@touch $@

# The folder of that torch is read after the environment's own packages. pip installs what is missing beside it.
$(GPU)/.installed: pyproject.toml constraints.txt
	@rm -rf $(GPU) && $(PYTHON) -m venv $(GPU)
	@there=$$($(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' 2> /dev/null); \
	if [ -n "$$there" ]; then \
	  echo "taking the torch of $(PYTHON) in $$there, and installing the rest into $(GPU) ..."; \
	  echo "$$there" > "$$($(GPU)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-that-is-there.pth"; \
	  grep -vE '^($(PINNED_BY_TORCH))==' constraints.txt > $(GPU)/constraints.txt; \
	else \
	  echo "$(PYTHON) has no torch: installing the pinned one, which is large, into $(GPU) ..."; \
	  cp constraints.txt $(GPU)/constraints.txt; \
	fi
	@PIP_CONSTRAINT=$(CURDIR)/$(GPU)/constraints.txt \
	  $(GPU)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-gpu* .venv-torch-* site dist share .cache .mypy_cache .ruff_cache .pytest_cache
