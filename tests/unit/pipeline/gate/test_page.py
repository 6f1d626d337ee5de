"""A gate's report as a page."""

from __future__ import annotations

import pytest

from tests.support import gates
from tests.unit.pipeline.gate.test_result import EVEN, SLOWER, WILD
from toolchain.pipeline.gate import page


def test_a_page_has_the_numbers_of_the_document(tiny):
    rounds = gates.rounds_of(SLOWER, fresh=SLOWER * 2)
    gate = gates.gate(tiny, rounds, gates.memory(rounds), gates.size(103, 100, 0.02))
    text = page.page(gate)
    for phrase in (
        *("latency is a REGRESSION: +8.0%", "+8.00%", "+1.0% to +5.0%", "103", "package size", "confirmation"),
        *("Change of each round", "Every run in order", "How long runs took", "lab &lt;1&gt;", f"sha256:{'1' * 64}"),
    ):
        assert phrase in text, phrase
    assert "<script" not in text
    assert "lab <1>" not in text


def test_what_is_emulated_or_open_is_stamped(tiny):
    text = page.page(gates.gate(tiny, gates.rounds_of(WILD), emulated=True))
    assert '<span class="mark doubt">emulated</span>' in text
    assert '<span class="mark doubt">inconclusive</span>' in text
    assert "emulated" not in page.page(gates.gate(tiny, gates.rounds_of(EVEN)))


@pytest.mark.parametrize(
    "rounds", [[], gates.rounds_of([0.1]), [gates.one_round(gates.turn(1, throttles=1), gates.turn(1))]]
)
def test_few_rounds_or_none_that_count_make_a_page_all_the_same(tiny, rounds):
    text = page.page(gates.gate(tiny, rounds, hot="the device throttled"))
    assert "inconclusive" in text
    assert ("throttled: 1 time(s)" in text) == (len(rounds) == 1 and bool(rounds[0].throttled))
