"""What can be wrong with OpenCL, on several of them: one line each, with the cause and what to do next, and a code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_runner import check_fault
from tests.support import nightly, opencl, opencl_runtimes
from tests.support.commands import done, toolchain
from tests.support.opencl_runtimes import INTEL, POCL, RUSTICL
from tests.support.paths import ROOT
from toolchain import bundle, tensors

EVERYWHERE = (POCL, INTEL, nightly.left(RUSTICL))
LOADS, RUNS = 4, 5  # kExitLoad and kExitRunFailed of runtime/model/fault.h

# Calls of a whole run that fail one by one: each of them where somebody has the time, and otherwise so many.
CALLS = int(os.environ.get("TOOLCHAIN_OPENCL_CALLS", "12"))


@dataclass(frozen=True)
class Fault:
    """A fault, and how the runner ends with it.

    Attributes:
        code: Its exit code.
        env: Variables that bring it about.
        shim: What our library beside the real one does for it.
    """

    code: int
    env: Mapping[str, str] = field(default_factory=dict)
    shim: Mapping[str, int] | None = None


NONE = Fault(0)
FAULTS = {
    "no library": Fault(LOADS, {"EDGE_OPENCL_LIBRARY": "/nowhere/libOpenCL.so"}),
    "a library that is not OpenCL": Fault(LOADS, {"EDGE_OPENCL_LIBRARY": "libm.so.6"}),
    "no driver": Fault(LOADS, {"OCL_ICD_VENDORS": "/nowhere"}),
    "a driver without a device": Fault(LOADS, shim={"no_devices": 1}),
    "a device that is not available": Fault(LOADS, shim={"busy": 1}),
    "no device of that name": Fault(LOADS, {"EDGE_OPENCL_DEVICE": "nosuch"}),
    "a kernel that does not compile": Fault(RUNS, shim={"no_build": 1}),
    "an option that the driver refuses": Fault(RUNS, {"EDGE_OPENCL_OPTIONS": "-cl-nonsense"}),
    "too little memory": Fault(LOADS, shim={"memory": 16}),
    "memory that cannot be mapped": Fault(LOADS, shim={"no_map": 0}),
    "a device that is lost": Fault(RUNS, shim={"lose_after": 1}),
}
# Of kernels that no network of ours has: they are launched alone, in Python, which has the same runtime.
KERNELS = ("a work-group that is too large", "too much local memory", "a buffer that is too large")


def told() -> dict[str, tuple[str, ...]]:
    """Return what the manual says of each fault: the words of the error, cause and next step."""
    section = (ROOT / "docs" / "mali.md").read_text(encoding="utf-8").partition("### Faults of OpenCL")[2]
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \| (.+?) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return {name: tuple(re.findall(r"`([^`]+)`", f"{cause} {step}")) for name, cause, step in rows[1:]}


def test_the_manual_has_all_of_them():
    assert set(told()) == {*FAULTS, *KERNELS}
    assert all(len(texts) >= 2 for texts in told().values())


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A network with weights, as a release, and its inputs."""
    folder = tmp_path_factory.mktemp("release")
    done("build", "mlp", "--board", "opencl-local", "-o", folder / "mlp")
    tensors.save(folder / "inputs", bundle.Reference.read(bundle.load(folder / "mlp").reference).inputs)
    return folder


@dataclass(frozen=True)
class Runs:
    """Runs of the release, each with its outputs in the same file."""

    runner: Path
    release: Path
    folder: Path
    shim: opencl.Shim

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    def run(self, name: str, fault: Fault, **shim: int) -> subprocess.CompletedProcess[str]:
        """Run it on one of the OpenCLs, with a fault."""
        self.outputs.unlink(missing_ok=True)
        variables = opencl_runtimes.environment(name)
        if shim or fault.shim is not None:
            real = {"library": variables.get("EDGE_OPENCL_LIBRARY", "libOpenCL.so.1")}
            variables |= self.shim.env(**real, **(fault.shim or {}), **shim)
        argv = [*opencl_runtimes.command(name), self.runner, "--release", self.release / "mlp", "--max-runs", "0"]
        argv += ["--inputs", self.release / "inputs", "--outputs", self.outputs, "--report", self.folder / "report"]
        env = {**os.environ, **variables, **fault.env}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def runs(program, release, tmp_path):
    return Runs(program.path, release, tmp_path, opencl.Shim(tmp_path / "shim"))


