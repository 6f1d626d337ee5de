"""The builder: right libraries, and each candidate that harms the compiler fails alone."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tvm

from tests.support.candidates import is_right, matmul, on_a_gpu, unrolled
from tests.support.paths import ROOT
from toolchain.errors import BuildError
from toolchain.native.cross import HostCross
from toolchain.tuning.build import Builder, crew

TARGET = tvm.target.Target({"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu"})
CROSS = HostCross(f"{platform.machine()}-linux-gnu")


def running(pid: int) -> bool:
    """Whether a process, or one of its threads, is there and not merely waiting to be reaped."""
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return running(pid)  # a thread has ended meanwhile
    return any(text.rpartition(")")[2].split()[0] not in "ZX" for text in stats)


def until(holds, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A builder with two workers for the tests that harm none of them."""
    with Builder(TARGET, CROSS, tmp_path_factory.mktemp("shared"), workers=2, timeout_s=120.0) as builder:
        yield builder


@pytest.fixture
def one_worker(tmp_path):
    """A builder of one worker, which is ready, to be harmed."""
    with Builder(TARGET, CROSS, tmp_path / "candidates", workers=1, timeout_s=120.0) as builder:
        assert builder.build([matmul()])[0].error == ""
        yield builder


@pytest.fixture
def job_received(monkeypatch):
    """An event that is set when a worker was given something to do, and is waited for."""
    event, receive = threading.Event(), crew.receive

    def told(stream):
        event.set()
        return receive(stream)

    monkeypatch.setattr(crew, "receive", told)
    return event


def test_sixteen_candidates(shared):
    tiles = [1, 2, 4, 8, 16, 32] * 2 + [1, 2, 4, 8]
    built = shared.build([matmul(tile) for tile in tiles])
    assert [result.error for result in built] == [""] * 16
    assert all(is_right(result.library) for result in built)
    assert len({result.library for result in built}) == 16
    assert all(result.seconds > 0 for result in built)
    texts = [result.library.read_bytes() for result in built]
    assert texts[:6] == texts[6:12]
    assert len(set(texts)) == 6


def test_no_candidates(shared):
    assert shared.build([]) == []


def test_workers_stay_between_rounds(shared):
    before = shared.worker_pids
    shared.build([matmul(), matmul()])
    assert shared.worker_pids == before
    assert len(before) == 2
    assert all(running(pid) for pid in before)


def test_a_measured_library_is_discarded_and_nothing_else_is_left(shared):
    built = shared.build([matmul(2), on_a_gpu()])
    folder = built[0].library.parent
    for result in built:
        Builder.discard(result)
        Builder.discard(result)
    assert not built[0].library.exists()
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_an_invalid_candidate_fails_alone(shared):
    built = shared.build([matmul(2), on_a_gpu(), matmul(4)])
    assert [result.library is None for result in built] == [False, True, False]
    assert "Error" in built[1].error
    assert is_right(built[0].library)
    assert is_right(built[2].library)


def test_a_library_that_cannot_be_linked_fails_alone(tmp_path):
    """The linker refuses one of three: the second that it is given."""
    driver, count = tmp_path / "driver", tmp_path / "count"
    driver.write_text(
        f'#!/bin/sh\ncase "$*" in *1.so*) echo no room >&2; exit 1;; esac\n: {shlex.quote(str(count))}\nexec c++ "$@"\n'
    )
    driver.chmod(0o755)
    with Builder(TARGET, HostCross(CROSS.triple, str(driver)), tmp_path / "made", workers=1) as builder:
        built = builder.build([matmul(2), matmul(4), matmul(8)])
        assert [item.library is None for item in built] == [False, True, False]
        assert "no room" in built[1].error
        assert is_right(built[2].library)


def test_a_hanging_worker_is_replaced_at_the_deadline(tmp_path):
    with Builder(TARGET, CROSS, tmp_path, workers=2, timeout_s=5.0) as builder:
        builder.build([matmul(), matmul()])
        frozen = builder.worker_pids[0]
        os.kill(frozen, signal.SIGSTOP)
        start = time.monotonic()
        built = builder.build([matmul(tile) for tile in (1, 2, 4, 8)])
        assert time.monotonic() - start < 60
        assert sorted(item.error for item in built) == ["", "", "", "was not compiled within 5 s"]
        assert [item.seconds >= 5 for item in built] == [bool(item.error) for item in built]
        assert not running(frozen)
        assert [item.error for item in builder.build([matmul(tile) for tile in (1, 2, 4, 8)])] == [""] * 4
        assert len(builder.worker_pids) == 2


def test_a_candidate_that_llvm_never_finishes(tmp_path):
    with Builder(TARGET, CROSS, tmp_path, workers=1, timeout_s=3.0) as builder:
        built = builder.build([unrolled(100_000), matmul()])
    assert [item.error for item in built] == ["was not compiled within 3 s", ""]


