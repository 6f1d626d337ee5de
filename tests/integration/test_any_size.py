"""A release that takes every size of a dimension: built, deployed, measured, and run by applications."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.support import nets, text_nets, variant_nets
from tests.support.commands import done, parsed, toolchain
from toolchain import bundle

GREATEST = 40
DIMS = ("--dim", f"length=1..{GREATEST}", "--dim", "batch=1")
SIZES = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, GREATEST - 1, GREATEST)


def tokens(length: int) -> dict[str, np.ndarray]:
    stream = np.random.default_rng(length)
    mask = np.arange(length)[None] < max(1, length - 3)
    return {"ids": stream.integers(0, 50, (1, length)), "mask": mask.astype(np.int64)}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The path of a model, and its bundle."""
    folder = tmp_path_factory.mktemp("encoder")
    path = nets.save(text_nets.encoder(), folder)
    done("build", path, *DIMS, "-o", folder / "bundle")
    return path, bundle.load(folder / "bundle")


@pytest.fixture(scope="module")
def device(encoder, tmp_path_factory):
    """Return the options of a device of this machine with a release, and the report of its deploy."""
    options = ["--board", "local", "--root", tmp_path_factory.mktemp("device") / "root"]
    return options, json.loads(done("deploy", encoder[1].folder, *options, "--budget", 0, "--json", "-").out)


def test_the_manifest_has_the_range_and_one_function(encoder):
    manifest = encoder[1].manifest
    assert (manifest.dynamic.least, manifest.dynamic.greatest, manifest.dynamic.dimension) == (1, GREATEST, "length")
    assert {variant.entry for variant in manifest.variants} == {"main"}
    assert f"--dim length=1..{GREATEST}" in manifest.command
    assert bundle.read_manifest(manifest.encoded(), "a test") == manifest
    assert manifest.of_shapes("length-9").outputs[0].shape == (1, 9, 32)


def test_a_deploy_compares_and_measures_some_sizes(device):
    report = device[1]
    names = [variant["name"] for variant in report["variants"]]
    assert (names[0], names[-1]) == ("length-1", f"length-{GREATEST}")
    assert len(names) > 3
    assert all(variant["outputs"]["ok"] and variant["latency_ms"]["samples"] for variant in report["variants"])


def test_run_takes_arrays_of_any_size(device, encoder, tmp_path):
    for size, threads in ((9, ("--threads", 1)), (38, ())):
        np.savez(tmp_path / "in.npz", **tokens(size))
        words = ["--input", tmp_path / "in.npz", "-o", tmp_path / "out.npz", *threads]
        assert parsed("run", *device[0], *words)["variant"] == f"length-{size}"
        with np.load(tmp_path / "out.npz") as outputs:
            nets.assert_near(dict(outputs), nets.outputs(encoder[0], tokens(size)))


