"""Lines about what is being waited for."""

from __future__ import annotations

import threading

from toolchain import progress


def test_a_long_wait_is_reported_again_and_again(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    lines, enough = [], threading.Event()

    def report(line):
        lines.append(line)
        if len(lines) == 3:
            enough.set()

    with progress.reminding(report, "the device"):
        assert enough.wait(30)
    assert all(line.startswith("waiting for the device, ") for line in lines)


def test_a_short_wait_is_not(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 30)
    lines = []
    with progress.reminding(lines.append, "the device"):
        pass
    assert lines == []
