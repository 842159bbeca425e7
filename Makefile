# Everything runs in .venv, which is made on first use from uv.lock; uv is fetched into .uv where it is missing.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := $(or $(shell command -v uv),.uv/bin/uv)
DEMO := build/demo
BENCH_VENV := build/bench-venv
BENCH_SYNC = UV_PROJECT_ENVIRONMENT=$(BENCH_VENV) $(UV) sync --quiet --frozen --compile-bytecode --extra demo --group bench
DOCS_VENV := build/docs-venv
VERSION = $(shell sed -nE 's/^version = "(.*)"/\1/p' pyproject.toml)
REVISION = $(shell git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)
IMAGE = dkan:$(VERSION)
VARIANT = gpu
# Many tests start several processes of their own: more jobs than this gain little, also on more cores.
TEST_JOBS = 3
# A file's tests stay together, for the fixtures that they share; files are begun in the order of conftest.py.
PYTEST = $(BIN)/pytest --quiet --numprocesses=$(TEST_JOBS) --dist=loadfile --no-loadscope-reorder \
	--ignore=tests/image --ignore=tests/trainjob

.DEFAULT_GOAL := help
.PHONY: help install demo demo-lifecycle test all-tests test-quick test-image chaos lint docs image sbom dist version \
	release-notes bench bench-data bench-end-to-end bench-kernels bench-strategies bench-training bench-quality bench-speed clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

install: $(READY) ## Make the environment in .venv, with every extra, and the pre-commit hooks in a git checkout
	@if [ -e .git ] && git rev-parse 2>/dev/null && [ -z "$$(git config core.hooksPath)" ]; then \
		$(BIN)/pre-commit install; \
	fi

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --quiet uv

$(READY): uv.lock pyproject.toml hatch_build.py $(wildcard dkan_core/native/*.py dkan_core/native/src/*) | $(UV)
	$(UV) sync --quiet --frozen --all-extras --compile-bytecode
	$(BIN)/python -m compileall -q dkan_core
	@touch $@

demo: $(READY) ## Run the whole pipeline on the flights out of New York City in 2013
	$(BIN)/python examples/flights.py $(DEMO)/flights
	$(BIN)/python -m pipelines run --out $(DEMO)/run --log $(DEMO)/run.log \
		--param data_uri=$(CURDIR)/$(DEMO)/flights --param label=label --param split_column=split --param group=date

demo-lifecycle: $(READY) ## Train, track, register and serve on this machine, with every server, and compare with dkan predict
	$(BIN)/python -m examples.lifecycle build/lifecycle

# Side by side: the type checker has one core, and would leave the others idle for most of a minute.
test: $(READY) ## Run lint and every test but those of test-image
	@$(MAKE) --no-print-directory --jobs=2 lint all-tests

all-tests: $(READY)
	$(PYTEST)

test-quick: $(READY) ## Run the tests that are not marked slow
	$(PYTEST) -m "not slow"

test-image: $(READY) ## Build and run the image, train on two nodes, open pages in Chromium: needs root, installs what is missing
	tests/image/install
	$(BIN)/pytest --quiet -o timeout_func_only=true tests/image tests/trainjob
	$(BIN)/pytest --quiet -m browser tests/report tests/explanation

image: ## Build the image: IMAGE=registry.example/dkan:0.3.0.dev0, VARIANT=gpu or cpu, BUILD_ARGS="options"
	docker build --build-arg VARIANT=$(VARIANT) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
		$(BUILD_ARGS) --tag $(IMAGE) .

sbom: $(READY) ## List the packages in IMAGE in build/sbom.cdx.json (CycloneDX), and show its size
	mkdir -p build
	SYFT_CHECK_FOR_APP_UPDATE=false $(BIN)/syft scan --quiet docker:$(IMAGE) --output cyclonedx-json=build/sbom.cdx.json
	@docker image inspect --format '$(IMAGE): {{.Size}} bytes' $(IMAGE)

chaos: $(READY) ## Kill a run's processes at random and check that nothing is lost: ARGS="--seconds 600 --seed 1"
	$(BIN)/python -m tests.training.chaos $(ARGS)

lint: $(READY) ## Check style and types
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy

# The site generator is a dependency group of its own, in an environment of its own: nothing else needs it.
docs: | $(UV) ## Build the documentation in build/site, with warnings as errors
	UV_PROJECT_ENVIRONMENT=$(DOCS_VENV) $(UV) sync --quiet --frozen --extra kfp --group docs
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --quiet --strict

dist: | $(UV) ## Build the sdist and the wheel in dist/
	rm -rf dist
	$(UV) build --quiet --out-dir dist

version: ## Print the version
	@echo $(VERSION)

release-notes: ## Print the changelog's section of this version
	@sed -n '/^## \[$(VERSION)\]/,/^## \[/p' CHANGELOG.md | sed '/^## \[/d'

bench: $(READY) ## Measure preparation, loading and training speed on this machine
	$(BIN)/python -m benchmarks.throughput

bench-kernels: $(READY) ## Measure what a step of a default model costs with each kernel on a CPU: SRC="files", ARGS="options"
	$(BIN)/python -m benchmarks.kernels $(SRC) $(ARGS)

bench-strategies: $(READY) ## Compare all strategies by number of workers and size of data: ARGS="--quick" takes 10 minutes on two cores
	$(BIN)/python -m benchmarks.strategies $(ARGS)

bench-training: $(READY) ## Measure what several workers, evaluation, checkpoints and faults cost: SRC="...", ARGS="options"
	$(BIN)/python -m benchmarks.training $(SRC) $(ARGS)

# The libraries to compare with are a separate dependency group in a separate environment: nothing else needs them.
bench-data: | $(UV) ## Measure preparation and loading of generated rows by CPU time, with other libraries: ARGS="options"
	$(BENCH_SYNC)
	$(BENCH_VENV)/bin/python -m benchmarks.data $(ARGS)

bench-end-to-end: | $(UV) ## Measure every stage on up to 10 million generated rows, with LightGBM and XGBoost: ARGS="options"
	$(BENCH_SYNC)
	$(BENCH_VENV)/bin/python -m benchmarks.end_to_end $(ARGS)

bench-quality: | $(UV) ## Compare quality and cost with other models: SRC="files or folders", ARGS="options"
	$(BENCH_SYNC)
	$(BENCH_VENV)/bin/python -m benchmarks.quality $(SRC) $(ARGS)

bench-speed: | $(UV) ## Compare the CPU seconds of prepare and train with LightGBM's: SRC="files or folders", ARGS="options"
	$(BENCH_SYNC)
	$(BENCH_VENV)/bin/python -m benchmarks.speed $(SRC) $(ARGS)

clean: ## Remove what the targets above have made
	rm -rf dkan_core/native/_passes.so $(VENV) .uv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
