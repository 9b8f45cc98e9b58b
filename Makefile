# Everything a person needs: `make demo` and `make test` work on a fresh clone with Python 3.11+ and nothing else installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := fixtures/runs/heavy-stage2

.PHONY: demo test lint format bench reports picture docs browser clean

demo: $(BIN)/.installed
	$(BIN)/pipelog analyze $(DEMO)

test: $(BIN)/.installed-test browser
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(PYTEST)

lint: $(BIN)/.installed-test
	$(BIN)/ruff format --check pipelog tests bench tools
	$(BIN)/ruff check pipelog tests bench tools
	$(BIN)/mypy

format: $(BIN)/.installed-test
	$(BIN)/ruff format pipelog tests bench tools
	$(BIN)/ruff check --fix pipelog tests bench tools

# against HolisticTraceAnalysis 0.5.0 with pandas 2, in a venv of its own
bench: $(BIN)/.installed .venv-hta/bin/.installed
	$(BIN)/python bench/run.py --hta .venv-hta/bin/python $(BENCH)

reports: $(BIN)/.installed-test browser
	$(BIN)/python tools/make_reports.py

# the documentation in site/, which opens from disk
docs: $(BIN)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo site/index.html

picture: $(BIN)/.installed-test browser
	$(BIN)/python tools/make_picture.py

# chromium for the browser tests: the system's, else Debian's package, else Playwright's own
browser: $(BIN)/.installed-test
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 \
	  || { command -v apt-get >/dev/null 2>&1 && SUDO=$$([ "$$(id -u)" = 0 ] || command -v sudo) && \
	       $$SUDO apt-get update -q && $$SUDO apt-get install -y -q --no-install-recommends chromium; } \
	  || $(BIN)/python -m playwright install --with-deps chromium \
	  || echo "no chromium: the browser tests will be skipped"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(BIN)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

$(BIN)/.installed-test: $(BIN)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,lint,docs]'
	touch $@

.venv-hta/bin/.installed:
	$(PYTHON) -m venv .venv-hta
	.venv-hta/bin/python -m pip install -q --disable-pip-version-check 'HolisticTraceAnalysis==0.5.0' 'pandas<3'
	touch $@

clean:
	rm -rf $(VENV) .venv-hta build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
