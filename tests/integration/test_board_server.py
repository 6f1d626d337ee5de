"""The board server: a real one, with TVM's own client and tracker."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import platform
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.parts import require
from tests.support.sshd import descendants, free_port
from toolchain.backends.cpu.lowering import PER_CORE
from toolchain.device.store import Store
from toolchain.native import programs
from toolchain.rpc import server as board_server
from toolchain.shell import LineBuffer, SshOptions, open_shell

SESSIONS = int(os.environ.get("TOOLCHAIN_SESSIONS", "60"))
LOG = logging.getLogger(__name__)
RPC_MAGIC, RPC_MISMATCH = 0xFF271, 0xFF271 + 2
TRACKER_MAGIC, TRACKER_REQUEST, TRACKER_SUCCESS = 0x2F271, 4, 0
LOOPBACK = "127.0.0.1"
HERE = platform.machine()
X = np.linspace(-1, 1, 4 * 8, dtype=np.float32).reshape(4, 8)
W = np.linspace(-2, 2, 8 * 3, dtype=np.float32).reshape(8, 3)
IMAGE = np.linspace(-1, 1, 3 * 9 * 9, dtype=np.float32).reshape(1, 3, 9, 9)
KERNEL = np.linspace(-1, 1, 2 * 3 * 3 * 3, dtype=np.float32).reshape(2, 3, 3, 3)

# Functions of TVM's calling convention that do what no model should.
BAD_CODE = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION(name) int __tvm_ffi_##name(void* self, const void* args, int count, void* result)
FUNCTION(fine) { return 0; }
FUNCTION(endless) { for (;;) pause(); }
FUNCTION(segfault) { signal(SIGSEGV, SIG_DFL); return *(volatile int*)16; }
FUNCTION(give_up) { abort(); }
FUNCTION(be_killed) { return kill(getpid(), SIGKILL); }
FUNCTION(leave) { exit(7); }
FUNCTION(print) { puts("a line from the model"); fflush(stdout); return 0; }
FUNCTION(breed) { for (int i = 0; i < 3; ++i) if (fork() == 0) for (;;) pause(); return 0; }
FUNCTION(hide) { /* as a daemon does */
  if (fork() == 0) { setsid(); if (fork() == 0) for (;;) pause(); _exit(0); }
  if (fork() == 0) { setpgid(0, 0); for (;;) pause(); }
  return 0;
}
FUNCTION(rest) { sleep(2); return 0; }
FUNCTION(breed_and_wait) { __tvm_ffi_breed(self, args, count, result); for (;;) pause(); }
"""

# As a parallel kernel does: how many threads it is given.
PIECES = PER_CORE

THREADS_CODE = """
#include <stdint.h>
typedef struct { void* sync; int32_t count; } Group;
int TVMBackendParallelLaunch(int (*task)(int, Group*, void*), void* data, int count);
static int Count(int task, Group* group, void* data) { if (task == 0) *(int32_t*)data = group->count; return 0; }
typedef struct { int32_t type, pad; int64_t value; } Result;
int __tvm_ffi_threads(void* self, const void* args, int32_t count, Result* result) {
  int32_t found = 0;
  const int code = TVMBackendParallelLaunch(Count, &found, 0);
  result->type = 1;  // kTVMFFIInt
  result->value = found;
  return code;
}
"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of board: how to compile for it, and how to run its programs on this machine."""

    machine: str
    triple: str
    target: dict[str, object]

    @property
    def native(self) -> bool:
        return self.machine == HERE

    @property
    def emulator(self) -> list[str]:
        name = {"aarch64": "aarch64", "armv7l": "arm"}.get(self.machine, self.machine)
        return [] if self.native else [f"qemu-{name}-static", "-L", f"/usr/{self.triple}"]

    def require(self) -> None:
        if self.native:
            return
        require(f"an emulator for {self.machine}", "qemu-user-static", shutil.which(self.emulator[0]) is not None)
        package = f"g++-{self.triple}"
        require(f"a compiler for {self.triple}", package, shutil.which(f"{self.triple}-g++") is not None)


KINDS = {
    "x86_64": Kind("x86_64", "x86_64-linux-gnu", {"kind": "llvm", "mcpu": "x86-64"}),
    "aarch64": Kind(
        "aarch64",
        "aarch64-linux-gnu",
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "mcpu": "cortex-a53"},
    ),
    "armv7l": Kind(
        "armv7l",
        "arm-linux-gnueabihf",
        {
            "kind": "llvm",
            "mtriple": "armv7l-linux-gnueabihf",
            "mattr": ["+neon"],
            "mcpu": "cortex-a9",
            "mfloat-abi": "hard",
        },
    ),
}


