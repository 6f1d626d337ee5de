"""What a build is asked for by: its backend, and the command line that asks the same again."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.backends.vta.backend import Vta
from toolchain.compile.request import BuildRequest
from toolchain.models import inputs
from toolchain.models.request import Model

MLP = Model("mlp", {}, inputs.Source(None, None, 3))
RPI4 = board.load("rpi4").resolved()
LOOKS = """
import sys
from toolchain.compile import request
sys.exit(", ".join({"tvm", "onnx", "rich"} & set(sys.modules)) or 0)
"""


def test_a_request_alone_imports_no_compiler():
    completed = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr.strip()) == (0, "")


def test_the_backend_is_the_boards_and_is_made_once():
    request = BuildRequest(MLP, board.load("rk3588").resolved())
    assert isinstance(request.backend, Mali)
    assert request.backend is request.backend
    assert isinstance(BuildRequest(MLP, board.load("vta-sim").resolved()).backend, Vta)


def test_templates_that_are_left_out_are_left_out_by_the_backend():
    request = BuildRequest(MLP, RPI4, without=("winograd",))
    assert request.backend.without == {"winograd"}
    assert dataclasses.replace(request, without=()).backend.without == set()


@pytest.mark.parametrize(("records", "only"), [(None, False), (Path("shipped"), True), (Path("mine.jsonl"), False)])
def test_the_word_for_no_records_but_those_of_the_toolchain(records, only):
    assert BuildRequest(MLP, RPI4, records=records).only_shipped is only


@pytest.mark.parametrize(
    ("model", "options", "arguments"),
    [
        (MLP, {}, "mlp.onnx --board rpi4 --seed 3"),
        (MLP, {"toolchain": "host"}, "mlp.onnx --board rpi4 --toolchain host --seed 3"),
        (MLP, {"toolchain": RPI4.toolchain}, "mlp.onnx --board rpi4 --seed 3"),
        (
            Model("x", {"b": (1, 2), "a": (3,)}, inputs.Source()),
            {},
            "mlp.onnx --board rpi4 --shape a:3 --shape b:1,2 --seed 0",
        ),
        (Model("x", {}, inputs.Source(Path("in/a b.npz"))), {}, "mlp.onnx --board rpi4 --input 'a b.npz' --seed 0"),
        (Model("x", {}, inputs.Source(None, Path("in/c.png"))), {}, "mlp.onnx --board rpi4 --image c.png --seed 0"),
    ],
    ids=["plain", "host", "the board's value", "shapes", "inputs", "image"],
)
def test_the_command_that_makes_it_again(model, options, arguments):
    assert BuildRequest(model, RPI4, **options).command("mlp.onnx") == f"toolchain build {arguments}"


def test_half_precision_is_part_of_the_command():
    kind = board.load("rk3588").resolved()
    for half_sums, option in ((False, "--float16"), (True, "--half-sums")):
        command = BuildRequest(MLP, kind.with_precision(float16=True, half_sums=half_sums)).command("mlp")
        assert command.split()[-3:] == [option, "--seed", "3"]


def test_bfloat16_is_part_of_the_command():
    kind = board.load("local").resolved().with_precision(bfloat16=True)
    assert BuildRequest(MLP, kind).command("mlp").split()[-3:] == ["--bfloat16", "--seed", "3"]


def test_rounded_weights_are_part_of_the_command():
    kind = board.load("local").resolved().with_precision(weights="int8")
    assert BuildRequest(MLP, kind).command("mlp").split()[-4:] == ["--weights", "int8", "--seed", "3"]