@pytest.mark.parametrize("name", EVERYWHERE)
def test_each_fault_says_its_cause_and_what_to_do(name, runs):
    opencl_runtimes.require_one(name)
    assert runs.run(name, NONE).returncode == 0
    texts = told()
    for kind, fault in FAULTS.items():
        check_fault(runs.run(name, fault), fault.code, *texts[kind])
        assert not runs.outputs.exists()


@pytest.mark.parametrize("rest", [{}, {"fail_rest": 1}], ids=["once", "for good"])
def test_whatever_call_fails_is_told_or_changes_nothing(rest, runs):
    """No call of OpenCL may fail without an error, but for those without which the outputs are right as well."""
    opencl_runtimes.require_one(POCL)
    assert runs.run(POCL, NONE, fail_call=0).returncode == 0
    calls = runs.shim.counts().calls
    expected = bundle.Reference.read(bundle.load(runs.release / "mlp").reference).outputs
    for call in np.unique(np.linspace(1, calls, min(CALLS, calls)).astype(int)):
        ended = runs.run(POCL, NONE, fail_call=int(call), **rest)
        if ended.returncode == 0:
            assert tensors.compare(tensors.load(runs.outputs), expected, 1e-3).ok, call
        else:
            *warnings, last = ended.stderr.splitlines()
            assert not warnings or "PooledAllocator" in warnings[0]  # TVM's words: it then asks once more
            assert last.startswith("runner: ")
            assert "OpenCL" in last
            assert ended.returncode in {LOADS, RUNS}, (call, ended.stderr)


LAUNCHED = """
import sys
from pathlib import Path
import numpy as np, tvm
from tests.support import opencl
device = tvm.device("opencl", 0)

def launched(module, size):
    x = tvm.runtime.tensor(np.zeros(size, np.float32), device)
    tvm.compile(module, target=opencl.target())["main"](x, tvm.runtime.tensor(np.zeros(size, np.float32), device))

for attempt in (
    lambda: launched(opencl.doubled(1 << 16, 1 << 16), 1 << 16),
    lambda: launched(opencl.much_local_memory(1 << 24), 1 << 22),
    lambda: tvm.runtime.empty((1 << 40,), "float32", device),
):
    try:
        attempt()
        print("done")
    except Exception as fault:
        print(str(fault).replace(chr(10), " "))
launched(opencl.doubled(1024), 1024)
print("right")
"""


@pytest.mark.parametrize("name", [POCL, nightly.left(INTEL), nightly.left(RUSTICL)])
def test_kernels_that_are_too_large_for_a_device(name, tmp_path_factory):
    opencl_runtimes.require_one(name)
    env = {
        **os.environ,
        **opencl.plugin(tmp_path_factory.getbasetemp() / "plugin"),
        **opencl_runtimes.environment(name),
    }
    argv = [*opencl_runtimes.command(name), sys.executable, "-c", LAUNCHED]
    ended = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    *faults, last = ended.stdout.splitlines()
    assert last == "right", "one that fails leaves the device to the next one"
    for kind, message in zip(KERNELS, faults, strict=True):
        for texts in told()[kind]:
            assert texts in message, message


@pytest.mark.parametrize("kind", ["no device of that name", "no driver"])
def test_hardware_says_it_too(kind, tmp_path, monkeypatch):
    opencl.require_opencl()
    for variable, value in FAULTS[kind].env.items():
        monkeypatch.setenv(variable, value)
    outcome = toolchain("hardware", "--board", "opencl-local", "--root", tmp_path)
    assert outcome.code == 4
    assert told()[kind][0] in outcome.err
