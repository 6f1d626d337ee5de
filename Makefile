# One habit: make deploy BOARD=... HOST=... MODEL=...
# Every recipe is one call; what it does is in the toolchain, not here.

PYTHON  ?= python3
VENV    ?= .venv
BOARD   ?= local
HOST    ?=
MODEL   ?= mobilenet
TRIALS  ?=
VIRTUAL ?= rpi4=1,pynq=1
ARGS    ?=

TOOLCHAIN := $(VENV)/bin/toolchain
READY     := $(VENV)/.ready
DEVICE    := --board "$(BOARD)" $(if $(HOST),--host "$(HOST)")
TUNING    := $(if $(TRIALS),--trials "$(TRIALS)")

.DEFAULT_GOAL := help
.PHONY: help setup deploy tune compare bench survey status releases rollback boards containers farm serve doctor test stress exact networks chaos lint format lock clean

help: ## Show this
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: BOARD=$(BOARD) MODEL=$(MODEL) HOST=$(HOST) TRIALS=$(TRIALS) VIRTUAL=$(VIRTUAL) ARGS='more options'"

setup: $(READY) ## Install everything that is pinned in requirements.lock into .venv

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.lock
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

deploy: $(READY) ## Build MODEL, deploy it to BOARD at HOST, check its outputs there and measure it; tune it first with TRIALS=N
	@$(TOOLCHAIN) deploy "$(MODEL)" $(DEVICE) $(TUNING) $(ARGS)

tune: $(READY) ## Tune the kernels of MODEL on boards of the type BOARD, with TRIALS=N
	@$(TOOLCHAIN) tune "$(MODEL)" $(DEVICE) $(TUNING) $(ARGS)

compare: $(READY) ## Run MODEL untuned and tuned in turns, and tell how much faster the tuned one is
	@$(TOOLCHAIN) compare "$(MODEL)" $(DEVICE) $(ARGS)

bench: $(READY) ## Measure the release that the device runs
	@$(TOOLCHAIN) bench $(DEVICE) $(ARGS)

survey: $(READY) ## Try everything on one device, and write a report to send, without names and addresses
	@$(TOOLCHAIN) survey $(DEVICE) $(TUNING) $(ARGS)

status: $(READY) ## Show what the device is and what it runs
	@$(TOOLCHAIN) status $(DEVICE) $(ARGS)

releases: $(READY) ## List the releases that the device keeps
	@$(TOOLCHAIN) releases $(DEVICE) $(ARGS)

rollback: $(READY) ## Make the release before the current one current again
	@$(TOOLCHAIN) rollback $(DEVICE) $(ARGS)

boards: $(READY) ## List the board types
	@$(TOOLCHAIN) boards $(ARGS)

containers: $(READY) ## Build the images that hold the cross compilers
	@$(TOOLCHAIN) containers build $(ARGS)

farm: $(READY) ## Start the VIRTUAL boards, emulated ARM boards with a real SSH server
	@$(TOOLCHAIN) farm up --virtual "$(VIRTUAL)" $(ARGS)

serve: $(READY) ## Serve the devices of devices.toml, and virtual boards, for tuning
	@$(TOOLCHAIN) farm up $(ARGS)

doctor: $(READY) ## Say what this machine lacks for each board
	@$(TOOLCHAIN) doctor $(ARGS)

test: $(READY) ## Run the tests; TOOLCHAIN_STRICT=1 fails where a part of the system is missing
	@$(VENV)/bin/python -m pytest $(ARGS)

stress: $(READY) ## Kill 200 deploys at random points and look at what the device runs
	@TOOLCHAIN_KILLS=200 $(VENV)/bin/python -m pytest -s tests/integration/test_kills.py $(ARGS)

exact: $(READY) ## Run every convolution of four networks on the simulated array, bit for bit, in any order of its stages
	@TOOLCHAIN_EXACT=resnet-18,resnet-34,resnet-50,mobilenet $(VENV)/bin/python -m pytest tests/integration/test_vta_networks.py $(ARGS)

networks: $(READY) ## Run every network of the zoo and of the onnx wheel on the CPU and on OpenCL
	@TOOLCHAIN_NETWORKS=all $(VENV)/bin/python -m pytest tests/integration/test_networks.py $(ARGS)

chaos: $(READY) ## Tune with 300 trials on three virtual boards while everything around is killed, frozen and rebooted
	@TOOLCHAIN_CHAOS=300 $(VENV)/bin/python -m pytest -s tests/integration/test_tuning_chaos.py $(ARGS)

lint: $(READY) ## Check style and types
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

format: $(READY) ## Format the code
	@$(VENV)/bin/ruff format .

lock: ## Renew requirements.lock from pyproject.toml (needs uv)
	@uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --extra dev pyproject.toml -o requirements.lock

clean: ## Remove what was built; .venv and the cache stay
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
