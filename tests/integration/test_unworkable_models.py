"""Models that cannot work on a board: one message each, with the operator, the node, and what to do."""

from __future__ import annotations

import re

import pytest

from tests.support import paths
from tests.support.commands import toolchain

DATA = paths.DATA / "unworkable"

EXPORT = r"hint: (export|[^\n]*export it again)"

# What is wrong, by the file's name: what the message says, and what the hint says to do.
CASES = {
    "ancient-opset": (r"Add.*'spread'", r"version_converter|opset"),
    "circle": (r"not a valid ONNX model[\s\S]*'b' of node[\s\S]*first", EXPORT),
    "complex-input": (r"tensor x has the element type complex64", r"supported: float32"),
    "custom-domain": (r"com\.example\.Frobnicate at node 1 'foreign'", r"inspect model"),
    "external-missing": (r"w\b[\s\S]*lost\.data", r"next to the model"),
    "external-outside": (r"w\b[\s\S]*\.\./models/external\.data", r"folder"),
    "float8-output": (r"Cast node 'narrow'[\s\S]*float8_e4m3fn is not supported", r"inspect model"),
    "foreign-relu": (r"com\.example\.Relu at node 1 'foreign'", r"inspect model"),
    "gradient-step": (r"ai\.onnx\.preview\.training\.Adagrad at node 0 'learn'", r"inspect model"),
    "growing-loop": (r"Loop.*'until'", r"inspect model|--fixed|--shape"),
    "image-file": (r"ImageDecoder at node 0 'decode'", r"inspect model"),
    "int4-input": (r"tensor x has the element type int4", r"supported: float32"),
    "microsoft-unknown": (r"com\.microsoft\.NGramRepeatBlock2 at node 1 'foreign'", r"inspect model"),
    "optional-input": (r"input o is not a tensor", EXPORT),
    "optional-output": (r"output y is not a tensor[\s\S]*Optional[\s\S]*'perhaps'", EXPORT),
    "random-output": (r"RandomNormalLike at node 1 'noise'", r"draws no random numbers[\s\S]*an input of the model"),
    "recursive-function": (r"own\.Again of the model calls itself", EXPORT),
    "reshape-by-data": (r"Reshape.*'as_told'", r"--fix|inspect model"),
    "sequence-output": (r"output y is not a tensor[\s\S]*SequenceConstruct[\s\S]*'pair'", EXPORT),
    "strings": (r"StringConcat at node 1 'join'|tensor y has the element type string", r"inspect model|supported"),
    "too-few-inputs": (r"MatMul", EXPORT),
    "text-labels": (r"LabelEncoder node 'foreign' cannot be compiled[\s\S]*values are text", r"as numbers"),
    "unbounded": (r"NonZero node 'which' cannot be compiled", r"end the network before it"),
    "unequal-shapes": (r"Concat.*'side_by_side'", r"inspect model"),
    "uneven-branches": (r"If.*'either'", r"--fix|inspect model"),
    "unknown-ir": (r"ir_version 99", r"onnx"),
    "unknown-opset": (r"opset of the model is 99", r"opset"),
    "without-rank": (r"input x", r"--shape"),
}


def test_every_file_is_a_case():
    assert {path.stem for path in DATA.glob("*.onnx")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_cannot_work_is_refused_by_name(name, tmp_path):
    message, hint = CASES[name]
    outcome = toolchain("build", DATA / f"{name}.onnx", "--board", "local", "-o", tmp_path / "out")
    assert (outcome.code, "Traceback" in outcome.err) == (2, False), outcome.err
    assert re.search(message, outcome.err), outcome.err
    assert re.search(hint, outcome.err.partition("hint: ")[1] + outcome.err.partition("hint: ")[2]), outcome.err
    assert list(tmp_path.iterdir()) == []
