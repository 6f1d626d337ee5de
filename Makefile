# One habit: make deploy BOARD=... HOST=... MODEL=...
# Every recipe is one call; what it does is in the toolchain, not here.

PYTHON  ?= python3
VENV    ?= .venv
BOARD   ?=
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
DEVICE    := $(if $(BOARD),--board "$(BOARD)") $(if $(HOST),--host "$(HOST)")
TUNING    := $(if $(TRIALS),--trials "$(TRIALS)")

# make takes any NAME=value in silence: `board=rpi4` or `HOSTS=...` would deploy to another device than was meant.
OURS    := BOARD HOST MODEL BASE TRIALS INPUT OUTPUT VIRTUAL SECONDS ONLY ARGS WORKERS PYTHON VENV
USUAL   := MAKE% SHELL PATH HOME TMPDIR NO_COLOR %_proxy %_PROXY PIP_% SSL_% XDG_% DOCKER_% TOOLCHAIN_% TVM_%
GIVEN   := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
STRANGE := $(filter-out $(OURS) $(USUAL),$(GIVEN))
CLOSEST  = $(shell $(PYTHON) -c 'import difflib, sys; word, *ours = sys.argv[1:]; \
  print(*difflib.get_close_matches(word.upper(), ours, 1))' '$(subst ','\'',$(1))' $(OURS))
MEANT    = $(if $(CLOSEST), (did you mean $(CLOSEST)=?))
ifneq ($(STRANGE),)
  $(error $(foreach name,$(STRANGE),there is no variable $(name)$(call MEANT,$(name));) the variables are $(OURS))
endif

CAMPAIGNS := stress rollouts trials exact networks opencl operators exported third-party chaos mutants sanitize fuzz \
  signatures sessions interrupts cuts owners offline mali-zoo graphs nightly-tests
