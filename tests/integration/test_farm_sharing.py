"""A farm that several share: real SSH, real board servers, real tunings, a client that is stopped, a second farm."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import labs, sshd
from tests.support.commands import toolchain
from tests.support.greetings import MAGIC, ended, greet
from tests.support.labs import SOON_S, Lab, board_servers, daemon, states, status, until
from toolchain.device.waiting import Patience
from toolchain.errors import BusyError
from toolchain.farm import leases, protocol
from toolchain.records import RecordFile

NAMES = ("a", "b", "c")
TOOLCHAIN = (sys.executable, "-c", "from toolchain import cli; cli.main()")
TUNE = (
    *("tune", "mlp", "--board", "bench", "--without", "all", "--op", "matmul", "--tuner", "random", "--trials", "5000"),
    *("--number", "1", "--repeat", "1", "--min-repeat-ms", "0", "--cooldown", "0.5"),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory, native):
    folder, cache = tmp_path_factory.mktemp("lab"), labs.cache(tmp_path_factory.mktemp("cache"), native)
    labs.board_types(folder, "over SSH", {"bench": labs.ours(native)})
    with contextlib.ExitStack() as stack:
        servers = tuple(stack.enter_context(sshd.running(folder / name)) for name in NAMES)
        (folder / "devices.toml").write_text(
            "".join(
                f'[devices.{name}]\nboard = "bench"\nhost = "board"\nssh_config = "{name}/ssh_config"\n'
                f'root = "{folder}/{name}/store"\nemulated = true\n'
                for name in NAMES
            )
        )
        yield Lab(folder, cache, servers)


@pytest.fixture
def farm(lab, monkeypatch):
    """Serve all devices, and nobody has one."""
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(lab.cache))
    monkeypatch.setenv("TOOLCHAIN_BOARDS", str(lab.folder / "boards"))
    monkeypatch.setenv("TOOLCHAIN_DEVICES", str(lab.folder / "devices.toml"))
    up()
    until(lambda: states() == dict.fromkeys(NAMES, "free"))
    yield lab
    assert toolchain("farm", "down").code == 0
    until(lambda: not board_servers(lab))


def up(*names: str) -> None:
    outcome = toolchain("farm", "up", *names)
    assert outcome.code == 0, outcome.err


@contextlib.contextmanager
def other_farm(lab: Lab, native, folder: Path) -> Iterator[None]:
    """Let this process be another user, who has a farm of their own, for the time of a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLCHAIN_CACHE", str(labs.cache(folder, native)))
        up("a")
        yield
        assert toolchain("farm", "down").code == 0


# --- two farms and one device ---


def test_a_second_farm_sees_a_leased_device_as_busy_and_never_measures_beside(farm, native, tmp_path):
    with contextlib.ExitStack() as other:
        other.enter_context(other_farm(farm, native, tmp_path))
        first = os.environ["TOOLCHAIN_CACHE"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOOLCHAIN_CACHE", str(farm.cache))
            lease = leases.lease("bench", ["a"], who="the first")
        assert os.environ["TOOLCHAIN_CACHE"] == first
        with lease:
            with pytest.raises(BusyError, match="the first"):
                leases.lease("bench", ["a"], wait=0.5)
            for command in (["farm", "lock", "a"], ["tune", "mlp", "--board", "bench", "--host", "a"]):
                outcome = toolchain(*command)
                assert (outcome.code, "the first" in outcome.err) == (75, True), outcome.err
            assert states() == {"a": "busy"}
            assert toolchain("farm", "up").code == 0  # it serves the device as well as it can be served
            assert "the first" in status()["a"]["fault"]["message"]
        with leases.lease("bench", ["a"], who="the second") as mine:
            assert [board.name for board in mine.boards] == ["a"]


# --- a client that is stopped ---

CLIENT = """
    import sys, time
    from tests.support.greetings import MAGIC, ended, greet
    from toolchain.errors import BusyError
    from toolchain.farm import leases
    with leases.lease("bench", ["a"], who="the sleeper") as lease:
        link = lease.dial("a", 60)
        assert greet(link, f"client:{lease.boards[0].key}") == MAGIC
        print("ready", flush=True)
        sys.stdin.readline()
        print(ended(link), flush=True)
        try:
            lease.dial("a", 60)
        except BusyError as fault:
            print(fault.message, flush=True)
"""


def test_a_stopped_client_loses_its_boards_and_learns_it_when_it_wakes_up(farm):
    argv = [sys.executable, "-c", textwrap.dedent(CLIENT)]
    with contextlib.ExitStack() as stack:
        sleeper = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        stack.callback(sleeper.kill)
        assert sleeper.stdout.readline() == "ready\n"
        sleeper.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        patience = Patience(3 * protocol.EXPIRE_S)
        lease = stack.enter_context(leases.lease("bench", ["a"], patience=patience))
        assert time.monotonic() - began > protocol.EXPIRE_S - 2 * protocol.HEARTBEAT_S
        assert "the sleeper" in patience.waited[0].owner
        link = stack.enter_context(lease.dial("a", 60))
        assert greet(link, f"client:{lease.boards[0].key}") == MAGIC
        sleeper.send_signal(signal.SIGCONT)
        out, _ = sleeper.communicate("go on\n", timeout=60)
        assert out.splitlines()[0] == "True"
        assert "the lease is over: its client gave no sign of life" in out.splitlines()[1]
        with pytest.raises(TimeoutError):
            ended(link, timeout=0.5)


# --- tunings ---


class Tuning:
    """A `toolchain tune` that lasts until it is ended."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.records, self.log = folder / "records.jsonl", folder / "log"
        argv = [*TOOLCHAIN, *TUNE, "--records", str(self.records), *arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def said(self) -> str:
        return self.log.read_text()

    def measured_on(self) -> set[str]:
        if not self.records.exists():
            return set()
        return {trial.board for trial in RecordFile(self.records).read().trials}


@pytest.fixture
def tuning(farm, tmp_path):
    """A tuning on two boards of three."""
    tuning_run = Tuning(tmp_path, "--boards", "2")
    yield tuning_run
    tuning_run.process.kill()
    tuning_run.process.wait()


def test_a_tuning_shares_its_boards_and_knows_at_once_when_it_loses_them(farm, tuning):
    until(lambda: tuning.measured_on() == {"a", "b"}, 3 * SOON_S)
    assert states() == {"a": "leased", "b": "leased", "c": "free"}
    messages: list[str] = []
    with leases.lease("bench", ["a"], who="a test", patience=Patience(100, messages.append)):
        assert re.match(
            r"a is not free: .* pid \d+: tune mlp; place 1 of 1 in the queue; waiting for up to", messages[0]
        )
        assert "a: returned to the farm after its trial, because others wait" in tuning.said()
        until(lambda: tuning.measured_on() == {"a", "b", "c"})  # it may have two, and takes the third in its place
        assert toolchain("farm", "release", "b").code == 0
        until(lambda: "b: the lease of b was ended by its owner" in tuning.said())
    until(lambda: tuning.said().count("a: joins"))  # b is not given to it again
    before = len(RecordFile(tuning.records).read().trials)
    until(lambda: len(RecordFile(tuning.records).read().trials) > before)
    os.kill(daemon(), signal.SIGKILL)
    began = time.monotonic()
    assert tuning.process.wait(60) == 4
    assert time.monotonic() - began < 30
    assert "the farm daemon ended, and with it the lease" in tuning.said()
    assert "trials of this run are in" in tuning.said()
    assert len(RecordFile(tuning.records).read().trials) > before
