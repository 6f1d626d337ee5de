"""Applications of other people's making: built with the SDK by plain compilers, and run on releases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import cmake
import numpy as np
import pytest
from onnx import helper

from tests.support import bundles, deploy_client, nets, opencl
from tests.support.commands import done, parsed, toolchain
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import board, bundle, resources, tensors
from toolchain.native import sdk as sdks
from toolchain.shell import SshOptions, open_shell

C = DATA / "sdk"
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdk") / "sdk"
    done("sdk", "--board", "local", "-o", folder)
    return folder


def python_binding():
    """Return the module of the SDK's Python."""
    sys.path.insert(0, str(resources.RUNTIME / "sdk"))
    try:
        import edge_model
    finally:
        sys.path.pop(0)
    return edge_model


def flags(sdk: Path, *options: str) -> list[str]:
    require("pkg-config", "pkgconf", shutil.which("pkg-config") is not None)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(sdk / "lib" / "pkgconfig")}
    command = ["pkg-config", *options, "edge_model"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def compiled(sdk: Path, source: Path, target: Path, *more: str, static: bool = False) -> Path:
    """Build an application as a reader of the SDK's README does."""
    linked = flags(sdk, "--variable=static") if static else [*flags(sdk, "--libs"), f"-Wl,-rpath,{sdk / 'lib'}"]
    compiler = ["g++", "-std=c++17", "-Wall"] if source.suffix == ".cc" else ["gcc", *WARNINGS]
    subprocess.run([*compiler, *more, source, *flags(sdk, "--cflags"), "-o", target, *linked, "-lpthread"], check=True)
    return target


def ran(*arguments: object, timeout: float = 120.0, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, arguments)], capture_output=True, text=True, check=False, timeout=timeout, **options
    )


# --- what is in it -------------------------------------------------------------------------------------------------


