"""The device's runner, built here and driven through its command line only."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from toolchain import tensors, versions

RNG = np.random.default_rng(20240611)
USAGE, INPUT, LOAD, FAILED = 2, 3, 4, 5

X = RNG.standard_normal((2, 4), dtype=np.float32)
W = RNG.standard_normal((4, 3), dtype=np.float32)
B = RNG.standard_normal(3, dtype=np.float32)
LONG_X, LARGE = RNG.standard_normal((2, 4096), dtype=np.float32), np.ones((4096, 4096), np.float32)
KINDS = {
    "f": np.array([0.5, -1.25, 3.0], dtype=np.float16),
    "i": np.array([-60, -1, 0, 1, 60], dtype=np.int8),
    "l": np.array([[-(2**61), -1], [1, 2**61]], dtype=np.int64),
    "t": np.array([True, False, False, True]),
}


@pytest.fixture(scope="module")
def runner(program):
    return program.path


def tiny_module():
    """One library with all the entry functions that the tests run."""
    from tvm import relax
    from tvm.relax import op

    build = relax.BlockBuilder()

    def arguments(**arrays):
        return [relax.Var(name, relax.TensorType(a.shape, str(a.dtype))) for name, a in arrays.items()]

    x, w, b = args = arguments(x=X, w=W, b=B)
    with build.function("main", args):
        build.emit_func_output(build.emit(op.nn.relu(op.add(op.matmul(x, w), b))))
    x, w, b = args = arguments(x=X, w=W, b=B)
    with build.function("pair", args):
        raw = build.emit(op.add(op.matmul(x, w), b))
        build.emit_func_output(relax.Tuple([raw, build.emit(op.nn.relu(raw))]))
    args = arguments(**KINDS)
    with build.function("kinds", args):
        sums = [build.emit(op.add(value, value)) for value in args[:3]]
        build.emit_func_output(relax.Tuple([*sums, build.emit(op.logical_not(args[3]))]))
    x, w = args = arguments(x=X, w=W)
    with build.function("constant", args):
        build.emit_func_output(relax.Tuple([w, build.emit(op.nn.relu(x))]))
    x, w = args = arguments(x=LONG_X, w=LARGE)
    with build.function("large", args):
        build.emit_func_output(build.emit(op.matmul(x, w)))
    n, d = args = arguments(n=np.zeros(2, np.int32), d=np.zeros(2, np.int32))
    with build.function("quotient", args):
        build.emit_func_output(build.emit(op.floor_divide(n, d)))
    return build.get()


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    import tvm

    path = tmp_path_factory.mktemp("library") / "model.so"
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    tvm.compile(tiny_module(), target=target).export_library(str(path))
    return path


def specs(arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [{"name": n, "shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()]


@dataclass
class Release:
    """A release's folder together with the files of one run of it."""

    runner: Path
    folder: Path
    inputs: Path
    outputs: Path
    report: Path

    def manifest(self, **changes: Any) -> None:
        """Change keys of the manifest; None removes one."""
        path = self.folder / "manifest.json"
        merged = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))

    def start(self, *extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.command(), *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *extra: str, **files: Path) -> subprocess.CompletedProcess[str]:
        command = self.command(**files)
        return subprocess.run([*command, *extra], capture_output=True, text=True, check=False, timeout=60)

    def command(self, **files: Path) -> list[str]:
        paths = {name: files.get(name, getattr(self, name)) for name in ("inputs", "outputs", "report")}
        command = [str(self.runner), "--release", str(self.folder)]
        for name, path in paths.items():
            command += [f"--{name}", str(path)]
        return command

    def smoke(self, **files: Path) -> subprocess.CompletedProcess[str]:
        return self.run("--max-runs", "0", **files)

    def fails(self, code: int, *arguments: str, **files: Path) -> None:
        """Expect one clear line and the exit code from a smoke run, and no output file."""
        check_fault(self.smoke(**files), code, *arguments)
        assert not files.get("outputs", self.outputs).is_file()


