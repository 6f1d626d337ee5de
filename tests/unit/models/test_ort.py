"""What ONNX Runtime does besides computing, as the kernel sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import nets, tracing

CALLS = "%network,open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat"
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TMPFILE|^\w+ +(creat|mkdir|rename|link|symlink)")
HARMLESS = re.compile(r'"/dev/(null|tty)"')

REFERENCE = """
import sys
from toolchain.models import inputs, reference, source
model = source.load(sys.argv[1])
print(reference.run(model, inputs.random(model.inputs, 0)))
"""
PROBE = """
import sys, onnx
from toolchain.models import inputs, source
from toolchain.quantize.calibrate import Probe
model = source.load(sys.argv[1])
print(Probe(model.proto, ["y"]).run(inputs.random(model.inputs, 0)))
"""


def traced(folder: Path, code: str) -> tuple[str, list[str]]:
    """Run code with an empty home and few variables; return what it printed, and its system calls."""
    home = folder / "home"
    home.mkdir()
    model = nets.save(nets.relu((2, 3)), folder)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": str(home)}
    calls = tracing.traced([sys.executable, "-B", "-c", code, model], folder / "calls", CALLS, environment)
    assert list(home.rglob("*")) == []
    return calls


@pytest.mark.parametrize("code", [REFERENCE, PROBE], ids=["reference", "probe"])
def test_an_inference_writes_nothing_and_calls_nobody(tmp_path, code):
    out, calls = traced(tmp_path, code)
    assert "array" in out
    assert any("libonnxruntime" in line or "onnxruntime_pybind11_state" in line for line in calls)
    assert [line for line in calls if WRITES.search(line) and not HARMLESS.search(line)] == []
    assert [line for line in calls if re.search(r"\b(socket|connect|sendto|sendmsg|sendmmsg|bind)\(", line)] == []


def test_children_are_told_too():
    code = "import toolchain.models.ort, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "0"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout == "1\n"


def test_its_tools_come_through_the_same_door():
    from toolchain.models import ort

    assert ort.quantization().QuantType.QInt8