def test_a_deadline_also_covers_handing_the_job_over(tmp_path):
    """A module of more bytes than a pipe holds, for a worker that reads none of them."""
    module = unrolled(8)
    large = module.with_attr("note", "x" * 1_000_000)
    with Builder(TARGET, CROSS, tmp_path, workers=1, timeout_s=2.0) as builder:
        builder.build([module])
        os.kill(builder.worker_pids[0], signal.SIGSTOP)
        assert builder.build([large])[0].error == "was not compiled within 2 s"
        assert builder.build([large])[0].error == ""


def test_a_crashing_compiler_fails_alone(one_worker, job_received):
    """The worker is frozen first, so that the signal finds it with a job."""
    [pid] = one_worker.worker_pids
    os.kill(pid, signal.SIGSTOP)
    job_received.clear()
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(one_worker.build, [matmul(2), matmul(4)])
        assert job_received.wait(60)
        os.kill(pid, signal.SIGKILL)
        built = future.result(60)
    assert built[0].error.startswith("the compiler crashed: SIGKILL")
    assert is_right(built[1].library)
    assert one_worker.worker_pids != (pid,)


def test_a_worker_that_ends_between_two_rounds_harms_nobody(one_worker):
    [pid] = one_worker.worker_pids
    os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pid))
    assert one_worker.build([matmul()])[0].error == ""


def test_a_worker_is_replaced_after_so_many_jobs(one_worker, monkeypatch):
    monkeypatch.setattr(crew, "_MOST_JOBS", 2)
    pids = [one_worker.worker_pids]  # which have done one job
    for _ in range(2):
        assert one_worker.build([matmul()])[0].error == ""
        pids.append(one_worker.worker_pids)
    assert pids[0] != pids[1] == pids[2]


def test_a_worker_that_has_grown_is_replaced(one_worker, monkeypatch):
    monkeypatch.setattr(crew, "_MOST_BYTES", 1)
    before = one_worker.worker_pids
    assert one_worker.build([matmul()])[0].error == ""
    assert one_worker.worker_pids != before


def test_a_worker_that_never_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "_COMMAND", (sys.executable, "-c", "raise OSError('no TVM here')"))
    with (
        pytest.raises(BuildError, match="does not start") as caught,
        Builder(TARGET, CROSS, tmp_path / "made", workers=2) as builder,
    ):
        builder.build([matmul()])
    assert "no TVM here" in caught.value.details
    assert list((tmp_path / "made").iterdir()) == []


def test_workers_are_modest(shared):
    """They leave the CPUs to what measures, use one thread, and never load all tensor intrinsics."""
    shared.build([matmul(), matmul()])
    for pid in shared.worker_pids:
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
        assert b"TVM_NUM_THREADS=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
    code = "import sys, toolchain.tuning.build.worker; print('tvm.s_tir.tensor_intrin' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_closing_ends_workers_in_their_jobs_and_removes_everything(tmp_path, job_received):
    with ThreadPoolExecutor(1) as threads, Builder(TARGET, CROSS, tmp_path, workers=2, timeout_s=600.0) as builder:
        builder.build([matmul(), matmul()])
        job_received.clear()
        pids = builder.worker_pids
        future = threads.submit(builder.build, [unrolled(100_000) for _ in range(4)])
        assert job_received.wait(60)
        start = time.monotonic()
        builder.__exit__(None, None, None)
        assert time.monotonic() - start < 15
        assert future.exception(60) is not None or all(item.library is None for item in future.result())
    assert not any(running(pid) for pid in pids)
    assert list(tmp_path.iterdir()) == []


CHILD = """
import sys, threading
from pathlib import Path
from tests.support import candidates
from tests.unit.tuning.build import test_build as tests
from toolchain.tuning.build import Builder
with Builder(tests.TARGET, tests.CROSS, Path(sys.argv[1]), workers=2, timeout_s=600.0) as one:
    one.build([candidates.matmul(), candidates.matmul()])
    if sys.argv[2] == "busy":
        threading.Thread(target=one.build, args=([candidates.unrolled(100_000)],), daemon=True).start()
    print(*one.worker_pids, flush=True)
    threading.Event().wait(300)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_workers_do_not_outlive_a_killed_parent(tmp_path, state):
    command = [sys.executable, "-c", CHILD, tmp_path, state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(1.0 if state == "busy" else 0.0)
        parent.kill()
    assert len(pids) == 2
    until(lambda: not any(running(pid) for pid in pids), 10.0)
    # What the killed one left behind is cleared away by the next.
    assert len(list(tmp_path.iterdir())) == 1
    with Builder(TARGET, CROSS, tmp_path, workers=1):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_builders_side_by_side_leave_each_other_alone(tmp_path, shared):
    with Builder(TARGET, CROSS, tmp_path, workers=1) as first:
        built = first.build([matmul()])
        with Builder(TARGET, CROSS, tmp_path, workers=1):
            assert is_right(built[0].library)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file") as caught, Builder(TARGET, CROSS, tmp_path / "file"):
        pass
    assert caught.value.exit_code == 2
