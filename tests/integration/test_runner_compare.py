"""The runner compares outputs by itself, for devices without a host: as `tensors.compare` does, case by case."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from toolchain import rankings, tensors, versions
from toolchain.bundle import save_expected
from toolchain.errors import VerificationError
from toolchain.rankings import Ranking
from toolchain.tensors import DTYPES, ROUNDING, Bound, Limit, TensorSpec

SHAPE = (3, 4)
CASES = 20  # for each type
USAGE, INPUT, FAILED, DIFFERENT = 2, 3, 5, 6


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library whose entry functions return what they are given: one for each type, and one for a bound output."""
    import tvm
    from tvm import relax
    from tvm.relax import op

    build = relax.BlockBuilder()
    for dtype in DTYPES:
        x = relax.Var("x", relax.TensorType(SHAPE, dtype))
        with build.function(dtype, [x]):
            build.emit_func_output(build.emit(op.reshape(x, SHAPE)))
    x, n = relax.Var("x", relax.TensorType(SHAPE, "float32")), relax.Var("n", relax.TensorType((), "int64"))
    with build.function("bound", [x, n]):
        build.emit_func_output(relax.Tuple([build.emit(op.reshape(x, SHAPE)), build.emit(op.reshape(n, ()))]))
    path = tmp_path_factory.mktemp("identity") / "model.so"
    tvm.compile(build.get(), target=tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})).export_library(str(path))
    return path


