"""The OpenCL runtime of the board server and the runner: on PoCL, over TVM's RPC, with everything that can fail."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from tests.integration.test_board_server import KINDS, built, close, load
from tests.integration.test_board_server import running as serving
from tests.support import opencl
from tests.support.commands import done, parsed, toolchain

SIZE = 1024
X = np.linspace(-1, 1, SIZE, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def device():
    opencl.require_opencl()


@pytest.fixture
def shim(tmp_path):
    return opencl.Shim(tmp_path / "shim")


@pytest.fixture
def server(tmp_path, monkeypatch, shim):
    """Return a function that starts a server with variables of its environment; None takes one out of it."""
    stack, program = [], built(KINDS[platform.machine()])

    def start(**env: str | None):
        for name, value in {"EDGE_OPENCL_CACHE": str(tmp_path / "cache"), **env}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        context = serving(program, tmp_path)
        stack.append(context)
        return context.__enter__()

    yield start
    for context in stack:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    return {
        "doubled": opencl.export(opencl.doubled(SIZE), folder / "doubled.so"),
        "unknown": opencl.export(opencl.unknown_function(), folder / "unknown.so"),
        "local": opencl.export(opencl.much_local_memory(1 << 24), folder / "local.so"),
    }


def on(session, array):
    return tvm.runtime.tensor(array, session.device("opencl", 0))


def run(session, library: Path, array=X):
    kernel = load(session, library)["main"]
    out = on(session, np.zeros_like(array))
    kernel(on(session, array), out)
    return out.numpy()


# --- what works ------------------------------------------------------------------------------------------------------


def test_a_kernel_runs_and_is_timed(server, libraries):
    session = server().connect()
    np.testing.assert_array_equal(run(session, libraries["doubled"]), 2 * X)
    module, device = load(session, libraries["doubled"]), session.device("opencl", 0)
    timed = module.time_evaluator("main", device, number=5, repeat=3)(on(session, X), on(session, X))
    assert all(0 < result < 0.1 for result in timed.results)
    close(session)


def test_a_device_tells_its_limits(server):
    session = server().connect()
    device = session.device("opencl", 0)
    assert device.exist
    assert "pthread" in device.device_name or "cpu" in device.device_name
    assert device.max_threads_per_block >= 256
    assert device.max_shared_memory_per_block >= opencl.LOCAL_LIMIT
    assert len(device.max_thread_dimensions) == 3
    assert device.multi_processor_count >= 1
    assert not session.device("opencl", 7).exist
    close(session)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "float64", "bool"])
def test_bytes_go_there_and_back(server, dtype):
    session = server().connect()
    array = (np.arange(77) % 2).astype(dtype)
    there = on(session, array)
    other = tvm.runtime.empty(array.shape, dtype, session.device("opencl", 0))
    there.copyto(other)
    np.testing.assert_array_equal(other.numpy(), array)
    empty = on(session, np.zeros((0, 3), np.float32))
    assert empty.numpy().shape == (0, 3)
    close(session)


def test_many_launches_leave_nothing_behind(server, libraries, shim):
    """Ten thousand launches, ten thousand buffers: as much memory as before, and all that was made was released."""
    running = server(**shim.env())
    session = running.connect()
    kernel = load(session, libraries["doubled"])["main"]
    x, y = on(session, X), on(session, X)
    for _ in range(1000):
        kernel(x, y)
    y.numpy()
    before = children_kib(running)
    for number in range(10_000):
        kernel(x, y)
        if number % 10 == 0:
            on(session, X)
    y.numpy()
    grown = children_kib(running) - before
    counts = shim.counts()
    assert counts.launches == 11_000
    assert counts.buffers - counts.buffers_freed <= 4
    assert (counts.programs, counts.programs_freed, counts.kernels) == (1, 1, 1)
    assert grown < 2048
    close(session)


def test_launches_are_handed_over_in_groups(server, libraries, shim):
    """The first at once, then 2, 4, 8, then sixteen at a time; whoever waits for all begins anew."""
    session = server(**shim.env()).connect()
    kernel = load(session, libraries["doubled"])["main"]
    x, y = on(session, X), on(session, X)
    kernel(x, y)  # compiled now, and waited for
    flushes = []
    for launches in (100, 3):
        before = shim.counts().flushes
        for _ in range(launches):
            kernel(x, y)
        session.device("opencl", 0).sync()
        flushes.append(shim.counts().flushes - before)
    assert flushes == [4 + 6, 2]
    close(session)


@pytest.mark.parametrize(
    ("faults", "env", "mapped"),
    [({}, {}, True), ({"discrete": 1}, {}, False), ({}, {"EDGE_OPENCL_COPY": "1"}, False)],
    ids=["memory in common", "memory of its own", "as asked for"],
)
def test_copies_go_through_memory_in_common(server, libraries, shim, faults, env, mapped):
    session = server(**shim.env(**faults), **env).connect()
    np.testing.assert_array_equal(run(session, libraries["doubled"]), 2 * X)
    counts = shim.counts()
    assert (counts.maps > 0, counts.copies > 0) == (mapped, not mapped)
    assert counts.unmaps == counts.maps
    close(session)


def children_kib(running) -> int:
    """Return the memory of a server's sessions."""
    from tests.support.sshd import descendants

    kib = 0
    for pid in descendants(running.pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kib += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return kib


THREADS = """
import sys, threading
import numpy as np, tvm
device = tvm.device("opencl", 0)
assert device.exist
kernel = tvm.runtime.load_module(sys.argv[1])["main"]
wrong = []

def work(number):
    x = np.full(1024, number, np.float32)
    source, out = tvm.runtime.tensor(x, device), tvm.runtime.tensor(np.zeros_like(x), device)
    for _ in range(500):
        kernel(source, out)
        if not np.array_equal(out.numpy(), 2 * x):
            wrong.append(number)

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[one.start() for one in threads], [one.join() for one in threads]
print("wrong", wrong)
"""


IN_PLACE = """
import sys
from pathlib import Path
import numpy as np, tvm
from tests.support import opencl
device = tvm.device("opencl", 0)
made = tvm.compile(opencl.doubled(1024), target=opencl.target())
x = np.linspace(-1, 1, 1024, dtype=np.float32)
out = tvm.runtime.tensor(np.zeros_like(x), device)
made["main"](tvm.runtime.tensor(x, device), out)
assert np.array_equal(out.numpy(), 2 * x)
opencl.export(opencl.doubled(1024), Path(sys.argv[1]))
print("right")
"""


def test_python_has_the_device_too_and_its_threads_launch_at_the_same_time(libraries, tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path))
    outcome = toolchain("python-runtime", "--board", "opencl-local", "--json")
    assert outcome.code == 0, outcome.err
    argv = [sys.executable, "-c", THREADS, str(libraries["doubled"])]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert completed.stdout == "wrong []\n", completed.stderr
    # What is compiled here runs here, too, and is exported as it is without a runtime.
    argv = [sys.executable, "-c", IN_PLACE, str(tmp_path / "exported.so")]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert completed.stdout == "right\n", completed.stderr
    assert (tmp_path / "exported.so").read_bytes() == libraries["doubled"].read_bytes()