@pytest.mark.parametrize("shapes", [(GREATEST + 1, GREATEST + 1), (9, 8)])
def test_other_sizes_are_refused_with_the_bounds(shapes, device, tmp_path):
    arrays = {name: np.ones((1, size), np.int64) for name, size in zip(("ids", "mask"), shapes, strict=True)}
    np.savez(tmp_path / "in.npz", **arrays)
    seen = toolchain("run", *device[0], "--input", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert (seen.code, f"every length from 1 to {GREATEST}" in seen.err) == (2, True), seen.err


def test_bench_measures_a_size_that_the_reference_lacks(device, tmp_path):
    np.savez(tmp_path / "in.npz", **tokens(11))
    words = [*device[0], "--budget", 0, "--json", "-", "--input", tmp_path / "in.npz"]
    assert [each["name"] for each in json.loads(done("bench", *words).out)["variants"]] == ["length-11"]
    seen = toolchain("bench", *device[0], "--variant", f"length-{GREATEST + 1}")
    assert (seen.code, "has no variant" in seen.err) == (2, True), seen.err


# --- applications --------------------------------------------------------------------------------------------------

PYTHON = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = dict(np.load(sys.argv[3]))
sizes = sorted({int(name.split("-")[1]) for name in given})
outputs = {}
with edge_model.Model(sys.argv[2]) as model:
    for size in (*sizes, *reversed(sizes)):
        arrays = {name: given[f"{name}-{size}"] for name in ("ids", "mask")}
        for name, value in model.run(arrays).items():
            seen = outputs.setdefault(f"{name}-{size}", value.copy())
            assert np.array_equal(seen, value), (name, size)
        assert model.variant == f"length-{size}"
        assert model.inputs["ids"].shape == (1, size)
    model.select("length-13")
    assert model.inputs["mask"].shape == (1, 13)
    for wrong in (0, sizes[-1] + 1):
        arrays = {name: np.ones((1, wrong), np.int64) for name in ("ids", "mask")}
        try:
            model.run(arrays)
        except ValueError as fault:
            print(fault)
    try:
        model.select("length-99")
    except edge_model.EdgeError as fault:
        print(fault)
np.savez(sys.argv[4], **outputs)
"""


def test_an_application_sets_any_size(encoder, tmp_path):
    done("sdk", "--board", "local", "-o", tmp_path / "sdk")
    given = {f"{name}-{size}": array for size in SIZES for name, array in tokens(size).items()}
    np.savez(tmp_path / "in.npz", **given)
    command = [sys.executable, "-c", PYTHON, tmp_path / "sdk" / "python", encoder[1].folder]
    command += [tmp_path / "in.npz", tmp_path / "out.npz"]
    seen = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert (seen.returncode, seen.stderr) == (0, "")
    lines = seen.stdout.splitlines()
    assert len(lines) == 3
    for line in lines[:2]:
        assert line.startswith("no size of length has ids int64[1, ")
        assert line.endswith(f"to length-{GREATEST} (ids int64[1, {GREATEST}], mask int64[1, {GREATEST}])")
    assert 'no variant "length-99"' in lines[2]
    with np.load(tmp_path / "out.npz") as outputs:
        for size in SIZES:
            found = {name: outputs[f"{name}-{size}"] for name in ("tokens", "mean")}
            nets.assert_near(found, nets.outputs(encoder[0], tokens(size)))


# --- other networks ------------------------------------------------------------------------------------------------


def test_a_convolution_over_any_width_is_refused_by_node(tmp_path):
    path = nets.save(variant_nets.pictures(), tmp_path)
    words = ("--dim", "height=16", "--dim", "batch=1", "--dim", "width=16..64", "-o", tmp_path / "bundle")
    seen = toolchain("build", path, *words)
    assert seen.code == 2, seen.err
    assert re.search(r"net cannot be compiled for every size: \w+ node '\w+' has", seen.err), seen.err
    assert "--dim NAME=64,128,256" in seen.err
    assert "nor row by row" in seen.err
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("precision", [(), ("--weights", "int8")])
def test_convolutions_with_any_batch(precision, tmp_path):
    """Deployed, and run with sizes that were not compared."""
    path = nets.save(variant_nets.pictures(), tmp_path)
    options = ["--board", "local", "--root", tmp_path / "root"]
    words = ("--dim", "height=16", "--dim", "width=16", "--dim", "batch=1..24", *precision)
    report = json.loads(done("deploy", path, *words, *options, "--budget", 0, "--json", "-").out)
    assert [variant["name"] for variant in report["variants"]][::4] == ["batch-1", "batch-24"]
    assert all(variant["outputs"]["ok"] for variant in report["variants"])
    for size in (2, 9, 17):
        arrays = {"x": np.random.default_rng(size).random((size, 3, 16, 16), dtype=np.float32)}
        np.savez(tmp_path / "in.npz", **arrays)
        words = ["--input", tmp_path / "in.npz", "-o", tmp_path / "out.npz"]
        assert parsed("run", *options, *words)["variant"] == f"batch-{size}"
        with np.load(tmp_path / "out.npz") as outputs:
            nets.assert_near(dict(outputs), nets.outputs(path, arrays))  # no weights are as large as to be rounded


def test_a_reduced_precision_needs_the_network_of_one_row(tmp_path):
    path = nets.save(variant_nets.pictures(), tmp_path)
    words = ("--dim", "height=16", "--dim", "width=16", "--dim", "batch=4..24", "--weights", "int8")
    seen = toolchain("build", path, *words, "-o", tmp_path / "bundle")
    assert (seen.code, "batch above 1" in seen.err) == (2, True), seen.err