# Tests wait for processes and locks for two fifths of their time: two workers more than there are cores fill it.
WORKERS ?= $(shell expr $$(nproc) + 2)
PYTEST := $(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder
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
.PHONY: help setup deploy tune compare gate bench run survey status releases rollback boards containers farm serve doctor test test-all stress rollouts trials exact networks opencl operators exported third-party chaos mutants sanitize fuzz signatures sessions interrupts cuts owners offline mali-zoo graphs nightly-tests nightly wrong-inputs lint format lock wheel clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s:\n", substr($$0, 5)} /^#% / {print " " substr($$0, 4)} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Set up
setup: $(READY) ## Install the pinned packages of requirements.lock into .venv

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "installing into $(VENV): about 440 MB to download once, 1.5 GB of disk space"
	@$(PYTHON) -m venv $(VENV)
	@{ $(PIP) --progress-bar off --require-hashes --only-binary :all: -r requirements.lock; echo "exit $$?"; } | { $(COUNTED); }
	@$(PIP) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

##@ Deploy and measure
deploy: $(READY) ## Build MODEL, deploy it, check its outputs and measure it
	@$(TOOLCHAIN) deploy "$(MODEL)" $(DEVICE) $(TUNING) $(ARGS)

tune: $(READY) ## Search for faster kernels of MODEL, with TRIALS=N
	@$(TOOLCHAIN) tune "$(MODEL)" $(DEVICE) $(TUNING) $(ARGS)

compare: $(READY) ## Measure how much faster the tuned MODEL is
	@$(TOOLCHAIN) compare "$(MODEL)" $(DEVICE) $(ARGS)

gate: $(READY) ## Check whether the package MODEL is slower or wrong
	@$(TOOLCHAIN) gate "$(MODEL)" --base "$(BASE)" $(DEVICE) $(ARGS)

bench: $(READY) ## Measure the release that the device runs
	@$(TOOLCHAIN) bench $(DEVICE) $(ARGS)

run: $(READY) ## Run the release on the inputs in INPUT, and write OUTPUT
	@$(TOOLCHAIN) run $(DEVICE) $(if $(INPUT),--input "$(INPUT)") --output "$(OUTPUT)" $(ARGS)

survey: $(READY) ## Try everything on one device and write a report
	@$(TOOLCHAIN) survey $(DEVICE) $(TUNING) $(ARGS)

##@ Devices and this machine
status: $(READY) ## Show what the device is and what it runs
	@$(TOOLCHAIN) status $(DEVICE) $(ARGS)

releases: $(READY) ## List the releases that the device keeps
	@$(TOOLCHAIN) status --releases $(DEVICE) $(ARGS)

rollback: $(READY) ## Make the previous release current again
	@$(TOOLCHAIN) rollback $(DEVICE) $(ARGS)

boards: $(READY) ## List the board types
	@$(TOOLCHAIN) board list $(ARGS)

containers: $(READY) ## Build the cross-compiler images
	@$(TOOLCHAIN) containers build $(ARGS)

farm: $(READY) ## Start the VIRTUAL boards (emulated ARM boards with SSH)
	@$(TOOLCHAIN) farm up --virtual "$(VIRTUAL)" $(ARGS)

serve: $(READY) ## Serve the devices of devices.toml and virtual boards
	@$(TOOLCHAIN) farm up $(ARGS)

doctor: $(READY) ## Show what this machine lacks for each board
	@$(TOOLCHAIN) doctor $(ARGS)

##@ Develop the toolchain
test: $(READY) ## Run the fast tests; needs Python, make and a C++ compiler
	@$(PYTEST) --quick $(ARGS)

test-all: $(READY) ## Run CI's tests; TOOLCHAIN_STRICT=1 fails if a part is missing
	@$(PYTEST) $(ARGS)

lint: $(READY) ## Check style, types, and who imports whom
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && $(VENV)/bin/lint-imports --no-logo

format: $(READY) ## Format the code
	@$(VENV)/bin/ruff format .

lock: ## Renew requirements.lock from pyproject.toml (needs uv)
	@uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --extra dev pyproject.toml -o requirements.lock

wheel: $(READY) ## Build the wheel, with device programs, and the sdist into dist/
	@TOOLCHAIN_WHEEL_PROGRAMS=all $(VENV)/bin/python -m hatchling build

clean: ## Remove what was built; .venv and the cache stay
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

##@ Test campaigns, which take long
stress: $(READY) ## Kill 200 deploys at random points and check the device
	@TOOLCHAIN_KILLS=200 $(VENV)/bin/python -m pytest -s tests/integration/test_kills.py $(ARGS)

rollouts: $(READY) ## Roll out to 50 devices, killing the roll-out repeatedly
	@TOOLCHAIN_ROLLOUT=50 $(VENV)/bin/python -m pytest -s -n0 tests/integration/test_rollout.py $(ARGS)

trials: $(READY) ## Try 50 bad releases of an application, with power cuts
	@TOOLCHAIN_TRIALS=50 $(VENV)/bin/python -m pytest -s tests/integration/test_application.py $(ARGS)

exact: $(READY) ## Run all convolutions of four networks on the simulated VTA
	@TOOLCHAIN_EXACT=resnet-18,resnet-34,resnet-50,mobilenet $(VENV)/bin/python -m pytest tests/integration/test_vta_networks.py $(ARGS)

networks: $(READY) ## Run every zoo network and onnx model on CPU and OpenCL
	@TOOLCHAIN_NETWORKS=all $(VENV)/bin/python -m pytest tests/integration/test_networks.py $(ARGS)

opencl: $(READY) ## Run 200 random graphs and many layers on four OpenCL drivers
	@TOOLCHAIN_OPENCL_GRAPHS=200 $(VENV)/bin/python -m pytest -n0 tests/integration/test_opencl_campaign.py $(ARGS)

operators: $(READY) ## Run all operator cases of onnx; write docs/models.md
	@TOOLCHAIN_OPERATORS=1 $(VENV)/bin/python -m pytest tests/integration/test_operators.py $(ARGS)
	@$(VENV)/bin/python -m tests.support.operator_table

exported: $(READY) ## Deploy every network that the PyTorch exporters wrote
	@TOOLCHAIN_EXPORTED=all $(VENV)/bin/python -m pytest tests/integration/test_exported.py $(ARGS)

third-party: $(READY) ## Deploy every ONNX file that the tests take from wheels
	@TOOLCHAIN_THIRD_PARTY=all $(VENV)/bin/python -m pytest tests/integration/test_third_party.py $(ARGS)

chaos: $(READY) ## Tune on three virtual boards while everything is killed
	@TOOLCHAIN_CHAOS=300 $(VENV)/bin/python -m pytest -s --nightly tests/integration/test_tuning_chaos.py $(ARGS)

mutants: $(READY) ## Try 100,000 manipulated packages; none may be accepted
	@TOOLCHAIN_MUTANTS=100000 $(VENV)/bin/python -m pytest -n0 tests/integration/test_mutants.py $(ARGS)

sanitize: $(READY) ## Run the tests of the C library under the sanitizers
	@$(VENV)/bin/python -m tests.support.sanitized

fuzz: $(READY) ## Fuzz the device parsers for SECONDS each, or those in ONLY
	@$(VENV)/bin/python -m tests.support.fuzzing --seconds "$(SECONDS)" --only "$(ONLY)"

signatures: $(READY) ## Try a million changed signatures on the reader of the device
	@TOOLCHAIN_SIGNATURES=1000000 $(VENV)/bin/python -m pytest -n0 -q tests/integration/test_signatures.py

sessions: $(READY) ## Open and crash 1,000 sessions of a board server
	@TOOLCHAIN_SESSIONS=1000 $(VENV)/bin/python -m pytest -n0 tests/integration/test_board_server.py tests/integration/test_board_server_socket.py -k sessions $(ARGS)

interrupts: $(READY) ## Interrupt 100 builds and 100 tuning runs at random points
	@TOOLCHAIN_INTERRUPTS=100 $(VENV)/bin/python -m pytest -n0 tests/integration/test_interrupts.py $(ARGS)

cuts: $(READY) ## Cut the power of disks 11,000 times, of virtual boards 50
	@TOOLCHAIN_CUTS_SEED=1 TOOLCHAIN_CUTS=50 TOOLCHAIN_SLOT_CUTS=1000 TOOLCHAIN_EVERY_STATE=1 TOOLCHAIN_BOOTS=106 $(VENV)/bin/python -m pytest -s -n0 --nightly tests/integration/test_device_states.py tests/integration/test_power_cut.py tests/integration/test_power_cut_boards.py $(ARGS)

owners: $(READY) ## Run every two commands on one device at the same time
	@TOOLCHAIN_OWNER_PAIRS=1 TOOLCHAIN_OWNER_GATES=10 TOOLCHAIN_OWNER_RACES=10 $(VENV)/bin/python -m pytest -n0 tests/integration/test_one_owner.py $(ARGS)

offline: $(READY) ## Kill 50 updates from a file at random points
	@TOOLCHAIN_OFFLINE_KILLS=50 $(VENV)/bin/python -m pytest -n0 tests/integration/test_offline.py -k kill $(ARGS)

mali-zoo: $(READY) ## Compile the zoo's kernels for Mali GPUs with Mesa's compiler
	@TOOLCHAIN_MALI_ZOO=1 $(VENV)/bin/python -m pytest -n0 tests/integration/test_mali_cost.py -k zoo $(ARGS)
	@$(VENV)/bin/python -m tests.support.mali_judged

graphs: $(READY) ## Run 2,000 random graphs and row kernels of 300 shapes
	@TOOLCHAIN_GRAPHS=2000 TOOLCHAIN_ROWS=300 TOOLCHAIN_ROWS_SEED=$$(date +%Y%j) $(PYTEST) tests/integration/test_random_graphs.py tests/integration/test_row_kernels.py $(ARGS)

nightly-tests: $(READY) ## Run the tests and examples that are too many for CI
	@$(PYTEST) --nightly -m "nightly or hypothesis" $(ARGS)

# One after the other, each of them even if an earlier one failed.
nightly: ## Run all campaigns at full size; CI runs a small part of each
	@TOOLCHAIN_STRICT=1 $(MAKE) --no-print-directory --keep-going --jobs=1 $(CAMPAIGNS)

wrong-inputs: $(READY) ## Try every wrong input; shows exit code, time and message
	@TOOLCHAIN_TABLE=1 $(VENV)/bin/python -m pytest tests/integration/test_wrong_inputs.py $(ARGS)

##@ Variables, as in: make deploy MODEL=resnet-18 HOST=pi@10.0.0.7
#%  BOARD=TYPE       board type (default: that of HOST, or this machine)
#%  HOST=DEVICE      user@address[:port], adb:SERIAL, or a name in devices.toml
#%  MODEL=NAME       predefined network, .onnx file, bundle or package
#%  BASE=PACKAGE     what `make gate` compares MODEL with
#%  TRIALS=N         tune with N trials; `make deploy` then tunes first
#%  INPUT=FILE       inputs of `make run`, an .npz file
#%  OUTPUT=FILE      outputs of `make run` (default: outputs.npz)
#%  VIRTUAL=LIST     boards of `make farm` (default: rpi4=1,pynq=1)
#%  SECONDS=N        time of `make fuzz` for each parser (default: 60)
#%  ONLY=NAMES       parsers of `make fuzz` (default: all)
#%  ARGS=OPTIONS     more options of `toolchain COMMAND`, or of pytest
##@ Exit codes
#%  make ends with 2 for every failure; the error line shows the real code
