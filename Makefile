# pulsar-sidecar: `make help` lists what there is. Everything installs into .venv; nothing else is touched.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
CLIENT_GENERATOR := $(VENV)/openapi-client/.installed
FAST_TESTS := tests/model tests/unit
build-site = $(BIN)/sphinx-build -q -W --keep-going -n -b $(1) docs $(2)
# Some tests wait for clocks and processes, so two processors get three workers; each more would collect all tests once
# more. Neighbours stay on one worker (`worksteal`), so what a module shares is made once.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 4 ? n : (3 * n + 1) / 2)))
RESULTS := $(VENV)/test-results
RUN_FAST_TESTS := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --branches --part $(RESULTS)/unit.json $(FAST_TESTS)
STATIC_CHECKS := check-format check-lint check-types check-contracts check-generated check-site
TOGETHER := --jobs --keep-going $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
SHARING_NO_CLUSTER := not on_shared_cluster and not on_deletion_cluster
# The summary at the end names failed tests with the command that runs each again.
run-part = $(BIN)/python -m pytest --tb=short -rN --part $(RESULTS)/$(1).json $(2)
shown-at-its-end = @mkdir -p $(RESULTS); log=$(RESULTS)/$@.log; echo "$@ is shown when it has ended; until then: $$log"; \
  ( $(1) ) >$$log 2>&1; status=$$?; cat $$log; exit $$status
FAST_TESTS_PASSED := $(VENV)/.fast-tests-passed
# A cluster that exists already, or that runs in containers, is one for all tests: then one process after the other.
SIDE_BY_SIDE ?= $(if $(PULSAR_SIDECAR_TEST_CLUSTER)$(shell docker version --format '{{.Server.Version}}' 2>/dev/null),1,4)
SCENARIOS := tests/integration tests/interop tests/e2e tests/faults
HALF_OF_INTEGRATION := $(wildcard tests/integration/test_[a-d]*.py) tests/integration/with_transactions
# The longest first: the next begins where one ends.
PARTS := deletion on-shared-cluster own-clusters faults-of-deletion own-clusters-too contract clients-of-deletion spark
SIDES := $(PARTS:%=test-part-%)
WATCHED := $(shell git ls-files --cached --others --exclude-standard 2>/dev/null)
NEEDS := containers kubernetes browser
FAULT_ROUNDS ?= 20
HOURS ?= 2
FAULTS ?= tests/faults
# Modules with tests that ask for `full_run`.
LONGER := $(addprefix tests/integration/,test_cancelling.py test_cancelling_everywhere.py test_pins.py test_ack_state_bytes.py \
  test_deletion_on_adverse_settings.py test_two_clusters.py) tests/e2e/test_standalone.py tests/spark/test_agreement.py
SOURCES := service pyspark_jobs tests docs/chart_schema.py docs/generate.py docs/conf.py proto/generate.py deploy/grafana \
  deploy/healthcheck.py deploy/lock.py deploy/spark

# Without bytecode every worker would rewrite each test's assertions, and every sidecar would be compiled when it starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: always help check coverage $(STATIC_CHECKS) test $(SIDES) $(NEEDS:%=test-%) matrix matrix-spark matrix-python test-admin-clients test-faults soak mutants release images monitoring screenshots demo demo-down docs format generate lock clean bench

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(INSTALLED): $(wildcard deploy/requirements*.lock) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the locked dependencies into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r deploy/requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(TOOLS): deploy/requirements-tools.lock | $(INSTALLED)
	@echo "installing the tools of benchmarks, browsers and mutants into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(CLIENT_GENERATOR): deploy/requirements-openapi-client.lock | $(INSTALLED)
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

check: $(INSTALLED) ## format, lint, types, import contracts, generated files, site, unit tests (about five minutes on two processors)
	@$(MAKE) --no-print-directory $(TOGETHER) $(STATIC_CHECKS)
	$(RUN_FAST_TESTS)
	@touch $(FAST_TESTS_PASSED)

coverage: $(INSTALLED) ## branch coverage of all code by the unit tests, which take twice the processor time with it; `make test` counts what decides
	@mkdir -p $(RESULTS) && rm -f $(RESULTS)/coverage*
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist worksteal $(FAST_TESTS)
	@$(BIN)/coverage combine -q && $(BIN)/coverage report --sort=cover >$(RESULTS)/coverage.txt
	@echo "branch coverage by file: $(RESULTS)/coverage.txt"; tail -n 1 $(RESULTS)/coverage.txt

