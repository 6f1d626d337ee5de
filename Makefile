# One habit: make deploy BOARD=... HOST=... MODEL=...
# Every recipe is one call; what it does is in the toolchain, not here.

PYTHON  ?= python3
VENV    ?= .venv
BOARD   ?= local
HOST    ?=
MODEL   ?= mobilenet
TRIALS  ?=
BASE    ?=
INPUT   ?=
OUTPUT  ?= outputs.npz
VIRTUAL ?= rpi4=1,pynq=1
SECONDS ?= 60
ONLY    ?=
ARGS    ?=

TOOLCHAIN := $(VENV)/bin/toolchain
READY     := $(VENV)/.ready
DEVICE    := --board "$(BOARD)" $(if $(HOST),--host "$(HOST)")
TUNING    := $(if $(TRIALS),--trials "$(TRIALS)")

# make takes any NAME=value in silence: `board=rpi4` or `HOSTS=...` would deploy to another device than was meant.
OURS    := BOARD HOST MODEL BASE TRIALS INPUT OUTPUT VIRTUAL SECONDS ONLY ARGS PYTHON VENV
USUAL   := MAKE% SHELL PATH HOME TMPDIR NO_COLOR %_proxy %_PROXY PIP_% SSL_% XDG_% DOCKER_% TOOLCHAIN_% TVM_%
GIVEN   := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
STRANGE := $(filter-out $(OURS) $(USUAL),$(GIVEN))
CLOSEST  = $(shell $(PYTHON) -c 'import difflib, sys; word, *ours = sys.argv[1:]; \
  print(*difflib.get_close_matches(word.upper(), ours, 1))' '$(subst ','\'',$(1))' $(OURS))
MEANT    = $(if $(CLOSEST), (did you mean $(CLOSEST)=?))
ifneq ($(STRANGE),)
  $(error $(foreach name,$(STRANGE),there is no variable $(name)$(call MEANT,$(name));) the variables are $(OURS))
endif

