"""What a gate found, in words and as a document."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from tests.support import gates
from toolchain.device.tail import Tail
from toolchain.errors import InconclusiveError, RegressionError
from toolchain.pipeline.evaluate.paired import Loss
from toolchain.pipeline.gate import page, texts
from toolchain.pipeline.gate.accuracy import Accuracy
from toolchain.pipeline.gate.result import LOAD_TIME, Outputs
from toolchain.stats import Verdict

EVEN = [0.001, -0.001, 0.002, -0.002, 0.003, -0.003, 0.0, 0.001]
SLOWER = [0.08 + change for change in EVEN]
_HALF = np.random.default_rng(5).normal(0, 0.5, 32)
WILD = np.expm1(np.stack([_HALF, -_HALF], 1).ravel()).tolist()


def test_a_pass_is_no_fault(tiny):
    gate = gates.gate(tiny, gates.rounds_of(EVEN))
    assert (gate.verdict, gate.fault()) == (Verdict.PASS, None)
    assert "99 % within -0.3% to +0.3% in 8 rounds" in gate.sentence


def test_an_improvement_is_a_pass_that_says_so(tiny):
    gate = gates.gate(tiny, gates.rounds_of([-0.2 + change for change in EVEN]))
    assert gate.verdict is Verdict.PASS
    assert "-20.0%, an improvement" in gate.sentence


def test_a_regression_ends_with_six_and_names_what_carries_it(tiny):
    gate = gates.gate(tiny, gates.rounds_of(SLOWER, fresh=SLOWER * 2))
    fault = gate.fault()
    assert isinstance(fault, RegressionError)
    assert fault.exit_code == 6
    assert "latency is a REGRESSION: +8.0%" in fault.message
    assert "toolchain profile" in fault.hint
    assert fault.details == ""  # the message has said it
    carried = dataclasses.replace(gate, slower_layers="conv2d of layer 3 takes 0.4 ms more").fault()
    assert "layer 3" in carried.details


def test_what_nobody_can_tell_ends_with_seven(tiny):
    fault = gates.gate(tiny, gates.rounds_of(WILD)).fault()
    assert isinstance(fault, InconclusiveError)
    assert fault.exit_code == 7
    assert "nothing else uses the device" in fault.hint
    hot = gates.gate(tiny, [], hot="the device throttled in 9 rounds: Processor").fault()
    assert "the device throttled in 9 rounds" in hot.message
    assert "cool down" in hot.hint


def test_one_quantity_that_regresses_is_enough_and_all_must_pass(tiny):
    rounds = gates.rounds_of(EVEN)
    assert gates.gate(tiny, rounds, gates.memory(rounds), gates.size(100, 100, 0.0)).verdict is Verdict.PASS
    assert gates.gate(tiny, rounds, gates.size(103, 100, 0.02)).verdict is Verdict.REGRESSION
    wild = gates.judged(gates.rounds_of(WILD))
    assert gates.gate(tiny, rounds, dataclasses.replace(wild, name=LOAD_TIME)).verdict is Verdict.INCONCLUSIVE
    assert "from 100 to 103 bytes, limit +2.0%" in gates.gate(tiny, rounds, gates.size(103, 100, 0.02)).sentence


def test_a_regression_names_what_shows_more_of_it(tiny):
    rounds = gates.rounds_of(EVEN)
    assert "manifest.json" in gates.gate(tiny, rounds, gates.size(103, 100, 0.02)).fault().hint
    slower = dataclasses.replace(gates.judged(gates.rounds_of(SLOWER, fresh=SLOWER * 2)), name=LOAD_TIME)
    assert "--json FILE" in gates.gate(tiny, rounds, slower).fault().hint


def test_throttled_rounds_are_told_and_do_not_count(tiny):
    hot = gates.one_round(gates.turn(20.0, throttles=4), gates.turn(10.0), number=9)
    gate = gates.gate(tiny, [*gates.rounds_of(EVEN), hot])
    assert gate.verdict is Verdict.PASS
    assert len(gate.counted) == 8
    assert gate.document()["throttled"] == 1
    assert gate.document()["rounds"][-1]["counted"] is False
    assert any("1 round(s) were throttled and are not counted: 4 time(s)" in text for text in gate.warnings())


def test_warnings_say_what_is_doubtful(tiny):
    calm = gates.gate(tiny, gates.rounds_of(EVEN))
    assert calm.warnings() == []
    two = gates.rounds_of([0.0] * 8) + gates.rounds_of([0.9] * 8)
    assert any("bimodal: the rounds of the new release" in text for text in gates.gate(tiny, two).warnings())
    disturbed = [dataclasses.replace(pair, base=gates.turn(10.0, switches=5)) for pair in gates.rounds_of(EVEN)]
    assert any("other processes interrupted the runs in" in text for text in gates.gate(tiny, disturbed).warnings())
    slow = [dataclasses.replace(pair, base=gates.turn(10.0, mhz=1800.0)) for pair in gates.rounds_of(EVEN)]
    assert any("the clock differed" in text for text in gates.gate(tiny, slow).warnings())
    stolen = [dataclasses.replace(pair, new=gates.turn(10.0, steal=5, ticks=100)) for pair in gates.rounds_of(EVEN)]
    assert any("hypervisor gave up to 5%" in text for text in gates.gate(tiny, stolen).warnings())
    nothing = dataclasses.replace(calm, outputs=Outputs(None, None, None))
    assert [text.split(":")[0] for text in nothing.warnings()] == ["retrained"]
    unreferenced = dataclasses.replace(calm, outputs=Outputs(None, None, calm.outputs.each_other))
    assert [text.split(":")[0] for text in unreferenced.warnings()] == ["no reference"]


@pytest.mark.parametrize(
    ("late", "verdict", "error", "hint"),
    [
        (2, Verdict.PASS, None, ""),
        (40, Verdict.REGRESSION, RegressionError, "bench --period"),
        (9, Verdict.INCONCLUSIVE, InconclusiveError, "--for"),
    ],
)
def test_the_p999_counts_as_a_quantity(tiny, late, verdict, error, hint):
    slowest = Tail(40.0, 33.0, 8500, late, 39.0)
    gate = dataclasses.replace(gates.gate(tiny, gates.rounds_of(EVEN)), tail=slowest)
    assert (slowest.verdict, gate.verdict) == (verdict, verdict)
    fault = gate.fault()
    assert (type(fault) if fault else None) is error
    if fault:
        assert f"{late} of 8,500 runs above 40 ms" in fault.message
        assert hint in fault.hint
    assert gate.document()["p999"]["late"] == late
    assert slowest.text() in texts.junit(gate).decode() or verdict is Verdict.PASS
    assert slowest.sentence() in page.page(gate)


def test_what_is_emulated_is_stamped(tiny):
    gate = gates.gate(tiny, gates.rounds_of(EVEN), emulated=True)
    assert gate.document()["emulated"] is True
    assert gate.sentence.startswith("emulated, which says nothing about a board: ")
    assert "emulated" in gate.warnings()[0]


@pytest.mark.parametrize("rounds", [gates.rounds_of(EVEN), gates.rounds_of(WILD), gates.rounds_of(SLOWER), []])
def test_a_document_is_json_and_holds_every_round(tiny, rounds):
    document = json.loads(json.dumps(gates.gate(tiny, rounds).document(), allow_nan=False))
    assert len(document["rounds"]) == len(rounds)
    for row in document["rounds"]:
        assert {"samples_ms", "involuntary_switches", "steal", "throttled", "before", "after"} <= row["new"].keys()
        assert row["change"] == pytest.approx(row["new"]["median_ms"] / row["base"]["median_ms"] - 1)
    latency = document["quantities"][0]
    assert latency["unit"] == "ms"
    assert (latency["change"]["low"] is None) == (not rounds)


def test_a_clock_too_coarse_makes_no_ratio_of_zeros():
    none = gates.turn(0.0, load_ms=0.0)
    pair = gates.one_round(none, none)
    assert (pair.ratio("latency"), pair.ratio("load time")) == (0.0, 0.0)
    assert math.isfinite(gates.one_round(none, gates.turn(1.0)).ratio("latency"))


@pytest.mark.parametrize(
    ("interval", "verdict", "error"),
    [
        ((-0.4, 0.4), Verdict.PASS, None),
        ((0.6, 3.0), Verdict.REGRESSION, RegressionError),
        ((0.1, 2.0), Verdict.INCONCLUSIVE, InconclusiveError),
    ],
)
def test_the_accuracy_counts_as_a_quantity(tiny, interval, verdict, error):
    loss = Loss(sum(interval) / 2, *interval, 0.001, 3, 1)
    accuracy = Accuracy("top1", "points", 400, 71.0, 72.0, loss, 0.5, ("cat/1.png",))
    gate = dataclasses.replace(gates.gate(tiny, gates.rounds_of(EVEN)), accuracy=accuracy)
    assert (accuracy.verdict, gate.verdict) == (verdict, verdict)
    fault = gate.fault()
    assert (type(fault) if fault else None) is error
    if fault:
        assert "top1 71 new, 72 base points" in fault.message
        assert "samples" in fault.hint
        assert "latency passes" in fault.details
    document = gate.document()["accuracy"]
    assert (document["verdict"], document["changed"]) == (str(verdict), ["cat/1.png"])
