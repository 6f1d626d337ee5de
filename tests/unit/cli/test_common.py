from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.cli import common, connection
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.models.request import Model

MLP = Model("mlp", {}, inputs.Source())


def test_a_model_and_its_inputs():
    request = common.ModelOptions(("x:1,2",), ("n=3",), ("sr=16000",), 4).model(
        "net", common.InputOptions(image=Path("cat.png"))
    )
    assert (request.source, request.shapes, request.fixed) == ("net", {"x": (1, 2)}, {"sr": "16000"})
    assert request.dims == {"n": 3}
    assert (request.given.image, request.given.npz, request.given.seed) == (Path("cat.png"), None, 4)
    assert common.ModelOptions().model("net").given == common.InputOptions().source(0)


# --- kernels -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local():
    return connection.BoardOptions().board()


def test_templates_that_are_left_out(local):
    every = common.KernelOptions(without=("all",)).excluded_templates(local)
    assert "winograd" in every
    assert list(every) == sorted(every)
    assert common.KernelOptions().excluded_templates(local) == ()
    assert common.KernelOptions(without=("winograd",), no_winograd=True).excluded_templates(local) == ("winograd",)
    with pytest.raises(InputError, match="there is no template 'winogard'") as caught:
        common.KernelOptions(without=("winogard",)).excluded_templates(local)
    assert "winograd" in caught.value.hint


def test_what_a_build_is_asked_for(local):
    request = common.CompileOptions(Path("r.jsonl"), emulated=True).request(MLP, local, print, None)
    assert (request.records, request.tuned, request.emulated, request.toolchain) == (Path("r.jsonl"), True, True, "")
    request = common.CompileOptions(no_records=True).request(MLP, local, print, "host", emulated=False)
    assert (request.records, request.tuned, request.emulated, request.toolchain) == (None, False, False, "host")
    assert common.CompileOptions().request(MLP, local, print, None, emulated=True).emulated
    with pytest.raises(InputError, match="--records and --no-records cannot be combined"):
        common.CompileOptions(Path("r.jsonl"), no_records=True).request(MLP, local, print, None)


def test_how_a_model_is_measured():
    settings = common.MeasureOptions(2.0, 3, no_pin=True).settings(Path("l.txt"), 0.1)
    assert (settings.budget_s, settings.threads, settings.pinned, settings.labels, settings.tolerance) == (
        2.0,
        3,
        False,
        Path("l.txt"),
        0.1,
    )
    assert common.TurnOptions().settings(None).budget_s == 20.0
    assert common.MeasureOptions().settings(None).threads == 0