@dataclasses.dataclass
class Server:
    """A running board server; its key opens sessions, unless a tracker gives others."""

    process: subprocess.Popen[str]
    address: str
    log_file: Path
    work: Path
    key: str = dataclasses.field(default_factory=board_server.new_key)
    heard: LineBuffer = dataclasses.field(default_factory=LineBuffer)

    def say(self, data: bytes) -> None:
        """Write to its standard input."""
        self.process.stdin.buffer.write(data)
        self.process.stdin.flush()

    def hear(self) -> str:
        """Read a line from its standard output."""
        while (line := self.heard.take()) is None:
            assert select.select([self.process.stdout], [], [], 10)[0], "not a word within 10 s"
            self.heard.feed(os.read(self.process.stdout.fileno(), 1 << 16))
        return line.rstrip("\n")

    def ask(self, line: str) -> str:
        self.say(line.encode() + b"\n")
        return self.hear()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def path(self) -> Path:
        """Its Unix socket."""
        return Path(self.address.removeprefix("unix:"))

    def reach(self) -> socket.socket:
        """Connect to it, and say nothing yet."""
        if not self.address.startswith("unix:"):
            return socket.create_connection((LOOPBACK, self.port), timeout=10)
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(10)
        link.connect(str(self.path))
        return link

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_file.read_text()

    def folders(self) -> list[str]:
        """Name the sessions' folders."""
        return sorted(path.name for path in self.work.glob(".edge-board-server-*/*"))

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def memory_kib(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def connect(self, *, session_s: float = 60.0, key: str | None = None):
        """Open a session with TVM's own client."""
        from tvm import rpc

        return rpc.connect(LOOPBACK, self.port, key=self.key if key is None else key, session_timeout=session_s)

    def answer_to(self, key: str) -> int:
        """Say a key, and return the first word of the answer: RPC_MAGIC, or RPC_MISMATCH."""
        with self.reach() as link:
            return greeted(link, key)

    def is_idle(self) -> bool:
        return not descendants(self.pid) and not self.folders()


def handshake(key: bytes, size: int | None = None) -> bytes:
    return struct.pack("<ii", RPC_MAGIC, len(key) if size is None else size) + key


def received(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        assert chunk, f"it ends after {data!r}"
        data += chunk
    return data


def greeted(link: socket.socket, key: str) -> int:
    """Say a key on a new connection; return the first word of the answer."""
    link.sendall(handshake(key.encode()))
    return int(struct.unpack("<i", received(link, 4))[0])


def versions_of(server: Server) -> dict[str, str]:
    """Ask for the versions, which needs no session."""
    with server.reach() as link:
        assert greeted(link, "edge-toolchain:version") == RPC_MAGIC
        return json.loads(received(link, struct.unpack("<i", received(link, 4))[0]))


def close(session) -> None:
    """End a session of TVM's."""
    session.get_function("CloseRPCConnection")()


def until(condition, seconds: float = 5.0) -> float:
    """Wait for a condition; return how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        time.sleep(0.01)
    return time.monotonic() - start


@contextlib.contextmanager
def full_pipe():
    """Yield the writing end of a pipe that holds as much as it can, and that nobody reads."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def running(program: Path, folder: Path, *options: str, emulator=(), work: Path | None = None, log: int | None = None):
    """Start a server on a free port, which a tracker or its controller (this process) gives keys; or with --socket."""
    work = work or folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    log_file = folder / f"server-{len(list(folder.iterdir()))}.log"
    obeys = not {"--tracker", "--control", "--socket"}.intersection(options)
    port = [] if "--socket" in options else ["--port", "0"]
    argv = [*emulator, str(program), *port, "--work-dir", str(work), *options, *(["--control"] if obeys else [])]

    with log_file.open("w") as stream:
        stdin = subprocess.PIPE if obeys or {"--control", "--socket"}.intersection(options) else None
        stderr = stream if log is None else log
        process = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on "), log_file.read_text()
        server = Server(process, line.split()[2], log_file, work)
        if obeys:
            assert server.ask(f"key {server.key}") == "ok key"
        yield server
    finally:
        sessions = descendants(process.pid)
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(OSError):  # what is still to be written has no reader any more
            if process.stdin:
                process.stdin.close()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def built(kind: Kind) -> Path:
    return programs.build(programs.BOARD_SERVER, kind.triple, kind.machine).path


@pytest.fixture(scope="session")
def program():
    return built(KINDS[HERE])


@pytest.fixture
def server(program, tmp_path):
    with running(program, tmp_path) as running_server:
        yield running_server


def network_module():
    """Compute relu(x @ w), and a convolution, for the virtual machine."""
    from tvm import relax
    from tvm.relax import op

    def variables(**arrays):
        return [relax.Var(name, relax.TensorType(a.shape, str(a.dtype))) for name, a in arrays.items()]

    build = relax.BlockBuilder()
    x, w = arguments = variables(x=X, w=W)
    with build.function("main", arguments):
        build.emit_func_output(build.emit(op.nn.relu(op.matmul(x, w))))
    image, kernel = arguments = variables(image=IMAGE, kernel=KERNEL)
    with build.function("conv", arguments):
        build.emit_func_output(build.emit(op.nn.conv2d(image, kernel, padding=1)))
    return build.get()


def convolved() -> np.ndarray:
    padded = np.pad(IMAGE[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("chwij,ocij->ohw", windows, KERNEL)[None]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Return a function that compiles the network for a kind of board, once."""
    folder = tmp_path_factory.mktemp("libraries")

    def library(kind: Kind) -> Path:
        import tvm
        from tvm.support import cc

        path = folder / f"{kind.machine}.so"
        if not path.exists():
            compiler = {} if kind.native else {"fcompile": cc.cross_compiler(f"{kind.triple}-g++")}
            target = tvm.target.Target(kind.target)
            tvm.compile(network_module(), target=target).export_library(str(path), **compiler)
        return path

    return library


def compile_bad(folder: Path, compiler: str = "cc") -> Path:
    (folder / "bad.c").write_text(BAD_CODE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O0", "-o", folder / "bad.so", folder / "bad.c"], check=True)
    return folder / "bad.so"


@pytest.fixture(scope="session")
def bad_library(tmp_path_factory):
    return compile_bad(tmp_path_factory.mktemp("bad"))


def load(session, library: Path):
    session.upload(str(library))
    return session.load_module(library.name)


def run_network(session, library: Path) -> np.ndarray:
    import tvm
    from tvm import relax

    device = session.cpu(0)
    machine = relax.VirtualMachine(load(session, library), device)
    return machine["main"](tvm.runtime.tensor(X, device), tvm.runtime.tensor(W, device)).numpy()


def assert_serves(server: Server, library: Path, *, within: float = 30.0) -> float:
    """Run the network in a new session; return the seconds from the connection to the result."""
    start = time.monotonic()
    session = server.connect()
    result = run_network(session, library)
    elapsed = time.monotonic() - start
    np.testing.assert_allclose(result, np.maximum(X @ W, 0), atol=1e-5)
    close(session)
    assert elapsed < within
    return elapsed


@pytest.fixture
def library(libraries):
    return libraries(KINDS[HERE])


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_log_that_nobody_reads_stops_nothing(program, library, tmp_path):
    with full_pipe() as log, running(program, tmp_path, log=log) as server:
        for _ in range(3):
            assert_serves(server, library)


@pytest.mark.parametrize("machine", KINDS)
def test_a_network_runs_and_is_timed(machine, libraries, tmp_path):
    import tvm
    from tvm import relax

    kind = KINDS[machine]
    kind.require()
    with running(built(kind), tmp_path, emulator=kind.emulator) as server:
        session = server.connect()
        device = session.cpu(0)
        network = relax.VirtualMachine(load(session, libraries(kind)), device)
        x, w, image, kernel = (tvm.runtime.tensor(a, device) for a in (X, W, IMAGE, KERNEL))
        np.testing.assert_allclose(network["main"](x, w).numpy(), np.maximum(X @ W, 0), atol=1e-5)
        np.testing.assert_allclose(network["conv"](image, kernel).numpy(), convolved(), atol=1e-4)

        network.set_input("main", x, w)
        timed = network.time_evaluator("invoke_stateful", device, number=2, repeat=3)("main")
        assert len(timed.results) == 3
        assert min(timed.results) > 0
        close(session)
        until(server.is_idle, 20)


def numbers(tensor) -> np.ndarray:
    """Read a tensor; numpy has no bfloat16, which is the upper half of a float32."""
    array = tensor.numpy()
    if str(tensor.dtype) != "bfloat16":
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


@contextlib.contextmanager
def session_on(machine: str, folder: Path):
    kind = KINDS[machine]
    kind.require()
    with running(built(kind), folder, emulator=kind.emulator) as server:
        session = server.connect()
        yield session
        close(session)


@pytest.mark.parametrize("machine", KINDS)
def test_numbers_to_measure_with(machine, tmp_path):
    import tvm

    with session_on(machine, tmp_path) as session:
        fill = session.get_function("tvm.contrib.random.random_fill_for_measure")
        floats = ["float16", "bfloat16", "float32", "float64"]
        integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
        for dtype in [*floats, *integers, "bool"]:
            tensors = [tvm.runtime.empty(shape, dtype, session.cpu(0)) for shape in ((33, 5000), (33, 5000), (7,), ())]
            for tensor in tensors:
                fill(tensor)
            first, second, few, single = (numbers(tensor) for tensor in tensors)
            np.testing.assert_array_equal(first, second)
            np.testing.assert_array_equal(first.ravel()[:7], few)
            assert single == few[0]
            assert (first[0] != first[1]).any()
            if dtype in floats:
                assert first.min() == 1 / 128
                assert first.max() == 1
                assert len(np.unique(first)) == 128
            else:
                assert set(np.unique(first)) == ({False, True} if dtype == "bool" else {1, 2, 3})


def test_numbers_that_the_board_does_not_have(server):
    import tvm

    session = server.connect()
    fill = session.get_function("tvm.contrib.random.random_fill_for_measure")
    with pytest.raises(RuntimeError, match="the board has no numbers of type code"):
        fill(tvm.runtime.empty((4,), "float8_e4m3fn", session.cpu(0)))


@pytest.mark.parametrize("machine", KINDS)
def test_the_hardware_is_told(machine, tmp_path):
    with session_on(machine, tmp_path) as session:
        report = json.loads(session.get_function("edge_toolchain.hardware")())
    assert report["machine"] == machine
    assert report["cpus"] == len(os.sched_getaffinity(0))
    assert set(report["cache_kib"]) <= {"l1d", "l2", "l3", "l4"}
    assert all(size > 0 for size in report["cache_kib"].values())
    if KINDS[machine].native:  # an emulator has these of its own
        assert set(report["features"]) == cpu_features()
        assert abs(report["memory_kib"] * 1024 - os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) < 1 << 20


def cpu_features() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line.partition(":")[2] for line in lines if line.split(":")[0].strip() in {"flags", "Features"})
    return set(flags.split())


def test_only_the_cpus_that_the_server_may_use_count(program, tmp_path):
    last = max(os.sched_getaffinity(0))
    with running(program, tmp_path, emulator=["taskset", "-c", str(last)]) as server:
        session = server.connect()
        assert json.loads(session.get_function("edge_toolchain.hardware")())["cpus"] == 1
        assert session.get_function("edge_toolchain.threads")(0) == 1
        worker = descendants(server.pid)[0]
        assert os.sched_getaffinity(worker) == {last}


@pytest.mark.parametrize("machine", KINDS)
def test_the_conditions_are_told(machine, tmp_path):
    with session_on(machine, tmp_path) as session:
        ask = session.get_function("edge_toolchain.conditions")
        ask()
        start = time.monotonic()
        report = json.loads(ask())
        elapsed = time.monotonic() - start
    assert set(report) == {"celsius", "mhz", "waited_s"}
    assert report["waited_s"] is None or report["waited_s"] >= 0
    assert report["celsius"] is None or -60 < report["celsius"] < 200
    assert report["mhz"] is None or 100 < report["mhz"] < 10000
    LOG.info("%s", f"{report} in {elapsed * 1000:.1f} ms")


def test_the_peak_is_that_of_the_threads_that_kernels_have(server):
    session = server.connect()
    peak = session.get_function("edge_toolchain.peak_gflops")
    session.get_function("edge_toolchain.threads")(1)
    assert 0.01 < peak() < 1000


def test_the_whole_peak_is_one_document(server):
    peak = json.loads(server.connect().get_function("edge_toolchain.peak")(1))
    assert peak["threads"] == 1
    assert min(peak["gflops"], peak["gbytes_s"]) > 0.01


@pytest.mark.parametrize("machine", KINDS)
def test_the_canary_is_steady(machine, tmp_path):
    with session_on(machine, tmp_path) as session:
        canary = session.get_function("edge_toolchain.canary")
        start = time.monotonic()
        seconds = [canary(50) for _ in range(5)]
        elapsed = time.monotonic() - start
        for wrong in (0, -1, 1 << 40):
            with pytest.raises(RuntimeError, match="the canary takes 1 to 10000 milliseconds"):
                canary(wrong)
    assert min(seconds) > 1e-5
    assert max(seconds) < (3 if KINDS[machine].native else 10) * min(seconds)
    assert elapsed > 0.1  # it repeats its work for as long as it may
    LOG.info("%s", f"canary {min(seconds) * 1e6:.1f} us, spread {max(seconds) / min(seconds) - 1:.2%}")


@pytest.fixture
def threads_library(tmp_path):
    (tmp_path / "threads.c").write_text(THREADS_CODE)
    library = tmp_path / "threads.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "threads.c"], check=True)
    return library


def test_kernels_have_as_many_threads_as_they_are_given(server, threads_library):
    cpus = len(os.sched_getaffinity(0))
    require("a second CPU", "more CPUs", cpus > 1)
    session = server.connect()
    count = load(session, threads_library)["threads"]
    assert count() == cpus * PIECES
    configure = session.get_function("runtime.config_threadpool")
    for threads in (1, 2, 1):
        configure(1, threads)
        assert count() == (threads * PIECES if threads > 1 else 1)
    close(session)

    session = server.connect()
    count = load(session, threads_library)["threads"]
    give = session.get_function("edge_toolchain.threads")
    for threads, expected in ((0, cpus), (1, 1), (2, 2)):
        assert give(threads) == expected
        assert count() == (expected * PIECES if expected > 1 else 1)
    for wrong in (-1, cpus + 1):
        with pytest.raises(RuntimeError, match=f"may use {cpus} CPUs, not {wrong}"):
            give(wrong)


def test_who_starts_the_server_may_choose_the_threads(program, tmp_path, threads_library):
    with running(program, tmp_path, emulator=["env", "TVM_NUM_THREADS=1"]) as server:
        assert load(server.connect(), threads_library)["threads"]() == 1


def kernel(kind: Kind, path: Path) -> Path:
    """Compile x * w, as a tuner does it: one function on tensors, no virtual machine."""
    import tvm
    from tvm import te
    from tvm.support import cc

    x, w = (te.placeholder((64, 64), "float32", name=name) for name in "xw")
    function = te.create_prim_func([x, w, te.compute(x.shape, lambda i, j: x[i, j] * w[i, j])])
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    compiler = {} if kind.native else {"fcompile": cc.cross_compiler(f"{kind.triple}-g++")}
    tvm.compile(module, target=tvm.target.Target(kind.target)).export_library(str(path), **compiler)
    return path


@pytest.mark.parametrize("machine", KINDS)
def test_a_kernel_is_timed_with_its_arguments_out_of_the_cache(machine, tmp_path):
    import tvm

    with session_on(machine, tmp_path) as session:
        module, device = load(session, kernel(KINDS[machine], tmp_path / "kernel.so")), session.cpu(0)
        x, w, y = (tvm.runtime.empty((64, 64), "float32", device) for _ in range(3))
        for tensor in (x, w, y):
            session.get_function("tvm.contrib.random.random_fill_for_measure")(tensor)
        plan = {"number": 1, "repeat": 20, "min_repeat_ms": 0}
        warm = module.time_evaluator("main", device, **plan)(x, w, y)
        cold = module.time_evaluator("main", device, **plan, f_preproc="cache_flush_cpu_non_first_arg")(x, w, y)
        assert len(warm.results) == len(cold.results) == 20
        assert min(cold.results) > 0
        np.testing.assert_array_equal(y.numpy(), x.numpy() * w.numpy())
        with pytest.raises(RuntimeError, match="Cannot find cache_flush_nothing"):
            module.time_evaluator("main", device, f_preproc="cache_flush_nothing")(x, w, y)
        passed = session.get_function("edge_toolchain.passing_bytes")
        passed(96 << 20)
        other = module.time_evaluator("main", device, **plan, f_preproc="edge_toolchain.pass_through_caches")(x, w, y)
        for wrong in (-1, (1 << 30) + 1):
            with pytest.raises(RuntimeError, match="passes 0 to 1073741824 bytes"):
                passed(wrong)
    assert len(other.results) == 20
    if KINDS[machine].native:  # an emulator has no cache of its own
        assert np.median(cold.results) > np.median(warm.results)
        assert np.median(other.results) > np.median(warm.results)
    LOG.info("%s", f"median {np.median(warm.results) * 1e6:.2f} us warm, {np.median(cold.results) * 1e6:.2f} us cold")


def test_files_of_a_session(server):
    session = server.connect()
    data = os.urandom(3 << 20)
    session.upload(bytearray(data), "one.bin")
    session.upload(bytearray(b""), "empty")
    assert session.listdir("") == "empty,one.bin"
    assert bytes(session.download("one.bin")) == data
    inside = session.get_function("tvm.rpc.server.workpath")("one.bin")
    assert bytes(session.download(inside)) == data
    for name in ("one.bin", "empty", "never was there", ""):
        session.remove(name)
    assert session.listdir("") == ""
    assert len(server.folders()) == 1
    close(session)
    until(server.is_idle)


def test_a_library_that_is_loaded_may_be_sent_again(server, bad_library):
    session = server.connect()
    loaded = load(session, bad_library)
    session.upload(bytearray(b"\0" * bad_library.stat().st_size), bad_library.name)
    loaded["print"]()
    assert "a line from the model" in server.log()
    assert session.listdir("") == bad_library.name


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside", "..", "../session-10/x"])
def test_nothing_outside_the_session_is_touched(server, name):
    session = server.connect()
    calls = [lambda: session.upload(bytearray(b"x"), name), lambda: session.download(name)]
    calls += [lambda: session.remove(name), lambda: session.load_module(name), lambda: session.listdir(name)]
    for call in calls:
        with pytest.raises(RuntimeError, match="is outside the session's folder"):
            call()


@pytest.mark.parametrize("name", ["model.tar", "model.o", "model"])
def test_what_is_not_linked_is_refused(server, name):
    session = server.connect()
    session.upload(bytearray(b"x"), name)
    with pytest.raises(RuntimeError, match="has no linker"):
        session.load_module(name)


def test_a_library_for_another_machine_is_refused(server, libraries):
    kind = KINDS["aarch64"]
    kind.require()
    session = server.connect()
    with pytest.raises(RuntimeError, match=r"cannot open shared object file|wrong ELF class|not an ELF|aarch64"):
        load(session, libraries(kind))


def test_what_a_model_prints_is_in_the_log(server, bad_library):
    session = server.connect()
    load(session, bad_library)["print"]()
    assert "a line from the model" in server.log()


def test_files_that_do_not_fit_are_an_error(program, tmp_path):
    with running(program, tmp_path, emulator=["prlimit", "--fsize=65536"]) as server:
        session = server.connect()
        with pytest.raises(RuntimeError, match='cannot write "big": File too large'):
            session.upload(bytearray(1 << 20), "big")
        assert session.listdir("") == ""
        session.upload(bytearray(1 << 12), "small")
        assert session.listdir("") == "small"


def test_a_client_is_told_why_its_session_cannot_begin(server, library):
    folder = next(server.work.glob(".edge-board-server-*"))
    folder.rmdir()
    with pytest.raises(RuntimeError, match="cannot make a folder for the session"):
        server.connect()
    folder.mkdir()
    assert_serves(server, library)


def test_a_process_that_cannot_be_made_is_told(program):
    """As a user who has no process to spare; root is never such a user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        copy = Path(shutil.copy(program, folder))
        copy.chmod(0o755)
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        (folder / "work").mkdir()
        (folder / "work").chmod(0o777)
        with running(copy, folder, emulator=[*other, "prlimit", "--nproc=1"]) as server:
            for _ in range(3):
                with pytest.raises(RuntimeError, match="cannot start a process for the session"):
                    server.connect()
            assert server.folders() == []


def test_many_sessions_leave_nothing(server, bad_library):
    """As many as TOOLCHAIN_SESSIONS says; every tenth is ended by a crash."""

    def one(number):
        session = server.connect()
        session.upload(bytearray(b"x" * 1000), "x")
        if number % 10 == 0:
            with pytest.raises(RuntimeError, match="SIGSEGV"):
                load(session, bad_library)["segfault"]()
        else:
            close(session)

    one(1)
    until(server.is_idle)
    descriptors, memory, own_descriptors = (
        server.descriptors(),
        server.memory_kib(),
        len(list(Path("/proc/self/fd").iterdir())),
    )
    start = time.monotonic()
    for number in range(SESSIONS):
        one(number)
    elapsed = time.monotonic() - start
    until(server.is_idle)
    until(lambda: server.descriptors() == descriptors)
    assert len(list(Path("/proc/self/fd").iterdir())) <= own_descriptors + 1
    assert len(list(Path(f"/proc/{server.pid}/task").iterdir())) == 1
    assert server.memory_kib() < memory + 2048
    assert server.memory_kib() < 32 << 10
    LOG.info("%s", f"{SESSIONS} sessions in {elapsed:.1f} s, memory {memory} -> {server.memory_kib()} KiB")


# --- clients that do not behave --------------------------------------------------------------------------------------


ABUSE = {
    "idle": b"",
    "half a magic": b"\x71",
    "half open": struct.pack("<i", RPC_MAGIC),
    "half a key": handshake(b"client:", 100),
    "garbage": bytes(range(256)) * 16,
    "http": b"GET / HTTP/1.1\r\nHost: board\r\n\r\n",
    "huge length": struct.pack("<ii", RPC_MAGIC, 0x7FFFFFFF),
    "negative length": struct.pack("<ii", RPC_MAGIC, -1),
    "no length": struct.pack("<ii", RPC_MAGIC, 0),
    "wrong key": handshake(b"client:another"),
    "no client": handshake(b"server:"),
    "odd timeout": handshake(b"client: -timeout=soon"),
}


@pytest.mark.parametrize("name", ABUSE)
def test_the_next_session_is_served_at_once(server, library, name):
    assert_serves(server, library)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            connection = stack.enter_context(socket.create_connection((LOOPBACK, server.port)))
            connection.sendall(ABUSE[name])
        LOG.info("%s", f"{name}: {assert_serves(server, library):.3f} s")


def test_a_session_of_garbage_is_ended(server, library):
    """After a proper handshake."""
    for sent in (b"\xff" * 64, struct.pack("<Q", 1 << 62), struct.pack("<Qi", 4, 99)):
        with socket.create_connection((LOOPBACK, server.port)) as connection:
            assert greeted(connection, f"client:{server.key}") == RPC_MAGIC
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            until(lambda: server.log().count(" begins") == server.log().count(" ends"), 10)
        assert_serves(server, library)


def test_an_idle_connection_is_closed_after_five_seconds(server):
    with socket.create_connection((LOOPBACK, server.port)) as connection:
        connection.settimeout(60)
        start = time.monotonic()
        assert connection.recv(1) == b""
        assert 4 < time.monotonic() - start < 30


def test_a_huge_length_is_refused_at_once(server):
    with socket.create_connection((LOOPBACK, server.port)) as connection:
        connection.settimeout(1)
        connection.sendall(ABUSE["huge length"])
        assert connection.recv(1) == b""


def test_versions_are_told_while_a_session_runs(server):
    session = server.connect()
    assert versions_of(server) == versions()
    assert '"tvm"' in session.get_function("edge_toolchain.version")()


def test_clients_wait_in_order(server):
    first = server.connect()
    served = []

    def wait(number):
        with contextlib.closing(socket.create_connection((LOOPBACK, server.port))) as connection:
            greeted(connection, f"client:{server.key}")
            served.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    with socket.create_connection((LOOPBACK, server.port)) as leaves:
        leaves.sendall(handshake(f"client:{server.key}".encode()))
        time.sleep(0.1)
    until(lambda: "left before its turn" in server.log())
    assert served == []
    close(first)
    for thread in threads:
        thread.join(20)
    assert served == [0, 1, 2, 3, 4]


# --- sessions that must be ended -------------------------------------------------------------------------------------


def test_an_endless_function_is_ended_at_the_deadline(server, bad_library, library):
    session = server.connect(session_s=2)
    function = load(session, bad_library)["endless"]
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=board_server.SESSION_EXPIRED + "timeout of 2 s reached") as caught:
        function()
    assert 1 < time.monotonic() - start < 30
    assert type(caught.value).__name__ == "RPCSessionTimeoutError"
    until(server.is_idle)
    LOG.info("%s", f"next session: {assert_serves(server, library):.3f} s")


def test_a_client_that_was_idle_is_told_at_its_next_call(server):
    session = server.connect(session_s=0.5)
    until(lambda: "timeout of 0.5 s" in server.log())
    with pytest.raises(RuntimeError, match=r"session timeout of 0.5 s reached"):
        session.upload(bytearray(20 << 20), "big")


def test_the_server_has_a_limit_of_its_own(program, tmp_path, bad_library):
    with running(program, tmp_path, "--session-limit", "0.5") as server:
        for limit in (0, 60):
            function = load(server.connect(session_s=limit), bad_library)["endless"]
            with pytest.raises(RuntimeError, match=board_server.SESSION_EXPIRED + r"limit of 0\.5 s reached"):
                function()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("segfault", r"was ended by signal 11 \(SIGSEGV\)"),
        ("give_up", r"was ended by signal 6 \(SIGABRT\)"),
        ("be_killed", r"was ended by signal 9 \(SIGKILL: the system does this when memory runs out\)"),
        ("leave", "ended by itself with code 7"),
    ],
)
def test_a_crash_is_told(server, bad_library, library, name, message):
    function = load(server.connect(), bad_library)[name]
    with pytest.raises(RuntimeError, match=board_server.PROCESS_ENDED + message):
        function()
    assert_serves(server, library)
    until(server.is_idle)
    assert not list(server.work.rglob("core*"))


@pytest.mark.parametrize("machine", ["aarch64", "armv7l"])
def test_another_machine_ends_what_must_be_ended(machine, tmp_path):
    kind = KINDS[machine]
    kind.require()
    bad = compile_bad(tmp_path, f"{kind.triple}-gcc")
    with running(built(kind), tmp_path, emulator=kind.emulator) as server:
        with pytest.raises(RuntimeError, match=r"was ended by signal 11 \(SIGSEGV\)"):
            load(server.connect(), bad)["segfault"]()
        with pytest.raises(RuntimeError, match="session timeout of 5 s reached"):
            load(server.connect(session_s=5), bad)["breed_and_wait"]()
        until(server.is_idle, 20)
        before = server.descriptors()
        for _ in range(5):
            session = server.connect()
            assert load(session, bad)["fine"]() is None
            close(session)
        until(server.is_idle, 20)
        until(lambda: server.descriptors() == before, 20)
        load(server.connect(), bad)["breed"]()
        server.process.terminate()
        assert server.process.wait(20) == 0
        assert list(server.work.iterdir()) == []


@pytest.mark.parametrize("name", ["breed", "breed_and_wait"])
def test_what_a_session_started_ends_with_it(server, bad_library, name):
    session = server.connect(session_s=2)
    function = load(session, bad_library)[name]
    with contextlib.suppress(RuntimeError):
        function()
    if name == "breed":
        assert len(descendants(server.pid)) == 4
        close(session)
    until(server.is_idle)
    mine = [pid for pid in processes() if "board_server" in command(pid) and str(server.work) in command(pid)]
    assert mine == [server.pid]


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def test_a_client_that_leaves_frees_the_board(program, server, bad_library, library):
    """Its process is killed in an endless call, as a user would interrupt it."""
    code = (
        "import sys; from tvm import rpc; s = rpc.connect('127.0.0.1', int(sys.argv[1]), sys.argv[3]);"
        "s.upload(sys.argv[2]);"
        "f = s.load_module('bad.so')['endless']; print('now', flush=True); f()"
    )
    argv = [sys.executable, "-c", code, str(server.port), str(bad_library), server.key]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout.readline() == "now\n"
        client.kill()
    assert until(server.is_idle) < 4
    assert_serves(server, library)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_server_leaves_nothing(program, tmp_path, bad_library, number):
    # A shell that runs the tests in the background has SIGINT ignored for all that they start.
    with running(program, tmp_path, emulator=["env", "--default-signal"]) as server:
        session = server.connect()
        load(session, bad_library)["breed"]()
        children = descendants(server.pid)
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        assert list(server.work.iterdir()) == []
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        with pytest.raises(RuntimeError):
            session.listdir("")


def test_a_killed_server_takes_its_session_along_and_is_swept(program, tmp_path, server, bad_library):
    session = server.connect()
    session.upload(bytearray(b"x"), "left")
    worker = descendants(server.pid)
    assert len(worker) == 1
    server.process.kill()
    server.process.wait()
    until(lambda: not Path(f"/proc/{worker[0]}").exists())
    assert server.folders() == ["session-1"]
    (server.work / ".edge-board-server-notes.txt").mkdir()
    with running(program, tmp_path, work=server.work) as second, running(program, tmp_path, work=server.work) as third:
        assert server.folders() == []
        second_session = second.connect()
        second_session.upload(bytearray(b"x"), "mine")
        with running(program, tmp_path, work=server.work):
            assert second_session.listdir("") == "mine"
        third.connect().upload(bytearray(b"y"), "its own")
        assert second_session.listdir("") == "mine"
    assert (server.work / ".edge-board-server-notes.txt").is_dir()


# --- the tracker -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tracker(port: int):
    """TVM's own."""
    require("TVM's tracker", "tornado and cloudpickle, from PyPI", has("tornado", "cloudpickle"))
    argv = [sys.executable, "-m", "tvm.exec.rpc_tracker", "--host", LOOPBACK]
    argv += ["--port", str(port), "--port-end", str(port + 1), "--silent"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: listens(port), 30)
            yield process
        finally:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def has(*packages: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in packages)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def summary(port: int) -> dict:
    from tvm import rpc

    with contextlib.closing(rpc.connect_tracker(LOOPBACK, port)) as tracker:
        return tracker.summary()


def free_boards(port: int, key: str = "rpi4") -> int:
    return summary(port)["queue_info"].get(key, {"free": 0})["free"]


def known_keys(port: int) -> list[str]:
    """Name the boards that are there, free or not."""
    return [info["key"] for info in summary(port)["server_info"]]


@pytest.fixture
def tracked(program, tmp_path):
    port = free_port()
    with tracker(port), running(program, tmp_path, "--tracker", f"{LOOPBACK}:{port}", "--key", "rpi4") as server:
        until(lambda: free_boards(port) == 1)
        yield server, port


def request(port: int, key: str = "rpi4"):
    from tvm import rpc

    with contextlib.closing(rpc.connect_tracker(LOOPBACK, port)) as tracker:
        return tracker.request(key, session_timeout=30)


def test_a_board_from_the_tracker(tracked, library):
    server, port = tracked
    for _ in range(5):
        session = request(port)
        np.testing.assert_allclose(run_network(session, library), np.maximum(X @ W, 0), atol=1e-5)
        assert free_boards(port) == 0
        close(session)
        until(lambda: free_boards(port) == 1)
    assert server.answer_to("client:rpi4") == RPC_MISMATCH


def test_tvms_own_client_and_the_board(tracked):
    from tvm import rpc

    server, port = tracked
    with contextlib.closing(rpc.connect_tracker(LOOPBACK, port)) as tracker:
        assert tracker.summary()["server_info"] == [{"key": "server:rpi4", "addr": [LOOPBACK, server.port]}]
        session = tracker.request("rpi4", session_timeout=10)
        session.upload(bytearray(b"x"), "x")
        assert session.listdir("") == "x"


def test_the_board_comes_back_after_its_tracker(program, tmp_path, library):
    port = free_port()
    options = ("--tracker", f"{LOOPBACK}:{port}", "--key", "rpi4", "--custom-addr", "localhost")
    with running(program, tmp_path, *options) as server:  # it starts before the tracker does
        for _ in range(2):
            with tracker(port):
                LOG.info("%s", f"registered after {until(lambda: free_boards(port) == 1, 6):.1f} s")
                session = request(port)
                run_network(session, library)
                close(session)
            until(lambda: not listens(port))
            time.sleep(1)
        with tracker(port):  # also when it was away during a session
            until(lambda: free_boards(port) == 1, 6)
            session = request(port)
        with tracker(port):
            time.sleep(6)
            assert free_boards(port) == 0
            assert session.listdir("") == ""
            close(session)
            until(lambda: free_boards(port) == 1, 6)
        assert server.log().count("is lost") <= 5


def granted(link: socket.socket) -> tuple[str, int, str]:
    """Be given a board by the tracker: its address, its port and the match key."""
    link.sendall(struct.pack("<i", TRACKER_MAGIC))
    assert received(link, 4) == struct.pack("<i", TRACKER_MAGIC)
    request = json.dumps([TRACKER_REQUEST, "rpi4", "", 1]).encode()
    link.sendall(struct.pack("<i", len(request)) + request)
    code, reply = json.loads(received(link, struct.unpack("<i", received(link, 4))[0]))
    assert code == TRACKER_SUCCESS
    return tuple(reply)


def test_a_client_that_does_not_come_does_not_keep_the_board(tracked):
    server, port = tracked
    with socket.create_connection((LOOPBACK, port)) as link:
        assert granted(link)[1] == server.port
    assert free_boards(port) == 0
    assert 4 < until(lambda: free_boards(port) == 1, 15) < 12
    close(request(port))


def test_a_tracker_that_hangs_does_not_hold_up_sessions(program, tmp_path, library):
    with socket.create_server((LOOPBACK, 0)) as listener:
        address = f"{LOOPBACK}:{listener.getsockname()[1]}"
        with running(program, tmp_path, "--tracker", address, "--key", "rpi4") as server:
            link, _ = listener.accept()
            with link:
                assert versions_of(server) == versions()
            until(lambda: "is lost" in server.log(), 8)


def test_a_tracker_that_answers_with_a_million_brackets_does_not_end_the_server(program, tmp_path):
    """They overflowed the stack of the parser: `make fuzz` found it."""

    def answer(link: socket.socket, text: bytes) -> None:
        received(link, struct.unpack("<i", received(link, 4))[0])
        link.sendall(struct.pack("<i", len(text)) + text)

    with socket.create_server((LOOPBACK, 0)) as listener:
        address = f"{LOOPBACK}:{listener.getsockname()[1]}"
        with running(program, tmp_path, "--tracker", address, "--key", "rpi4") as server:
            link, _ = listener.accept()
            with link:
                link.sendall(received(link, 4))
                for text in (b"0", b"0", b"[" * 1_000_000):  # registered, offered, and what the tracker still has
                    answer(link, text)
                until(lambda: "it sent an invalid answer" in server.log(), 8)
            assert versions_of(server) == versions()


# --- the controller --------------------------------------------------------------------------------------------------


@pytest.fixture
def controlled(program, tmp_path):
    port = free_port()
    options = ("--tracker", f"{LOOPBACK}:{port}", "--key", "rpi4", "--control")
    with tracker(port), running(program, tmp_path, *options) as server:
        until(lambda: free_boards(port) == 1)
        yield server, port


def test_over_tcp_too_nobody_has_a_session_before_there_is_a_key(program, tmp_path):
    with running(program, tmp_path, "--control") as server:
        for key in ("client:", f"client:{server.key}"):
            assert server.answer_to(key) == RPC_MISMATCH
        assert server.ask(f"key {server.key}") == "ok key"
        assert server.answer_to(f"client:{server.key}") == RPC_MAGIC
        assert versions_of(server) == versions()


def test_another_key_moves_the_board_while_a_session_runs(controlled, library):
    server, port = controlled
    session = request(port)
    assert server.hear() == "session 1 begins"
    assert server.ask("key rpi4.locked") == "ok key rpi4.locked"
    LOG.info("%s", f"moved after {until(lambda: known_keys(port) == ['server:rpi4.locked'], 2):.2f} s")
    assert free_boards(port) == free_boards(port, "rpi4.locked") == 0
    np.testing.assert_allclose(run_network(session, library), np.maximum(X @ W, 0), atol=1e-5)
    close(session)
    assert server.hear() == "session 1 ends: well"
    until(lambda: free_boards(port, "rpi4.locked") == 1)
    assert free_boards(port) == 0
    close(request(port, key="rpi4.locked"))
    assert server.hear() == "session 2 begins"
    assert server.hear() == "session 2 ends: well"
    until(lambda: free_boards(port, "rpi4.locked") == 1)
    assert server.ask("key rpi4") == "ok key rpi4"
    until(lambda: free_boards(port) == 1, 2)
    assert free_boards(port, "rpi4.locked") == 0
    assert known_keys(port) == ["server:rpi4"]


@pytest.mark.parametrize("order", ["key other", "key rpi4", "withdraw"])
def test_a_match_key_that_was_given_away_is_worthless(controlled, order):
    server, port = controlled
    with socket.create_connection((LOOPBACK, port)) as link:
        match_key = granted(link)[2]
    assert server.ask(order) == f"ok {order}"
    assert server.answer_to(f"client:{match_key}") == RPC_MISMATCH


def test_a_withdrawn_board_stays_away(controlled):
    server, port = controlled
    session = request(port)
    assert server.hear() == "session 1 begins"
    assert server.ask("withdraw") == "ok withdraw"
    until(lambda: known_keys(port) == [], 2)
    assert session.listdir("") == ""
    close(session)
    assert server.hear() == "session 1 ends: well"
    assert server.ask("withdraw") == "ok withdraw"
    time.sleep(3)  # longer than it ever waits for a lost tracker the first times
    assert known_keys(port) == []
    assert server.ask("key rpi4") == "ok key rpi4"
    until(lambda: free_boards(port) == 1, 2)


def test_a_key_is_for_a_tracker_that_comes_later_too(program, tmp_path):
    port = free_port()
    options = ("--tracker", f"{LOOPBACK}:{port}", "--key", "rpi4", "--control")
    with running(program, tmp_path, *options) as server:
        until(lambda: "is lost" in server.log())
        assert server.ask("key other") == "ok key other"
        with tracker(port):
            until(lambda: free_boards(port, "other") == 1, 7)
            assert free_boards(port) == 0


@pytest.fixture
def obeying(program, tmp_path):
    """Return a server with a controller, and a tracker that is never there."""
    options = ("--tracker", f"{LOOPBACK}:{free_port()}", "--key", "rpi4", "--control")
    with running(program, tmp_path, *options) as server:
        yield server


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", 'there is no order ""'),
        (b"key", "the key cannot be empty"),
        (b"key ", "the key cannot be empty"),
        (b"key two words", "the key must be of printable ASCII characters without blanks"),
        (b"key " + b"k" * 201, "the key is too long"),
        (b"key a\r", "the key must be of printable ASCII characters without blanks"),
        (b"keys a", 'there is no order "keys a"'),
        (b"withdraw now", 'there is no order "withdraw now"'),
        (b"\0\xff\x1b[2J", 'there is no order "???[2J"'),
        (b"x" * (1 << 20), "the line is too long"),
        (b"key " + b"k" * 5000, "the line is too long"),
    ],
)
def test_a_line_that_is_no_order(obeying, line, message):
    obeying.say(line + b"\n")
    assert obeying.hear() == f"error {message}"
    assert obeying.ask("key " + "k" * 200) == "ok key " + "k" * 200