check-format: $(INSTALLED)
	$(BIN)/ruff format --check $(SOURCES)

check-lint: $(INSTALLED)
	$(BIN)/ruff check $(SOURCES)

check-types: $(INSTALLED)
	$(BIN)/mypy

check-contracts: $(INSTALLED)
	$(BIN)/lint-imports

check-generated: $(INSTALLED)
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m deploy.grafana.dashboards --check

# Every page is read and every link is resolved, but no page is written, which takes as long again.
check-site: $(INSTALLED)
	$(call build-site,dummy,$(RESULTS)/site)

$(FAST_TESTS_PASSED): $(INSTALLED) $(or $(wildcard $(WATCHED)),always)
	$(RUN_FAST_TESTS)
	@touch $@

# Clusters live as long as the process that runs their tests, and much of a test's time is waiting: so there is one process
# for those that share a cluster, but three for deletion's, which take longest, and four parts at a time. Each has up to
# two clusters of 900 MB at a time. The unit tests are left out if they have passed since any file was changed.
test: $(INSTALLED) $(CLIENT_GENERATOR) ## everything, on a real cluster of this machine (Java 17 and Maven needed, no Docker)
	@rm -f $(PARTS:%=$(RESULTS)/%.json); began=$$(date +%s); status=0; \
	  $(MAKE) --no-print-directory $(FAST_TESTS_PASSED) \
	    && $(MAKE) --no-print-directory --jobs $(SIDE_BY_SIDE) --keep-going $(SIDES) \
	    || status=1; \
	  $(BIN)/python -m tests.summary $$(($$(date +%s) - began)) $(RESULTS)/unit.json $(PARTS:%=$(RESULTS)/%.json) || status=1; \
	  exit $$status

TESTS_OF_own-clusters := -m "$(SHARING_NO_CLUSTER)" $(HALF_OF_INTEGRATION)
TESTS_OF_own-clusters-too := -m "$(SHARING_NO_CLUSTER)" $(addprefix --ignore=,$(HALF_OF_INTEGRATION)) $(SCENARIOS)
TESTS_OF_contract := -m "$(SHARING_NO_CLUSTER)" tests/contract
TESTS_OF_on-shared-cluster := -m on_shared_cluster tests/contract $(SCENARIOS)
TESTS_OF_deletion := -m on_deletion_cluster tests/integration
TESTS_OF_faults-of-deletion := -m on_deletion_cluster tests/faults
TESTS_OF_clients-of-deletion := -m on_deletion_cluster tests/interop tests/e2e
TESTS_OF_spark := tests/spark

$(SIDES): test-part-%:
	$(call shown-at-its-end,$(call run-part,$*,$(TESTS_OF_$*)))

# No test that asks for another need: what a machine has beside its engine is not the question.
test-containers: $(INSTALLED) ## docker-compose.yml with its sidecars killed, and the commands on a cluster in containers (ten minutes; an engine with compose needed)
	PULSAR_SIDECAR_TEST_CLUSTER=containers $(BIN)/python -m pytest --tb=short -rs -m "not kubernetes and not browser" tests/containers tests/e2e

test-kubernetes: $(INSTALLED) ## an operator's acts with the chart, on KUBECONFIG's cluster or on a node that this starts (root, Docker and Go needed; tests/kubernetes)
	$(BIN)/python -m tests.kubernetes

test-browser: $(INSTALLED) $(TOOLS) ## tests that look at pages in a real Chromium (Debian's package `chromium`, or PULSAR_SIDECAR_TEST_BROWSER)
	$(BIN)/python -m pytest --tb=short -rs -m browser tests/browser tests/e2e

screenshots: $(INSTALLED) $(TOOLS) ## the dashboard's pictures in docs/dashboard, from a cluster with something on every page (Chromium)
	mkdir -p docs/dashboard
	PULSAR_SIDECAR_SCREENSHOTS=docs/dashboard $(BIN)/python -m pytest --tb=short -rs -m browser tests/browser/test_tour.py

test-admin-clients: $(INSTALLED) ## pulsar-admin and the Java and Go admin clients, at brokers and at the sidecar (ten minutes; Go needed)
	$(BIN)/python -m pytest --tb=short -rN tests/admin_clients

