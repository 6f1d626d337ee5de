import pytest

from tests.support import pages
from toolchain import stats
from toolchain.pipeline.pages import beside
from toolchain.report import plain


def test_the_result_names_what_each_model_loses():
    first, second = pages.co_run().sides
    assert first.outcome.startswith("detector (mobilenet) takes 1.9")
    assert "99 % within" in first.outcome
    assert second.outcome.startswith("mobilenet takes 1.0")
    text = plain(beside.page(pages.co_run()).printed())
    assert "3 of each model, on the same 4 CPU(s)" in text
    assert "1 of each model, on different ones of 4 CPUs" in plain(beside.page(pages.co_run(threads=1)).printed())


@pytest.mark.parametrize(
    ("factor", "verdict", "phrase"),
    [
        (2.0, "slower", "2.00 times as long"),
        (1.0, "", "not measurably slower or faster"),
        (0.5, "faster", "0.50 times"),
    ],
)
def test_a_slow_down_is_claimed_only_if_it_is_measured(factor, verdict, phrase):
    times = [[1e6 + 1e4 * turn] for turn in range(12)]
    slowdown = stats.ratio([[factor * value for value in window] for window in times], times)
    side = pages.dataclasses.replace(pages.co_run().sides[0], slowdown=slowdown)
    assert phrase in side.outcome
    document = pages.co_run(sides=(side, side)).document()
    assert [each["verdict"] for each in document["sides"]] == [verdict, verdict]


def test_too_few_rounds_claim_nothing():
    few = pages.co_run(rounds=2)
    assert few.sides[0].slowdown.ci99 is None
    assert "too few rounds" in few.sides[0].outcome
    assert "too few rounds" in plain(beside.page(few).printed())


def test_an_emulator_is_named():
    assert any("emulated" in warning for warning in pages.co_run(emulated=True).warnings)
    assert not any("emulated" in warning for warning in pages.co_run().warnings)
