"""Checks of requirements, one by one and together."""

from __future__ import annotations

import pytest

from toolchain.checks import Check, Checklist
from toolchain.errors import BuildError, DeviceError, InputError, ToolchainError


def failing(name: str, fault: ToolchainError) -> Check[str]:
    def probe() -> str:
        raise fault

    return Check(name, probe, board="rpi4")


def test_a_finding_is_an_outcome():
    outcome = Check("make", lambda: "/usr/bin/make", "apt-get install make").outcome()
    assert (outcome.passed, outcome.found, outcome.remedy) == (True, "/usr/bin/make", "apt-get install make")


def test_a_fault_is_an_outcome_with_its_remedy():
    outcome = failing("make", BuildError("no make", hint="apt-get install make")).outcome()
    assert (outcome.passed, outcome.found, outcome.board) == (False, "", "rpi4")
    assert (outcome.observation, outcome.remedy) == ("no make", "apt-get install make")


def test_findings_are_passed_on():
    checks = Checklist()
    first = checks.find(Check("first", lambda: 1))
    assert first is not None
    assert checks.passed(checks.find(Check("later", lambda: first + 1))) == 2


def test_one_fault_is_raised_as_it_is():
    fault = InputError("no labels", details="x", hint="write some")
    checks = Checklist()
    assert checks.find(failing("labels", fault)) is None
    with pytest.raises(InputError) as caught:
        checks.passed(checks.find(Check("other", lambda: "there")))
    assert caught.value is fault


def test_all_faults_are_raised_together():
    checks = Checklist()
    checks.find(failing("compiler", BuildError("no compiler", hint="apt-get install g++")))
    checks.find(failing("labels", InputError("no labels", details="line 3")))
    with pytest.raises(BuildError, match="2 problems: compiler, labels") as caught:
        checks.raise_faults()
    assert caught.value.details.splitlines() == [
        "compiler: no compiler",
        "  hint: apt-get install g++",
        "labels: no labels",
        "  line 3",
    ]
    assert caught.value.hint == "apt-get install g++"
    with pytest.raises(BuildError, match=r"^2 obstacles on me@board; first: no compiler$"):
        checks.raise_faults("me@board")


def test_an_error_of_our_own_is_not_a_fault():
    with pytest.raises(ZeroDivisionError):
        Checklist().find(Check("x", lambda: 1 // 0))


def test_a_device_that_is_off_is_the_only_fault():
    checks = Checklist()
    device = checks.find(failing("device", DeviceError("off")))
    with pytest.raises(DeviceError, match=r"^off$"):
        checks.passed(device)