def test_the_library_shows_no_more_than_it_should(sdk):
    command = ["nm", "-D", "--defined-only", sdk / "lib" / "libedge_model.so.1"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert sorted(line.split()[-1] for line in listed) == (C / "exports.txt").read_text().split()


def test_the_static_library_has_no_other_global_names(sdk):
    command = ["nm", "--defined-only", "--extern-only", sdk / "lib" / "libedge_model.a"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = sorted(line.split()[-1] for line in listed if len(line.split()) == 3)
    assert names == (C / "exports.txt").read_text().split()


def test_the_header_is_c99_and_cpp(sdk, tmp_path):
    header = sdk / "include" / "edge_model.h"
    for compiler in (
        ["gcc", *WARNINGS],
        ["g++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", "c++"],
    ):
        subprocess.run([*compiler, "-fsyntax-only", header], check=True)
    assert f"#define EDGE_ABI {sdks.ABI}" in header.read_text()


def test_a_newer_one_takes_its_place_and_a_strangers_folder_does_not(sdk, tmp_path):
    again = tmp_path / "again"
    first = parsed("sdk", "--board", "local", "-o", again)
    assert parsed("sdk", "--board", "local", "-o", again) == first
    assert set(first["files"]) == {str(path.relative_to(again)) for path in again.rglob("*") if path.is_file()} - {
        sdks.RECORD
    }
    (again / "example" / "mine.c").write_text("int mine;\n")
    outcome = toolchain("sdk", "--board", "local", "-o", again)
    assert (outcome.code, "it contains example/mine.c" in outcome.err) == (2, True)
    assert (again / "example" / "mine.c").read_text() == "int mine;\n"


# --- applications --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers(tiny):
    """The reference of a bundle, as an application gets and gives it."""
    return bundle.Reference.read(tiny.reference)


def test_a_guest_leaves_no_traces(sdk, tiny, tmp_path):
    application = compiled(sdk, C / "guest.c", tmp_path / "guest")
    outcome = ran(application, tiny.folder)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_a_plugin_that_sees_itself_alone(sdk, tiny, tmp_path):
    plugin = compiled(sdk, C / "plugin.c", tmp_path / "plugin.so", "-shared", "-fPIC")
    subprocess.run(["gcc", *WARNINGS, C / "plugin_host.c", "-o", tmp_path / "host", "-ldl"], check=True)
    outcome = ran(tmp_path / "host", plugin, tiny.folder)
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize("static", [False, True])
def test_exceptions_of_another_cpp_library(sdk, tiny, tmp_path, static):
    outcome = ran(compiled(sdk, C / "mixed.cc", tmp_path / "mixed", static=static), tiny.folder)
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_the_static_library_as_a_guest(sdk, tiny, tmp_path):
    outcome = ran(compiled(sdk, C / "guest.c", tmp_path / "guest", static=True), tiny.folder)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_a_static_application_that_hides_its_functions_is_told_so(sdk, tiny, tmp_path):
    command = ["gcc", *WARNINGS, C / "guest.c", *flags(sdk, "--cflags"), sdk / "lib" / "libedge_model.a"]
    subprocess.run([*command, "-o", tmp_path / "guest", "-lpthread", "-ldl", "-lm", "-lgcc_eh"], check=True)
    assert "link it with -rdynamic" in ran(tmp_path / "guest", tiny.folder).stderr


def test_opening_and_closing_leaks_nothing(sdk, tiny, tmp_path):
    application = compiled(sdk, C / "cycles.c", tmp_path / "cycles")
    report = json.loads(ran(application, tiny.folder, 1000).stdout)
    assert report["allocated"] < 10
    assert report["resident"] < 500  # an arena of the allocator's more or less, which a new thread may get
    assert (report["threads"], report["files"], report["mapped"]) == (1, 0, 0)


def test_the_examples_with_cmake(sdk, tiny, answers, tmp_path):
    tool = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    for arguments in (["-S", sdk / "example", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={sdk}"], ["--build", tmp_path]):
        subprocess.run([tool, *arguments], check=True, capture_output=True)
    (input_array,) = answers.inputs.values()
    (expected_output,) = answers.outputs.values()
    input_array.tofile(tmp_path / "input.raw")
    (tmp_path / "labels").write_text("".join(f"class {number}\n" for number in range(expected_output.size)))
    outcome = ran(tmp_path / "top5", tiny.folder, tmp_path / "input.raw", tmp_path / "labels")
    order = np.argsort(-expected_output.ravel(), kind="stable")[: min(5, expected_output.size)]
    assert [line.split("  ")[-1] for line in outcome.stdout.splitlines()][: len(order)] == [f"class {n}" for n in order]
    assert ran(tmp_path / "top5", tiny.folder, tmp_path / "top5.c").returncode == 1
    assert ran(tmp_path / "service", tiny.folder, "1000", "3").stdout.splitlines() == ["open dense ", "end"]


def test_python(sdk, tiny, answers):
    code = f"""
import sys
import numpy as np
sys.path.insert(0, {str(sdk / "python")!r})
import edge_model
with edge_model.Model({str(tiny.folder)!r}, threads=edge_model.ALL_CPUS, pin=True) as model:
    (name,) = model.inputs
    given = np.load(sys.argv[1])
    (found,) = model.run({{name: given}}).values()
    np.save(sys.argv[2], found)
    assert (model.name, model.digest, model.changed()) == ("dense", "", False)
    for wrong in ({{}}, {{name: given[..., :1]}}, {{name: given.astype(np.float64)}}, {{name: given, "x": given}}):
        try:
            model.run(wrong)
        except ValueError as fault:
            print(fault)
try:
    model.run({{name: given}})
except edge_model.EdgeError as fault:
    print(fault.code, fault)
"""
    (input_array,) = answers.inputs.values()
    (expected_output,) = answers.outputs.values()
    folder = sdk.parent
    np.save(folder / "given.npy", input_array)
    outcome = ran(sys.executable, "-c", code, folder / "given.npy", folder / "found.npy")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[-1] == "2 the model is closed"
    assert len(outcome.stdout.splitlines()) == 4
    np.testing.assert_allclose(np.load(folder / "found.npy"), expected_output, rtol=1e-4, atol=1e-6)


BESIDE = """
import os, sys, threading, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given, right = np.load(sys.argv[3]), [0, 0]
wanted = [np.load(path) for path in sys.argv[4:]]
def count(wanted):  # the kernel removes a thread shortly after its join
    end = time.monotonic() + 10
    while (found := len(os.listdir("/proc/self/task")) - before) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return found
before = len(os.listdir("/proc/self/task"))
cpus = sorted(os.sched_getaffinity(0))[:2]
workers = len(cpus) - 1
slots = [f"{sys.argv[2]}/slots/{slot}/current" for slot in ("detector", "classifier")]
models = [edge_model.Model(slot, threads=2) for slot in slots]
assert count(workers) == workers
with edge_model.Model(slots[0], threads=2):  # a third one
    assert count(workers) == workers
for others in (edge_model.Workers(spin_us=7), edge_model.Workers(own=True), edge_model.Workers(cpus=cpus)):
    with edge_model.Model(slots[0], threads=len(cpus), workers=others):
        assert count(2 * workers) == 2 * workers
def run(index, times):
    (name,) = models[index].inputs
    for _ in range(times):
        (found,) = models[index].run({name: given}).values()
        right[index] += np.allclose(found, wanted[index], rtol=1e-4, atol=1e-5)
for _ in range(50):
    run(0, 1)
    run(1, 1)
both = [threading.Thread(target=run, args=(index, 200)) for index in (0, 1)]
for thread in both:
    thread.start()
for thread in both:
    thread.join()
models[0].close()
assert count(workers) == workers
run(1, 1)
models[1].close()
print(*right, count(0))
"""


def test_two_models_of_one_store_in_one_process(sdk, tiny, program, answers, tmp_path):
    """In turns on one thread, then each on a thread of its own; closing one leaves the other.

    Models whose options agree have their threads in common, however many they are.
    """
    other = bundles.reweighted(tiny, tmp_path / "other", seed=3)
    releases = {"detector": tiny, "classifier": other}
    for slot, release in releases.items():
        deploy_client.plain_deploy(release, program, tmp_path / "device", slot=slot)
        np.save(tmp_path / f"{slot}.npy", *bundle.Reference.read(release.reference).outputs.values())
    np.save(tmp_path / "given.npy", *answers.inputs.values())
    files = [tmp_path / f"{name}.npy" for name in ("given", *releases)]
    outcome = ran(sys.executable, "-c", BESIDE, sdk / "python", tmp_path / "device", *files)
    assert outcome.stderr == ""
    assert outcome.stdout.splitlines() == ["250 251 0"]


FORKED = """
import os, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = np.load(sys.argv[3])
model = edge_model.Model(sys.argv[2], threads=2)
(name,) = model.inputs
(wanted,) = [value.copy() for value in model.run({name: given}).values()]
child = os.fork()
if child == 0:
    with edge_model.Model(sys.argv[2], threads=2) as fresh:
        right = all((value == wanted).all() for value in fresh.run({name: given}).values())
        threads = len(os.listdir("/proc/self/task"))
    model.close()  # which waits for none of its parent's threads
    os._exit(0 if right and threads == min(2, len(os.sched_getaffinity(0))) else 1)
assert os.waitpid(child, 0)[1] == 0
assert all((value == wanted).all() for value in model.run({name: given}).values())
"""


def test_a_fork_opens_its_own_threads(sdk, tiny, answers, tmp_path):
    """The model stays open at the end of the process, too."""
    np.save(tmp_path / "given.npy", *answers.inputs.values())
    outcome = ran(sys.executable, "-c", FORKED, sdk / "python", tiny.folder, tmp_path / "given.npy", timeout=60)
    assert (outcome.returncode, outcome.stderr) == (0, "")


COMPARE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = dict(np.load(sys.argv[3]))
with edge_model.Model(sys.argv[2]) as first, edge_model.Model(sys.argv[2], threads=2) as second:
    for model in (first, second, first):
        np.savez(sys.argv[4], **model.run(given))
"""


def convolution(folder: Path, seed: int = 0) -> str:
    """Return a quantized network of layers that VTA computes."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((16, 3, 3, 3), (16, 16, 3, 3))]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    ends = [nets.value("x", (1, 3, 16, 16))], [nets.value("y", (1, 16, 16, 16))]
    path = nets.save(nets.model(nodes, *ends, dict(zip(("first", "second"), weights, strict=True))), folder)
    done("quantize", path, "--calibration", "random", "-o", folder / "quantized.onnx")
    return str(folder / "quantized.onnx")


@pytest.mark.parametrize(("name", "limit"), [("opencl-local", 1e-3), ("vta-sim", 5e-2)])
def test_releases_for_accelerators(sdk, name, limit, tmp_path, monkeypatch):
    """Two models at once, and one after the other, on one device."""
    if name == "opencl-local":
        opencl.require_opencl()
    monkeypatch.setenv("EDGE_OPENCL_CACHE", str(tmp_path / "cache"))
    source = "mlp" if name == "opencl-local" else convolution(tmp_path)
    done("build", source, "--board", name, "-o", tmp_path / "bundle")
    accelerated = bundle.load(tmp_path / "bundle")
    assert (accelerated.manifest.modelled is not None) == (name == "vta-sim")
    reference = bundle.Reference.read(accelerated.reference)
    np.savez(tmp_path / "given.npz", **reference.inputs)
    files = [tmp_path / "bundle", tmp_path / "given.npz", tmp_path / "found.npz"]
    outcome = ran(sys.executable, "-c", COMPARE, sdk / "python", *files)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    outputs = dict(np.load(tmp_path / "found.npz"))
    assert tensors.compare(outputs, reference.outputs, limit).ok


ALONE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model

def image(seed):
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)}

def alone(release, seed):
    with edge_model.Model(release) as model:
        return model.run(image(seed))["y"].copy()

releases = sys.argv[2:]
wanted = {(release, seed): alone(release, seed) for release in releases for seed in range(4)}
assert len({one.tobytes() for one in wanted.values()}) == len(wanted)
"""
TOGETHER = """
models = {release: edge_model.Model(release) for release in releases}
for turn in range(40):
    for release in releases:
        found = models[release].run(image(turn % 4))["y"]
        assert np.array_equal(found, wanted[release, turn % 4]), (turn, release)
    if turn % 5 == 4:  # the next one's weights come to lie where those of the closed one were
        release = releases[turn // 5 % 2]
        models[release].close()
        models[release] = edge_model.Model(release)
"""


def test_models_with_other_weights_share_an_accelerator(sdk, tmp_path):
    """Their weights stay in its memory from one run to the next, until they are closed."""
    for seed in (0, 1):
        source = convolution(tmp_path / f"net{seed}", seed)
        done("build", source, "--board", "vta-sim", "-o", tmp_path / f"bundle{seed}")
    outcome = ran(sys.executable, "-c", ALONE + TOGETHER, sdk / "python", tmp_path / "bundle0", tmp_path / "bundle1")
    assert (outcome.returncode, outcome.stderr) == (0, "")


SHARED = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
with edge_model.Model(sys.argv[2]) as model:
    place = model.inputs["x"].ctypes.data
    for number in range(20):
        found = model.run({"x": np.full((1, 4), number, np.float32)})
        assert model.inputs["x"].ctypes.data == place and (model.inputs["x"] == number).all()
        seen = {name: tensor.array() for name, tensor in model._tensors("output")}
        model.inputs["x"][...] = -1  # what the last run gave stays until the next one
        assert (seen["y"] == 2 * number).all() and (seen["z"] == number).all(), seen
"""


@pytest.mark.parametrize(
    ("faults", "old"),
    [({}, False), ({"discrete": 1}, False), ({"moves": 0}, False), ({}, True)],
    ids=["shared", "its own", "moved", "OpenCL 1.1"],
)
def test_memory_in_common_with_a_gpu(sdk, faults, old, tmp_path, monkeypatch):
    """Inputs and outputs are the device's own memory where it has that in common; an output that is an input is not."""
    opencl.require_opencl()
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    ends = [nets.value("x", (1, 4))], [nets.value(name, (1, 4)) for name in "yz"]
    done("build", nets.save(nets.model(nodes, *ends), tmp_path), "--board", "opencl-local", "-o", tmp_path / "bundle")
    shim = opencl.Shim(tmp_path / "shim", old=old)
    for name, value in {**shim.env(**faults), "EDGE_OPENCL_CACHE": ""}.items():
        monkeypatch.setenv(name, value)
    outcome = ran(sys.executable, "-c", SHARED, sdk / "python", tmp_path / "bundle")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    counts = shim.counts()
    assert counts.maps == counts.unmaps
    assert counts.buffers == counts.buffers_freed
    assert (counts.maps > 0, counts.copies > 0) == ((False, True) if "discrete" in faults else (True, False))


LOST = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
with edge_model.Model(sys.argv[2]) as model:
    def run(number):
        assert (model.run({"x": np.full((1, 4), number, np.float32)})["y"] == 2 * number).all()
    for step in (run, run, run, lambda _: model.inputs):
        try:
            step(7)
            print("right")
        except edge_model.EdgeError as error:
            print(error.code, error)
"""


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"no_unmap": 2}, "unmapping a buffer"),
        ({"moves": 5}, "the driver moves memory"),
        ({"no_map": 5}, "mapping a buffer"),
    ],
    ids=["not given", "moved", "not given back"],
)
def test_memory_that_a_run_loses_is_never_used_again(sdk, faults, reason, tmp_path, monkeypatch):
    """The second run loses it, once; neither its address nor what it held is told or computed with from then on."""
    opencl.require_opencl()
    model = nets.model(
        [helper.make_node("Add", ["x", "x"], ["y"])], [nets.value("x", (1, 4))], [nets.value("y", (1, 4))]
    )
    done("build", nets.save(model, tmp_path), "--board", "opencl-local", "-o", tmp_path / "bundle")
    for name, value in {**opencl.Shim(tmp_path / "shim").env(**faults), "EDGE_OPENCL_CACHE": ""}.items():
        monkeypatch.setenv(name, value)
    outcome = ran(sys.executable, "-c", LOST, sdk / "python", tmp_path / "bundle")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    first, second, third, address = outcome.stdout.splitlines()
    assert first == "right"
    assert second.startswith("5 ")
    assert all(line.startswith("5 an input's memory is lost: ") for line in (third, address))
    assert all(reason in line for line in (second, third, address))


# --- releases that change ------------------------------------------------------------------------------------------


def test_a_hundred_switches_under_load(sdk, tiny, tmp_path):
    """Two releases that differ in their digest alone take turns as `current`, by a rename, as a deploy does it."""
    application = compiled(sdk, sdk / "example" / "service.cc", tmp_path / "service")
    releases = [tmp_path / "releases" / (digit * 64) for digit in "ab"]
    for folder in releases:
        shutil.copytree(tiny.folder, folder)
    current = tmp_path / "current"
    current.symlink_to(releases[0])
    with subprocess.Popen(
        [application, current, "2000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as service:
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(service.stdout))
        reader.start()
        try:
            until(lambda: lines)
            for number in range(1, 101):
                aside = tmp_path / "new"
                aside.symlink_to(releases[number % 2])
                aside.replace(current)
                until(lambda expected_output=number + 1: len(lines) >= expected_output)
        finally:
            service.terminate()
        reader.join()
        assert (service.wait(), service.stderr.read()) == (0, "")
    assert lines == [f"open dense {'ab'[number % 2] * 64}\n" for number in range(101)] + ["end\n"]


def until(holds) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_damaged_release_leaves_the_old_one_at_work(sdk, tiny, tmp_path):
    application = compiled(sdk, sdk / "example" / "service.cc", tmp_path / "service")
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny.folder, damaged)
    (damaged / "model.so").write_bytes((tiny.folder / "model.so").read_bytes()[:5000])
    current = tmp_path / "current"
    current.symlink_to(tiny.folder)
    with subprocess.Popen(
        [application, current, "500"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        opened = it.stdout.readline()
        (tmp_path / "new").symlink_to(damaged)
        (tmp_path / "new").replace(current)
        line = it.stderr.readline()
        lives = it.poll() is None
        it.terminate()
        it.communicate()
    assert (opened, "damaged or truncated" in line, lives, it.returncode) == ("open dense \n", True, True, 0)


def test_a_deploy_brings_the_library(sdk, tiny, tmp_path):
    """An application is linked once, with a path in the store; a second deploy sends nothing more."""
    root = tmp_path / "store"
    command = [
        "deploy",
        tiny.folder,
        "--board",
        "local",
        "--root",
        root,
        "--budget",
        0,
        "--with-library",
        "--json",
        "-",
    ]
    done(*command)
    source = [sdk / "example" / "top5.c", *flags(sdk, "--cflags", "--libs")]
    subprocess.run(["gcc", *WARNINGS, *source, f"-Wl,-rpath,{root / 'lib'}", "-o", tmp_path / "top5"], check=True)
    (tmp_path / "raw").write_bytes(bytes(1000))
    again = ran(tmp_path / "top5", root / "current", tmp_path / "raw")
    assert (again.returncode, len(again.stdout.splitlines())) == (0, 4)
    assert (root / "lib").readlink().parts[0] == "libraries"
    sent = json.loads(done(*command).out)["transfer"]
    assert sent["blobs_sent"] == 0


# --- boards --------------------------------------------------------------------------------------------------------

# Bytes, of the whole file.
LARGEST = {"rpi4": 3_700_000, "pynq": 2_800_000}


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("rpi4", "mlp"),
        pytest.param("rpi4", "squeezenet_v1.1", marks=pytest.mark.nightly),
        pytest.param("pynq", "squeezenet_v1.1", marks=pytest.mark.nightly),
    ],
)
def test_an_application_on_a_virtual_board(virtual_boards, name, network, tmp_path):
    """From a model to its top five on a board, with that board's own compiler."""
    compiler = f"{board.load(name).triple}-gcc"
    require(compiler, "g++-aarch64-linux-gnu and g++-arm-linux-gnueabihf", shutil.which(compiler) is not None)
    done("sdk", "--board", name, "-o", tmp_path / "sdk")
    library = tmp_path / "sdk" / "lib" / "libedge_model.so.1"
    assert library.stat().st_size <= LARGEST[name]
    where = ["--board", name, "--host", virtual_boards.name(name), "--devices", virtual_boards.devices]
    done("build", network, "--board", name, "--toolchain", "host", "-o", tmp_path / "bundle")
    done("deploy", tmp_path / "bundle", *where, "--budget", 0, "--root", "~/sdk-test")
    command = [compiler, *WARNINGS, tmp_path / "sdk/example/top5.c", *flags(tmp_path / "sdk", "--cflags", "--libs")]
    subprocess.run([*command, "-o", tmp_path / "top5"], check=True)
    reference = bundle.Reference.read(bundle.load(tmp_path / "bundle").reference)
    (input_array,), (expected_output,) = reference.inputs.values(), reference.outputs.values()
    input_array.tofile(tmp_path / "input.raw")
    with open_shell(
        virtual_boards.name(name), config=SshOptions(config_file=virtual_boards.config, agent=False)
    ) as shell:
        shell.run("mkdir -p sdk-test")
        for path in (library, tmp_path / "top5", tmp_path / "input.raw"):
            shell.push(path, f"sdk-test/{path.name}")
        outcome = shell.run("cd sdk-test; chmod +x top5; LD_LIBRARY_PATH=. ./top5 current input.raw", timeout=300)
        shell.run("rm -rf sdk-test")
    classes = [int(line.split()[1]) for line in outcome.stdout.splitlines()]
    assert classes == list(np.argsort(-expected_output.ravel(), kind="stable")[:5])