# --- the binaries that are kept --------------------------------------------------------------------------------------


def sources_of(server, libraries, shim, **env: str) -> int:
    session = server(**shim.env(), **env).connect()
    np.testing.assert_array_equal(run(session, libraries["doubled"]), 2 * X)
    close(session)
    return shim.counts().sources


def test_the_second_start_compiles_nothing(server, libraries, shim):
    assert sources_of(server, libraries, shim) == 1
    assert sources_of(server, libraries, shim) == 0


def test_a_server_keeps_nothing_unless_it_is_told_to(server, libraries, tmp_path):
    """What a session runs are candidates, most of which run once."""
    session = server(EDGE_OPENCL_CACHE=None, XDG_CACHE_HOME=str(tmp_path / "home")).connect()
    np.testing.assert_array_equal(run(session, libraries["doubled"]), 2 * X)
    close(session)
    assert not (tmp_path / "home" / "edge-toolchain").exists()


def test_a_damaged_binary_is_made_again(server, libraries, shim, tmp_path):
    assert sources_of(server, libraries, shim) == 1
    (cached,) = (tmp_path / "cache").iterdir()
    content = cached.read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], b"", content[:-9] + b"\xff" + content[-8:]):
        cached.write_bytes(damaged)
        assert sources_of(server, libraries, shim) == 1
        assert cached.read_bytes() == content or len(cached.read_bytes()) > len(content) // 2
    assert sources_of(server, libraries, shim) == 0


def test_without_a_place_to_keep_them_all_is_compiled(server, libraries, shim):
    for _ in range(2):
        assert sources_of(server, libraries, shim, EDGE_OPENCL_CACHE="") == 1
    assert sources_of(server, libraries, shim, EDGE_OPENCL_CACHE="/proc/nowhere") == 1


def test_other_build_options_are_other_binaries(server, libraries, shim):
    assert sources_of(server, libraries, shim) == 1
    assert sources_of(server, libraries, shim, EDGE_OPENCL_OPTIONS="-cl-mad-enable") == 1
    assert sources_of(server, libraries, shim, EDGE_OPENCL_OPTIONS="-cl-mad-enable") == 0
    assert sources_of(server, libraries, shim) == 0


# --- what fails ------------------------------------------------------------------------------------------------------


