"""One owner per board: every command that measures or changes one beside every other, with and without a farm."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_device_lock import Watch
from tests.support import bundles, two_boards
from tests.support.two_boards import KIND, Boards
from toolchain.cli import cli
from toolchain.device import lock
from toolchain.device.lock import Owner
from toolchain.errors import BusyError

ALL_PAIRS = bool(os.environ.get("TOOLCHAIN_OWNER_PAIRS"))
GATES = int(os.environ.get("TOOLCHAIN_OWNER_GATES", "2"))
RACES = int(os.environ.get("TOOLCHAIN_OWNER_RACES", "1"))
TOOLCHAIN = (sys.executable, "-c", "from toolchain import cli; cli.main()")
AT = ("--board", KIND, "--host", "a")
GATE = ("--retrained", "--allow-emulated", "--round-ms", "60000")
BUSY, LIMIT_S = 75, 300.0
TUNE = (
    *("tune", "mlp", "--no-compare", "--without", "all", "--op", "matmul", "--tuner", "random"),
    *("--number", "1", "--repeat", "1"),
    *("--min-repeat-ms", "0", "--cooldown", "0"),
)


@dataclass(frozen=True)
class Bench:
    """A board of which somebody has a package deployed, and a folder for what commands write."""

    boards: Boards
    package: Path
    base: Path
    folder: Path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        environment = {**self.boards.environment, "TOOLCHAIN_RECORDS": str(self.folder / "records")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(
            [*TOOLCHAIN, *map(str, arguments)], env=environment, cwd=self.folder, text=True, **pipes
        )

    def run(self, *arguments: object) -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    @property
    def commands(self) -> dict[str, tuple[object, ...]]:
        """Each command that needs the board for itself, so that it holds it for as long as it is let."""
        many = self.folder / "many.npz"
        return {
            "deploy": ("deploy", self.package, *AT, "--budget", "100"),
            "bench": ("bench", *AT, "--budget", "100"),
            "run": ("run", *AT, "--input", many, "-o", self.folder / "outputs.npz"),
            "tune": (*TUNE, *AT, "--trials", "5000"),
            "farm lock": ("farm", "lock", "a", "--", "sleep", "100"),
            "rollback": ("rollback", *AT),
            "hardware": ("hardware", *AT),
            "survey": ("survey", "mlp", *AT, "--trials", "1"),
            "compare": ("compare", "mlp", *AT),
            "gate": (*("gate", self.package, "--base", self.base, *AT), *GATE),
        }


OWNERS = {"tune": "tune mlp", "farm lock": "sleep 100"}
"""How a command is called in the lock, where that is not its name."""
HOLDERS = ("deploy", "bench", "run", "tune", "gate", "farm lock")
SEEKERS = ("deploy", "bench", "run", "tune", "gate", "rollback", "hardware", "survey", "compare")
"""What can be made to last, and what is tried meanwhile: all that takes the lock, however short."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory, native):
    folder = tmp_path_factory.mktemp("owner")
    slow = bundles.build(tmp_path_factory.mktemp("built"), 2048, 2048)  # 10,000 runs of it take many seconds
    package = bundles.variant(slow, folder / "bundle", {}, board=KIND)
    [spec] = package.manifest.inputs
    np.savez_compressed(folder / "many.npz", **{spec.name: np.zeros((8000, *spec.shape), spec.dtype)})
    with two_boards.running(tmp_path_factory.mktemp("boards"), native) as boards:
        base = bundles.reweighted(package, folder / "base", 2)
        started = Bench(boards, package.folder, base.folder, folder)
        code, _, err = started.run("deploy", package.folder, *AT, "--budget", "0.05")
        assert code == 0, err
        code, _, err = started.run(*TUNE, *AT, "--trials", "2")  # for `compare`, which wants records
        assert code == 0, err
        yield started


@pytest.fixture
def farm(bench):
    """The farm, which serves the board."""
    code, _, err = bench.run("farm", "up", "a")
    assert code == 0, err
    yield
    code, _, err = bench.run("farm", "down")
    assert code == 0, err