def test_orders_in_pieces_and_many_at_once(obeying):
    for piece in (b"ke", b"y a", b"b\nwith", b"draw\nkey c\n"):
        obeying.say(piece)
        time.sleep(0.05)
    assert [obeying.hear() for _ in range(3)] == ["ok key ab", "ok withdraw", "ok key c"]
    obeying.say(b"key d\n" * 1000)
    assert [obeying.hear() for _ in range(1000)] == ["ok key d"] * 1000


def test_a_controller_that_does_not_read_holds_nobody_up(obeying):
    lines = 50000
    writer = threading.Thread(target=lambda: obeying.say(b"nonsense\n" * lines))
    writer.start()
    writer.join(2)
    assert writer.is_alive()  # the pipe is full
    assert versions_of(obeying) == versions()
    assert {obeying.hear() for _ in range(lines)} == {'error there is no order "nonsense"'}
    writer.join(10)
    assert obeying.ask("withdraw") == "ok withdraw"


def test_a_server_ends_with_its_controller(controlled, bad_library):
    server, port = controlled
    session = request(port)
    load(session, bad_library)["breed"]()
    children = descendants(server.pid)
    server.say(b"key cut sho")
    server.process.stdin.close()
    assert server.process.wait(60) == 0
    assert list(server.work.iterdir()) == []
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    until(lambda: known_keys(port) == [])


