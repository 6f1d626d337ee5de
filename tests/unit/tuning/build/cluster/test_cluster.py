"""Builders of a Dask cluster: the same bytes as here, whoever comes, goes, lies or hangs meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import tvm

from tests.support import builders
from tests.support.candidates import is_right, matmul, on_a_gpu
from tests.support.commands import toolchain
from toolchain import board, files
from toolchain.backends import backend_of
from toolchain.errors import BuildersError, InputError, VerificationError
from toolchain.models import importer, source
from toolchain.native.cross import HostCross
from toolchain.pipeline import tune
from toolchain.records import Key, RecordFile, tasks
from toolchain.records.metaschedule import target_table
from toolchain.tuning import records_view, run
from toolchain.tuning.build import Builder
from toolchain.tuning.build.cluster import crew, member
from toolchain.tuning.build.cluster.crew import DaskCrew
from toolchain.tuning.build.cluster.roster import survey
from toolchain.tuning.build.cluster.scheduler import Access, parse
from toolchain.tuning.measure import MeasurePool, Rules
from toolchain.tuning.measure.turns import TURNS
from toolchain.tuning.plan import Plan
from toolchain.tuning.trials import Measured, Trial

TRIPLE = f"{platform.machine()}-linux-gnu"
TARGET = tvm.target.Target({"kind": "llvm", "mtriple": TRIPLE})
CROSS = HostCross(TRIPLE)
SECRET = Access(Path("ca"), Path("cert"), Path("key"))


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "10.0.0.7:8786", "http://h:1", "ssh://h", "dask://", "dask://h:0", "dask://h:70000", "dask://a b:1"]
)
def test_what_is_no_address(text):
    with pytest.raises(InputError, match="is not a valid address of a Dask scheduler") as caught:
        parse(text, Access())
    assert "dask://127.0.0.1:8786" in caught.value.hint


def test_addresses():
    assert str(parse("dask://builder", Access())) == "dask://builder:8786"
    assert str(parse("tls://[fd00::7]:99/", Access())) == "tls://[fd00::7]:99"
    local = ["localhost", "127.0.0.1", "127.8.0.1", "[::1]"]
    assert [parse(f"tcp://{host}", Access()).is_loopback for host in [*local, "10.0.0.7", "local", "[fd00::7]"]] == [
        *[True] * 4,
        *[False] * 3,
    ]


@pytest.mark.parametrize(
    ("address", "access", "message"),
    [
        ("dask://10.0.0.7", Access(), "is another machine, and the connection would be without TLS"),
        ("tcp://10.0.0.7", Access(), "is another machine, and the connection would be without TLS"),
        ("tcp://127.0.0.1", SECRET, "is without TLS, and --builders-ca is for TLS"),
        ("tls://127.0.0.1", Access(), "needs our certificate, its key and the cluster's authority"),
        ("dask://127.0.0.1", Access(ca=Path("ca")), "needs our certificate"),
        ("tls://127.0.0.1", SECRET, "cannot be used: .*No such file"),
    ],
)
def test_what_is_not_safe_is_refused_before_anybody_is_asked(address, access, message):
    with pytest.raises(InputError, match=message), parse(address, access).client():
        raise AssertionError("there is no scheduler")


def test_nobody_is_there():
    with pytest.raises(BuildersError, match="no Dask scheduler answers at dask") as caught:
        parse("dask://127.0.0.1:1", Access()).client().__enter__()
    assert caught.value.exit_code == 4
    assert "refused" in caught.value.details


def test_dask_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="is not installed") as caught:
        parse("dask://127.0.0.1:1", Access()).client().__enter__()
    assert "distributed" in caught.value.hint


# --- answers ---------------------------------------------------------------------------------------------------------

OBJECT = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x01\x00\x3e\x00" + bytes(40)
GOOD = {"worker": "w", "objects": [OBJECT], "seconds": 1.0}


def test_an_answer():
    answer = crew.read_answer(GOOD, "x86_64-linux-gnu")
    assert answer == crew.Answer("w", (OBJECT,), 1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"objects": ()}, "not a valid answer"),
        ({"extra": 1}, "not a valid answer"),
        ({"seconds": "1"}, "not a valid answer"),
        ({"seconds": float("nan")}, "duration is not possible"),
        ({"seconds": -1.0}, "duration is not possible"),
        ({"objects": [OBJECT] * 17}, "too many"),
        ({"objects": ["/etc/passwd"]}, "not for x86_64"),
        ({"objects": [b"#!/bin/sh\n" * 20]}, "not for x86_64"),
        ({"objects": [OBJECT[:16] + b"\x03" + OBJECT[17:]]}, "not for x86_64"),  # a shared library
        ({"objects": [OBJECT[:18] + b"\xb7" + OBJECT[19:]]}, "not for x86_64"),  # of another machine
        ({"objects": [OBJECT[:10]]}, "not for x86_64"),
        ({"objects": [OBJECT + bytes(65 << 20)]}, "more than 64 MiB"),
    ],
)
def test_what_is_no_answer(wrong, message):
    assert message in crew.read_answer({**GOOD, **wrong}, "x86_64-linux-gnu")


@pytest.mark.parametrize("answer", [None, [], "objects", {}, {"objects": [OBJECT]}])
def test_what_is_nothing_like_an_answer(answer):
    assert crew.read_answer(answer, "x86_64-linux-gnu") == "it is not a valid answer"


# --- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A scheduler that asks for TLS."""
    folder = tmp_path_factory.mktemp("cluster")
    with builders.cluster(folder, 0, builders.certificates(folder)) as scheduler:
        yield scheduler


