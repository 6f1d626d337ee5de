"""A gate's report for a terminal and for CI."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from tests.support import gates
from tests.unit.pipeline.gate.test_result import EVEN, SLOWER, WILD
from toolchain.device.waiting import Waited
from toolchain.pipeline.gate import texts
from toolchain.report import plain


def test_what_a_terminal_shows(tiny):
    rounds = gates.rounds_of(SLOWER, fresh=SLOWER * 2)
    gate = gates.gate(tiny, rounds, gates.size(100, 100, 0.0))
    gate = dataclasses.replace(gate, waited=(Waited(3.5, "bob@lab: tune"),), slower_layers="layer 3")
    text = plain(texts.render_text(gate))
    for phrase in (
        *("REGRESSION", "new.tar, 1111", "old.tar, 2222", "rpi4 at lab <1>, 2 thread(s)", "8 and 16 to confirm"),
        *(
            "regression: +8.0%",
            "package size   pass: +0.0%",
            "new matches onnxruntime 1.2",
            "3.5 s: bob@lab: tune",
            "layer 3",
        ),
    ):
        assert phrase in text, phrase


def test_every_line_with_a_time_is_stamped_where_it_is_emulated(tiny):
    text = plain(texts.render_text(gates.gate(tiny, gates.rounds_of(EVEN), emulated=True)))
    for name in ("verdict", "board", "latency", "rounds"):
        line = next(line for line in text.splitlines() if line.startswith(name))
        assert "(emulated)" in line, name


@pytest.mark.parametrize(
    ("rounds", "kind", "counts"),
    [
        (gates.rounds_of(EVEN), None, ("0", "0")),
        (gates.rounds_of(SLOWER, fresh=SLOWER * 2), ("failure", "regression"), ("1", "0")),
        (gates.rounds_of(WILD), ("error", "inconclusive"), ("0", "1")),
    ],
)
def test_ci_tells_a_regression_from_what_nobody_knows(tiny, rounds, kind, counts):
    suite = ET.fromstring(texts.junit(gates.gate(tiny, rounds, gates.size(90, 100, 0.0))))  # noqa: S314 - our own
    assert suite.get("name") == "toolchain gate"
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", *counts)
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == ["outputs", "latency", "package-size"]
    elements = [(child.tag, child.get("type")) for child in cases["latency"] if child.tag != "system-out"]
    assert elements == ([kind] if kind else [])
    properties = {entry.get("name"): entry.get("value") for entry in suite.iter("property")}
    assert properties["new"] == f"sha256:{'1' * 64}"
    assert properties["emulated"] == "false"
    assert properties["package-size-change"] == "-0.1000"


def test_what_ci_shows_of_a_rehearsal_is_stamped(tiny):
    gate = gates.gate(tiny, gates.rounds_of(WILD), emulated=True)
    suite = ET.fromstring(texts.junit(gate))  # noqa: S314 - our own
    assert suite.get("name") == "toolchain gate (emulated)"
    assert [error.get("message").startswith("emulated: latency") for error in suite.iter("error")] == [True]