def test_a_controller_that_no_longer_listens_is_gone(obeying):
    obeying.process.stdout.close()
    obeying.say(b"withdraw\n")
    assert obeying.process.wait(60) == 0


def test_a_controller_hears_what_went_wrong(controlled, bad_library):
    server, port = controlled
    function = load(request(port), bad_library)["segfault"]
    with pytest.raises(RuntimeError, match="SIGSEGV"):
        function()
    assert server.hear() == "session 1 begins"
    assert server.hear() == "session 1 ends: the session's process was ended by signal 11 (SIGSEGV)"


def test_a_controller_needs_both_streams(program):
    options = [program, "--port", "0", "--tracker", f"{LOOPBACK}:{free_port()}", "--key", "k", "--control"]
    for closing in ("<&-", ">&-"):
        completed = run(Path("/bin/sh"), "-c", f'exec "$0" "$@" {closing}', *map(str, options))
        assert completed.returncode == 2
        assert "--control needs standard input and output" in completed.stderr


def test_without_a_controller_standard_input_is_left_alone(program, tmp_path):
    options = ("--tracker", f"{LOOPBACK}:{free_port()}", "--key", "rpi4")
    with running(program, tmp_path, *options, emulator=["sh", "-c", 'exec "$0" "$@" </dev/null']) as server:
        assert versions_of(server) == versions()
        assert server.process.poll() is None


