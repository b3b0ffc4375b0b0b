# Each command sets up what it needs by itself, in .venv and .cache, and starts at once the next time.
# ARGS='...' is passed on: make demo ARGS=--json, make test ARGS='tests/core -x'.

PY := .venv/bin/python
READY := .venv/.ready
SERVERS := .cache/servers-ready
PEERS := .cache/peers
LITELLM := .cache/litellm

# Tests start hundreds of processes: compiling every module again in each of them takes half of a run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test deep litellm check lint faults cuts simulation soak spec bench bench-judge bench-look bench-simulate bench-day bench-prune bench-sizes bench-limits bench-gate bench-web audit constraints client

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

demo: $(READY)  ## a noisy caller, counted and refused, within a minute
	@.venv/bin/gatelock demo $(ARGS)

# Four at a time: on two cores two of them usually wait for a server. ARGS='-n0 -x' for one at a time.
test: $(READY) $(SERVERS)  ## every test, on SQLite, PostgreSQL and Kafka
	@$(PY) -m pytest -n4 --dist=worksteal $(ARGS)

# Ten times the examples, stories and orders. A test may take as long as it needs.
deep: $(READY) $(SERVERS) $(LITELLM)/.ready  ## every test, with ten times as many drawn examples: before a release, or at night
	@GATELOCK_TEST_DEEP=1 $(PY) -m pytest -n4 --dist=worksteal --timeout=7200 -o faulthandler_timeout=0 $(ARGS)

litellm: $(LITELLM)/.ready  ## LiteLLM in a separate environment, for the tests of its callback
	@test -f $(LITELLM)/.ready

check: lint test  ## what a commit must pass: lint, and every test (`alembic check` is one of them)

lint: $(READY)  ## ruff, mypy strict on both packages, and the fullest and emptiest folders
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/mypy --no-error-summary
	@$(PY) -m tests.house.folders

faults: $(READY) $(SERVERS)  ## two hundred faults over 600,000 records; ARGS="--core 0.05": a backlog with that share of a core
	@$(PY) -m tests.faults $(ARGS)

cuts: $(READY) $(SERVERS)  ## a gate cut off from its source at random, in simulated and in real time
	@$(PY) -m tests.cuts $(ARGS)

simulation: $(READY)  ## whole installations in one thread each, with faults drawn from a seed
	@$(PY) -m tests.simulation $(ARGS)

soak: $(READY)  ## a thousand of these
	@$(PY) -m tests.simulation --seeds 1000 $(ARGS)

spec: $(READY) $(SERVERS)  ## the formal model in docs/spec, every configuration; ARGS=Flush for one module
	@$(PY) -m tests.spec $(ARGS)

bench: $(READY) $(SERVERS)  ## three numbers worth keeping
	@$(PY) -m tests.benchmarks $(ARGS)

bench-judge: $(READY) $(SERVERS)  ## what policies cost a flush, and analyzers each other
	@$(PY) -m tests.benchmarks.judge $(ARGS)

bench-look: $(READY)  ## a look at two million lines, beside GoAccess; ARGS='500000 1' for fewer lines and rounds
	@$(PY) -m tests.benchmarks.look $(ARGS)

bench-simulate: $(READY) $(SERVERS)  ## a month of ten million stored counts, simulated on both databases
	@$(PY) -m tests.benchmarks.simulate $(ARGS)

bench-day: $(READY) $(SERVERS)  ## a day of ten million rows is closed, audited and reported, beside COPY
	@$(PY) -m tests.benchmarks.day $(ARGS)

bench-prune: $(READY) $(SERVERS)  ## flushes beside the deletion of fifty million old rows; ARGS=1000000 for fewer
	@$(PY) -m tests.benchmarks.prune $(ARGS)

bench-sizes: $(READY) $(SERVERS)  ## the bytes of a row of each large table, on both databases
	@$(PY) -m tests.benchmarks.sizes $(ARGS)

bench-web: $(READY) $(SERVERS)  ## each page and route of the API beside a million callers; ARGS=--keep keeps the database
	@$(PY) -m tests.benchmarks.web $(ARGS)

bench-limits: $(PEERS)/.ready  ## our limiters beside their peers, in one process
	@$(PEERS)/bin/python -m tests.benchmarks.limits $(ARGS)
	@$(PEERS)/bin/python -m tests.benchmarks.limits_redis

bench-gate: $(PEERS)/.ready  ## the gate beside its peers: a check, and requests per second under uvicorn
	@$(PEERS)/bin/python -m tests.benchmarks.gate_peers $(ARGS)

client: $(READY)  ## rewrite the client of the API from the table of endpoints
	@$(PY) -m analyzer.faces.api.client_source gatekeeper/client/api_client.py

audit: $(READY)  ## known advisories of the pinned packages, if an index of them can be reached
	@.ci/audit .venv/bin/uv

constraints: $(READY)  ## rewrite constraints.txt with today's versions
	@.venv/bin/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 --extra all --group dev \
	  --group bench --group postgresql --no-emit-index-url --no-annotate --custom-compile-command 'make constraints' \
	  --output-file constraints.txt pyproject.toml

# The stamp comes last, so that a partly made environment is made again. uv installs
# because it takes seconds, and because an old pip knows no --group.
$(READY): pyproject.toml constraints.txt
	@$(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	    $$name -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    name=; \
	  done; \
	  test -n "$$name" || { \
	    echo 'Gatelock needs Python 3.11 or newer with venv (on Debian: apt-get install python3-venv).' >&2; \
	    exit 1; \
	  }; \
	  echo "Setting up .venv with $$($$name --version); this is done once"; \
	  $$name -m venv --clear .venv; \
	}
	@sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > .venv/uv.txt  # pip takes hashes from no constraint
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	@.venv/bin/uv pip install --quiet --python $(PY) -c constraints.txt -e '.[all]' --group dev
	@touch $@

# The peers get a separate environment: no other command needs them.
$(PEERS)/.ready: $(READY)
	@.venv/bin/uv venv --quiet --clear --python $(PY) $(PEERS)
	@.venv/bin/uv pip install --quiet --python $(PEERS)/bin/python -c constraints.txt -e '.[redis]' --group bench
	@touch $@

# LiteLLM asks for other versions of our packages. Without it its tests are left out, and say so.
$(LITELLM)/.ready: $(READY) tests/llm/litellm.txt
	@.venv/bin/uv venv --quiet --clear --python $(PY) $(LITELLM)
	@.venv/bin/uv pip install --quiet --python $(LITELLM)/bin/python -r tests/llm/litellm.txt -e '.[sql]' && touch $@ \
	  || echo 'LiteLLM cannot be installed: the tests of its callback are left out' >&2

# No stamp while a server is missing: the next run checks, and reports it, again.
$(SERVERS): $(READY) tests/support/servers/pom.xml tests/support/servers/tlc.xml
	@mkdir -p .cache
	@if $(PY) -m tests.support.servers.prepare; then touch $@; fi
