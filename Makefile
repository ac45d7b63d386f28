# The two commands of the README, and what they need. Everything goes into .venv; nothing else is touched.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help demo test test-slow coverage wheel fuzz lint format bench docs clean

help:
	@echo "make demo       train a private model on real data and write a report"
	@echo "make test       lint, type check and test"
	@echo "make test-slow  the long tests"
	@echo "make coverage   the tests again, with a report of what they do not reach"
	@echo "make wheel      build the wheel, install it in an empty environment, run the demo there"
	@echo "make fuzz       coverage-guided fuzzing of every reader (docs/robustness.md)"
	@echo "make bench      the benchmarks of docs/benchmarks.md"
	@echo "make docs       the documentation as a site, in site/"

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit("Sordino needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=24"
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo,dev]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/sordino demo --out demo-output

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n 2 --durations=10

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m slow --durations=10

coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

wheel: $(VENV)/.dev
	$(BIN)/python tools/check_wheel.py --keep dist

fuzz: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	$(BIN)/python -m fuzz all --inputs 120000

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(if $(wildcard benchmarks),,-p sordino -p tests.support)
	$(BIN)/python tools/counts.py check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks speed

docs: $(VENV)/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) site demo-output .pytest_cache .ruff_cache .mypy_cache .fuzz .coverage .coverage.* dist