# --- versions and options --------------------------------------------------------------------------------------------


def versions(machine: str = HERE) -> dict[str, str]:
    return {**programs.versions(), "machine": machine}


def run(program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *options], capture_output=True, text=True, check=False, timeout=10)


def test_version_and_help(program):
    completed = run(program, "--version")
    assert completed.returncode == 0
    assert completed.stdout.count("\n") == 1
    assert json.loads(completed.stdout) == versions()
    assert run(program, "--help").stdout.startswith("usage: board_server")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nonsense"], 'unknown option "--nonsense"'),
        (["--port"], "--port needs a value"),
        (["--port", "many"], '--port cannot be "many"'),
        (["--port", "65536"], "--port cannot be"),
        (["--port", "1.5"], "--port cannot be"),
        (["--port", "1", "--port", "2"], "--port is given twice"),
        (["--port", "9091", "--port-end", "9090"], "--port-end is below --port"),
        (["--tracker", "host:9190"], "--tracker needs --key"),
        (["--tracker", "host", "--key", "k"], "--tracker must be HOST:PORT"),
        (["--tracker", "no.invalid:9190", "--key", "k"], 'no address of "no.invalid"'),
        (["--control", "--host", "no.invalid"], 'no address of "no.invalid"'),
        (["--control", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:9090"),
        ([], "no client could open a session: use --socket or --control, and write 'key KEY' to standard input"),
        (["--key", "two words"], "without blanks"),
        (["--key", "ab" * 32], "a secret, which any user of this machine could read here: use --socket or --control"),
        (["--key", "ab" * 32, "--control"], "--key is a board's public name at a --tracker"),
        (["--control", "--custom-addr", "x"], "--custom-addr requires --tracker"),
        (["--control", "--control"], "--control is given twice"),
        (["--socket"], "--port cannot be combined with --socket"),
        (["--connect", "socket"], "--port cannot be combined with --connect"),
        (["--session-limit", "0"], "--session-limit cannot be"),
        (["--session-limit", "nan"], "--session-limit cannot be"),
        (["--idle-limit", "-1"], "--idle-limit cannot be"),
        (["--control", "--work-dir", "/nowhere/at/all"], "no work folder"),
        (["--control", "--work-dir", "/proc"], "cannot make a folder for the sessions"),
    ],
)
def test_wrong_options(program, options, message):
    extra = [] if "--port" in options or "192.0.2.1" in options else ["--port", "0"]
    completed = run(program, *options, *extra)
    assert completed.returncode == 2
    assert completed.stdout == ""
    # Another test's server, killed a moment ago, may have left a folder that this one removes and tells of.
    lines = [line for line in completed.stderr.splitlines() if "Z removing " not in line]
    assert len(lines) == 1
    assert lines[0].startswith("board_server: ")
    assert message in lines[0]


