"""What ONNX Runtime does besides computing, as the kernel sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support import nets, tracing
from tests.support.nets import node, value
from toolchain.models.ort import Session, onnxruntime

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


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_session_shares_large_weights_and_computes_the_same(dtype):
    stream = np.random.default_rng(0)
    weights = {"w": stream.standard_normal((300, 200)).astype(dtype), "b": stream.standard_normal(200).astype(dtype)}
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    proto = nets.model(nodes, [value("x", (4, 300), dtype)], [value("y", (4, 200), dtype)], weights)
    before = proto.SerializeToString(deterministic=True)
    feeds = {"x": stream.standard_normal((4, 300)).astype(dtype)}
    session = Session(proto, onnxruntime.SessionOptions())
    assert proto.SerializeToString(deterministic=True) == before
    (expected,) = nets.run(proto, feeds)
    del proto  # the session keeps what it shares
    np.testing.assert_array_equal(session.run(["y"], feeds)[0], expected)


def test_large_weights_of_a_type_that_numpy_lacks_are_copied():
    weights = onnx.helper.make_tensor(
        "w", onnx.TensorProto.BFLOAT16, (300, 200), np.full(2 * 300 * 200, 0x3F, np.uint8).tobytes(), raw=True
    )
    nodes = [node("Cast", ["w"], ["f"], to=onnx.TensorProto.FLOAT), node("MatMul", ["x", "f"], ["y"])]
    proto = nets.model(nodes, [value("x", (1, 300))], [value("y", (1, 200))])
    proto.graph.initializer.append(weights)
    feeds = {"x": np.ones((1, 300), np.float32)}
    result = Session(proto, onnxruntime.SessionOptions()).run(["y"], feeds)[0]
    np.testing.assert_array_equal(result, nets.run(proto, feeds)[0])


@pytest.mark.parametrize("name", ["/layer/weight", "../../weight", "*/_ORT_MEM_ADDR_/*", "w" * 5000])
def test_a_shared_weight_may_have_any_name(name):
    weight = np.random.default_rng(0).random((200, 200), np.float32)
    proto = nets.model(
        [node("MatMul", ["x", name], ["y"])], [value("x", (2, 200))], [value("y", (2, 200))], {name: weight}
    )
    x = np.ones((2, 200), np.float32)
    (result,) = Session(proto, onnxruntime.SessionOptions()).run(None, {"x": x})
    np.testing.assert_allclose(result, x @ weight, rtol=1e-5)


def test_large_half_precision_weights_that_are_converted_first():
    """ONNX Runtime has no Conv in half precision."""
    weight = np.random.default_rng(0).random((64, 64, 3, 3)).astype(np.float16)
    shape = (1, 64, 8, 8)
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    proto = nets.model(nodes, [value("x", shape, "float16")], [value("y", shape, "float16")], {"w": weight})
    feeds = {"x": np.ones(shape, np.float16)}
    result = Session(proto, onnxruntime.SessionOptions()).run(["y"], feeds)[0]
    np.testing.assert_array_equal(result, nets.run(proto, feeds)[0])
