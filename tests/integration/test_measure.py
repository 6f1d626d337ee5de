"""Trials on real board servers: candidates that crash, loop and raise, and servers that freeze and die."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.rpc_servers import DONE, program_to_run, to
from tests.support.rpc_servers import board as evil_board
from tests.support.rpc_servers import server as rpc_server
from tests.support.sshd import descendants, free_port
from toolchain import rpc
from toolchain.errors import DeviceError, InputError
from toolchain.native import programs
from toolchain.records.results import TensorArg
from toolchain.rpc import server as board_server
from toolchain.tuning.measure import MeasurePool, Rules, ServerPlace, TrackerPlace, local_server
from toolchain.tuning.trials import Options, Trial

LOOPBACK = "127.0.0.1"
HERE = platform.machine()
SIZE = 128
MATRIX = TensorArg("float32", (SIZE, SIZE))
QUICK = Options(number=1, repeat=3, min_repeat_ms=2, timeout_s=3.0)
# Short, so that the tests are; a place is steady where its clock is looked at, which a busy machine cannot bear.
# Short waits; nothing that a busy machine does to the measured times makes a result suspicious here.
RULES = Rules(
    open_s=10.0,
    slack_s=1.0,
    grace_s=1.0,
    answer_s=2.0,
    canary_s=5.0,
    probe_s=(0.3, 1.0),
    patience_s=4.0,
    slower=100.0,
    unsteady=1e9,
    waited=1e9,
)
# After so long the client ends a trial of which it hears nothing; an emulated board has three times the slack.
LONGEST_S = QUICK.timeout_s + 3 * RULES.slack_s + RULES.grace_s
SLEEP_S = 0.3

BAD_CODE = """
#include <stdlib.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
extern void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
int __tvm_ffi_main(void* self, const void* args, int count, void* result) {
#if defined(SEGFAULT)
  return *(volatile int*)16;
#elif defined(ENDLESS)
  for (;;) pause();
#elif defined(RAISE)
  TVMFFIErrorSetRaisedFromCStr("ValueError", "this candidate does not like its arguments");
  return -1;
#elif defined(KILLER)
  kill(getppid(), SIGKILL);
  for (;;) pause();
#else
  const struct timespec nap = {0, 300000000};
  nanosleep(&nap, 0);
  return 0;
#endif
}
"""


@dataclasses.dataclass
class Server:
    """A running board server."""

    process: subprocess.Popen[str]
    place: ServerPlace
    address: Address

    def signal(self, number: int) -> None:
        """Send a signal to the server and to the session that it serves, which it must not live to tell of."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


@dataclasses.dataclass
class Address:
    """Where the server of a place is; a server that is started anew has another socket."""

    path: str = ""

    def dial(self, timeout_s: float) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(timeout_s)
            link.connect(self.path)
        except BaseException:
            link.close()
            raise
        return link


@pytest.fixture(scope="session")
def server_program():
    return programs.build(programs.BOARD_SERVER, f"{HERE}-linux-gnu", HERE).path


def started(argv) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([str(argument) for argument in argv], text=True, **pipes)


