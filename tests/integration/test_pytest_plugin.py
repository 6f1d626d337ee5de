"""Tests of somebody's own project on boards: real sessions of pytest, alone and with workers, that end in all ways."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support import bundles, junit, two_boards
from tests.support.two_boards import KIND, NAMES
from toolchain.bundle import Bundle
from toolchain.device.lock import Owner

KILLS = int(os.environ.get("TOOLCHAIN_PYTEST_KILLS", "2"))
TESTS = int(os.environ.get("TOOLCHAIN_PYTEST_TESTS", "24"))
SHOWN = Path(os.environ["TOOLCHAIN_PYTEST_LOG"]) if "TOOLCHAIN_PYTEST_LOG" in os.environ else None
"""Where a campaign wants to have how long each board took to be free."""
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def boards(tmp_path_factory, native):
    with two_boards.running(tmp_path_factory.mktemp("boards"), native) as pair_of_boards:
        yield pair_of_boards


@pytest.fixture(scope="module")
def package(tiny, tmp_path_factory) -> Bundle:
    return bundles.variant(tiny, tmp_path_factory.mktemp("package") / "bundle", {}, board=KIND)


@pytest.fixture
def project(tmp_path):
    """A project with one file of tests, which a test writes."""

    def write(text: str) -> Path:
        (tmp_path / "test_model.py").write_text(text)
        return tmp_path

    return write


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        out, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, out


MODEL = """
import numpy as np

def inputs(release):
    return {one.name: np.ones(one.shape, one.dtype) for one in release.manifest.inputs}

def test_it_is_what_was_built(release):
    assert release.digest.startswith("sha256:")
    assert release.emulated

def test_it_computes(release):
    first, second = release.run(inputs(release)), release.run(inputs(release))
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)

def test_it_is_fast_enough(release, board):
    assert release.latency.median < 60_000
    assert board.emulated
"""


def test_a_release_is_tested(boards, package, project, tmp_path):
    code, output = ended(
        boards.pytest(project(MODEL), "--host", "a", "--package", package.folder, "--budget", "0.1", "--junitxml=r.xml")
    )
    assert code == 0, output
    suite = ET.parse(tmp_path / "r.xml").getroot()  # noqa: S314 - of a test of ours
    assert junit.faults(suite) == []
    properties = junit.properties(suite)
    assert properties.keys() == {"board", "device", "emulated", "waited", "release", "median_ms"}
    assert properties["board"] == [KIND]
    assert properties["release"] == [f"sha256:{package.digest}"]
    assert properties["emulated"] == ["true"]
    assert properties["waited"] == ["0"]
    assert float(properties["median_ms"][0]) > 0
    assert boards.await_free() < 30
    assert boards.store("a").releases.current().digest == package.digest


LOST = """
import pathlib, time
import numpy as np

def run(release):
    return release.run({one.name: np.ones(one.shape, one.dtype) for one in release.manifest.inputs})

def test_before(board):
    pass

def test_the_board_is_lost(release):
    pathlib.Path("ready").touch()
    while not pathlib.Path("gone").exists():
        time.sleep(0.02)
    run(release)

def test_another_one(release):
    run(release)

def test_a_failure_is_one():
    assert 1 == 2
"""


def test_a_board_that_is_lost_in_a_test_is_an_error(boards, package, project, tmp_path):
    folder = project(LOST)
    process = boards.pytest(folder, "--host", "b", "--package", package.folder, "--budget", "0.1", "--junitxml=r.xml")
    with process:
        while not (folder / "ready").exists():
            assert process.poll() is None, process.stdout.read()
        boards.servers["b"].kill_sessions()
        (folder / "gone").touch()
        out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, out
    assert re.search(r"1 failed, 1 passed, 2 errors", out), out
    suite = ET.parse(tmp_path / "r.xml").getroot()  # noqa: S314
    assert junit.faults(suite) == []
    [inner] = suite.iter("testsuite")
    assert [inner.get(name) for name in ("tests", "failures", "errors")] == ["4", "1", "2"]
    kinds = {case.get("name"): [child.tag for child in case] for case in inner.iter("testcase")}
    assert kinds["test_the_board_is_lost"] == kinds["test_another_one"] == ["error"]
    assert kinds["test_a_failure_is_one"] == ["failure"]


GATED = """
from toolchain.stats import Rule

FEW = Rule(least=9.0, worst=9.0, looks=(8,))  # ten times slower: no machine is that busy

def test_it_is_no_slower(gate):
    found = gate({base!r}, rule=FEW, retrained=True, allow_emulated=True, round_s=0.02)
    assert len(found.rounds) >= 8

def test_it_computes_the_same(gate):
    gate({base!r}, rule=FEW, allow_emulated=True, round_s=0.02)
"""


def test_a_release_is_held_against_its_base(boards, package, project, tmp_path):
    """A package with other weights is as fast, and no replacement."""
    base = bundles.reweighted(package, tmp_path / "base", 2)
    folder = project(GATED.format(base=str(base.folder)))
    options = ("--host", "a", "--package", package.folder, "--budget", "0.1", "-rA", "--timeout", LIMIT_S)
    code, output = ended(boards.pytest(folder, *options))
    assert code == 1, output
    assert "PASSED test_model.py::test_it_is_no_slower" in output, output
    assert "FAILED test_model.py::test_it_computes_the_same" in output, output
    boards.await_free()


WRONG = """
def test_it(release):
    pass
