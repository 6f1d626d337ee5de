"""What is slow to make and safe to share: it is made once in a test session, and nobody changes it."""

from __future__ import annotations

import logging

import pytest

from toolchain import board, device_runtime

_LEFT_OUT = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def native():
    """The board type of this machine."""
    return board.load("local").resolved()


@pytest.fixture
def stock_logging():
    """Forget how a search of TVM itself set up logging: it trips over that when it does so again in one process."""
    yield
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("tvm"):
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).setLevel(logging.NOTSET)
            logging.getLogger(name).propagate = True  # pytest hangs a nameless handler on one that does not


@pytest.fixture(scope="session")
def program(native):
    """The runner for this machine; it comes from the user's cache if it was built before."""
    return device_runtime.build(native.triple, native.machine).runner


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A bundle of a few hundred bytes of weights."""
    from tests import bundles  # TVM takes two seconds that most tests need not spend

    return bundles.build(tmp_path_factory.mktemp("tiny"), rows=8, columns=4)


@pytest.fixture(scope="session")
def bulky(tmp_path_factory):
    """Two bundles that differ in 4 MiB of weights, so that their uploads take a moment."""
    from tests import bundles

    folder = tmp_path_factory.mktemp("bulky")
    first = bundles.build(folder, rows=512, columns=2048)
    return first, bundles.reweighted(first, folder / "other", seed=7)


@pytest.fixture(scope="session")
def virtual_boards(tmp_path_factory):
    """One rpi4 and one pynq, emulated; they answer over SSH."""
    from tests import boards

    with boards.running(tmp_path_factory.mktemp("farm")) as farm:
        yield farm


def pytest_terminal_summary(terminalreporter):
    """Say in one line what was left out and what brings it; strict runs leave nothing out."""
    skipped = [report.longrepr[2] for report in terminalreporter.getreports("skipped")]
    parts = sorted({text.partition("left out: ")[2] for text in skipped if "left out: " in text})
    terminalreporter.config.stash[_LEFT_OUT] = "; ".join(parts)


def pytest_unconfigure(config):
    """Put that line at the very end, under pytest's own totals, where it is seen."""
    parts = config.stash.get(_LEFT_OUT, "")
    if parts:
        config.get_terminal_writer().line(f"left out: {parts}")
