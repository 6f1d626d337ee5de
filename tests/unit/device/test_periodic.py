"""A session with a runner that reports its progress: Ctrl-C, errors, and devices that print anything.

Real runs are in integration/test_bench_period.py.
"""

from __future__ import annotations

import pytest

from tests.support.periodic_reports import RATE
from toolchain import interrupts
from toolchain.device import periodic
from toolchain.errors import DeviceError, VerificationError
from toolchain.progress import Step

REPORT = '{"schema": 1}\n'


class Runner:
    """Stands in for a process on a device: it prints lines, or raises what a person's Ctrl-C raises."""

    def __init__(self, *lines: str | BaseException, code: int = 0, stderr: str = "") -> None:
        self.lines, self.code, self.stderr = list(lines), code, stderr
        self.written: list[str] = []

    def readline(self, _timeout: float) -> str:
        line = self.lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    def write(self, text: str) -> None:
        self.written.append(text)

    def close(self) -> int:
        return self.code


def report(running: Runner) -> tuple[str, list[str]]:
    lines: list[str] = []
    return periodic._Session(running, RATE, 10.0, "pi").report(lines.append), lines


def test_the_report_follows_the_progress():
    text, lines = report(Runner("periodic 0 0 0\n", "periodic 30 2 1000\n", REPORT))
    assert text == REPORT
    assert lines[0] == "running every 33 ms for 10 s"
    assert isinstance(lines[-1], Step)
    assert (lines[-1].done, lines[-1].total, "2 of 30 beyond" in lines[-1]) == (1.0, 10.0, True)


def test_ctrl_c_asks_for_the_result_so_far(monkeypatch):
    monkeypatch.setattr(interrupts, "_requests", [""])
    running = Runner("periodic 0 0 0\n", KeyboardInterrupt(), "periodic 31 2 1100\n", REPORT)
    assert report(running)[0] == REPORT
    assert running.written == ["stop\n"]
    interrupts.check()  # nothing is raised later


@pytest.mark.parametrize(
    "lines",
    [
        (KeyboardInterrupt(),),  # there is nothing to report
        ("periodic 0 0 0\n", KeyboardInterrupt("SIGTERM")),
        ("periodic 0 0 0\n", KeyboardInterrupt(), KeyboardInterrupt()),
    ],
)
def test_other_requests_end_the_command(lines):
    with pytest.raises(KeyboardInterrupt):
        report(Runner(*lines))


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (9, DeviceError, "pi does not allow --fifo or --mlock"),
        (7, VerificationError, "pi does not accept this release"),
        (5, DeviceError, "the model does not run on pi"),
    ],
)
def test_the_code_of_the_runner_is_explained(code, error, message):
    with pytest.raises(error, match=message) as fault:
        report(Runner("periodic 0 0 0\n", "", code=code, stderr="runner: why"))
    assert fault.value.details == "runner: why"


def test_runs_that_do_not_end_are_an_error(monkeypatch):
    monkeypatch.setattr(periodic, "_STOP_S", -1e6)
    with pytest.raises(DeviceError, match="do not end"):
        report(Runner("periodic 0 0 0\n", "periodic 1 0 1\n"))
