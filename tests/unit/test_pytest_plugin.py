"""The plug-in of pytest, as far as it goes without a board: sessions on boards are in tests/integration."""

from __future__ import annotations

import contextlib
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
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert set(completed.stdout.split()) == {"toolchain", "toolchain.pytest_plugin"}


def test_a_session_without_its_fixtures_loads_nothing(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n"
        f"    assert not {{*{HEAVY!r}, 'toolchain.errors', 'toolchain.pipeline'}} & sys.modules.keys()\n"
    )
    argv = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "test_it.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    completed = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert completed.returncode == 0, completed.stdout


CLAIMS = "def pytest_addoption(parser): parser.addoption('--host', action='store_true', dest='theirs')\n"
GROUPED = (
    "def pytest_addoption(parser):\n"
    "    parser.getgroup('them').addoption('--wait', type=int, default=3, dest='their_wait')\n"
)
GIVEN = """
def test_it(request):
    given = request.config.option
    print("given", given.edge_host, given.edge_board, given.edge_wait, given.edge_package)
    print("theirs", getattr(given, "theirs", None), getattr(given, "their_wait", None))
"""


def session(folder: Path, *arguments: object, first: str = PLUGIN, then: str = "") -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder with our plug-in, and perhaps another one, in some order."""
    plugins = [argument for name in (first, then) if name for argument in ("-p", name)]
    argv = [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", "-q", "-s", *map(str, arguments)]
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_short_names_of_options_are_ours_where_nobody_else_has_them(tmp_path):
    (tmp_path / "a").mkdir()  # and no folder of tests
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(GIVEN)
    (tmp_path / "tests" / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--depth')\n")
    arguments = ("--host", "a", "--host=b", "--board", "rpi4", "--wait", "7", "--package", "a", "--depth", "3")
    completed = session(tmp_path, *arguments)
    assert "given ['a', 'b'] rpi4 7.0 a" in completed.stdout, completed.stdout + completed.stderr


@pytest.mark.parametrize("order", [(PLUGIN, "theirs"), ("theirs", PLUGIN)])
def test_options_of_another_plug_in_and_of_a_conftest_stay_theirs(tmp_path, order):
    """An option that two have ends all of somebody's sessions before they begin."""
    (tmp_path / "test_it.py").write_text(GIVEN)
    (tmp_path / "conftest.py").write_text(CLAIMS)
    (tmp_path / "theirs.py").write_text(GROUPED)
    arguments = ("--host", "--wait", "5", "--edge-host", "a", "--edge-wait", "7", "--board", "rpi4", "test_it.py")
    completed = session(tmp_path, *arguments, first=order[0], then=order[1])
    assert "given ['a'] rpi4 7.0 None" in completed.stdout, completed.stdout + completed.stderr
    assert "theirs True 5" in completed.stdout


@pytest.mark.parametrize(
    "arguments", [("--wait", "nan"), ("--wait=-5",), ("--wait", "inf"), ("--budget", "nan"), ("--budget", "x")]
)
def test_what_are_no_seconds_is_refused(tmp_path, arguments):
    (tmp_path / "test_it.py").write_text(GIVEN)
    completed = session(tmp_path, *arguments, "test_it.py")
    assert completed.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is not a number of seconds" in completed.stderr


def report_of(when: str, fault: BaseException, outcome: str = "failed") -> SimpleNamespace:
    """Return what the plug-in makes of a test that a fault ended."""
    call = SimpleNamespace(when=when, excinfo=SimpleNamespace(value=fault))
    hook = pytest_plugin.pytest_runtest_makereport(call)
    next(hook)
    try:
        hook.send(SimpleNamespace(when=when, outcome=outcome, failed=outcome == "failed", sections=[]))
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


NO_HOST = """
def test_it(board):
    pass
"""