@dataclass(frozen=True)
class Device:
    """A runner, and a release whose outputs are its inputs."""

    runner: Path
    library: Path
    folder: Path

    def run(
        self,
        entry: str,
        outputs_of_device: tensors.Tensors,
        expected: tensors.Tensors,
        *extra: str,
        bound: Bound | None,
    ):
        release = self.folder / "release"
        release.mkdir(exist_ok=True)
        if not (release / "model.so").exists():
            (release / "model.so").symlink_to(self.library)
            tensors.save(release / "params.safetensors", {"none": np.zeros(1, np.float32)})
        specs = [{"name": n, "shape": list(a.shape), "dtype": str(a.dtype)} for n, a in outputs_of_device.items()]
        outputs = [dict(spec) for spec in specs]
        if bound:
            outputs[0]["bound"] = {"axis": bound.axis, "count": bound.count}
        manifest = {
            "name": "compared",
            "versions": versions.tvm(),
            "library": "model.so",
            "params": "params.safetensors",
            "entry": entry,
            "params_order": [],
            "inputs": specs,
            "outputs": outputs,
            "target": {"kind": "llvm"},
        }
        (release / "manifest.json").write_text(json.dumps(manifest))
        for name, arrays in (("in", outputs_of_device), ("expected", expected)):
            tensors.save(self.folder / name, arrays)
        options = ["--release", release, "--inputs", self.folder / "in", "--outputs", self.folder / "out"]
        options += ["--report", self.folder / "report", "--max-runs", "0", "--threads", "1"]
        options += ["--expected", self.folder / "expected", *extra]
        return subprocess.run([self.runner, *options], capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def device(program, library, tmp_path):
    return Device(program.path, library, tmp_path)


def values(stream: np.random.Generator, dtype: str) -> np.ndarray:
    """Draw a tensor, at the ends of its type as often as in the middle."""
    if dtype == "bool":
        return stream.integers(0, 2, SHAPE).astype(bool)
    if dtype.startswith("float"):
        return (stream.standard_normal(SHAPE) * 10.0 ** stream.integers(-4, 4)).astype(dtype)
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if stream.integers(2) else (max(limits.min, -9), 9)
    return stream.integers(low, high, SHAPE, dtype=dtype, endpoint=True)


def changed(stream: np.random.Generator, value: np.ndarray) -> np.ndarray:
    """Return a tensor that is the same, nearly so, a little off, or off by a NaN or an infinity."""
    other = value.copy()
    index = tuple(stream.integers(0, size) for size in SHAPE)
    kind = stream.integers(5)
    if value.dtype.kind == "f":
        masks = [np.nan, np.inf, -np.inf, np.finfo(value.dtype).min, np.finfo(value.dtype).max]
        if kind == 1:
            other = (value * (1 + stream.standard_normal(SHAPE) * 10.0 ** stream.integers(-7, 0))).astype(value.dtype)
        elif kind == 2:
            other[index] = stream.choice(masks)
        elif kind == 3:
            value[index], other[index] = stream.choice(masks, 2)
            if stream.integers(2):
                value[index] = other[index]
        elif kind == 4:
            value[...] = other[...] = stream.choice([0, np.nan, masks[-1]])
            other[index] = stream.choice([0, 1e-5, np.nan])
    elif kind > 1:
        other[index] = values(stream, str(value.dtype))[index]
    elif kind == 1 and value.dtype.kind in "iu":
        other[index] ^= 1
    return other


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_judges_as_the_host_does(device, dtype):
    stream = np.random.default_rng(DTYPES.index(dtype))
    verdicts = set()
    for index in range(CASES):
        reference = values(stream, dtype)
        got = changed(stream, reference)
        tolerance = (None, 0.0, 0.3)[index % 3]
        extra = () if tolerance is None else ("--tolerance", repr(tolerance))
        completed = device.run(dtype, {"x": got}, {"x": reference}, *extra, bound=None)
        difference = tensors.compare({"x": got}, {"x": reference}, tolerance)
        assert completed.returncode == (0 if difference.ok else DIFFERENT), (
            got,
            reference,
            tolerance,
            difference,
            completed,
        )
        verdicts.add(difference.ok)
        if difference.ok:
            report = json.loads(completed.stdout)
            assert report["tolerance"] == difference.tolerance
            assert report["max_abs"] == pytest.approx(difference.max_abs, rel=1e-15)
            assert report["max_rel"] == pytest.approx(difference.max_rel, rel=1e-15)
        else:
            assert f"tolerance {difference.tolerance:.3g}" in completed.stderr
    assert verdicts == {True, False}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("count", [-1, 0, 1, 2, 3, 4, 5])
def test_an_output_with_a_bound_is_cut_as_on_the_host(device, axis, count):
    bound = Bound(axis, "n")
    specs = [TensorSpec("x", SHAPE, "float32", bound), TensorSpec("n", (), "int64")]
    outputs = {"x": np.arange(12, dtype=np.float32).reshape(SHAPE), "n": np.array(count, np.int64)}
    expected = {"x": outputs["x"].take(range(2), axis) + np.float32(1e-6)}
    try:
        ok = tensors.compare(tensors.cut(outputs, specs), expected).ok
    except VerificationError:
        ok = False
    completed = device.run("bound", outputs, expected, bound=bound)
    code = DIFFERENT if 0 <= count <= SHAPE[axis] else FAILED  # what it cannot be is found before
    assert completed.returncode == (0 if ok else code), completed
    assert ok == (count == 2)


def test_what_is_not_alike_is_named(device):
    x = {"x": np.ones(SHAPE, np.float32)}
    for expected, message in (
        ({"y": x["x"]}, "no output y"),
        ({"x": x["x"], "y": x["x"]}, "2 outputs are expected, not 1"),
        ({"x": x["x"][:1]}, "float32[3, 4] instead of float32[1, 4]"),
        ({"x": x["x"].astype(np.float64)}, "instead of float64"),
    ):
        completed = device.run("float32", x, expected, bound=None)
        assert (completed.returncode, message in completed.stderr) == (DIFFERENT, True), completed
    assert not (device.folder / "out").exists()


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "1e-3x"])
def test_a_wrong_tolerance_is_refused(device, text):
    x = {"x": np.ones(SHAPE, np.float32)}
    completed = device.run("float32", x, x, "--tolerance", text, bound=None)
    assert completed.returncode == (0 if not text else USAGE), completed


def test_a_file_without_tensors_is_none_to_compare_with(device):
    completed = device.run("float32", {"x": np.ones(SHAPE, np.float32)}, {}, bound=None)
    assert (completed.returncode, "has no tensors" in completed.stderr) == (INPUT, True), completed