@contextlib.contextmanager
def holding(bench: Bench, name: str) -> Iterator[subprocess.Popen[str]]:
    """Let a command have the board for the time of a block."""
    with bench.start(*bench.commands[name]) as process:
        try:
            while OWNERS.get(name, name) not in owner(bench):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.02)
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def heard(process: subprocess.Popen[str], whom: str) -> None:
    """Wait until a command says whom it waits for."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if whom in line and "waiting for up to" in line:
            return
    raise AssertionError("".join(lines))


def owner(bench: Bench) -> str:
    """Return for what the board is held just now; empty if it is free."""
    if bench.boards.is_free("a"):
        return ""
    with contextlib.suppress(OSError, IndexError):
        return (bench.boards.folder / "store-a" / "lock").read_text().split("\t")[1]
    return ""


def pairs() -> list[tuple[str, tuple[str, ...]]]:
    """Say which commands are tried while which one has the board: all, or so that each is there once."""
    if ALL_PAIRS:
        return [(holder, SEEKERS) for holder in HOLDERS]
    each = [SEEKERS[number :: len(HOLDERS)] for number in range(len(HOLDERS))]
    return list(zip(HOLDERS, each, strict=True))


@pytest.mark.parametrize(("holder", "seekers"), pairs())
def test_the_second_is_refused(request, bench, monkeypatch, holder, seekers):
    """The second is no process of its own here: that costs seconds, and others below are."""
    for name in ("TOOLCHAIN_BOARDS", "TOOLCHAIN_DEVICES"):
        monkeypatch.setenv(name, bench.boards.environment[name])
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(bench.folder / "records"))
    if holder == "farm lock":
        request.getfixturevalue("farm")
    with holding(bench, holder) as first:
        for seeker in seekers:
            with pytest.raises(BusyError) as caught:
                cli.main(list(map(str, bench.commands[seeker])), standalone_mode=False)
            assert first.poll() is None, f"{holder} ended by itself: {first.stderr.read()}"
            message = caught.value.message + caught.value.details
            assert re.search(rf"in use by .*: {OWNERS.get(holder, holder)}|is leased by .*sleep 100", message), (
                seeker,
                message,
            )


def test_the_second_waits(bench):
    with holding(bench, "tune") as first:
        second = bench.start("bench", *AT, "--budget", "0.05", "--wait", "200", "--json", "-")
        heard(second, "tune mlp")
        first.send_signal(signal.SIGINT)
        with second:
            out, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, err
    [waited] = [waiting for waiting in json.loads(out)["waited"] if "tune mlp" in waiting["owner"]]
    assert waited["seconds"] > 0


def test_a_tuning_run_waits(bench):
    with bench.boards.store("a").lock(Owner("ann@desk", "deploy")) as lock:
        second = bench.start(*TUNE, *AT, "--trials", "3", "--wait", "200", "--json")
        with second:
            heard(second, "in use by ann@desk: deploy")
            lock._holder.close()
            out, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, err
    assert [waiting["owner"] for waiting in json.loads(out)["waited"]] == ["ann@desk: deploy"]


def test_who_waits_in_vain_says_so(bench):
    with bench.boards.store("a").lock(Owner("ann@desk", "deploy")):
        code, _, err = bench.run("bench", *AT, "--wait", "0.5")
    assert code == BUSY
    assert re.search(r"this command waited \d s for ann@desk: deploy", err), err


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_who_is_interrupted_while_waiting_leaves_nothing(bench, command):
    with bench.boards.store("a").lock(Owner("ann@desk", "deploy")):
        process = bench.start(*bench.commands[command], "--wait", "100")
        with process:
            heard(process, "in use by ann@desk: deploy")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        assert "deploy" in owner(bench)
    assert bench.boards.is_free("a")


def test_what_works_inside_of_a_lock_excludes_each_other_too(bench, farm):
    """Under `farm lock NAME -- CMD` a tuning run uses the lease that is there, and still has the board for itself."""
    inner = Path(bench.folder / "inner.py")
    inner.write_text(
        "import subprocess, sys, time, pathlib\n"
        f"tool = {TOOLCHAIN!r}\n"
        f"first = subprocess.Popen([*tool, *{(*TUNE, *AT, '--trials', '5000')!r}])\n"
        f"note = pathlib.Path({str(bench.boards.folder / 'store-a' / 'lock.within')!r})\n"
        "while not note.exists() or 'tune mlp' not in note.read_text():\n"
        "    assert first.poll() is None\n"
        "    time.sleep(0.05)\n"
        f"found = subprocess.run([*tool, *{('bench', *AT)!r}], capture_output=True, text=True)\n"
        "first.send_signal(2)\n"
        "first.wait()\n"
        "print(found.stderr)\n"
        "sys.exit(found.returncode)\n"
    )
    code, out, err = bench.run("farm", "lock", "a", "--", sys.executable, inner)
    assert code == BUSY, (out, err)
    assert ": tune mlp" in out


@pytest.mark.parametrize("number", range(RACES))
def test_a_race(bench, number):
    """Whoever is second waits or is refused, whichever of the two that is, and nothing runs beside anything."""
    stream = random.Random(number)  # noqa: S311 - the same races each time
    watch = Watch(bench.boards.folder / "store-a")
    patience = ("--wait", "200") if number % 2 else ()
    tune = (*TUNE, *AT, "--trials", "2", "--records", bench.folder / f"race-{number}.jsonl", *patience)
    measure = ("bench", *AT, "--budget", "0.3", *patience)
    first, second = stream.sample([tune, measure], 2)
    with watch.watching(), bench.start(*first) as process:
        time.sleep(stream.uniform(0.0, 4.0))
        with bench.start(*second) as other:
            errors = [process.communicate(timeout=LIMIT_S)[1] for process in (other, process)]
    codes = [other.returncode, process.returncode]
    assert watch.clashes == []
    assert set(codes) <= ({0} if patience else {0, BUSY}), errors
    assert 0 in codes, errors
    assert bench.boards.is_free("a")


@pytest.mark.parametrize("first", ["tune", "gate"])
def test_tune_and_gate_on_one_board(bench, monkeypatch, first):
    """The second is refused, at once or after it has waited: each of many times."""
    for name in ("TOOLCHAIN_BOARDS", "TOOLCHAIN_DEVICES"):
        monkeypatch.setenv(name, bench.boards.environment[name])
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(bench.folder / "records"))
    second = "gate" if first == "tune" else "tune"
    with holding(bench, first) as holder:
        for number in range(GATES):
            command = list(map(str, bench.commands[second]))
            patience = ["--wait", "0.2"] if number % 2 else []
            with pytest.raises(BusyError, match=OWNERS.get(first, first)) as caught:
                cli.main([*command, *patience], standalone_mode=False)
            assert ("this command waited" in caught.value.details) == bool(patience)
            assert holder.poll() is None, holder.stderr.read()


def test_the_variable_of_an_inner_lock_is_no_secret_of_others(bench, monkeypatch):
    """Who has no lease gets nothing from a token that is made up."""
    monkeypatch.setenv(lock.WITHIN, "ab12")
    with bench.boards.store("a").lock(Owner("ann@desk", "deploy")):
        code, _, err = bench.run("bench", *AT)
    assert code == BUSY, err
