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


@pytest.mark.parametrize(("library", "wanted"), [("", "2.18"), ("2.9", "2.18"), ("2.34", "2.34")])
def test_the_c_library_is_new_enough_for_both(tiny, program, tmp_path, library, wanted):
    made = bundles.variant(tiny, tmp_path / "made", {}, glibc=library)
    with export.prepare(made, kind(), dataclasses.replace(program, glibc="2.18")) as found:
        assert found.glibc == wanted


def test_it_holds_what_a_deploy_sends_and_what_is_expected(tiny, program):
    with export.prepare(tiny, kind(), program) as found:
        more = found.contents.keys() - found.shipment.blobs.keys()
        assert more == {found.expected[1]}
        assert {record.sha256 for record in tiny.manifest.files.values()} <= found.contents.keys()
        assert list(found.contents) == sorted(found.contents)


def kind():
    return board.load("local").resolved()
