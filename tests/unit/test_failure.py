from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.support import junit
from toolchain.errors import BuildError, DeviceError, InputError, VerificationError
from toolchain.failure import NOT_ENDED, Failure

FAULTS = [
    (InputError("no model"), 2),
    (BuildError("no compiler"), 3),
    (DeviceError("no device"), 4),
    (VerificationError("wrong numbers"), 5),
    (ZeroDivisionError("by zero"), 70),
    (KeyboardInterrupt(), 130),
]


def parsed(data):
    return ET.fromstring(data)  # noqa: S314 - our own text


@pytest.mark.parametrize(("fault", "code"), FAULTS)
def test_every_end_has_its_code(fault, code):
    failure = Failure.of(fault)
    assert failure.exit_code == code
    assert json.loads(json.dumps(failure.document()))["error"]["exit_code"] == code
    suite = parsed(failure.junit("toolchain deploy", "local.mlp", "deploy"))
    wrong = code == 5
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (
        "1",
        str(int(wrong)),
        str(int(not wrong)),
    )
    assert suite.find("testcase/failure" if wrong else "testcase/error").get("message") == failure.message


def test_a_failure_tells_all_it_knows():
    failure = Failure.of(VerificationError("the <device> is & lost", details="line 1\nline 2", hint="look"))
    assert failure.document()["error"] == {
        "message": "the <device> is & lost", "details": "line 1\nline 2", "hint": "look", "exit_code": 5
    }  # fmt: skip
    case = parsed(failure.junit("toolchain deploy", "pi3.mlp", "deploy")).find("testcase")
    assert (case.get("classname"), case.get("name")) == ("pi3.mlp", "deploy")
    assert case.find("failure").get("message") == "the <device> is & lost"
    assert case.find("failure").text == "line 1\nline 2\nhint: look"


def test_the_signal_is_named():
    assert Failure.of(KeyboardInterrupt()).message == "interrupted"
    assert Failure.of(KeyboardInterrupt("SIGTERM")).message == "interrupted by SIGTERM"


def test_a_run_that_was_killed_is_no_success():
    assert parsed(NOT_ENDED.junit("toolchain deploy", "deploy", "deploy")).get("errors") == "1"
    assert NOT_ENDED.document()["error"]["exit_code"] is None


def test_what_xml_cannot_hold_is_left_out():
    """Compilers write colours, broken devices write anything."""
    failure = Failure("bell \x07", "\x1b[31mred\x1b[0m \x00 \ud800 \ufffe ümläut 🙂", exit_code=5)
    element = parsed(failure.junit("s", "x", "y")).find("testcase/failure")
    assert (element.get("message"), element.text) == ("bell ", "[31mred[0m    ümläut 🙂")


def test_what_is_known_of_a_failed_run_is_told():
    suite = parsed(Failure("lost").junit("s", "x", "y", 1.25, {"board": "rpi4", "waited": "3.0 s: ann"}))
    assert [(element.get("name"), element.get("value")) for element in suite.iter("property")] == [
        ("board", "rpi4"), ("waited", "3.0 s: ann")
    ]  # fmt: skip
    assert suite.find("testcase").get("time") == "1.250"
    assert next(iter(suite)).tag == "properties"
    assert junit.faults(suite) == []
