from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support import junit
from tests.support.rollouts import NEW, OLD, PLAN
from toolchain import errors
from toolchain.devices import Device
from toolchain.pipeline.rollout import Rollout, Thresholds, report, result
from toolchain.pipeline.rollout.state import Record
from toolchain.pipeline.rollout.threads import LateError

FULL = Record(2, "failed", OLD, OLD, "full", 4, "no room <b>", "it has none", "make some", seconds=1.5)
WRONG = Record(2, "returned", OLD, OLD, "wrong output", 5, "another number")
RECORDS = {
    "a": Record(1, "done", OLD, NEW, latency_ms=2.5, seconds=3.25),
    "b": FULL,
    "c": WRONG,
    "d": Record(2),
}


def made(records=RECORDS, stopped="too many", **how):
    hosts = {name: Device("x86_64", f"me@{name}") for name in records}
    return Rollout(PLAN, records, hosts, Thresholds(), stopped, Path("rollout.json"), 12.5, **how)


def test_it_ends_with_the_gravest_failure():
    fault = made().fault()
    assert isinstance(fault, errors.VerificationError)
    assert fault.message == f"1 of 4 device(s) run net {NEW[:16]}; stopped: too many"
    assert fault.details == "b: full (exit code 4): no room <b>\nc: wrong output (exit code 5): another number"
    assert "it resumes from rollout.json" in fault.hint
    assert made({"b": FULL}).fault().exit_code == 4


def test_it_ends_well_only_when_every_device_is_done():
    assert made({"a": RECORDS["a"]}, "").fault() is None
    assert made({"a": RECORDS["a"], "b": FULL}, "").fault().exit_code == 4


@pytest.mark.parametrize(
    ("codes", "expected"), [({4, 5, 6}, 5), ({4, 6}, 6), ({75, 4}, 4), ({75}, 75), ({2, 4}, 4), ({70, 4}, 70), ({2}, 2)]
)
def test_how_grave_failures_are(codes, expected):
    assert result.gravest_error(codes).exit_code == expected


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (errors.UnreachableError("x"), "unreachable"),
        (errors.FullError("x"), "full"),
        (errors.MismatchError("x"), "wrong machine"),
        (errors.OutputError("x"), "wrong output"),
        (errors.UnhealthyError("x"), "unhealthy"),
        (errors.BusyError("x"), "busy"),
        (errors.HostKeyError("x"), "host key"),
        (errors.RegressionError("x"), "slow"),
        (errors.InconclusiveError("x"), "too few samples"),
        (LateError("x"), "timeout"),
        (errors.DeviceError("x"), "device"),
        (errors.VerificationError("x"), "verification"),
        (errors.InputError("x"), "input"),
        (errors.BuildError("x"), "other"),
        (ZeroDivisionError(), "internal"),
    ],
)
def test_the_kinds_of_failures(fault, kind):
    assert result.failure_kind(fault) == kind


def test_the_document():
    document = json.loads(json.dumps(made(left_out=3).document()))
    assert document["groups"] == [
        {"group": 1, "devices": 1, "done": 1, "failed": 0, "waiting": 0, "running": 0, "returning": 0, "returned": 0},
        {"group": 2, "devices": 3, "done": 0, "failed": 1, "waiting": 1, "running": 0, "returning": 0, "returned": 1},
    ]
    assert (document["error_threshold"], document["success_threshold"], document["left_out"]) == ("1", 0.0, 3)
    assert document["supported_until"] == ""
    assert made(supported_until="2031-12-31").document()["supported_until"] == "2031-12-31"
    assert document["devices"][1] == {
        "name": "b",
        "host": "me@b",
        "group": 2,
        "state": "failed",
        "before": f"sha256:{OLD}",
        "after": f"sha256:{OLD}",
        "kind": "full",
        "exit_code": 4,
        "error": "no room <b>",
        "details": "it has none",
        "hint": "make some",
        "latency_ms": None,
        "emulated": False,
        "seconds": 1.5,
    }
    assert document["devices"][3]["before"] is None


def test_what_a_person_is_shown():
    table = str(report.render_text(made())[0]).splitlines()
    assert table[1].split() == ["a", "me@a", "1", "done", OLD[:12], NEW[:12], "2.500", "3.250"]
    assert table[2].split()[3:5] == ["FAILED", OLD[:12]]
    assert table[2].endswith("full (4): no room <b>")
    assert table[4].split() == ["d", "me@d", "2", "waiting", "?", "?"]
    emulated = Record(1, "done", "", NEW, latency_ms=9.0, emulated=True)
    assert "9.000 (emulated)" in str(report.render_text(made({"a": emulated}))[0])
    assert "none" in str(report.render_text(made({"a": emulated}))[0])


def test_junit_has_a_case_for_each_device():
    suite = ET.fromstring(report.junit(made()))  # noqa: S314 - our own report
    assert junit.faults(suite) == []
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")} == {
        "name": "toolchain rollout",
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
    }
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {"a": [], "b": ["error"], "c": ["failure"], "d": ["skipped"]}
    assert suite.find(".//error").text == "it has none\nhint: make some"


def test_the_page():
    text = report.page(made()).html()
    assert "no room &lt;b&gt;" in text
    assert "stopped: too many" in text
    assert text.count("<section") == 5
