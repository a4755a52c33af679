# One command runs the main job, one passes the tests; both install what they need into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= --rate 20 --dist lognormal
SERVERS ?= .servers

.PHONY: setup run test test-servers test-tools check bench loc clean

$(VENV)/run.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,test,dev]'
	@touch $@

setup: $(VENV)/dev.stamp

run: $(VENV)/run.stamp ## measure the reference engine and write an HTML report
	@$(BIN)/bench run $(RUN); code=$$?; [ $$code = 2 ] || $(BIN)/bench report; \
	[ $$code != 3 ] || echo "The measurement is INVALID (make calls that an error): do what its reasons say, then run it again." >&2; \
	exit $$code

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-servers: $(VENV)/dev.stamp ## install vLLM, llama.cpp and transformers serve (4 GB, half an hour) and measure each
	PYTHON=$(PYTHON) sh tests/real_servers/install.sh $(SERVERS)
	SERVERS=$(SERVERS) $(BIN)/python -m pytest tests/real_servers/suite.py -s $(PYTEST_ARGS)

TOOLS ?= .tools
test-tools: $(VENV)/dev.stamp ## install six load tools (vLLM's 3 GB too) and compare our dialects with what they say
	PYTHON=$(PYTHON) SERVERS=$(SERVERS) sh tests/real_tools/install.sh $(TOOLS)
	TOOLS=$(TOOLS) $(BIN)/python -m pytest tests/real_tools/suite.py -s $(PYTEST_ARGS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/dev.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.client
	$(BIN)/python -m benchmarks.summary
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.peers --servers $(SERVERS)

loc: ## product lines, tests and benchmarks apart
	@$(PYTHON) tools/loc.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
