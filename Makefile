# Everything runs in .venv, which `setup` makes from Python >= 3.11 and the package index.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup run test test-slow lint docs clean

setup: $(STAMP)

# uv keeps further environments cheap: it links files from its cache instead of copying them. Bytecode is made here
# because some shells forbid Python to write it, and then every process would compile torch again.
$(STAMP): pyproject.toml
	@echo "setting up .venv; the first time this downloads torch (UV_TORCH_BACKEND=cpu leaves out 4 GB of CUDA libraries),"
	@echo "then compiles 15,000 files of Python, silently, for a minute or two"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	PATH="$(CURDIR)/$(BIN):$$PATH" uv pip install --compile-bytecode --python $(BIN)/python --editable '.[dev]'
	touch $(STAMP)

run: setup
	$(BIN)/flnl-bench run --method fedgr --setting sym-1.0 --workers 2

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/site; no request is made to any host.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html; for the search: $(BIN)/python -m http.server --directory build/site"

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
