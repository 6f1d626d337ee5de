"""One lock of a device: two users' farms and a deploy on one board, a real SSH server with real board servers."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import bundles, sshd
from tests.support.labs import command
from tests.support.paths import ROOT
from toolchain import files
from toolchain.native import programs

TOOLCHAIN = (sys.executable, "-c", "from toolchain import cli; cli.main()")
TUNE = (
    *("tune", "mlp", "--no-compare", "--without", "all", "--op", "matmul", "--tuner", "random", "--board", "bench"),
    *("--trials", "6", "--number", "1", "--repeat", "1", "--min-repeat-ms", "0", "--cooldown", "0"),
)
AT = ("--board", "bench", "--host", "a")
BUSY = 75
LIMIT_S = 300.0


@dataclass(frozen=True)
class User:
    """Somebody with a farm and records of their own."""

    name: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LOGNAME": self.name,
            "TOOLCHAIN_CACHE": str(self.folder / self.name),
            "TOOLCHAIN_RECORDS": str(self.folder / f"{self.name}-records"),
            "TOOLCHAIN_BOARDS": str(self.folder),
            "TOOLCHAIN_DEVICES": str(self.folder / "devices.toml"),
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        argv = [*TOOLCHAIN, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(argv, env=self.environment, cwd=ROOT, text=True, **pipes)

    def run(self, *arguments: object) -> tuple[int, str]:
        """Run a command of the toolchain; return its exit code and what it said."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out + err

    def insist(self, *arguments: object) -> list[str]:
        """Run a command again and again for as long as the board is busy; return what it said each time."""
        messages, deadline = [], time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            code, text = self.run(*arguments)
            messages.append(text)
            if code != BUSY:
                assert code == 0, text
                return messages
        pytest.fail("\n".join(messages))


@dataclass(frozen=True)
class Bench:
    """A board and two users of it."""

    store: Path
    ann: User
    bob: User


@pytest.fixture(scope="module")
def bench(tmp_path_factory, native):
    folder = tmp_path_factory.mktemp("bench")
    for name in (programs.BOARD_SERVER, programs.RUNNER):
        programs.build(name, native.triple, native.machine)
    (folder / "bench.toml").write_text(
        f'description = "this machine, over SSH"\nconnection = "ssh"\nmachine = "{native.machine}"\n'
        f'triple = "{native.triple}"\ntoolchain = "host"\ncores = 1\n[target]\nmcpu = "generic"\n'
    )
    users = User("ann", folder), User("bob", folder)
    for user in users:
        (folder / user.name).mkdir()
        for name in ("device", "zig"):  # what takes minutes to build is shared
            (folder / user.name / name).symlink_to(files.cache_root() / name)
    with sshd.running(folder / "a"):
        (folder / "devices.toml").write_text(
            '[devices.a]\nboard = "bench"\nhost = "board"\nssh_config = "a/ssh_config"\nemulated = true\n'
            f'root = "{folder}/store"\n'
        )
        try:
            yield Bench(folder / "store", *users)
        finally:
            for user in users:
                assert user.run("farm", "down")[0] == 0


@pytest.fixture(scope="module")
def tiny(tiny, tmp_path_factory):
    """As a bundle for that board."""
    return bundles.variant(tiny, tmp_path_factory.mktemp("for-bench") / "bundle", {}, board="bench")


@pytest.fixture
def farms(bench):
    """The board, served by both users' farms, and free."""
    for user in (bench.ann, bench.bob):
        code, text = user.run("farm", "up")
        assert code == 0, text
    return bench


# --- who is told what ------------------------------------------------------------------------------------------------


def test_a_board_that_is_locked_by_hand_is_locked_for_everybody(farms, tiny):
    code, text = farms.ann.run("farm", "lock", "a", "--for", "10m")
    assert code == 0, text
    for arguments in (("deploy", tiny.folder, *AT), ("farm", "lock", "a"), ("rollback", *AT)):
        code, text = farms.bob.run(*arguments)
        assert code == BUSY, text
        assert re.search(r"busy: in use by ann@\S+ pid \d+: toolchain farm lock until \d\d:\d\d", text), text
        assert re.search(r"since \d\d:\d\d:\d\d, for \d+ s by now", text), text
        assert "`toolchain farm release a` on that machine ends it" in text
    code, text = farms.ann.run("farm", "release", "a")
    assert code == 0, text
    code, text = farms.bob.run("deploy", tiny.folder, *AT, "--budget", "0.1")
    assert code == 0, text


def test_a_command_that_has_a_board_for_itself_deploys_to_it(farms, tiny):
    inner = ("deploy", tiny.folder, *AT, "--budget", "0.1")
    code, text = farms.ann.run("farm", "lock", "a", "--", *TOOLCHAIN, *inner)
    assert code == 0, text


# --- all at once -----------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Looks what runs on the board: who holds its lock, whose sessions there are, whether a model runs."""

    store: Path
    clashes: list[str] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    looks: int = 0

    def look(self) -> None:
        work = self._work()
        owner = self._owner()
        if len(work) > 1:
            self.clashes.append(f"{owner}: {work}")
        if owner and owner != (self.owners or [""])[-1]:
            self.owners.append(owner)
        self.looks += 1

    def _work(self) -> set[str]:
        """Name what measures: each farm's board server that has a session, and a runner."""
        processes = {}
        for stat in Path("/proc").glob("[0-9]*"):
            command_line = command(int(stat.name))
            if command_line.startswith(str(self.store).encode()):
                with contextlib.suppress(OSError, IndexError):
                    parent = (stat / "stat").read_text().rpartition(")")[2].split()[1]
                    processes[stat.name] = (command_line, parent)
        sessions = {
            f"board server {parent}"
            for command_line, parent in processes.values()
            if b"--socket" in command_line and parent in processes
        }
        return sessions | {
            "runner"
            for command_line, _ in processes.values()
            if command_line.startswith(f"{self.store}/runners".encode())
        }

    def _owner(self) -> str:
        with contextlib.suppress(OSError):
            fields = (self.store / "lock").read_text().split("\t")
            return " ".join(fields[:2]).split(" ", 3)[-1]
        return ""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.01):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def test_two_farms_tune_and_a_third_one_deploys_at_once(farms, tiny):
    """Each waits or is told who is there, and no trial is measured beside other work."""
    messages: dict[str, Sequence[str]] = {}

    def insist(user: User, label: str, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=lambda: messages.update({label: user.insist(*arguments)}), daemon=True)
        thread.start()
        return thread

    watch = Watch(farms.store)
    with watch.watching():
        deploy = ("deploy", tiny.folder, *AT, "--budget", "0.3")
        threads = [
            insist(farms.ann, "ann tunes", *TUNE),
            insist(farms.bob, "bob tunes", *TUNE),
            insist(farms.bob, "bob deploys", *deploy),
        ]
        for thread in threads:
            thread.join(LIMIT_S)
    assert messages.keys() == {"ann tunes", "bob tunes", "bob deploys"}
    who = re.compile(r"in use by (ann|bob)@\S+.*: (tune mlp|deploy|bench|start the board server)|a is leased by bob@")
    assert [text for texts in messages.values() for text in texts[:-1] if not who.search(text)] == []
    assert watch.clashes == []
    assert watch.looks > 20
    assert {owner.split("@")[0] for owner in watch.owners} == {"ann", "bob"}, watch.owners
    for user in (farms.ann, farms.bob):
        lines = (user.folder / f"{user.name}-records" / "bench.jsonl").read_text().splitlines()
        assert len(lines) >= 6
