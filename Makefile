.DEFAULT_GOAL := help
.PHONY: help setup demo demo-fleet demo-serving test test-unit test-profile test-clients test-deploy test-prometheus test-ray test-browser screenshots soak coverage chaos fuzz bench lint fmt types contracts check up down reference lock
PYTHON ?= python3.11
export TENORA_FLAVOR ?= cpu
# uv leaves bytecode to the first run. A machine that never writes it pays 8 s of CPU time in each process that imports vLLM.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# Tests wait for processes more than they compute: three workers keep two cores busy.
TEST_WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest

help: ## what can be made
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv from the hash-pinned lock (TENORA_FLAVOR=cpu|gpu); quick when nothing changed
	@PYTHON=$(PYTHON) sh requirements/install.sh

demo: setup ## the main job end to end: two tenants, two fine-tunes, one replica, two invoices
	@$(BIN)/tenora demo

demo-fleet: setup ## a pool on a local Ray cluster: a spike, a lost node, another revision, and back to one replica (installs Ray)
	@sh requirements/ray.sh && $(BIN)/python -m benchmarks.demo_fleet

demo-serving: setup ## a batch behind chats, a classified and an escalated answer, an overflow, a provider's outage; two real engines
	@$(BIN)/python -m benchmarks.demo_serving

test: setup ## what a change must pass: unit, integration and one real vLLM, with a kill of a store, a gateway and an engine
	@$(PYTEST) -n $(TEST_WORKERS) --no-loadscope-reorder

test-unit: setup ## the tests of single modules, which start no servers
	@$(PYTEST) tests/unit

soak: setup ## what takes long: statistics, real time, every kill, all examples of each property; alone what needs a quiet machine
	@$(PYTEST) --suite soak -n 2 --no-loadscope-reorder -m 'not quiet and not timed and not e2e'; together=$$?; \
	  $(PYTEST) --suite soak -m 'quiet or timed or e2e' && exit $$together

coverage: setup ## the percentage of the source packages' lines that `make test` runs, programs that the tests start included
	@rm -f .coverage .coverage.*; $(BIN)/coverage run -m pytest -n $(TEST_WORKERS) --no-loadscope-reorder; tested=$$?; \
	  $(BIN)/coverage combine -q && $(BIN)/coverage report --format=total && exit $$tested

test-profile: setup ## `make test`, and the processor time of its files and fixtures
	@$(PYTEST) -n $(TEST_WORKERS) --no-loadscope-reorder -p tests.cpu_profile

test-clients: setup ## anthropic, instructor, litellm, LangChain, LlamaIndex, openai for Node, Vercel's AI SDK and Java against a gateway
	@sh requirements/clients.sh && $(PYTEST) -m clients

test-ray: setup ## the placer of replicas on a Ray cluster of four nodes, three of which are killed (installs Ray)
	@sh requirements/ray.sh && $(PYTEST) --suite all -m ray

test-deploy: setup ## the Helm chart against Kubernetes' schemas, and two gateways behind a real Envoy
	@sh requirements/deploy.sh && $(PYTEST) --suite all -m deploy

test-prometheus: setup ## each failure mode on witnesses, and what a real Prometheus says of it (downloads Debian's)
	@sh requirements/prometheus.sh && $(PYTEST) --suite all -m prometheus

test-browser: setup ## every page of the console in a real Chromium, light and dark, phone and desktop, with axe; flows by keyboard (downloads Debian's)
	@sh requirements/browser.sh && $(PYTEST) --suite all -m browser tests/browser

screenshots: setup ## a picture of every page of the console into .browser/screenshots, the chosen ones into docs/screenshots (downloads Chromium)
	@sh requirements/browser.sh && $(BIN)/python -m tests.browser.screenshots

fuzz: setup ## look for uploads that the header reader misreads, for FUZZ_SECONDS (60)
	@$(BIN)/python tests/fuzz/fuzz_header.py $(or $(FUZZ_SECONDS),60)

chaos: setup ## break a whole data plane in every way and write docs/RELIABILITY.md (half an hour; CHAOS_INSTANTS=40 kills of each process)
	@$(BIN)/python -m tests.chaos --instants $(or $(CHAOS_INSTANTS),40) --out docs/RELIABILITY.md

up: setup ## the whole platform on this machine, until Ctrl-C
	@$(BIN)/tenora up

down: ## stop what `tenora up --detach` started
	@$(BIN)/tenora down

bench: setup ## adapters' price, 1,000 of them, the gateway beside its peers, 10,000 streams, fairness, placement, routing, the request log, an idle stack (90 minutes, 2 quiet cores)
	@mkdir -p .tenora/benchmarks; missed=0; run() { $(BIN)/python -m "benchmarks.$$@" || missed=1; }; \
	  run lora.tax --json .tenora/benchmarks/lora_tax.json; \
	  run lora.multilora --out .tenora/benchmarks/multilora; \
	  run lora.multilora --witness --out .tenora/benchmarks/multilora_witness; \
	  run gateway --json .tenora/benchmarks/gateway.json; \
	  run streams --json .tenora/benchmarks/streams.json; \
	  run fairness --json .tenora/benchmarks/fairness.json; \
	  run fairness --gateways 2 --json .tenora/benchmarks/fairness_of_two.json; \
	  run batches --json .tenora/benchmarks/batches.json; \
	  run placement --out .tenora/benchmarks/placement_sim.json; \
	  run routing --plot .tenora/benchmarks/routing.svg; \
	  run billing --json .tenora/benchmarks/billing.json; \
	  run request_log --json .tenora/benchmarks/request_log.json; \
	  run observability --json .tenora/benchmarks/observability.json; \
	  run idle --json .tenora/benchmarks/idle.json; \
	  exit $$missed

lint: setup ## ruff: rules and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

fmt: setup ## fix what ruff can fix, and format
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: setup ## mypy, strict
	@$(BIN)/mypy

contracts: setup ## who may import whom
	@$(BIN)/lint-imports

check: lint types contracts test soak ## lint, types, contracts, test and soak; CI runs all but soak

reference: setup ## write docs/reference, the alerts with their runbooks, and the dashboards from the code
	@$(BIN)/python -m tenora.docs.reference && $(BIN)/python -m tenora.observe.files

lock: ## resolve the two locks again from requirements/*.in (needs uv)
	@sh requirements/lock.sh