PYTEST := $(VENV)/bin/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder
# Byte code is made of what is imported, and not of all there is: a third of the time.
PIP := PYTHONUNBUFFERED=1 $(VENV)/bin/python -m pip install --disable-pip-version-check --no-compile
# Of what pip says, a line for each package: how many there are, which one it is, and how large. It says nothing while it
# unpacks them, so those are counted that are there. pip's exit code is kept.
define COUNTED
there() { ls -d $(VENV)/lib/python3*/site-packages/*.dist-info 2>/dev/null | wc -l; }; before=$$(there); \
unpacking() { while sleep 2; do echo "  $$(($$(there) - before)) of $$all unpacked"; done; }; \
ticker=; all=$$(grep -c '^[^ ]*==' requirements.lock); number=0; \
while read -r word name size; do \
[ "$$word $$name" != "Using cached" ] || { name=$${size%% *}; size=$${size#* }; }; \
case "$$word $$name" in \
  Ignoring*) all=$$((all - 1));; \
  *.metadata) ;; \
  Downloading*|Using*|Processing*) number=$$((number + 1)); echo "  $$number of $$all  $${name##*/} $${size%%(from*}";; \
  Installing*) echo "  unpacking them"; unpacking & ticker=$$!;; \
  "exit "*) [ -z "$$ticker" ] || kill $$ticker; exit $$name;; \
esac; done; exit 1
endef

.DEFAULT_GOAL := help
.PHONY: help setup deploy tune compare gate bench run survey status releases rollback boards containers farm serve doctor test test-all stress rollouts trials exact networks opencl nightly operators exported third-party chaos mutants sanitize fuzz signatures wrong-inputs lint format lock wheel clean

help: ## Show this
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: BOARD=$(BOARD) MODEL=$(MODEL) BASE=$(BASE) HOST=$(HOST) TRIALS=$(TRIALS) INPUT=$(INPUT) OUTPUT=$(OUTPUT) VIRTUAL=$(VIRTUAL) SECONDS=$(SECONDS) ONLY=$(ONLY) ARGS='more options'"

setup: $(READY) ## Install everything that is pinned in requirements.lock into .venv

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "installing into $(VENV): about 440 MB to download once, 1.5 GB of disk space"
	@$(PYTHON) -m venv $(VENV)
	@{ $(PIP) --progress-bar off --require-hashes --only-binary :all: -r requirements.lock; echo "exit $$?"; } | { $(COUNTED); }
	@$(PIP) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

deploy: $(READY) ## Build MODEL, deploy it to BOARD at HOST, check its outputs there and measure it; tune it first with TRIALS=N
	@$(TOOLCHAIN) deploy "$(MODEL)" $(DEVICE) $(TUNING) $(ARGS)

tune: $(READY) ## Tune the kernels of MODEL on boards of the type BOARD, with TRIALS=N
	@$(TOOLCHAIN) tune "$(MODEL)" $(DEVICE) $(TUNING) $(ARGS)

compare: $(READY) ## Run MODEL untuned and tuned in turns, and tell how much faster the tuned one is
	@$(TOOLCHAIN) compare "$(MODEL)" $(DEVICE) $(ARGS)

gate: $(READY) ## Run the package MODEL and the one before it, BASE, in turns: is it slower, or wrong?
	@$(TOOLCHAIN) gate "$(MODEL)" --base "$(BASE)" $(DEVICE) $(ARGS)

bench: $(READY) ## Measure the release that the device runs
	@$(TOOLCHAIN) bench $(DEVICE) $(ARGS)

run: $(READY) ## Run the release that the device runs on the inputs in INPUT, an .npz file; its outputs go to OUTPUT
	@$(TOOLCHAIN) run $(DEVICE) $(if $(INPUT),--input "$(INPUT)") --output "$(OUTPUT)" $(ARGS)

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

test: $(READY) ## Run the tests of a few minutes, which need Python, make and a C++ compiler
	@$(PYTEST) --quick $(ARGS)

test-all: $(READY) ## Run all tests; TOOLCHAIN_STRICT=1 fails where a part of the system is missing
	@$(PYTEST) $(ARGS)

stress: $(READY) ## Kill 200 deploys at random points and look at what the device runs
	@TOOLCHAIN_KILLS=200 $(VENV)/bin/python -m pytest -s tests/integration/test_kills.py $(ARGS)

rollouts: $(READY) ## Roll out to 50 devices, of which some fail, while the roll-out is killed again and again
	@TOOLCHAIN_ROLLOUT=50 $(VENV)/bin/python -m pytest -s -n0 tests/integration/test_rollout.py $(ARGS)

trials: $(READY) ## Try 50 releases on which an application is not well, and kill the client, the trial or the power meanwhile
	@TOOLCHAIN_TRIALS=50 $(VENV)/bin/python -m pytest -s tests/integration/test_application.py $(ARGS)

exact: $(READY) ## Run every convolution of four networks on the simulated array, bit for bit, in any order of its stages
	@TOOLCHAIN_EXACT=resnet-18,resnet-34,resnet-50,mobilenet $(VENV)/bin/python -m pytest tests/integration/test_vta_networks.py $(ARGS)

networks: $(READY) ## Run every network of the zoo and of the onnx wheel on the CPU and on OpenCL
	@TOOLCHAIN_NETWORKS=all $(VENV)/bin/python -m pytest tests/integration/test_networks.py $(ARGS)

opencl: $(READY) ## Run 200 random graphs and a table of layers on PoCL, Intel's, Mesa's and Oclgrind, in both precisions
	@TOOLCHAIN_OPENCL_GRAPHS=200 $(VENV)/bin/python -m pytest -n0 tests/integration/test_opencl_campaign.py $(ARGS)

nightly: $(READY) ## Run 2,000 random graphs on the CPU and on OpenCL, and operators over 300 shapes of rows, others each day
	@TOOLCHAIN_GRAPHS=2000 TOOLCHAIN_ROWS=300 TOOLCHAIN_ROWS_SEED=$$(date +%Y%j) $(PYTEST) tests/integration/test_random_graphs.py tests/integration/test_row_kernels.py $(ARGS)

operators: $(READY) ## Run all single-operator cases of the onnx wheel, and write the table of docs/models.md
	@TOOLCHAIN_OPERATORS=1 $(VENV)/bin/python -m pytest tests/integration/test_operators.py $(ARGS)
	@$(VENV)/bin/python -m tests.support.operator_table

exported: $(READY) ## Deploy every network that PyTorch's exporters wrote, of each exporter
	@TOOLCHAIN_EXPORTED=all $(VENV)/bin/python -m pytest tests/integration/test_exported.py $(ARGS)

third-party: $(READY) ## Deploy every ONNX file that the tests take out of public wheels, the listed ones to every kind of board as well
	@TOOLCHAIN_THIRD_PARTY=all $(VENV)/bin/python -m pytest tests/integration/test_third_party.py $(ARGS)

chaos: $(READY) ## Tune with 300 trials on three virtual boards while everything around is killed, frozen and rebooted
	@TOOLCHAIN_CHAOS=300 $(VENV)/bin/python -m pytest -s tests/integration/test_tuning_chaos.py $(ARGS)

mutants: $(READY) ## Try 100,000 packages that were tampered with: none may pass for another one
	@TOOLCHAIN_MUTANTS=100000 $(VENV)/bin/python -m pytest -n0 tests/integration/test_mutants.py $(ARGS)

sanitize: $(READY) ## Run the C library's tests under the address and undefined-behaviour sanitizers
	@$(VENV)/bin/python -m tests.support.sanitized

fuzz: $(READY) ## Fuzz each parser of the device's programs under sanitizers for SECONDS, or those that ONLY names
	@$(VENV)/bin/python -m tests.support.fuzzing --seconds "$(SECONDS)" --only "$(ONLY)"

signatures: $(READY) ## Try a million changed signatures on the device's reader, and 10,000 on ssh-keygen too
	@TOOLCHAIN_SIGNATURES=1000000 $(VENV)/bin/python -m pytest -n0 -q tests/integration/test_signatures.py

wrong-inputs: $(READY) ## Try every wrong input, and show a table: exit code, seconds until the answer, message
	@TOOLCHAIN_TABLE=1 $(VENV)/bin/python -m pytest tests/integration/test_wrong_inputs.py $(ARGS)

lint: $(READY) ## Check style, types, and who imports whom
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && $(VENV)/bin/lint-imports --no-logo

format: $(READY) ## Format the code
	@$(VENV)/bin/ruff format .

lock: ## Renew requirements.lock from pyproject.toml (needs uv)
	@uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --extra dev pyproject.toml -o requirements.lock

wheel: $(READY) ## Build the wheel and the source distribution into dist/
	@$(VENV)/bin/python -m hatchling build

clean: ## Remove what was built; .venv and the cache stay
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