def test_ports_are_tried_in_turn(program, tmp_path):
    with socket.create_server((LOOPBACK, 0)) as occupied:
        port = occupied.getsockname()[1]
        assert "Address already in use" in run(program, "--control", "--port", str(port)).stderr
        argv = [program, "--control", "--port", str(port), "--port-end", str(port + 20), "--work-dir", str(tmp_path)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(argv, **streams, text=True) as process:
            port_found = int(process.stdout.readline().rpartition(":")[2])
            process.terminate()
            assert process.wait(60) == 0
    assert port < port_found <= port + 20


# --- on a board ------------------------------------------------------------------------------------------------------


CARRIER = """
import socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    link = listener.accept()[0]
    subprocess.Popen(sys.argv[1:], stdin=link, stdout=link)
    link.close()
"""


@contextlib.contextmanager
def port_to(*words: str | Path):
    """Yield a port of this machine that leads to a command each time: TVM's own client knows ports alone."""
    with subprocess.Popen([sys.executable, "-c", CARRIER, *words], stdout=subprocess.PIPE, text=True) as carrier:
        try:
            yield int(carrier.stdout.readline())
        finally:
            for pid in [*descendants(carrier.pid), carrier.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("board", ["rpi4", "pynq"])
def test_a_board_reached_by_ssh(virtual_boards, board, libraries):
    """Pushed over SSH, started there, and used through a command: no port is open on the board."""
    from tvm import rpc

    kind = {"rpi4": KINDS["aarch64"], "pynq": KINDS["armv7l"]}[board]
    kind.require()
    name, config = virtual_boards.name(board), virtual_boards.config
    program = programs.build(programs.BOARD_SERVER, kind.triple, kind.machine)
    with open_shell(name, config=SshOptions(config_file=config, agent=False)) as shell:
        store = Store(shell, "/data/served")
        path = board_server.push(program, store)
        served = board_server.start(shell, path, ("--idle-limit", "60"))
        served.offer(key := board_server.new_key())
        with board_server.dial(shell, served, 60) as link:
            assert greeted(link, "edge-toolchain:version") == RPC_MAGIC
        with port_to("ssh", "-F", config, name, f"exec {shlex.join([path, '--connect', served.socket])}") as port:
            session = rpc.connect(LOOPBACK, port, key=key, session_timeout=60)
            np.testing.assert_allclose(run_network(session, libraries(kind)), np.maximum(X @ W, 0), atol=1e-5)
            close(session)
        before = shell.bytes_sent
        assert board_server.push(program, store) == path
        assert shell.bytes_sent - before < 64 * 1024
        served.stop()
        assert "board_server" not in shell.run("ps -e -o comm 2>/dev/null || ps").stdout