@pytest.fixture
def cluster(running):
    """The same, with one worker."""
    running.start(max(1 - len(running.workers), 0))
    running.await_workers(1)
    yield running
    running.end(running.workers[1:])


@contextlib.contextmanager
def opened(
    cluster, folder: Path, messages: list[str], timeout_s: float = 60.0, triple: str = TRIPLE
) -> Iterator[Builder]:
    hire = partial(DaskCrew, parse(cluster.option, Access(*map(Path, cluster.tls[1::2]))), triple, messages.append)
    with Builder(TARGET, CROSS, folder, timeout_s=timeout_s, hire=hire) as builder:
        yield builder


def counted(builder: Builder) -> dict[str, int]:
    return {row.name: row.candidates for row in builder.rows}


def contents(built) -> list[bytes | str]:
    return [candidate.library.read_bytes() if candidate.library else candidate.error for candidate in built]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What this machine makes of the candidates that most tests build."""
    with Builder(TARGET, CROSS, tmp_path_factory.mktemp("here"), workers=1, timeout_s=120.0) as builder:
        return contents(builder.build(candidates()))


def candidates() -> list[tvm.IRModule]:
    return list(map(matmul, (1, 2, 4, 8, 16, 32)))


def test_the_same_bytes_from_any_number_of_workers(cluster, here, tmp_path):
    """One that joins later takes the place of one that went, and those of other versions do not."""
    messages: list[str] = []
    [first] = cluster.workers
    with opened(cluster, tmp_path / "made", messages) as builder:
        built = builder.build(candidates())
        assert contents(built) == here
        assert is_right(built[0].library)
        assert all(item.seconds > 0 for item in built)
        assert sum(counted(builder).values()) == len(here)
        assert (len(builder.rows), builder.worker_pids) == (1, ())
        [surveyed] = survey(parse(cluster.option, Access(*map(Path, cluster.tls[1::2]))))
        assert (surveyed.name, surveyed.processes, surveyed.candidates, surveyed.refused) == (
            builder.rows[0].name,
            builder.rows[0].processes,
            0,
            "",
        )

        cluster.start(preload=preload(tmp_path / "old.py", "identity = lambda: {**found, 'ziglang': '0.9'}"))
        cluster.start(preload=preload(tmp_path / "bare.py", "", "sys.modules['toolchain'] = None"))
        cluster.start()
        builders.until(lambda: len(builder.rows) == 4, "all have come")
        assert contents(builder.build(candidates())) == here
        cluster.end([first])
        builders.until(lambda: any(line.endswith("gone") for line in messages), "its end is known")
        assert contents(builder.build(candidates())) == here
        [late] = [row for row in builder.rows if row.processes]
        assert late.candidates >= len(here)
        refused = sorted(row.note for row in builder.rows if "refused" in row.note)
        files_of_tls = zip(("--builders-ca", "--builders-cert", "--builders-key"), cluster.tls[1::2], strict=True)
        status = toolchain("farm", "status", "--builders", cluster.option, *chain(*files_of_tls), "--json")
        assert status.code == 0, status.err
        notes = sorted(row["refused"] for row in json.loads(status.out)["builders"])
        assert notes == ["", *(note.removeprefix("refused: ") for note in refused)]
    builders.until(
        lambda: not any(psutil.Process(worker.pid).children() for worker in cluster.workers), "no process stays"
    )
    cluster.end()
    assert len(refused) == 2
    assert refused[0].startswith("refused: it has no toolchain that compiles for others")
    assert refused[1] == f"refused: ziglang 0.9 there, {member.identity()['ziglang']} here"
    assert sum("warning: builder tls://127.0.0.1:" in line for line in messages) == 2
    assert list((tmp_path / "made").iterdir()) == []


def preload(path: Path, change: str, first: str = "") -> str:
    """Write what a Dask worker runs before it joins, which puts something else into our module there."""
    module = "toolchain.tuning.build.cluster.member"
    lines = [f"import sys\n{first}"]
    if change:
        lines += [f"import {module} as member", "found = member.identity()", f"member.{change}"]
    path.write_text("\n".join([*lines, ""]))
    return str(path)


class LibraryMeasures:
    """Makes a latency of the bytes of a library."""

    def __init__(self, on_trial=lambda: None) -> None:
        self._on_trial = on_trial

    def submit(self, trial: Trial) -> Future[Measured]:
        self._on_trial()
        latencies = [1e-5 + int(files.sha256_file(entry.library), 16) % 1000 * 1e-8 for entry in (trial, *trial.rivals)]
        first, *others = [tuple(latency * (1 + turn / 10) for turn in range(TURNS)) for latency in latencies]
        future: Future[Measured] = Future()
        future.set_result(Measured(first, board="formula", rivals_s=tuple(others)))
        return future


def tuned(records: Path, builder, on_trial=lambda: None) -> bytes:
    """Tune a network by that measure; return its file of records."""
    kind = board.load("local").resolved()
    backend = backend_of(kind, backend_of(kind).template_names)
    kernels = tasks.extract(backend.lower(importer.import_model(source.load("mlp")).module), backend)
    with builder(backend) as builds:
        run.Tuning(
            kernels[:2],
            backend,
            Key.of(target_table(backend.target)),
            file=RecordFile(records),
            plan=Plan(tuner="random", trials=16),
            builds=builds,
            measures=LibraryMeasures(on_trial),
        ).run()
    return records.read_bytes()


def test_the_same_records_while_a_third_of_the_workers_is_killed(cluster, tmp_path, monkeypatch):
    for module in (run, records_view):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 0.0, monotonic=time.monotonic))
    cluster.start(2)
    cluster.await_workers(3)
    dice, count, rows = random.Random(), iter(range(100)), []  # noqa: S311 - a choice of moments
    moment = dice.randrange(12)

    def kill() -> None:
        if next(count) == moment:
            cluster.workers[dice.randrange(3)].kill()

    @contextlib.contextmanager
    def there(backend):
        hire = partial(DaskCrew, parse(cluster.option, Access(*map(Path, cluster.tls[1::2]))), TRIPLE, rows.append)
        with Builder(backend.target, CROSS, tmp_path / "there", timeout_s=60.0, hire=hire) as builder:
            yield builder
            rows.append(counted(builder))

    remote = tuned(tmp_path / "there.jsonl", there, kill)
    cluster.workers = [worker for worker in cluster.workers if worker.poll() is None]
    local = tuned(tmp_path / "here.jsonl", lambda backend: Builder(backend.target, CROSS, tmp_path / "here", workers=1))
    assert remote == local, f"killed at trial {moment}"
    assert len(RecordFile(tmp_path / "here.jsonl").read().trials) >= 16
    assert sum(rows[-1].values()) >= 16


def test_the_command(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "MeasurePool", partial(MeasurePool, rules=Rules(slower=100.0, hot_c=1000.0)))
    ca, cert, key = cluster.tls[1::2]
    arguments = ("mlp", "--without", "all", "--op", "matmul", "--tuner", "random", "--trials", 8, "--json")
    arguments += ("--number", 1, "--repeat", 1, "--min-repeat-ms", 0, "--no-compare", "--records", tmp_path / "R.jsonl")
    arguments += ("--builders", cluster.address, "--builders-ca", ca, "--builders-cert", cert, "--builders-key", key)
    outcome = toolchain("tune", *arguments)
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["trials"]["total"] == 8
    assert sum(row["candidates"] for row in report["builders"]) >= 8, "and those of the finals"
    assert [(row["processes"], row["note"]) for row in report["builders"]] == [(1, "")]
    assert all(f"builder {row['name']}: 1 at a time" in outcome.err for row in report["builders"])
    assert "distributed" not in outcome.err, "Dask prints nothing of its own"


def test_what_nobody_there_does_is_done_here(cluster, here, tmp_path, monkeypatch):
    """A process of the compiler hangs, then the whole worker, then it is killed; one candidate compiles nowhere."""
    monkeypatch.setattr(crew, "_processors", lambda: 1)
    messages: list[str] = []
    [worker] = cluster.workers
    with opened(cluster, tmp_path, messages, timeout_s=6.0) as builder:
        assert contents(builder.build(candidates())) == here
        [process] = psutil.Process(worker.pid).children()
        process.suspend()
        assert contents(builder.build(candidates())) == here
        assert [row.note for row in builder.rows] == ["", "1 failed there"]
        assert builder.build([on_a_gpu()])[0].error == "InternalError: not implemented"
        assert builder.rows[-1].note == "2 failed there"

        monkeypatch.setattr(crew, "_SILENCE_S", 1.0)  # not before: by then TVM is loaded there
        os.kill(worker.pid, signal.SIGSTOP)
        assert contents(builder.build(candidates())) == here
        assert any("refused from now on: it does not answer" in line for line in messages)

        cluster.end()
        builders.until(lambda: any(line.endswith("gone") for line in messages), "its end is known")
        assert contents(builder.build(candidates())) == here
    assert {"lost", "without a builder"} <= {
        remark.lstrip("0123456789 ") for remark in builder.rows[-1].note.split(",")
    }


def test_a_worker_that_lies_is_asked_no_more(cluster, here, tmp_path, monkeypatch):
    lie = {"worker": "", "objects": [OBJECT[:18] + b"\xb7" + OBJECT[19:]], "seconds": 1.0}
    monkeypatch.setattr(crew, "_processors", lambda: 1)
    cluster.end()
    cluster.start(preload=preload(tmp_path / "lie.py", f"compile_candidate = lambda *job: {lie!r}"))
    cluster.await_workers(1)
    messages: list[str] = []
    with opened(cluster, tmp_path / "made", messages) as builder:
        assert contents(builder.build(candidates())) == here
        [row, mine] = builder.rows
    assert row.note == f"refused: a wrong answer: its objects are not for {TRIPLE}"
    assert (row.candidates, mine.candidates) == (0, len(here))
    cluster.end()


def test_all_are_refused_or_there_are_none(running, tmp_path):
    running.end()
    running.await_workers(0)
    with pytest.raises(BuildersError, match="has no workers") as caught, opened(running, tmp_path / "a", []):
        raise AssertionError("nobody is there")
    assert caught.value.hint.endswith(f"`dask worker {running.address}`")
    running.start(preload=preload(tmp_path / "old.py", "identity = lambda: {**found, 'tvm': '0.26'}"))
    running.await_workers(1)
    with pytest.raises(VerificationError, match="every worker") as refused, opened(running, tmp_path / "b", []):
        raise AssertionError("nobody is like us")
    assert f"tvm 0.26 there, {member.identity()['tvm']} here" in refused.value.details
    running.end()


def test_without_a_certificate_nobody_is_let_in(running, monkeypatch):
    from toolchain.tuning.build.cluster import scheduler

    monkeypatch.setattr(scheduler, "_ANSWER_S", 2.0)
    plain = parse(running.address.replace("tls://", "tcp://"), Access())
    with pytest.raises(BuildersError, match="no Dask scheduler answers"), plain.client():
        raise AssertionError("anybody is let in")


def test_processes_end_when_nothing_comes_and_come_back(tmp_path, monkeypatch):
    """A client that was killed leaves nothing running."""
    monkeypatch.setattr(member, "_IDLE_S", 0.1)
    worker = member.Member(str(tvm.ir.save_json(TARGET)))
    worker.setup(SimpleNamespace(address="tcp://x", state=SimpleNamespace(nthreads=1), local_directory=str(tmp_path)))
    pids = worker._crew.pids if worker._crew else ()  # none if it was quicker
    builders.until(lambda: not any(map(psutil.pid_exists, pids)), "they have ended")
    with worker._running_crew() as running_crew:
        [pid] = running_crew.pids
        assert psutil.pid_exists(pid)
    worker.teardown(None)
    assert not psutil.pid_exists(pid)
    assert list(tmp_path.iterdir()) == []
