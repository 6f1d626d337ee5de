"""Random graphs and a table of layers on four OpenCLs, in both precisions: none is wrong, and none fails.

Some of each by default; `make opencl` runs 200 graphs and all layers.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.support import nightly, opencl, opencl_campaign, opencl_layers, opencl_runtimes, random_graphs, row_kernels
from tests.support.opencl_campaign import LIMIT
from tests.support.opencl_runtimes import HALF, INTEL, OCLGRIND, POCL, RUSTICL, Checks
from tests.support.row_kernels import Case

GRAPHS = int(os.environ.get("TOOLCHAIN_OPENCL_GRAPHS", "1"))
ALL = "TOOLCHAIN_OPENCL_GRAPHS" in os.environ
OPERATORS = 8
ROWS = 12  # shapes
AT_ONCE = 20  # networks of a process
SECONDS = 1200  # for those

pytestmark = pytest.mark.timeout(4 * 3600 if ALL else 600)


def networks():
    """Return ONNX models by name: graphs by their seeds, and layers."""
    layers = opencl_layers.layers()
    some = layers if ALL else {name: layers[name] for name in [*layers][::54]}
    plain = {re.sub(r"[^a-z0-9]+", "-", name.lower()): proto for name, proto in some.items()}
    return {f"graph-{seed}": random_graphs.build(seed, OPERATORS) for seed in range(GRAPHS)} | plain | rows()


def rows():
    """Return networks of operators over rows, which the other OpenCLs compute in half precision too."""
    if not ALL:
        return {}
    shapes = row_kernels.shapes(0)[:ROWS]
    return {
        f"rows-{number}": row_kernels.network(
            [case for name in row_kernels.OPERATORS if (case := Case(name, *shape, number % 3)).is_defined("float32")],
            "float32",
        )[0]
        for number, shape in enumerate(shapes)
    }


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    return opencl.plugin(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def network_folders(tmp_path_factory):
    """Return a function that compiles all networks in one precision, once."""
    cases = {}

    def folders(*, half):
        if half not in cases:
            base = tmp_path_factory.mktemp("half" if half else "single")
            cases[half] = [base / name for name in networks()]
            for folder, proto in zip(cases[half], networks().values(), strict=True):
                opencl_campaign.compiled(proto, folder, half=half)
        return cases[half]

    return folders


PAIRS = [
    (name, half) for half in (False, True) for name in (OCLGRIND, INTEL, RUSTICL, POCL) if not half or name in HALF
]
IN_CI = {(OCLGRIND, False)}  # it checks each access; test_opencl_runtimes.py has half precision
CASES = [pair if ALL or pair in IN_CI else nightly.left(*pair) for pair in PAIRS]


@pytest.mark.parametrize(("name", "half"), CASES)
def test_all_are_right(name, half, network_folders, plugin, tmp_path):
    opencl_runtimes.require_one(name)
    log = tmp_path / "faults.log"
    chosen = opencl_runtimes.environment(name, Checks(log) if name == OCLGRIND else None) | plugin
    folders, results, starter = network_folders(half=half), [], opencl_runtimes.command(name)
    for first in range(0, len(folders), AT_ONCE):
        results += opencl_campaign.run(folders[first : first + AT_ONCE], chosen, SECONDS, starter)
    assert [result for result in results if result.fault or result.difference > LIMIT[half]] == []
    assert len(results) == len(folders)
    assert not log.exists() or log.read_text() == ""


def test_nothing_is_read_that_nobody_wrote(network_folders, plugin, tmp_path):
    """Buffers of a network that ran before hold its numbers: each one has a process of its own.

    No buffer is given back before its end: Oclgrind takes a new one for an old one whose place it has, and what was
    written to that one for written.
    """
    opencl_runtimes.require_one(OCLGRIND)
    shim = opencl.Shim(tmp_path / "shim")
    for folder in network_folders(half=False)[:: 1 if ALL else 3]:
        log = tmp_path / f"{folder.name}.log"
        chosen = opencl_runtimes.environment(OCLGRIND, Checks(log, uninitialised=True)) | plugin
        chosen |= shim.env(library=chosen["EDGE_OPENCL_LIBRARY"], keep=1)
        (result,) = opencl_campaign.run([folder], chosen, SECONDS)
        assert not result.fault
        assert result.difference <= LIMIT[False]
        assert not log.exists() or log.read_text() == "", folder.name