@pytest.fixture
def serve(server_program, tmp_path):
    """Return a function that starts a server."""
    with contextlib.ExitStack() as stack:

        def start(name: str, address: Address | None = None, key: str = "") -> Server:
            argv = [server_program, "--socket", "--work-dir", tmp_path]
            process = stack.enter_context(started(argv))
            address, key = address or Address(), key or board_server.new_key()
            address.path = process.stdout.readline().strip().removeprefix("listening on unix:")
            process.stdin.write(f"key {key}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ok key\n"
            server = Server(process, ServerPlace(name, address.dial, key, HERE, emulated=True), address)
            stack.callback(server.kill)
            return server

        yield start


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """Return a function that makes the library of a kernel that does no good, or of one that multiplies matrices."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "bad.c").write_text(BAD_CODE)

    def trial(name: str) -> Trial:
        path = folder / f"{name}.so"
        if name == "matmul":
            if not path.exists():
                export_matmul(path)
            return Trial(path, (MATRIX,) * 3)
        if not path.exists():
            subprocess.run(["cc", "-shared", "-fPIC", f"-D{name.upper()}", "-o", path, folder / "bad.c"], check=True)
        return Trial(path, (TensorArg("float32", (4,)),))

    return trial


def export_matmul(path: Path) -> None:
    import tvm
    from tvm import te

    a, b = (te.placeholder((SIZE, SIZE), name=name) for name in "ab")
    k = te.reduce_axis((0, SIZE))
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    tvm.compile(tvm.IRModule({"main": function}), target="llvm").export_library(str(path))


@contextlib.contextmanager
def pool_of(*servers: Server, options: Options = QUICK, rules: Rules = RULES):
    """Yield a pool and the list that its events are added to; no thread and no connection is left behind."""
    events = []
    threads, sockets = threading.active_count(), own_sockets()
    with MeasurePool([server.place for server in servers], options, events.append, rules) as pool:
        yield pool, events
    assert threading.active_count() <= threads
    until(lambda: own_sockets() <= sockets)  # fewer: what an earlier test left to the collector may go meanwhile


def own_sockets() -> int:
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(path.readlink()))
    return sum(link.startswith("socket:") for link in links)


def until(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def kinds(events) -> list[str]:
    return [event.kind for event in events]


# --- candidates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("cache_flush", [False, True])
def test_the_numbers_are_right(serve, kernels, threads, cache_flush):
    """A duration that is known is in the next test; this one is of a real kernel, which no CPU does at 200 GFLOP/s."""
    options = dataclasses.replace(QUICK, threads=threads, cache_flush=cache_flush)
    with pool_of(serve("one"), options=options) as (pool, events):
        measurements = pool.measure([kernels("matmul")] * 3)
    for result in measurements:
        assert (result.cause, result.error, result.board, result.attempts) == ("", "", "one", 1)
        assert len(result.samples_s) == 3
        assert 2 * SIZE**3 / 200e9 < min(result.samples_s) < 0.2
        assert 0 < result.seconds < 5
    assert kinds(events) == ["started", "ended"] * 3


def test_a_known_duration_is_measured(serve, kernels):
    with pool_of(serve("one")) as (pool, _):
        [result] = pool.measure([kernels("sleep")])
    assert min(result.samples_s) < SLEEP_S + 0.2
    assert all(SLEEP_S <= sample < SLEEP_S + 2 for sample in result.samples_s)


@pytest.mark.parametrize(
    ("name", "cause", "message"),
    [
        ("segfault", "crash", "SIGSEGV"),
        ("endless", "timeout", "session timeout"),
        ("raise", "refused", "does not like its arguments"),
    ],
)
def test_a_candidate_that_fails_is_told_and_the_board_stays(serve, kernels, name, cause, message):
    server = serve("one")
    with pool_of(server) as (pool, events):
        start = time.monotonic()
        bad, good = pool.measure([kernels(name), kernels("matmul")])
        elapsed = time.monotonic() - start
    assert (bad.cause, bad.board, bad.samples_s) == (cause, "one", ())
    assert message in bad.error
    assert bad.attempts == good.attempts == 1
    assert good.samples_s
    assert kinds(events) == ["started", "ended"] * 2
    assert elapsed < QUICK.timeout_s + 30


def test_more_threads_than_the_board_has_is_an_error_of_the_options(serve, kernels):
    with (
        pool_of(serve("one"), options=dataclasses.replace(QUICK, threads=1000)) as (pool, _),
        pytest.raises(InputError, match="1000 threads"),
    ):
        pool.measure([kernels("matmul")])


def test_a_library_that_is_not_there_is_no_fault_of_the_board(serve, kernels, tmp_path):
    with pool_of(serve("one")) as (pool, events):
        with pytest.raises(FileNotFoundError):
            pool.measure([Trial(tmp_path / "none.so", ())])
        assert pool.measure([kernels("matmul")])[0].samples_s
    assert "lost" not in kinds(events)


# --- boards ----------------------------------------------------------------------------------------------------------


def busy(events, name: str):
    """Whether a board is at a trial."""
    return lambda: [e.kind for e in list(events) if e.place == name and e.trial][-1:] == ["started"]


def test_two_boards_measure_at_the_same_time(serve, kernels):
    options = dataclasses.replace(QUICK, repeat=20, timeout_s=60.0)
    with pool_of(serve("first"), serve("second"), options=options) as (pool, events):
        futures = [pool.submit(kernels("sleep")) for _ in range(2)]
        until(lambda: busy(events, "first")() and busy(events, "second")(), 60)
        measurements = [future.result(120) for future in futures]
    assert {result.board for result in measurements} == {"first", "second"}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "killed"])
def test_a_trial_of_a_lost_board_is_run_on_another(serve, kernels, number):
    first, second = serve("first"), serve("second")
    options = dataclasses.replace(QUICK, repeat=5)
    with pool_of(first, second, options=options) as (pool, events):
        futures = [pool.submit(kernels("sleep")) for _ in range(6)]
        until(busy(events, "first"))
        time.sleep(SLEEP_S)
        first.signal(number)
        measurements = [future.result(60) for future in futures]
        until(lambda: "lost" in kinds(events))
        assert all(result.samples_s for result in measurements)
        assert [r.attempts for r in measurements if r.board == "second" and r.attempts > 1] == [2]
        if number == signal.SIGSTOP:
            until(lambda: "quarantined" in kinds(events), 60)
            first.signal(signal.SIGCONT)
            until(lambda: "back" in kinds(events), 30)
            again = pool.measure([kernels("sleep")] * 4)
            assert {result.board for result in again} == {"first", "second"}


def test_a_board_that_is_started_anew_goes_on(serve, kernels):
    server = serve("one")
    with pool_of(server) as (pool, events):
        future = pool.submit(kernels("sleep"))
        until(busy(events, "one"))
        server.kill()
        serve("one", server.address, server.place.key)
        result = future.result(30)
    assert result.samples_s
    assert result.attempts == 2
    assert kinds(events)[-2:] == ["started", "ended"]


def test_a_board_that_pauses_longer_than_a_trial_may_is_not_the_candidates_fault(serve, kernels):
    server = serve("one")
    with pool_of(server) as (pool, events):
        future = pool.submit(kernels("sleep"))
        until(busy(events, "one"))
        server.signal(signal.SIGSTOP)
        time.sleep(LONGEST_S + 0.5)
        server.signal(signal.SIGCONT)
        assert future.result(60).samples_s


def test_a_candidate_that_kills_its_board_is_found_out(serve, kernels):
    servers = [serve(f"board{number}") for number in range(4)]
    with pool_of(*servers) as (pool, _):
        killer, *others = [pool.submit(kernels(name)) for name in ("killer", "matmul", "matmul")]
        result = killer.result(60)
        assert all(other.result(60).samples_s for other in others)
        assert sum(server.process.poll() is None for server in servers) == 1
    assert (result.cause, result.attempts) == ("crash", 3)
    assert "3 boards failed with it" in result.error


def test_without_any_board_it_ends_with_the_reasons(serve, kernels):
    servers = [serve("first"), serve("second")]
    with pool_of(*servers) as (pool, events):
        pool.measure([kernels("matmul")] * 2)
        for server in servers:
            server.kill()
        start = time.monotonic()
        with pytest.raises(DeviceError, match="no board has been available") as caught:
            pool.measure([kernels("matmul")] * 3)
        assert time.monotonic() - start < RULES.patience_s + 10
    for server in servers:
        assert f"{server.place.name}: no board server listens at {server.place.name}" in caught.value.details
    assert kinds(events).count("quarantined") == 2


def test_a_server_of_another_version_needs_no_patience(serve, kernels):
    server = serve("one")
    server.place = dataclasses.replace(server.place, machine="s390x")
    rules = dataclasses.replace(RULES, patience_s=600)
    start = time.monotonic()
    with pool_of(server, rules=rules) as (pool, _), pytest.raises(DeviceError) as caught:
        pool.measure([kernels("matmul")])
    assert "s390x is expected" in caught.value.details
    assert time.monotonic() - start < 30


def test_a_board_with_a_full_disk_is_the_boards_fault(server_program, serve, kernels):
    """Its limit lets it begin sessions and store nothing."""
    full, well = serve("full"), serve("well")
    subprocess.run(["prlimit", "--fsize=0", "--pid", str(full.process.pid)], check=True)
    with pool_of(full, well) as (pool, events):
        measurements = pool.measure([kernels("matmul")] * 8)
        until(lambda: "quarantined" in kinds(events), 30)
    assert {result.board for result in measurements} == {"well"}
    assert any("accepts no files" in event.detail for event in events if event.place == "full")


@pytest.mark.parametrize("state", ["running", "frozen", "waiting for a board"])
def test_closing_takes_a_moment(serve, kernels, state):
    server = serve("one")
    if state == "waiting for a board":
        session = server.place.open(5, 60, threading.Event())
    rules = dataclasses.replace(RULES, open_s=600)
    with pool_of(server, rules=rules, options=dataclasses.replace(QUICK, timeout_s=600)) as (pool, events):
        futures = [pool.submit(kernels("endless")) for _ in range(3)]
        if state == "waiting for a board":
            time.sleep(0.5)
        else:
            until(busy(events, "one"))
        if state == "frozen":
            server.signal(signal.SIGSTOP)
        start = time.monotonic()
    assert time.monotonic() - start < 30
    assert all(future.cancelled() for future in futures)
    if state == "waiting for a board":
        session.close()


def test_python_goes_on_while_a_board_is_waited_for(serve, kernels):
    """A frozen board must not hold Python's lock: the deadline could not be kept."""
    server = serve("one")
    with pool_of(server) as (pool, events):
        pool.submit(kernels("endless"))
        until(busy(events, "one"))
        server.signal(signal.SIGSTOP)
        longest, end = 0.0, time.monotonic() + LONGEST_S + 2
        while (before := time.monotonic()) < end:
            time.sleep(0.01)
            longest = max(longest, time.monotonic() - before)
    assert longest < 1


def test_a_board_that_attacks_is_left_out_and_the_run_goes_on(serve, kernels, tmp_path):
    """It lets sessions begin, and then asks this host to run a program in place of answering."""
    marker = tmp_path / "marker"
    attack = program_to_run("/bin/sh", "-c", f"touch {marker}")
    with rpc_server(evil_board(DONE, attack, versions=rpc.versions(HERE))) as port:
        evil = ServerPlace("evil", to(port), "key", HERE, emulated=True)
        well, events = serve("well"), []
        with MeasurePool([evil, well.place], QUICK, events.append, RULES) as pool:
            measurements = pool.measure([kernels("matmul")] * 6)
            until(lambda: any(event.place == "evil" for event in events if event.kind == "lost"), 30)
    assert {result.board for result in measurements} == {"well"}
    assert all(result.samples_s for result in measurements)
    details = [event.detail for event in events if event.place == "evil" and event.kind == "lost"]
    assert "tried to make this host run code: it sends kInitServer" in details[0]
    assert not marker.exists()


# --- places ----------------------------------------------------------------------------------------------------------


def test_this_machine_is_a_place(native, kernels):
    events = []
    with local_server(native) as place:
        assert (place.name, place.emulated) == ("local", False)
        rules = dataclasses.replace(RULES, hot_c=1000.0)
        with MeasurePool([place], QUICK, events.append, rules) as pool:
            measurements = pool.measure([kernels("matmul")] * 3)
    assert [result.board for result in measurements] == ["local"] * 3
    assert all(result.samples_s for result in measurements)
    assert kinds(events) == ["started", "ended"] * 3


@contextlib.contextmanager
def python_process(*words: str):
    with subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def tracker():
    port = free_port()
    with python_process("tvm.exec.rpc_tracker", "--host", LOOPBACK, "--port", str(port), "--port-end", str(port + 1)):
        yield port


def test_a_board_behind_a_tracker(server_program, kernels, tmp_path):
    with tracker() as port, contextlib.ExitStack() as stack:
        options = ["--port", "0", "--work-dir", tmp_path, "--tracker", f"{LOOPBACK}:{port}", "--key", "rpi4"]
        process = stack.enter_context(started([server_program, *options]))
        stack.callback(process.kill)
        place = TrackerPlace("rpi4", (LOOPBACK, port), "rpi4", HERE, emulated=True)
        rules = dataclasses.replace(RULES, open_s=30, patience_s=60)
        with MeasurePool([place], QUICK, rules=rules) as pool:
            bad, *good = pool.measure([kernels("segfault"), kernels("matmul"), kernels("matmul")])
    assert bad.cause == "crash"
    assert all(result.samples_s and result.board == "rpi4" for result in good)


def test_tvms_own_server_serves_with_a_warning(kernels):
    with tracker() as port:
        own_port = free_port()
        command = ["tvm.exec.rpc_server", "--host", LOOPBACK, "--port", str(own_port), "--port-end", str(own_port + 1)]
        with python_process(*command, "--tracker", f"{LOOPBACK}:{port}", "--key", "rpi4"):
            place = TrackerPlace("rpi4", (LOOPBACK, port), "rpi4", HERE)
            rules = dataclasses.replace(RULES, open_s=60, slack_s=5, canary_s=30, patience_s=60)
            options = dataclasses.replace(QUICK, timeout_s=20)
            events = []
            with MeasurePool([place], options, events.append, rules) as pool:
                measurements = pool.measure([kernels("matmul"), kernels("raise"), kernels("matmul")])
    assert [result.cause for result in measurements] == ["", "refused", ""]
    assert kinds(events).count("stock") == 1
