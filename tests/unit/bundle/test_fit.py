"""A bundle is deployed as the board that it was built for, and as no other."""

from __future__ import annotations

import dataclasses

import pytest

from toolchain import board as boards
from toolchain import bundle
from toolchain.errors import VerificationError


def test_a_bundle_fits_the_board_that_it_was_built_for(tiny, native):
    bundle.check_board(tiny.manifest, native)


@pytest.mark.parametrize(("built", "deployed"), [("rk3399-cpu", "rpi4"), ("x86_64", "opencl-local")])
def test_another_board_of_the_same_machine_is_refused(tiny, built, deployed):
    built_board, deployed_board = (boards.load(name).resolved() for name in (built, deployed))
    manifest = dataclasses.replace(tiny.manifest, board=built, machine=built_board.machine, triple=built_board.triple)
    with pytest.raises(VerificationError, match=f"for board {built}, not for board {deployed}") as caught:
        bundle.check_board(manifest, deployed_board)
    assert f"use --board {built} or its board file" in caught.value.hint
    assert f"--board {deployed}`" in caught.value.hint


@pytest.mark.parametrize(
    "change", [{"machine": "s390x"}, {"triple": "s390x-linux-gnu"}, {"target": {"kind": "opencl"}}, {"target": {}}]
)
def test_another_board_of_the_same_name_is_refused(tiny, native, change):
    manifest = dataclasses.replace(tiny.manifest, **change)
    with pytest.raises(VerificationError, match="a different board that is also named local") as caught:
        bundle.check_board(manifest, native)
    assert "toolchain build" in caught.value.hint