def check_fault(completed: subprocess.CompletedProcess[str], code: int, *arguments: str) -> None:
    assert completed.returncode == code, completed.stderr
    assert completed.stdout == ""
    assert completed.stderr.startswith("runner: ")
    assert completed.stderr.endswith("\n")
    assert completed.stderr.count("\n") == 1, completed.stderr
    for text in arguments:
        assert text in completed.stderr


@pytest.fixture
def release(runner, library, tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    shutil.copy(library, folder / "model.so")
    save_file({"p0": W, "p1": B}, folder / "params.safetensors")
    manifest = {
        "name": "tiny",
        "versions": versions.tvm(),
        "library": "model.so",
        "params": "params.safetensors",
        "entry": "main",
        "inputs": specs({"x": X}),
        "outputs": specs({"y": X @ W}),
        "params_order": ["p0", "p1"],
        "target": {"kind": "llvm"},
        "someone": {"else's": ["key"]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    built = Release(runner, folder, tmp_path / "in.safetensors", tmp_path / "out.safetensors", tmp_path / "report.json")
    save_file({"x": X}, built.inputs, metadata={"made-by": "test"})
    return built


# --- what works ----------------------------------------------------------------------------------------------


def test_version_is_one_json_line(runner):
    completed = subprocess.run([runner, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert completed.stdout.count("\n") == 1
    assert json.loads(completed.stdout) == {
        "device": "0.1.0",
        "tvm": "0.27.0.post1",
        "tvm_ffi": "0.1.14.post1",
        "machine": os.uname().machine,
    }


def test_help_names_every_option(runner):
    completed = subprocess.run([runner, "--help"], capture_output=True, text=True, check=True, timeout=60)
    for option in ("release", "inputs", "outputs", "report", "warmup-runs", "min-runs", "max-runs", "progress"):
        assert f"--{option}" in completed.stdout


def test_works_from_any_folder(runner, release, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(runner.parent, moved)
    release.runner = moved / "runner"
    completed = release.smoke()
    assert completed.returncode == 0, completed.stderr


def test_outputs_and_report(release):
    limits = ("--warmup-runs", "2", "--min-runs", "4", "--max-runs", "9", "--budget-ms", "50")
    completed = release.run(*limits, "--threads", "1")
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    np.testing.assert_allclose(load_file(release.outputs)["y"], np.maximum(X @ W + B, 0), rtol=1e-5)

    report = json.loads(release.report.read_text())
    keys = (
        "schema load_ms each_ns warmup_ns samples_ns involuntary_switches threads peak_rss_kib processor runner copies"
        " periodic weights"
    )
    assert sorted(report) == sorted(keys.split())
    assert report["weights"] == "file"  # nothing is signed
    assert report["schema"] == 1
    assert report["threads"] == 1
    assert report["processor"] is None, "it is the CPU"
    assert report["runner"]["tvm"] == "0.27.0.post1"
    assert len(report["warmup_ns"]) == 2
    assert 4 <= len(report["samples_ns"]) <= 9
    assert all(isinstance(ns, int) and ns > 0 for ns in report["samples_ns"])
    assert report["load_ms"] > 0
    assert report["each_ns"][0] > 0
    assert 1000 < report["peak_rss_kib"] < 200_000
    beside = {"release", release.inputs.name, release.outputs.name, release.report.name}
    assert {path.name for path in release.report.parent.iterdir()} == beside  # no temporary file is left


@pytest.mark.parametrize(("shift", "is_shared"), [(0, True), (4, False)], ids=["aligned", "unaligned"])
def test_weights_are_in_memory_once(release, shift, is_shared):
    release.manifest(entry="large", inputs=specs({"x": LONG_X}), outputs=specs({"y": LONG_X}), params_order=["w"])
    save_file({"x": LONG_X}, release.inputs)
    encoded = tensors.encode_aligned({"w": LARGE})
    length = int.from_bytes(encoded[:8], "little")
    header, data = encoded[8 : 8 + length].ljust(length + shift), encoded[8 + length :]
    (release.folder / "params.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    process = release.start("--max-runs", "1000", "--budget-ms", "10000", "--min-runs", "1000", "--progress")
    try:
        assert process.stderr is not None
        assert "runs in" in process.stderr.readline()
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    finally:
        process.kill()
        process.communicate()
    weights = LARGE.nbytes // 1024
    assert weights < sizes["Rss"] < weights * 1.5
    assert (sizes["Anonymous"] < weights / 2) == is_shared, "the kernel shares pages of a file among processes"


def test_a_constant_output_is_a_copy_of_its_param(release):
    release.manifest(entry="constant", inputs=specs({"x": X}), outputs=specs({"y": W, "z": X}), params_order=["p0"])
    assert release.smoke().returncode == 0
    np.testing.assert_array_equal(load_file(release.outputs)["y"], W)


def test_min_runs_outlast_the_budget_and_max_runs_end_it(release):
    assert release.run("--budget-ms", "0", "--min-runs", "7").returncode == 0
    assert len(json.loads(release.report.read_text())["samples_ns"]) == 7
    assert release.run("--max-runs", "2").returncode == 0
    assert len(json.loads(release.report.read_text())["samples_ns"]) == 2


def test_budget_ends_the_measurement(release):
    assert release.run("--budget-ms", "100", "--max-runs", "10000000").returncode == 0
    samples = json.loads(release.report.read_text())["samples_ns"]
    assert 3 < len(samples) < 1_000_000
    assert sum(samples) < 300_000_000


def test_who_takes_the_cpu_away_is_counted(release):
    cpu = min(os.sched_getaffinity(0))
    other = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"])
    try:
        options = ("--threads", "1", "--budget-ms", "500", "--max-runs", "10000000")
        subprocess.run(["taskset", "-c", str(cpu), *release.command(), *options], check=True, timeout=60)
    finally:
        other.kill()
        other.wait()
    assert json.loads(release.report.read_text())["involuntary_switches"] > 0


def test_no_timed_runs(release):
    assert release.smoke().returncode == 0
    report = json.loads(release.report.read_text())
    assert report["samples_ns"] == report["warmup_ns"] == []
    assert load_file(release.outputs)["y"].shape == (2, 3)


def test_progress_is_at_most_one_line_per_second(release):
    completed = release.run("--progress", "--budget-ms", "1500", "--max-runs", "10000000")
    assert completed.returncode == 0
    lines = completed.stderr.splitlines()
    assert len(lines) == 1
    assert " runs in 1." in lines[0]


def test_threads_default_to_the_affinity_mask(release):
    mask = os.sched_getaffinity(0)
    assert release.smoke().returncode == 0
    assert json.loads(release.report.read_text())["threads"] == len(mask)
    os.sched_setaffinity(0, {max(mask)})
    try:
        assert release.smoke().returncode == 0
    finally:
        os.sched_setaffinity(0, mask)
    assert json.loads(release.report.read_text())["threads"] == 1


@pytest.mark.parametrize("options", [[], ["--no-pin"]], ids=["pinned", "not pinned"])
def test_each_thread_has_a_cpu_of_its_own_or_they_share_all(release, options):
    mask = os.sched_getaffinity(0)
    # TVM lets the thread that launches kernels, which works as well, go where the others leave room.
    expected_masks = [mask] * len(mask) if options else sorted([mask, *({cpu} for cpu in sorted(mask)[1:])], key=sorted)
    deadline = time.monotonic() + 10
    with release.start("--budget-ms", "20000", "--max-runs", "10000000", *options) as process:
        while (masks := masks_of(process.pid)) != expected_masks and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert masks == expected_masks


def masks_of(pid: int) -> list[set[int]]:
    """Return the CPUs that each thread of a process may use."""
    return sorted((os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()), key=sorted)


def test_two_outputs(release):
    raw = X @ W + B
    release.manifest(entry="pair", outputs=specs({"raw": raw, "relu": raw}))
    assert release.smoke().returncode == 0
    outputs = load_file(release.outputs)
    np.testing.assert_allclose(outputs["raw"], raw, rtol=1e-5)
    np.testing.assert_allclose(outputs["relu"], np.maximum(raw, 0), rtol=1e-5)


def test_dtypes_round_trip(release):
    renamed = {f"2{name}": array for name, array in KINDS.items()}
    release.manifest(entry="kinds", inputs=specs(KINDS), outputs=specs(renamed), params_order=[])
    save_file(KINDS, release.inputs)
    completed = release.smoke()
    assert completed.returncode == 0, completed.stderr
    outputs = load_file(release.outputs)
    for name, array in KINDS.items():
        expected = ~array if array.dtype == bool else array + array
        assert outputs[f"2{name}"].dtype == array.dtype
        np.testing.assert_array_equal(outputs[f"2{name}"], expected)


def test_present_cpu_features_are_accepted(release):
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = next(line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    release.manifest(cpu_features=flags.split(":")[1].split()[:3])
    assert release.smoke().returncode == 0


# --- a wrong command line, exit 2 ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--warp"], ['unknown option "--warp"']),
        (["surplus"], ['unknown option "surplus"']),
        (["--max-runs"], ["--max-runs needs a value"]),
        (["--max-runs", "-1"], ["--max-runs must be an integer", '"-1"']),
        (["--min-runs", "3x"], ["--min-runs must be an integer", '"3x"']),
        (["--budget-ms", "99999999999999999999"], ["--budget-ms must be an integer"]),
        (["--threads", "0"], ["--threads must be an integer"]),
        (["--threads", "1024"], ["1024 threads, but this process may use"]),
        (["--release", "again"], ["--release is given twice"]),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_wrong_command_line(release, extra, message):
    check_fault(release.run(*extra), USAGE, *message)


def test_missing_option(runner):
    completed = subprocess.run([runner], capture_output=True, text=True, check=False, timeout=60)
    check_fault(completed, USAGE, "--release is missing")


def test_unwritable_outputs(release, tmp_path):
    release.fails(USAGE, "No such file or directory", outputs=tmp_path / "nowhere" / "out.safetensors")
    release.fails(USAGE, "is not a folder", outputs=release.inputs / "out.safetensors")
    release.fails(USAGE, "it is a folder", outputs=release.folder)
    release.fails(USAGE, "No such file or directory", report=tmp_path / "nowhere" / "report.json")
    release.fails(USAGE, "name the same file", report=release.outputs)


def test_failed_write_leaves_the_old_file(release):
    release.outputs.write_text("old")
    limited = release.folder / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -f 0\nexec {release.runner} "$@"\n')
    limited.chmod(0o755)
    release.runner = limited
    check_fault(release.smoke(), USAGE, "cannot write the file: File too large", "out.safetensors")
    assert release.outputs.read_text() == "old"
    assert not list(release.outputs.parent.glob("*.tmp.*"))


# --- a wrong release or input, exit 3 ------------------------------------------------------------------------


def test_inputs_that_do_not_fit(release):
    save_file({"x": X[:1]}, release.inputs)
    release.fails(INPUT, 'input "x" is float32[1, 4], the release wants float32[2, 4]', release.inputs.name)
    save_file({"x": X.astype(np.float64)}, release.inputs)
    release.fails(INPUT, 'input "x" is float64[2, 4]')
    save_file({"z": X}, release.inputs)
    release.fails(INPUT, 'input "x" is missing')
    save_file({"x": X, "z": X}, release.inputs)
    release.fails(INPUT, 'input "z" is not one of this release')
    release.inputs.unlink()
    release.fails(INPUT, "cannot open the file: No such file or directory", release.inputs.name)


def test_inputs_that_are_no_files(release):
    release.fails(INPUT, "not a regular file", inputs=release.folder)
    pipe = release.folder / "pipe"
    os.mkfifo(pipe)
    release.fails(INPUT, "not a regular file", inputs=pipe)


@pytest.mark.parametrize("name", ["manifest.json", "params.safetensors", "model.so"])
def test_missing_file_of_the_release(release, name):
    (release.folder / name).unlink()
    release.fails(INPUT, "No such file or directory", name)


@pytest.mark.parametrize("key", ["library", "params"])
@pytest.mark.parametrize(
    ("name", "message"),
    [("../x", '".."'), ("a/../../x", '".."'), ("..", '".."'), ("/etc/passwd", "relative"), ("", "empty")],
)
def test_file_names_stay_inside_the_release(release, key, name, message):
    release.manifest(**{key: name})
    release.fails(INPUT, message, "manifest.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entry": None}, ['no key "entry"']),
        ({"params_order": None}, ['no key "params_order"']),
        ({"library": 7}, ['"library"', "must be a string"]),
        ({"inputs": {}}, ['"inputs"', "must be a list"]),
        ({"inputs": [3]}, ["entry 0", '"inputs"', "must be an object"]),
        ({"inputs": [{"name": "x", "shape": [2, 4], "dtype": "float99"}]}, ["unknown dtype", "float99"]),
        ({"inputs": [{"name": "x", "shape": [2**62, 8], "dtype": "int8"}]}, ["has a shape that overflows"]),
        ({"inputs": [{"name": "x", "shape": [2, -4], "dtype": "float32"}]}, ["must not be negative"]),
        ({"inputs": [{"name": "x", "shape": ["n", 4], "dtype": "float32"}]}, ["must be an integer"]),
        ({"inputs": specs({"x": X}) * 2}, ['repeats the name "x"']),
        ({"inputs": [{"name": "x", "shape": [1] * 33, "dtype": "int8"}]}, ["too many axes"]),
        ({"inputs": [{"name": n, "shape": [2**31], "dtype": "int8"} for n in "abc"]}, ["entry 2", "4 GiB"]),
        ({"params_order": ["p0"] * 60_000}, ["entry 1", '"params_order"', 'repeats the name "p0"']),
        ({"padding": "x" * 2**20}, ["the manifest has more than 1 MiB"]),
        ({"params_order": ["p0", "p9"]}, ['has no tensor "p9"', "params.safetensors"]),
        ({"states": {}}, ['"states"', "must be a list"]),
        ({"states": [{"input": "h", "output": "y"}]}, ["states", 'is not the name of a tensor: "h"']),
        ({"states": [{"input": "x"}]}, ['no key "output"']),
        ({"states": [{"input": "x", "output": "y"}]}, ["joins float32[2, 3] and float32[2, 4]"]),
        (
            {"states": [{"input": "x", "output": "y"}] * 2, "outputs": specs({"y": X})},
            ["entry 1", 'repeats the input "x"'],
        ),
        ({"outputs": specs({"y": X, "z": X})}, ["the model has 1 outputs, the manifest names 2"]),
        ({"outputs": specs({"y": X})}, ["float32[2, 3]", "the manifest says float32[2, 4]"]),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, dict) else None,
)
def test_wrong_manifest(release, changes, message):
    release.manifest(**changes)
    release.fails(INPUT, *message)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1} x', '{"\n": 1}', "[" * 1_000_000])
def test_manifest_that_is_no_json_object(release, text):
    (release.folder / "manifest.json").write_text(text)
    release.fails(INPUT, "JSON", "manifest.json")


def safetensors_bytes(header: object, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(shape: list[Any], begin: Any = 0, end: Any = 32, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = X.tobytes()
FAULTY_FILES = {
    "empty": (b"", "shorter than 8 bytes"),
    "cut-in-size": (b"\x10\0\0", "shorter than 8 bytes"),
    "cut-in-header": (safetensors_bytes({"x": entry([2, 4])}, GOOD)[:30], "truncated"),
    "cut-in-data": (safetensors_bytes({"x": entry([2, 4])}, GOOD)[:-1], "truncated"),
    "no-data": (safetensors_bytes({"x": entry([2, 4])}), "truncated"),
    "header-over-file": (safetensors_bytes({"x": entry([2, 4])}, GOOD, size=500), "truncated"),
    "header-size-huge": (safetensors_bytes({"x": entry([2, 4])}, GOOD, size=2**64 - 1), "18446744073709551615"),
    "header-size-wraps": (safetensors_bytes({"x": entry([2, 4])}, GOOD, size=2**64 - 8), "truncated"),
    "header-not-json": (safetensors_bytes(b"{x}", GOOD), "invalid JSON"),
    "header-not-utf8": (safetensors_bytes(b'{"\xff":1}', GOOD), "not UTF-8"),
    "header-list": (safetensors_bytes([], GOOD), "must be an object"),
    "header-deep": (safetensors_bytes(b'{"x":' * 200_000, GOOD), "nested too deep"),
    "entry-number": (safetensors_bytes({"x": 3}, GOOD), "must be an object"),
    "dtype-unknown": (safetensors_bytes({"x": entry([2, 4], dtype="F33")}, GOOD), "unknown dtype"),
    "no-offsets": (safetensors_bytes({"x": {"dtype": "F32", "shape": [2, 4]}}, GOOD), "data_offsets"),
    "offsets-reversed": (safetensors_bytes({"x": entry([2, 4], 32, 0)}, GOOD), "invalid data_offsets"),
    "offsets-negative": (safetensors_bytes({"x": entry([2, 4], -32, 0)}, GOOD), "must not be negative"),
    "offsets-huge": (safetensors_bytes({"x": entry([2, 4], 2**63 - 33, 2**63 - 1)}, GOOD), "truncated"),
    "offsets-over-int64": (safetensors_bytes({"x": entry([2, 4], 0, 2**65)}, GOOD), "must be an integer"),
    "offsets-float": (safetensors_bytes({"x": entry([2, 4], 0, 32.0)}, GOOD), "must be an integer"),
    "shape-too-large": (safetensors_bytes({"x": entry([2, 5])}, GOOD), "needs 40 bytes"),
    "shape-overflow": (safetensors_bytes({"x": entry([2**62, 4])}, GOOD), "overflows"),
    "shape-wraps-to-32": (safetensors_bytes({"x": entry([2**61 + 1, 8])}, GOOD), "overflows"),
    "shape-of-nothing-overflows": (safetensors_bytes({"x": entry([0, 2**62, 4], 0, 0)}, b""), "overflows"),
    "shape-negative": (safetensors_bytes({"x": entry([-2, -4])}, GOOD), "must not be negative"),
    "overlap": (safetensors_bytes({"x": entry([2, 4]), "z": entry([1], 28, 32)}, GOOD), "overlap"),
    "hole": (safetensors_bytes({"x": entry([2, 4], 4, 36)}, GOOD + b"\0" * 4), "hole"),
    "trailing-data": (safetensors_bytes({"x": entry([2, 4])}, GOOD + b"\0"), "end at byte 32 of 33"),
    "odd-name": (safetensors_bytes({"x": entry([2, 4]), "\n\x1b[31m": entry([0], 32, 32)}, GOOD), "not one of"),
}


@pytest.mark.parametrize("name", FAULTY_FILES)
def test_faulty_safetensors(release, name):
    content, message = FAULTY_FILES[name]
    release.inputs.write_bytes(content)
    release.fails(INPUT, message, release.inputs.name)


def mutated(rng: random.Random, valid: bytes) -> bytes:
    data = bytearray(valid)
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(min(len(data), 160))  # mostly the size field and the header, where the risk is
        kind = rng.randrange(5)
        if kind == 0:
            data[position] = rng.randrange(256)
        elif kind == 1:
            data[position] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[position:position] = rng.choice(
                [b"[", b"{", b'"', b"\\", b"\\u12", b"9" * 19, b"-", b",", b"\0", b"e9"]
            )
        elif kind == 3:
            del data[position : position + rng.randint(1, 8)]
        else:
            del data[rng.randrange(len(data)) :]
        if not data:
            break
    return bytes(data)


def test_fuzzed_safetensors_never_crash_the_reader(release):
    rng = random.Random(7)  # noqa: S311 - a reproducible sequence, not a secret
    valid = release.inputs.read_bytes()
    refused = 0
    for _ in range(400):
        content = mutated(rng, valid)
        release.inputs.write_bytes(content)
        completed = release.smoke()
        assert completed.returncode in {0, INPUT}, (completed, content)
        if completed.returncode == INPUT:
            check_fault(completed, INPUT)
            refused += 1
    assert refused > 200


# --- a library that does not fit the device, exit 4 ----------------------------------------------------------


def test_library_for_another_machine(release):
    path = release.folder / "model.so"
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, 18, 183)  # e_machine: EM_AARCH64
    path.write_bytes(content)
    release.fails(LOAD, "the library is for aarch64, this program for x86_64", "model.so")


@pytest.mark.parametrize("size", [0, 10, 64, 100, 4096])
def test_truncated_library(release, size):
    path = release.folder / "model.so"
    path.write_bytes(path.read_bytes()[:size])
    release.fails(LOAD, "model.so")


def test_library_that_is_text(release):
    (release.folder / "model.so").write_text("#!/bin/sh\n" * 100)
    release.fails(LOAD, "the library is not an ELF file", "model.so")


def compile_c(release: Release, source: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(release.folder / "model.so")]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)


def test_library_with_an_unresolved_symbol(release):
    compile_c(release, "void nowhere_to_be_found(void); void f(void) { nowhere_to_be_found(); }")
    release.fails(LOAD, "undefined symbol: nowhere_to_be_found")


def test_library_that_crashes_while_it_is_loaded(release):
    compile_c(release, "__attribute__((constructor)) void f(void) { *(volatile int *)8 = 1; }")
    release.fails(LOAD, "loading the library failed: SIGSEGV", "model.so")


def test_library_without_a_model(release):
    compile_c(release, "int f(void) { return 1; }")
    release.fails(LOAD, "vm_load_executable")


def test_missing_entry(release):
    release.manifest(entry="nothing")
    release.fails(LOAD, 'no function "nothing"', "model.so")


def test_a_kind_of_device_that_is_unknown(release):
    release.manifest(target={"kind": "abacus"})
    release.fails(INPUT, 'is "abacus", which this runtime does not know', "manifest.json")


def test_missing_cpu_features_are_named(release):
    release.manifest(cpu_features=["warp9", "fpu", "warp10"])
    release.fails(LOAD, "this CPU lacks the features: warp9, ", "warp10", "manifest.json")


# --- a model that fails, exit 5 ------------------------------------------------------------------------------


def test_parameter_of_the_wrong_shape(release):
    save_file({"p0": W, "p1": B[:2]}, release.folder / "params.safetensors")
    release.fails(FAILED, "running the model failed", "model.so")


def test_wrong_number_of_arguments(release):
    release.manifest(params_order=["p0"])
    release.fails(FAILED, "running the model failed", "model.so")


def test_crash_in_the_model(release):
    numbers = {"n": np.ones(2, np.int32), "d": np.zeros(2, np.int32)}
    quotient = {"q": numbers["n"]}
    release.manifest(entry="quotient", inputs=specs(numbers), outputs=specs(quotient), params_order=[])
    save_file(numbers, release.inputs)
    release.fails(FAILED, "running the model failed: SIGFPE", "model.so")