def from_host(device, got, expected, limits, order, *extra):
    """Compare on the device what the host has written for an update, and on the host."""
    save_expected(device.folder / "host", expected, limits, order)
    completed = device.run("float32", got, tensors.load(device.folder / "host"), *extra, bound=None)
    tolerance = float(extra[1]) if extra else limits
    difference = rankings.compare(got, expected, order, tolerance)
    assert completed.returncode == (0 if difference.ok else DIFFERENT), (difference, completed)
    if difference.ok:
        assert json.loads(completed.stdout)["tolerance"] == difference.tolerance
    return difference.ok


def test_the_limit_of_an_output_is_that_of_the_host(device):
    expected = {"x": values(np.random.default_rng(0), "float32")}
    limits = {"x": Limit(1e-2, ROUNDING)}
    got = {"x": expected["x"] + np.float32(5e-3 * np.abs(expected["x"]).max())}
    assert not from_host(device, got, expected, None, ())
    assert from_host(device, got, expected, limits, ())
    assert from_host(device, got, expected, 2e-2, ())
    assert not from_host(device, got, expected, limits, (), "--tolerance", "1e-3")


@pytest.mark.parametrize("spread", [1e-6, 3e-5, 1e-3])
def test_rows_of_nearly_equal_scores_are_judged_as_on_the_host(device, spread):
    """Three rows, and two that came next: in any order, one of them twice, with a fault, and with other limits."""
    stream, verdicts = np.random.default_rng(int(spread * 1e6)), set()
    for index in range(2 * CASES):
        scores = np.sort(1 - spread * stream.random((1, SHAPE[0] + 2)))[:, ::-1]
        every = stream.standard_normal((1, SHAPE[0] + 2, SHAPE[1])).astype(np.float32)
        expected = {"x": every[0, : SHAPE[0]].copy()}
        ranking = Ranking(("x",), scores[:, :3], scores[:, 3:], {"x": every[:, 3:]})
        order = stream.permutation(5)[:3] if index % 3 else stream.integers(0, 5, 3)
        got = {"x": every[0, order].copy()}
        if index % 4 == 3:
            got["x"].flat[stream.integers(12)] += np.float32(10.0 ** stream.integers(-6, 0))
        limits = (None, {"x": Limit(1e-3, ROUNDING)})[index % 2]
        extra = ("--tolerance", "1e-05") if index % 5 == 4 else ()
        verdicts.add(from_host(device, got, expected, limits, (ranking,), *extra))
    assert verdicts == {True, False}


def test_each_part_of_a_batch_has_an_order_of_its_own(device):
    """As an ArgMax has it: rows of one number, and one that came next for each."""
    expected = {"x": np.arange(12, dtype=np.float32).reshape(SHAPE)}
    more = expected["x"].reshape(12, 1, 1) + 20
    scores = np.linspace(1, 2, 12).reshape(12, 1)
    ranking = Ranking(("x",), scores, scores - 1e-6, {"x": more})
    got = {"x": expected["x"].copy()}
    got["x"].flat[[2, 7]] += 20
    assert from_host(device, got, expected, None, (ranking,))
    got["x"].flat[3] += 21
    assert not from_host(device, got, expected, None, (ranking,))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ranking.0.scores", np.ones((1, 4))),
        ("ranking.0.scores", np.ones(3)),
        ("ranking.0.next_rows.x", np.ones((1, 1, 3), np.float32)),
        ("ranking.0.next_rows.y", np.ones((1, 1, 4), np.float32)),
        ("ranking.0.other", np.ones(1)),
        ("ranking.1.scores", np.ones((1, 3))),
        ("limit.x", np.array([np.nan])),
    ],
)
def test_a_ranking_that_does_not_fit_is_refused(device, key, value):
    expected = {"x": np.ones(SHAPE, np.float32)}
    ranking = Ranking(("x",), np.ones((1, 3)), np.ones((1, 1)), {"x": np.zeros((1, 1, 4), np.float32)})
    save_expected(device.folder / "host", expected, None, (ranking,))
    completed = device.run("float32", expected, {**tensors.load(device.folder / "host"), key: value}, bound=None)
    assert completed.returncode == INPUT, completed
