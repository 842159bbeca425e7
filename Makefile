# Everything runs in .venv, which is made on first use from uv.lock; uv is fetched into .uv where it is missing.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := $(or $(shell command -v uv),.uv/bin/uv)
DEMO := build/demo
BENCH_VENV := build/bench-venv

.DEFAULT_GOAL := help
.PHONY: help install demo test torture lint bench bench-training bench-quality clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

install: $(READY) ## Make the environment in .venv, with every extra

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --quiet uv

$(READY): uv.lock pyproject.toml | $(UV)
	$(UV) sync --quiet --frozen --all-extras
	@touch $@

demo: $(READY) ## Run the whole pipeline on the flights out of New York City in 2013
	$(BIN)/python examples/flights.py $(DEMO)/flights
	$(BIN)/python -m pipelines run --out $(DEMO)/run \
		--param data_uri=$(CURDIR)/$(DEMO)/flights --param label=label --param split_column=split

test: lint ## Run every test
	$(BIN)/pytest --quiet

torture: $(READY) ## Kill a run's processes at random and check that nothing is lost: ARGS="--seconds 600 --seed 1"
	$(BIN)/python -m tests.training.torture $(ARGS)

lint: $(READY) ## Check style and types
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy

bench: $(READY) ## Measure preparation, loading and training speed on this machine
	$(BIN)/python -m benchmarks.speed

bench-training: $(READY) ## Measure what several workers, evaluation, checkpoints and faults cost: SRC="...", ARGS="options"
	$(BIN)/python -m benchmarks.training $(SRC) $(ARGS)

# The comparators are a dependency group of its own, in an environment of its own: nothing else needs them.
bench-quality: | $(UV) ## Compare quality and cost with other models: SRC="files or folders", ARGS="options"
	UV_PROJECT_ENVIRONMENT=$(BENCH_VENV) $(UV) sync --quiet --frozen --extra demo --group bench
	$(BENCH_VENV)/bin/python -m benchmarks.quality $(SRC) $(ARGS)

clean: ## Remove what the targets above have made
	rm -rf $(VENV) .uv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
