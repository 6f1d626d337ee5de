"""What an update is made of."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import bundles
from toolchain import board, export
from toolchain.errors import VerificationError


def test_a_runner_of_another_tvm_is_refused(tiny, program):
    other = dataclasses.replace(program, versions={**program.versions, "tvm": "0.1"})
    with pytest.raises(VerificationError, match=r"the runner has TVM 0\.1"), export.prepare(tiny, kind(), other):
        pass


@pytest.mark.parametrize(("library", "expected"), [("", "2.18"), ("2.9", "2.18"), ("2.34", "2.34")])
def test_the_c_library_is_new_enough_for_both(tiny, program, tmp_path, library, expected):
    package = bundles.variant(tiny, tmp_path / "made", {}, glibc=library)
    with export.prepare(package, kind(), dataclasses.replace(program, glibc="2.18")) as update:
        assert update.glibc == expected


def test_it_holds_what_a_deploy_sends_and_what_is_expected(tiny, program):
    with export.prepare(tiny, kind(), program) as update:
        more = update.contents.keys() - update.shipment.blobs.keys()
        assert more == {update.expected[1]}
        assert {record.sha256 for record in tiny.manifest.files.values()} <= update.contents.keys()
        assert list(update.contents) == sorted(update.contents)


def kind():
    return board.load("local").resolved()