def refused(running, call, *arguments: str) -> None:
    """Expect an error that says some words, in a session of a server that then serves the next one."""
    session = running.connect()
    with pytest.raises(RuntimeError) as fault:
        call(session)
    for text in arguments:
        assert text in str(fault.value)
    close(session)
    session = running.connect()
    assert session.get_function("edge_toolchain.hardware")()
    close(session)


def test_no_library(server):
    running = server(EDGE_OPENCL_LIBRARY="/nowhere/libOpenCL.so")
    refused(running, lambda session: on(session, X), "no OpenCL library", "/nowhere/libOpenCL.so", "vendor")
    session = running.connect()
    assert not session.device("opencl", 0).exist
    close(session)


def test_a_library_that_is_none(server):
    running = server(EDGE_OPENCL_LIBRARY="libm.so.6")
    refused(running, lambda session: on(session, X), "libm.so.6: no OpenCL, as it has no clGetPlatformIDs")


def test_no_device(server, tmp_path):
    running = server(OCL_ICD_VENDORS=str(tmp_path))
    refused(
        running, lambda session: on(session, X), "there is no OpenCL device 0", "finds no driver", "toolchain doctor"
    )


def test_no_device_of_that_name(server):
    running = server(EDGE_OPENCL_DEVICE="Mali-T860")
    refused(running, lambda session: on(session, X), '"Mali-T860"', "EDGE_OPENCL_DEVICE", "Portable Computing Language")


def test_a_device_is_lost_in_the_middle(server, libraries, shim):
    running = server(**shim.env(lose_after=5))

    def work(session):
        for _ in range(9):
            run(session, libraries["doubled"])

    refused(running, work, "CL_OUT_OF_RESOURCES")


def test_a_kernel_that_does_not_compile(server, libraries):
    small = X[:64]
    command = ("kernel main_kernel does not compile", "CL_BUILD_PROGRAM_FAILURE", "no_such_function")
    refused(server(), lambda session: run(session, libraries["unknown"], small), *command)


def test_more_local_memory_than_there_is(server, libraries):
    large = np.zeros((1 << 22,), np.float32)
    refused(server(), lambda session: run(session, libraries["local"], large), "main_kernel", "local memory")


def test_out_of_memory(server):
    def ask(session):
        tvm.runtime.empty((1 << 40,), "float32", session.device("opencl", 0))

    refused(server(), ask, "no memory for a buffer of 4194304 MiB")


def test_doctor_finds_the_library_and_the_driver():
    checks = {check["what"]: check["found"] for check in parsed("doctor", "--board", "opencl-local")}
    assert "libOpenCL" in checks["library of OpenCL"]
    assert checks["device of OpenCL"].endswith(".icd")