"""


def test_a_release_that_is_wrong_is_a_failure(boards, tiny, project):
    code, output = ended(boards.pytest(project(WRONG), "--host", "a", "--package", tiny.folder))
    assert code == 1
    assert "1 failed" in output, output
    assert "was built for" in output


def test_options_that_are_wrong(boards, project):
    code, output = ended(boards.pytest(project(WRONG), "--host", "a"))
    assert (code, "needs --package" in output) == (1, True), output


# --- one at a time ---------------------------------------------------------------------------------------------------

OVERLAP = """
import os, time, pytest

@pytest.mark.parametrize("number", range({count}))
def test_one(board, number):
    began = time.monotonic()
    time.sleep(0.01)
    line = f"{{board.store.root}} {{began}} {{time.monotonic()}}\\n"
    sink = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(sink, line.encode())
    os.close(sink)
"""


def test_no_two_tests_are_on_a_board_at_once(boards, project, tmp_path):
    """Four workers, and two boards: two wait until the others have ended."""
    log = tmp_path / "log"
    folder = project(OVERLAP.format(count=TESTS, log=str(log)))
    code, output = ended(boards.pytest(folder, "-n", "4", "--wait", "250", "--junitxml=r.xml"))
    assert code == 0, output
    spans: dict[str, list[tuple[float, float]]] = {}
    for line in log.read_text().splitlines():
        root, began, end = line.split()
        spans.setdefault(root, []).append((float(began), float(end)))
    assert sum(map(len, spans.values())) == TESTS
    assert spans.keys() == {str(boards.folder / f"store-{name}") for name in NAMES}
    for each in spans.values():
        each.sort()
        assert [pair for pair in pairwise(each) if pair[0][1] > pair[1][0]] == []
    suite = ET.parse(tmp_path / "r.xml").getroot()  # noqa: S314
    assert junit.faults(suite) == []
    properties = junit.properties(suite)
    assert {f"{name}.gw{number}" for name in ("device", "board", "waited") for number in range(4)} <= properties.keys()
    boards.await_free()


def test_whoever_waits_says_for_whom(boards, project, tmp_path):
    with boards.store("a").lock(Owner("ann@desk", "tune mlp")) as lock:
        folder = project("def test_it(board): pass")
        with boards.pytest(folder, "--host", "a", "--wait", "200", "--junitxml=r.xml") as process:
            heard = any("in use by ann@desk: tune mlp" in line and "waiting for" in line for line in process.stdout)
            lock._holder.close()
            out, _ = process.communicate(timeout=LIMIT_S)
    assert heard
    assert process.returncode == 0, out
    suite = ET.parse(tmp_path / "r.xml").getroot()  # noqa: S314
    assert re.fullmatch(r"\S+ s: ann@desk: tune mlp", junit.properties(suite)["waited"][0])


def test_whoever_does_not_wait_is_told_who_is_there(boards, project):
    with boards.store("a").lock(Owner("ann@desk", "tune mlp")), boards.store("b").lock(Owner("bob@desk", "deploy")):
        code, output = ended(boards.pytest(project("def test_it(board): pass")))
    assert code == 1
    assert "1 error" in output
    assert "ann@desk: tune mlp" in output
    assert "bob@desk: deploy" in output


def test_the_one_that_is_free_is_taken(boards, project):
    with boards.store("a").lock(Owner("ann@desk", "tune mlp")):
        text = "def test_it(board): assert board.store.root.endswith('store-b')"
        code, output = ended(boards.pytest(project(text)))
    assert code == 0, output


# --- ended in all ways -----------------------------------------------------------------------------------------------

SLEEPS = """
import pathlib, time

def test_it(board):
    pathlib.Path(board.store.root + ".held").touch()
    time.sleep(600)

def test_it_too(board):
    pathlib.Path(board.store.root + ".held").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_session_frees_its_boards(boards, project, number):
    workers = ("-n", "2") if number % 2 else ("-n", "0")
    process = boards.pytest(project(SLEEPS), *workers)
    marks = [boards.folder / f"store-{name}.held" for name in NAMES]
    with process:
        while sum(mark.exists() for mark in marks) < 1 + number % 2:
            assert process.poll() is None, process.stdout.read()
        assert not all(map(boards.is_free, NAMES))
        process.kill()
        try:
            seconds = boards.await_free()
        finally:
            with contextlib.suppress(ProcessLookupError):  # a worker that did not notice
                os.killpg(process.pid, signal.SIGKILL)
    for mark in marks:
        mark.unlink(missing_ok=True)
    with SHOWN.open("a") if SHOWN else contextlib.nullcontext() as sink:
        if sink:
            sink.write(f"{' '.join(workers)} free after {seconds:.2f} s\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_session_that_is_told_to_end_frees_its_board(boards, project, number):
    process = boards.pytest(project(SLEEPS), "--host", "a")
    mark = boards.folder / "store-a.held"
    with process:
        while not mark.exists():
            assert process.poll() is None, process.stdout.read()
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    mark.unlink()
    assert process.returncode == 2, out
    assert boards.is_free("a")
