"""The lines of Mesa's compiler, as it wrote them and spoiled."""

from __future__ import annotations

import random

import pytest

from tests.support.paths import ROOT
from toolchain.backends.mali.cost import shaderdb

RECORDED = (ROOT / "tests" / "data" / "mali" / "statistics.txt").read_text(encoding="utf-8")
MIDGARD = "446 inst, 363 bundles, 268 quadwords, 8 registers, 2 threads, 1 loops, 29:92 spills:fills"


def test_valhall_has_units_of_its_own() -> None:
    outcome = shaderdb.read_outcomes(RECORDED.splitlines())["/work/0.cl"]
    assert outcome.name == "k"
    assert outcome.statistics is not None
    assert outcome.statistics.units == {
        "fma": 0.0625,
        "convert": 1.265625,
        "special": 1.9375,
        "varying": 0.0,
        "texture": 0.0,
        "load_store": 8.0,
    }
    assert (outcome.statistics.instructions, outcome.statistics.registers, outcome.statistics.work_group) == (
        124,
        32,
        1024,
    )


def test_bifrost_and_its_spills() -> None:
    statistics = shaderdb.read_outcomes(RECORDED.splitlines())["/work/1.cl"].statistics
    assert statistics is not None
    assert (statistics.unit("arithmetic"), statistics.unit("load_store"), statistics.unit("fma")) == (3.5, 8.0, 0.0)
    assert (statistics.spills, statistics.fills, statistics.loops, statistics.local_bytes) == (14, 111, 1, 64)


def test_midgard_counts_bundles() -> None:
    statistics = shaderdb.parse_statistics(MIDGARD)
    assert statistics is not None
    assert (statistics.cycles, statistics.spills, statistics.fills, statistics.units) == (363.0, 29, 92, {})


@pytest.mark.parametrize(
    ("path", "fault"),
    [("/work/2.cl", "undeclared identifier"), ("/work/3.cl", "no kernel"), ("/work/4.cl", "gave up")],
)
def test_what_has_no_statistics_says_why(path: str, fault: str) -> None:
    outcome = shaderdb.read_outcomes(RECORDED.splitlines())[path]
    assert outcome.statistics is None
    assert fault in outcome.fault


def test_a_file_at_which_the_compiler_ended_is_missing() -> None:
    assert "/work/5.cl" not in shaderdb.read_outcomes(RECORDED.splitlines())


def test_spoiled_lines_are_never_numbers_that_nobody_wrote() -> None:
    outcomes = shaderdb.read_outcomes(RECORDED.splitlines())
    dice = random.Random(0)  # noqa: S311 - the same spoiled lines each time
    for _ in range(500):
        letters = list(RECORDED)
        for _ in range(dice.randrange(1, 8)):
            letters[dice.randrange(len(letters))] = dice.choice("0 9,:\nxFD\0é")
        for outcome in shaderdb.read_outcomes("".join(letters).splitlines()).values():
            assert outcome.statistics is not None or outcome.fault
    assert len(outcomes) == 5


def test_a_flood_is_bounded() -> None:
    flood = ["FILE a", "FAILED 1", *("x" * 10_000 for _ in range(1000)), "DONE"]
    assert len(shaderdb.read_outcomes(flood)["a"].fault) < 200_000