test-faults: $(INSTALLED) ## 20 rounds of every fault on a real cluster (hours); the counts go into docs/reliability.md
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -q -n auto -m hypothesis tests/unit
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -q \
	  $(addprefix tests/unit/ledger_deletion/,test_crash_replay.py test_crash_replay_of_other_incarnations.py)
	$(BIN)/python -m pytest -q --fault-rounds 2 $(LONGER)
	$(BIN)/python -m pytest -q --fault-rounds 2 tests/interop/test_tracker_with_java.py
	$(BIN)/python -m pytest $(FAULTS) --fault-rounds $(FAULT_ROUNDS) --fault-report docs/reliability.json
	$(BIN)/python -m tests.faults.report docs/reliability.json docs/reliability.md

mutants: $(INSTALLED) $(TOOLS) ## mutation testing of the judgement and the codecs, as a table (half an hour; docs/reliability.md)
	ln -sfn service src
	HYPOTHESIS_PROFILE=mutants $(BIN)/mutmut run --max-children 1; status=$$?; rm -f src; exit $$status
	$(BIN)/python -m tests.mutation_score

bench: $(INSTALLED) $(TOOLS) ## every benchmark, side by side with its peers, as tables (docs/benchmarks.md); leave the machine alone
	@$(BIN)/python -m tests.benchmarks all

soak: $(INSTALLED) $(TOOLS) ## HOURS (2) of mixed work on a real cluster with kills; memory, descriptors, threads and nodes must stay flat (docs/soak.md)
	@mkdir -p $(RESULTS)
	$(BIN)/python -m tests.soak --hours $(HOURS) --samples $(RESULTS)/soak.jsonl --picture docs/soak.svg

matrix: $(INSTALLED) ## the story on Pulsar 3.3.6, 4.0.6, 4.0.8 and 4.2.4, into README's table (VERSIONS="4.2.4" for one; 45 minutes)
	$(BIN)/python -m tests.matrix $(VERSIONS)

matrix-spark: $(INSTALLED) ## the Spark job on PySpark 4.0 to 4.3, into docs/audit.md's table (VERSIONS="4.3.0" for one; half an hour)
	$(BIN)/python -m tests.matrix.spark $(VERSIONS)

# `-n auto` is as many processes as $(WORKERS) says.
matrix-python: $(INSTALLED) ## the same on each Python from 3.11 that is found, locked and newest dependencies (PYTHONS="3.13 PATH", DEPENDENCIES=locked; 15 minutes each)
	PYTEST_XDIST_AUTO_NUM_WORKERS=$(WORKERS) $(BIN)/python -m tests.matrix.python $(PYTHONS) $(DEPENDENCIES:%=--dependencies=%)

MONITORED ?= $(VENV)/monitoring
monitoring: $(INSTALLED) $(TOOLS) ## the dashboards' queries at a real Prometheus during the demo's acts, and their pictures (ten minutes; Prometheus needed)
	@rm -rf $(MONITORED)
	$(BIN)/python -m tests.monitoring $(MONITORED) --pictures docs/monitoring

demo: $(INSTALLED) ## the main job on a real cluster: leaks without the sidecar, none with it
	@$(BIN)/pulsar-sidecar demo

demo-down: ## end the demo's processes and remove its files
	@test ! -x $(BIN)/pulsar-sidecar || $(BIN)/pulsar-sidecar demo down

docs: $(INSTALLED) ## the documentation as a site, in docs/_build
	$(call build-site,html,docs/_build)

format: $(INSTALLED) ## format and fix what can be fixed
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

generate: $(INSTALLED) ## protobuf modules, the reference pages and the dashboards
	$(BIN)/python proto/generate.py
	$(BIN)/python docs/generate.py
	$(BIN)/python -m deploy.grafana.dashboards

lock: $(INSTALLED) $(TOOLS) ## resolve the dependencies again; pins stay where they can (LOCK_OPTIONS=--upgrade for the newest)
	$(BIN)/python deploy/lock.py $(LOCK_OPTIONS)

release: $(INSTALLED) ## build wheel and sdist into dist/, and check the wheel in a fresh environment (docs/releasing.md)
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist
	sh deploy/check_wheel.sh dist/*.whl $(PYTHON)

images: ## build the three images, with a list of what is in each in dist/ (needs Docker; docs/releasing.md)
	sh deploy/build_images.sh $(BUILD_OPTIONS)

clean: ## remove what the build made; the demo's processes are not touched
	rm -rf $(VENV) dist mutants docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
