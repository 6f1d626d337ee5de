"""What an update is made of: a reference that no device can agree with is refused where it is exported."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support import bundles
from toolchain import board, export
from toolchain.device.deploy import Samples
from toolchain.errors import VerificationError
from toolchain.export import update
from toolchain.tensors import Bound, TensorSpec

X, BOXES = TensorSpec("x", (2, 3), "float32"), TensorSpec("boxes", (5, 4), "float32", Bound(0, "count"))
COUNT = TensorSpec("count", (), "int64")


def check(outputs, *specs):
    made = SimpleNamespace(manifest=SimpleNamespace(outputs=specs))
    update.check_expected(made, Samples({}, outputs))


def test_a_reference_that_fits_is_taken():
    check({"x": np.zeros((2, 3), np.float32)}, X)
    check({"x": np.zeros((2, 3), np.float32), "boxes": np.zeros((2, 4), np.float32)}, X, BOXES, COUNT)
    check(None, X)


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"y": np.zeros((2, 3), np.float32)},
        {"x": np.zeros((2, 3), np.float64)},
        {"x": np.zeros((3, 2), np.float32)},
        {"x": np.zeros(6, np.float32)},
        {"x": np.zeros((2, 3), np.float32), "boxes": np.zeros((6, 4), np.float32)},
        {"x": np.zeros((2, 3), np.float32), "count": np.zeros((), np.int64)},
    ],
)
def test_one_that_does_not_is_refused(outputs):
    with pytest.raises(VerificationError, match="does not fit its model"):
        check(outputs, X, *((BOXES, COUNT) if len(outputs) > 1 else ()))


def test_a_runner_of_another_tvm_is_refused(tiny, program):
    other = dataclasses.replace(program, versions={**program.versions, "tvm": "0.1"})
    with pytest.raises(VerificationError, match=r"the runner has TVM 0\.1"), export.prepared(tiny, kind(), other):
        pass


@pytest.mark.parametrize(("library", "wanted"), [("", "2.18"), ("2.9", "2.18"), ("2.34", "2.34")])
def test_the_c_library_is_new_enough_for_both(tiny, program, tmp_path, library, wanted):
    made = bundles.variant(tiny, tmp_path / "made", {}, glibc=library)
    with export.prepared(made, kind(), dataclasses.replace(program, glibc="2.18")) as found:
        assert found.glibc == wanted


def test_it_holds_what_a_deploy_sends_and_what_is_expected(tiny, program):
    with export.prepared(tiny, kind(), program) as found:
        more = found.contents.keys() - found.shipment.blobs.keys()
        assert more == {found.expected[1]}
        assert {record.sha256 for record in tiny.manifest.files.values()} <= found.contents.keys()
        assert list(found.contents) == sorted(found.contents)


def kind():
    return board.load("local").resolved()
