"""The plug-in of pytest, as far as it goes without a board: sessions on boards are in tests/integration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.paths import ROOT
from tests.support.two_boards import PLUGIN
from tests.unit.test_architecture import HEAVY
from toolchain import pytest_plugin
from toolchain.errors import (
    BusyError,
    DeviceError,
    InconclusiveError,
    InputError,
    RegressionError,
    ToolchainError,
    VerificationError,
)


def test_it_loads_nothing_before_a_fixture_is_used():
    """Every run of pytest in an environment that has this package loads it."""
    code = (
        "import sys, pytest; before = set(sys.modules); import toolchain.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert set(found.stdout.split()) == {"toolchain", "toolchain.pytest_plugin"}


def test_a_session_without_its_fixtures_loads_nothing(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n"
        f"    assert not {{*{HEAVY!r}, 'toolchain.errors', 'toolchain.pipeline'}} & sys.modules.keys()\n"
    )
    argv = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "test_it.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert found.returncode == 0, found.stdout


def test_an_option_that_another_plug_in_has_gets_a_longer_name():
    taken = []

    def addoption(name: str, **how: object) -> None:
        if name == "--host":
            raise ValueError("option names {'--host'} already added")
        taken.append((name, how["dest"]))

    pytest_plugin.pytest_addoption(SimpleNamespace(getgroup=lambda *_: SimpleNamespace(addoption=addoption)))
    assert ("--edge-host", "edge_host") in taken
    assert ("--board", "edge_board") in taken


def report_of(when: str, fault: BaseException) -> SimpleNamespace:
    """Return what the plug-in makes of a test that a fault ended."""
    call = SimpleNamespace(excinfo=SimpleNamespace(value=fault))
    hook = pytest_plugin.pytest_runtest_makereport(call)
    next(hook)
    try:
        hook.send(SimpleNamespace(when=when, failed=True, sections=[]))
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the hook goes on")


@pytest.mark.parametrize(
    ("when", "fault", "expected"),
    [
        ("call", DeviceError("lost"), "setup"),
        ("call", BusyError("busy"), "setup"),
        ("setup", DeviceError("lost"), "setup"),
        ("call", VerificationError("wrong"), "call"),
        ("setup", VerificationError("wrong"), "call"),
        ("call", AssertionError("slow"), "call"),
        ("setup", InputError("no such board"), "setup"),
        ("teardown", DeviceError("lost"), "teardown"),
    ],
)
def test_what_is_an_error_and_what_a_failure(when, fault, expected):
    """Of a test whose board is lost nothing is known; a wrong release has failed, though a fixture found that."""
    assert report_of(when, fault).when == expected


def gated(fault: ToolchainError | None) -> object:
    """Return what the fixture `gate` makes of what a gate ends with."""
    found = SimpleNamespace(fault=lambda: fault)
    asked = []

    def gate(base: str, settings: object) -> object:
        asked.append((base, settings.allow_emulated))
        return found

    gate = pytest_plugin.gate._get_wrapped_function()(SimpleNamespace(gated=gate))
    assert gate(Path("old.tar"), allow_emulated=True) is found
    assert asked == [("old.tar", True)]
    return found


def test_a_gate_that_passes():
    assert gated(None)


def test_a_gates_regression_fails_the_test():
    with pytest.raises(RegressionError, match="slower"):
        gated(RegressionError("6 % slower", details="layer 3"))


def test_a_gate_that_cannot_tell_skips_the_test():
    with pytest.raises(pytest.skip.Exception, match="nobody can tell: noise"):
        gated(InconclusiveError("nobody can tell", details="noise"))


def test_what_the_toolchain_says_of_it_is_shown():
    [(title, text)] = report_of("call", DeviceError("lost", details="no route", hint="is it on?")).sections
    assert (title, text) == ("toolchain", "lost\nno route\nis it on?")