def test_a_missing_host_is_an_error_and_no_traceback(tmp_path):
    (tmp_path / "test_it.py").write_text(NO_HOST)
    completed = session(tmp_path, "--board", "rpi4", "test_it.py")
    assert completed.returncode == pytest.ExitCode.TESTS_FAILED
    assert "error: which rpi4 device?" in completed.stdout
    assert "hint: give --host user@address[:port]" in completed.stdout
    assert "Traceback" not in completed.stdout
    assert "devices.py" not in completed.stdout


LOST = """
import pytest
from toolchain.errors import DeviceError

expected = getattr(pytest.mark, "xfail")

def lose():
    raise DeviceError("lost")

@expected(reason="it is slow")
def test_expected():
    lose()

@expected(strict=True, reason="it is slow")
def test_strictly():
    lose()

def test_of_another():
    try:
        lose()
    except DeviceError as fault:
        raise RuntimeError("it did not run") from fault

def test_of_a_group():
    try:
        lose()
    except DeviceError as fault:
        raise ExceptionGroup("all of these", [ValueError("x"), ExceptionGroup("inner", [fault])])

def test_a_failure():
    assert 1 == 2

@expected(reason="it is slow")
def test_an_expected_failure():
    assert 1 == 2
"""


def test_a_lost_board_is_an_error_however_it_is_told(tmp_path):
    (tmp_path / "test_it.py").write_text(LOST)
    completed = session(tmp_path, "-rA", "test_it.py").stdout
    assert "1 failed, 1 xfailed, 4 errors" in completed, completed


def test_what_a_device_says_steers_no_terminal():
    [(_, text)] = report_of("call", DeviceError("lost", details="\x1b[2Jgone")).sections
    assert text == "lost\n\\x1b[2Jgone"
    lines: list[str] = []
    reporter = SimpleNamespace(ensure_newline=lambda: None, write_line=lines.append)
    capture = SimpleNamespace(global_and_fixture_disabled=contextlib.nullcontext)
    plugins = {"terminalreporter": reporter, "capturemanager": capture}
    pytest_plugin._progress_writer(SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=plugins.get)))("\x1b[2Jann")
    assert lines == ["\\x1b[2Jann"]


HELD = """
import pytest
from toolchain import pytest_plugin
from toolchain.errors import DeviceError

class Held:
    lost = False

    def check(self):
        if self.lost:
            raise DeviceError("the lock is lost")

@pytest.fixture(scope="session")
def board(request):
    request.config.stash[pytest_plugin._RIG] = held = Held()
    return held

def test_before(board):
    pass

def test_it_is_lost(board):
    board.lost = True

def test_after(board):
    pass

def test_of_no_board():
    pass
"""


def test_tests_on_a_board_whose_lock_is_lost_are_errors(tmp_path):
    (tmp_path / "test_it.py").write_text(HELD)
    completed = session(tmp_path, "-rA", "test_it.py").stdout
    assert "2 passed, 2 errors" in completed, completed
    assert "ERROR test_it.py::test_it_is_lost" in completed
    assert "ERROR test_it.py::test_after" in completed


def test_what_workers_found_is_told_apart():
    properties: list[tuple[str, str]] = []
    report = SimpleNamespace(add_global_property=lambda name, value: properties.append((name, value)))
    config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugins=lambda: [report]))
    for number in range(2):
        node = SimpleNamespace(config=config, gateway=SimpleNamespace(id=f"gw{number}"))
        node.workeroutput = {"edge_toolchain": [("device", f"board-{number}")]}
        pytest_plugin.pytest_testnodedown(node)
    assert properties == [("device.gw0", "board-0"), ("device.gw1", "board-1")]


def gated(fault: ToolchainError | None) -> object:
    """Return what the fixture `gate` makes of what a gate ends with."""
    outcome = SimpleNamespace(fault=lambda: fault)
    calls = []

    def gate(base: str, settings: object) -> object:
        calls.append((base, settings.allow_emulated))
        return outcome

    gate = pytest_plugin.gate._get_wrapped_function()(SimpleNamespace(gate=gate))
    assert gate(Path("old.tar"), allow_emulated=True) is outcome
    assert calls == [("old.tar", True)]
    return outcome


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
