"""Tuning on three boards while everything around it is killed, frozen and rebooted.

`TOOLCHAIN_CHAOS=300` is the whole campaign; without it a short one runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from tests.support import boards
from tests.support.boards import Farm
from tests.support.chaos_client import poison
from tests.support.commands import toolchain
from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import board, files, process
from toolchain.native import programs
from toolchain.records import Record, RecordFile

pytestmark = pytest.mark.xdist_group("docker")

TRIALS = int(os.environ.get("TOOLCHAIN_CHAOS", "70"))
CLIENT_KILLS = 10 if TRIALS >= 300 else 2
BOARDS = 3
# Opening a session 60 s, its run 3 s, upload and slack, and then the board's answer: see health.Rules. A frozen board
# is only noticed by these.
LONGEST_S = 60 + 3 + 9 + 5 + 15
LIMIT_S = 1500.0


@pytest.fixture(scope="module")
def farm(tmp_path_factory) -> Iterator[Farm]:
    kind = board.load("rpi4")
    require(
        "aarch64-linux-gnu-g++",
        "g++-aarch64-linux-gnu",
        process.run(["which", f"{kind.triple}-g++"], check=False).returncode == 0,
    )
    programs.build(programs.BOARD_SERVER, kind.triple, kind.machine)
    cache = tmp_path_factory.mktemp("chaos")
    for name in ("device", "zig"):  # what takes minutes to build is the user's
        (cache / name).symlink_to(files.cache_root() / name)
    with boards.running(cache, rpi4=BOARDS) as farm_boards, boards.its_cache(cache):
        os.environ["TOOLCHAIN_DEVICES"] = str(farm_boards.devices)
        try:
            yield farm_boards
        finally:
            toolchain("farm", "down")
            del os.environ["TOOLCHAIN_DEVICES"]


class Client:
    """The tuning run, which may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.records, self.log, self._words = folder / "records.jsonl", folder / "events", folder / "stderr"
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        command = [sys.executable, "-m", "tests.support.chaos_client", self.records, self.log, TRIALS]
        with self._words.open("ab") as stream:
            self.process = subprocess.Popen([*map(str, command)], cwd=ROOT, stdout=stream, stderr=stream)

    def found(self) -> tuple[Record, ...]:
        """Read the records; that they can be read at any moment is a part of what is tested."""
        return RecordFile(self.records).read().trials if self.records.exists() else ()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.found()
        self.start()

    def words(self) -> str:
        return self._words.read_text()[-3000:]


class Monkey:
    """Breaks one thing after the other."""

    def __init__(self, farm: Farm, client: Client) -> None:
        engine = docker.from_env()
        self._containers = [engine.containers.get(f"edge-{board.name}") for board in farm.boards]
        self._turn = itertools.cycle(self._containers)
        self._client = client
        self.done: Counter[str] = Counter()

    def steps(self) -> Iterator[Callable[[], None]]:
        """Yield what to break, the client among it, so often as the campaign asks for."""
        others = itertools.cycle([self.kill_server, self.freeze, self.reboot])
        for _ in range(CLIENT_KILLS):
            yield next(others)
            yield self.kill_client
            yield next(others)

    def kill_client(self) -> None:
        self._client.kill()
        self.done["client killed"] += 1

    def kill_server(self) -> None:
        for pid, command_line in self._processes(next(self._turn)):
            if "board_server" in command_line:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.done["server killed"] += 1

    @staticmethod
    def _processes(container) -> list[tuple[int, str]]:
        top = container.top()
        pid, command_column = top["Titles"].index("PID"), top["Titles"].index("CMD")
        return [(int(row[pid]), row[command_column]) for row in top["Processes"]]

    def freeze(self) -> None:
        container = next(self._turn)
        container.pause()
        time.sleep(8)
        container.unpause()
        self.done["board frozen"] += 1

    def reboot(self) -> None:
        next(self._turn).restart(timeout=0)
        self.done["board rebooted"] += 1


def await_trials(client: Client, count: int, end: float) -> bool:
    """Wait until so many trials are recorded; False if the run is over."""
    while client.process.poll() is None and len(client.found()) < count:
        assert time.monotonic() < end, client.words()
        time.sleep(0.2)
    return client.process.poll() is None


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S + 600)
def test_a_run_goes_on_whatever_breaks(farm, tmp_path, record_property):
    assert toolchain("farm", "up").code == 0
    client = Client(tmp_path)
    monkey = Monkey(farm, client)
    end = time.monotonic() + LIMIT_S
    steps = list(monkey.steps())
    for number, step in enumerate(steps):
        if not await_trials(client, (number + 1) * TRIALS * 9 // 10 // len(steps), end):
            break
        step()
    client.process.wait(timeout=max(end - time.monotonic(), 1.0))

    assert client.process.returncode == 0, client.words()
    assert sum(monkey.done.values()) == len(steps), monkey.done
    check_records(tuple(record for record in client.found() if not record.is_final))
    check_log(client, BOARDS)
    until_all_are_free()
    causes = Counter(record.cause or "ok" for record in client.found())
    record_property("chaos", json.dumps({"done": monkey.done, "causes": causes, "starts": client.starts}))


def check_records(trials: tuple[Record, ...]) -> None:
    assert len(trials) == TRIALS
    assert len({(record.workload, record.candidate) for record in trials}) == TRIALS, "a trial was measured twice"
    expected = {"CRASH": "crash", "ENDLESS": "timeout", "": ""}
    # On a machine that others use, a sample may be doubted: that blames nobody.
    usual = {"build", "suspicious"}
    wrong = [
        (record.cause, record.error)
        for record in trials
        if record.cause not in usual | {expected[poison(record.candidate)]}
    ]
    assert wrong == [], "no candidate is blamed for its board"
    assert {record.cause for record in trials} >= {"", "crash", "timeout"}


def check_log(client: Client, board_count: int) -> None:
    events = [json.loads(line) for line in client.log.read_text().splitlines() if line.endswith("}")]
    ended = sum(event["kind"] == "ended" for event in events)
    assert ended <= len(client.found()) + client.starts * board_count, "only what was in flight is lost"
    started: dict[str, float] = {}
    for event in events:
        if event["kind"] == "started":
            started[event["place"]] = event["time"]
        elif event["kind"] in {"ended", "lost"} and event["place"] in started:
            assert event["time"] - started.pop(event["place"]) < LONGEST_S, event


def until_all_are_free() -> None:
    deadline = time.monotonic() + 90
    while True:
        board_rows = json.loads(toolchain("farm", "status", "--json").out)["boards"]
        states = {row["name"]: row["state"] for row in board_rows}
        if list(states.values()) == ["free"] * BOARDS:
            return
        assert time.monotonic() < deadline, states
        time.sleep(1)
