"""What a run asks the system for after the first one, and the options of the library for threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.integration.test_sdk import C, compiled, ran, sdk  # noqa: F401 - the fixture
from tests.support import nightly
from tests.support.commands import done
from toolchain import bundle
from toolchain.models import zoo

RUNS = 3
IN_CI = ("mlp", "squeezenet_v1.1")


@pytest.fixture(scope="module")
def steady(sdk, tmp_path_factory):  # noqa: F811 - as pytest has it
    return compiled(sdk, C / "steady.c", tmp_path_factory.mktemp("steady") / "steady")


def check_steady(program, folder, threads: int) -> None:
    outcome = ran(program, folder, threads, RUNS)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    counts = json.loads(outcome.stdout)
    # Of the calmest of some windows of runs; a container may refuse the filter, and nothing is watched then.
    assert (counts["allocations"], counts["faults"], counts["calls"]) == (0, 0, [])


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_after_the_first_ask_the_system_for_nothing(steady, tiny, threads):
    check_steady(steady, tiny.folder, min(threads, len(os.sched_getaffinity(0))))


@pytest.mark.parametrize("name", [*IN_CI, *(nightly.left(name) for name in zoo.NAMES if name not in IN_CI)])
def test_networks_of_the_zoo_ask_the_system_for_nothing(steady, name, tmp_path):
    done("build", name, "--board", "local", "-o", tmp_path / "bundle")
    check_steady(steady, tmp_path / "bundle", min(2, len(os.sched_getaffinity(0))))


def test_the_options_of_threads(sdk, tiny, tmp_path):  # noqa: F811
    outcome = ran(compiled(sdk, C / "options.c", tmp_path / "options"), tiny.folder)
    assert (outcome.returncode, outcome.stderr) == (0, "")


EXECUTOR = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given, wanted = np.load(sys.argv[3]), np.load(sys.argv[4])
cpus = sorted(os.sched_getaffinity(0))[:2]
with ThreadPoolExecutor(2) as executor:
    for options in ({"executor": executor}, {"cpus": cpus}, {"spin_us": edge_model.NO_SPIN}):
        workers = edge_model.Workers(**options)
        with edge_model.Model(sys.argv[2], threads=len(cpus), pin="cpus" in options, workers=workers) as model:
            (name,) = model.inputs
            for _ in range(20):
                (found,) = model.run({name: given}).values()
                assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5)
workers = edge_model.Workers(executor=executor)
with edge_model.Model(sys.argv[2], threads=len(cpus), workers=workers) as model:  # it has been shut down
    model.run({name: given})
try:
    edge_model.Model(sys.argv[2], pin=True, workers=workers)
except edge_model.EdgeError as fault:
    print(fault.code)
"""


def test_an_executor_of_python(sdk, tiny, tmp_path):  # noqa: F811
    reference = bundle.Reference.read(tiny.reference)
    np.save(tmp_path / "given.npy", *reference.inputs.values())
    np.save(tmp_path / "wanted.npy", *reference.outputs.values())
    command = [sys.executable, "-c", EXECUTOR, sdk / "python", tiny.folder, tmp_path / "given.npy"]
    completed = subprocess.run(
        [*command, tmp_path / "wanted.npy"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "2\n", "")
