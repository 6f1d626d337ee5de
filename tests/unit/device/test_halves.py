"""Devices without half precision: what the runner reports, and which bundles are refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from toolchain.bundle.manifest import InHalf
from toolchain.device import fit
from toolchain.device.fit import Halves, RequiredPrecision
from toolchain.errors import DeviceError

ALL, NO_SUMS, NOTHING = Halves("G610", "", ""), Halves("T880", "", "denormals"), Halves("PoCL", "fp16", "denormals")
SINGLE, HALF = RequiredPrecision(float16=False, half_sums=False), RequiredPrecision(float16=True, half_sums=False)
SUMS = RequiredPrecision(float16=True, half_sums=True)


@pytest.mark.parametrize(
    ("support", "required", "message"),
    [
        (NOTHING, HALF, "b does not compute in half precision: PoCL has no fp16"),
        (NOTHING, SUMS, "b does not compute in half precision: PoCL has no fp16"),
        (NO_SUMS, SUMS, "b does not sum up in half precision: T880 has no denormals"),
    ],
)
def test_who_lacks_something_is_refused(support, required, message):
    with pytest.raises(DeviceError, match=message) as caught:
        fit.check_half_precision(support, required, "b")
    assert "--half-sums" in caught.value.hint


@pytest.mark.parametrize(("support", "required"), [(ALL, SUMS), (NO_SUMS, HALF), (NOTHING, SINGLE)])
def test_who_has_what_is_needed_is_not(support, required):
    fit.check_half_precision(support, required, "b")


@pytest.mark.parametrize(
    ("command", "half", "required"),
    [
        ("toolchain build mlp --board b", None, SINGLE),
        ("toolchain build mlp --board b --float16", None, HALF),
        ("toolchain build mlp --board b --half-sums", None, SUMS),
        ("toolchain build mlp --board b", InHalf("onnxruntime", "random numbers", ()), HALF),  # says its board file
        ("toolchain build mlp --board b --bfloat16", InHalf("", "", (), format="bfloat16"), SINGLE),
    ],
)
def test_a_bundle_says_what_it_needs(command, half, required):
    assert RequiredPrecision.of(SimpleNamespace(command=command, half=half)) == required


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", json.dumps({"name": 1, "float16_lacks": "", "half_sums_lacks": ""}), '{"name": "\\u001b[2J"}'],
)
def test_an_answer_that_is_none_is_refused(text):
    with pytest.raises(DeviceError, match="invalid answer about half precision"):
        fit._read(text, "b")


def test_an_answer_is_read():
    text = json.dumps({"name": "G610", "float16_lacks": "", "half_sums_lacks": "denormals"})
    assert fit._read(text, "b") == Halves("G610", "", "denormals")