# --- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["mlp", pytest.param("squeezenet_v1.1", marks=pytest.mark.nightly)])
def test_a_network_is_deployed_and_right(network, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OPENCL_CACHE", str(tmp_path / "cache"))
    options = ["--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0, "--json", "-"]
    outcome = toolchain("deploy", network, *options)
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert (report["outputs"]["ok"], report["emulated"]) == (True, True)
    assert report["outputs"]["max_rel_diff"] <= 1e-3
    assert report["processor"]["version"].startswith("OpenCL ")
    assert report["processor"]["units"] >= 1
    assert list((tmp_path / "cache").iterdir())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opencl") / "mlp"
    outcome = toolchain("build", "mlp", "--board", "opencl-local", "-o", folder)
    assert outcome.code == 0, outcome.err
    return folder


LACKING = [
    ("EDGE_OPENCL_LIBRARY", "/nowhere/libOpenCL.so", "which is not a library of OpenCL"),
    ("EDGE_OPENCL_LIBRARY", "libm.so.6", "which is not a library of OpenCL"),
    ("OCL_ICD_VENDORS", "/nowhere", "which has no driver"),
]
"""Variables that leave a device without OpenCL, their values, and what is said of them."""

FAULTS = {
    "no such device": (None, {"EDGE_OPENCL_DEVICE": "Mali-T860"}, 'no OpenCL device has "Mali-T860" in its name'),
    "a lost device": ({"lose_after": 2}, {}, "CL_OUT_OF_RESOURCES"),
    "a kernel that does not compile": ({"no_build": 1}, {}, "does not compile on"),
    "memory that cannot be mapped": ({"no_map": 0}, {}, "mapping a buffer failed: CL_MAP_FAILURE"),
    "memory that moves in the middle": ({"moves": 2}, {}, "the driver moves memory that it maps: EDGE_OPENCL_COPY=1"),
    "memory that is lost in the middle": ({"no_map": 9}, {}, "an input's memory is lost: OpenCL: mapping a buffer"),
    "an option that the driver does not know": (None, {"EDGE_OPENCL_OPTIONS": "-cl-nonsense"}, "does not compile on"),
    "too little memory": ({"memory": 1 << 16}, {}, "no memory for a buffer of"),
}


@pytest.mark.parametrize(("variable", "value", "message"), LACKING)
def test_a_device_without_opencl_gets_nothing(variable, value, message, bundle, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, value)
    outcome = toolchain("deploy", bundle, "--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0)
    assert outcome.code == 4, outcome.err
    assert f"{variable} is {value}, {message}" in outcome.err
    assert not (tmp_path / "root" / "blobs").exists()


@pytest.mark.parametrize("name", FAULTS)
def test_a_deploy_that_fails_says_why_and_leaves_the_release(name, bundle, shim, tmp_path, monkeypatch):
    command = ["deploy", bundle, "--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0]
    faults, env, words_of_it = FAULTS[name]
    monkeypatch.setenv("EDGE_OPENCL_CACHE", "")
    with monkeypatch.context() as patch:
        for variable, value in {**env, **(shim.env(**faults) if faults else {})}.items():
            patch.setenv(variable, value)
        outcome = toolchain(*command)
    assert outcome.code == 4, outcome.err
    assert words_of_it in outcome.err
    assert "the device keeps its previous release" in outcome.err
    assert toolchain(*command).code == 0


def test_a_report_of_a_driver_with_odd_letters(bundle, shim, tmp_path, monkeypatch):
    for variable, value in {**shim.env(), "SHIM_DRIVER": "r38\x7f\t\xe9", "EDGE_OPENCL_CACHE": ""}.items():
        monkeypatch.setenv(variable, value)
    outcome = toolchain(
        "deploy", bundle, "--board", "opencl-local", "--root", tmp_path / "r", "--budget", 0, "--json", "-"
    )
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["processor"]["driver"] == "r38 ??"


def test_half_precision_where_there_is_none_is_found_before_the_build(tmp_path):
    """PoCL has it on Arm alone."""
    options = ["--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0]
    outcome = toolchain("deploy", "mlp", *options, "--float16", "-o", tmp_path / "bundle")
    assert outcome.code == 4
    assert re.search(r"does not compute in half precision: \S.* has no cl_khr_fp16", outcome.err), outcome.err
    assert "build without --float16 and --half-sums" in outcome.err
    assert "importing" not in outcome.err
    assert not (tmp_path / "bundle").exists()
    done("build", "mlp", "--board", "opencl-local", "--float16", "-o", tmp_path / "built")
    outcome = toolchain("deploy", tmp_path / "built", *options)
    assert (outcome.code, "has no cl_khr_fp16" in outcome.err) == (4, True), outcome.err
    assert list((tmp_path / "root" / "releases").iterdir()) == []
    assert toolchain("deploy", "mlp", *options).code == 0


def test_who_cannot_be_asked_about_half_precision_is_refused_with_the_reason(tmp_path, monkeypatch, shim):
    for variable, text in shim.env(no_devices=1).items():
        monkeypatch.setenv(variable, text)
    command = ["deploy", "mlp", "--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0, "--float16"]
    outcome = toolchain(*command)
    assert (outcome.code, "has no usable opencl device" in outcome.err) == (4, True), outcome.err


# --- tuning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "env", "code", "message"),
    [
        (None, {"EDGE_OPENCL_LIBRARY": "/nowhere/libOpenCL.so"}, 4, "no OpenCL library on this device"),
        ({"lose_after": 20}, {}, 3, "CL_OUT_OF_RESOURCES"),
        ({"no_build": 1}, {}, 3, "does not compile on"),
    ],
    ids=["no library", "a lost device", "no kernel compiles"],
)
def test_a_tuning_that_fails_says_why(faults, env, code, message, shim, tmp_path, monkeypatch):
    for variable, value in {**env, **(shim.env(**faults) if faults else {}), "EDGE_OPENCL_CACHE": ""}.items():
        monkeypatch.setenv(variable, value)
    records = tmp_path / "records.jsonl"
    outcome = toolchain(
        "tune", "mlp", "--board", "opencl-local", "--records", records, "--trials", 12, "--root", tmp_path
    )
    assert outcome.code == code, outcome.err
    assert message in outcome.err


@pytest.mark.nightly
def test_kernels_are_tuned(tmp_path):
    records = tmp_path / "records.jsonl"
    options = [
        "--board",
        "opencl-local",
        "--records",
        records,
        "--trials",
        24,
        "--root",
        tmp_path,
        "--no-compare",
        "--json",
    ]
    outcome = toolchain("tune", "mlp", *options)
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert report["trials"]["ok"] >= 12
    outcome = toolchain("build", "mlp", "--board", "opencl-local", "--records", records, "-o", tmp_path / "bundle")
    assert outcome.code == 0, outcome.err
    assert "tuning records for" in outcome.err
