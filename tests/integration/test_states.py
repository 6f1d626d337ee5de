"""Models with a state: sequences on this machine, by the library and by the commands, against ONNX Runtime."""

from __future__ import annotations

import functools
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import nets, opencl, state_nets, third_party
from tests.support.commands import done, parsed, toolchain
from tests.support.parts import require
from tests.support.paths import DATA
from toolchain import bundle, states
from toolchain.device import sampling
from toolchain.models import reference, source
from toolchain.models.request import Model

SILERO = "silero-vad-op15"
NETS = {
    "gru": (state_nets.gru, {"h": "hn"}),
    "lstm": (state_nets.lstm, {"h": "hn", "c": "cn"}),
    "decoder": (state_nets.decoder, {f"past_{name}": f"present_{name}" for name in ("key", "value")}),
    "encoder": (state_nets.encoder, {f"cached_{i}": f"new_cached_{i}" for i in range(36)}),
    "aliases": (state_nets.aliases, {"total": "total_out", "last": "x_out", "left": "right_out", "right": "left_out"}),
    **{
        f"transformer-{write}": (functools.partial(state_nets.transformer, write), state_nets.states_of_transformer())
        for write in state_nets.WRITES
    },
}
LIMITS = {name: 1e-6 if name == "aliases" else 1e-5 for name in NETS} | {SILERO: 1e-4}

STEP = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = dict(np.load(sys.argv[3]))
count = len(next(iter(given.values())))
with edge_model.Model(sys.argv[2]) as model:
    rows = []
    for step in range(count):
        rows.append(model.step({name: value[step] for name, value in given.items()}))
    np.savez(sys.argv[4], **{name: np.stack([row[name] for row in rows]) for name in rows[0]})
"""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdk") / "sdk"
    done("sdk", "--board", "local", "-o", folder)
    return folder / "python"


def named(name: str, folder: Path) -> Model:
    """Return a model with its state, as a user names it."""
    if name != SILERO:
        make, pairs = NETS[name]
        return Model(nets.save(make(), folder), states=pairs)
    entry = third_party.MODELS[name]
    require(entry.wheel.file, "a way to the package index", third_party.reachable(entry))
    return Model(str(third_party.obtain(entry)), entry.shapes, fixed=entry.fixed, states={"state": "stateN"})


def words(model: Model) -> list[str]:
    options = [argument for pair in model.states.items() for argument in ("--state", "=".join(pair))]
    options += [
        argument for key, size in model.shapes.items() for argument in ("--shape", f"{key}:{','.join(map(str, size))}")
    ]
    return [
        model.source,
        *options,
        *(argument for pair in model.fixed.items() for argument in ("--fix", "=".join(pair))),
    ]


def sequence(name: str, loaded, count: int) -> dict[str, np.ndarray]:
    if name == "decoder":
        return state_nets.steps_of_decoder(count)
    if name.startswith("transformer"):
        return state_nets.steps_of_transformer(count)
    rng = np.random.default_rng(11)
    return {
        spec.name: rng.standard_normal((count, *spec.shape), dtype=np.float32) / np.float32(4)
        for spec in loaded.step_inputs
    }


def expected(loaded, steps) -> dict[str, np.ndarray]:
    return states.sequence(reference.open_model(loaded), loaded.inputs, loaded.states)(steps)


def python(code: str, *arguments: object, code_expected: int = 0) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (completed.returncode, completed.stderr) == (code_expected, "")
    return completed.stdout


def assert_near(arrays, expected_arrays, limit: float) -> None:
    assert set(arrays) == set(expected_arrays)
    for name, value in expected_arrays.items():
        assert np.abs(arrays[name] - value).max() <= limit * np.abs(value).max(), name


@pytest.mark.parametrize("count", [48, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", [*NETS, SILERO])
def test_steps_of_the_library_match_onnxruntime(name, count, sdk, tmp_path):
    model = named(name, tmp_path)
    built = parsed("build", *words(model), "-o", tmp_path / "bundle")["manifest"]
    is_cache = name == "decoder" or name.startswith("transformer")
    pairs = [{"input": key, "output": value, "in_place": is_cache} for key, value in model.states.items()]
    assert built["states"] == pairs
    loaded = source.load_request(model)
    steps = sequence(name, loaded, count)
    np.savez(tmp_path / "in.npz", **steps)
    python(STEP, sdk, tmp_path / "bundle", tmp_path / "in.npz", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as outputs:
        assert_near(dict(outputs), expected(loaded, steps), LIMITS[name])


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Two bundles of a GRU, of files with other names."""
    folder = tmp_path_factory.mktemp("releases")
    for name in ("first", "second"):
        path = nets.save(state_nets.gru(), folder, f"{name}.onnx")
        done("build", path, "--state", "h=hn", "-o", folder / name)
    return [bundle.load(folder / name) for name in ("first", "second")]


def test_a_c_application_steps_resets_saves_and_loads(sdk, releases, tmp_path):
    program, library = tmp_path / "steps", sdk.parent / "lib"
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", DATA / "sdk" / "steps.c"]
    command += [f"-I{sdk.parent / 'include'}", "-o", program, library / "libedge_model.so.1", f"-Wl,-rpath,{library}"]
    subprocess.run(command, check=True)
    folders = [release.folder for release in releases]
    completed = subprocess.run([program, *folders, tmp_path / "state"], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")


STREAMS = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = np.load(sys.argv[3])
with edge_model.Model(sys.argv[2]) as model:
    assert model.states == {"h": "hn"}
    first = [model.step({"x": frame})["y"] for frame in given]
    model.save_state(sys.argv[4])
    explicit, state = [], np.zeros((1, 1, 24), np.float32)
    for frame in given:  # with the state as an input and an output, beside the one that is kept
        outputs = model.run({"x": frame, "h": state})
        explicit.append(outputs["y"])
        state = outputs["hn"]
    after = model.step({"x": given[0]})["y"]
    model.reset()
    again = [model.step({"x": frame})["y"] for frame in given]
    model.load_state(sys.argv[4])
    assert (model.step({"x": given[0]})["y"] == after).all()
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert all((a == b).all() for a, b in zip(first, explicit, strict=True))
    for wrong in ({}, {"x": given[0], "h": state}, {"x": given[0][..., 1:]}):
        try:
            model.step(wrong)
        except ValueError as fault:
            print(fault)
try:
    model.reset()
except edge_model.EdgeError as fault:
    print(fault)
"""


def test_steps_equal_runs_with_an_explicit_state(sdk, releases, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(5).standard_normal((9, 1, 1, 16), dtype=np.float32))
    lines = python(STREAMS, sdk, releases[0].folder, tmp_path / "x.npy", tmp_path / "state").splitlines()
    assert lines[:2] == ["the inputs are x, not none", "the inputs are x, not h, x"]
    assert lines[2:] == ["input x is float32[1, 1, 15], not float32[1, 1, 16]", "the model is closed"]


# --- caches that are written in place ------------------------------------------------------------------------------

CACHES = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = dict(np.load(sys.argv[3]))
frames = [{name: value[step] for name, value in given.items()} for step in range(len(given["x"]))]
with edge_model.Model(sys.argv[2]) as model:
    pairs = model.states
    kept = [model.step(frame)["y"].copy() for frame in frames]
    model.save_state(sys.argv[4])
    state = {name: np.zeros(model.inputs[name].shape, np.float32) for name in pairs}
    for frame, wanted in zip(frames, kept, strict=True):
        passed = {**frame, **state}
        outputs = model.run(passed)
        assert (outputs["y"] == wanted).all()
        assert all((model.inputs[name] == value).all() for name, value in passed.items()), "a run changes its inputs"
        state = {name: outputs[result].copy() for name, result in pairs.items()}
    after = model.step(frames[0])["y"].copy()  # of the state that is kept: the runs have not touched it
    model.load_state(sys.argv[4])
    assert (model.step(frames[0])["y"] == after).all()
    model.reset()
    assert (model.step(frames[0])["y"] == kept[0]).all()
"""


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """A bundle of a decoder whose caches are written in place, and the file of its steps."""
    folder = tmp_path_factory.mktemp("caches")
    path = nets.save(state_nets.transformer(), folder)
    np.savez(folder / "in.npz", **state_nets.steps_of_transformer(30))
    outcome = done("build", path, "--state", "auto", "-o", folder / "bundle")
    assert "past_key_0=present_key_0 (in place)" in outcome.out
    return folder / "bundle", folder / "in.npz"


def test_a_cache_in_place_is_saved_reset_and_left_alone_by_runs(sdk, caches, tmp_path):
    python(CACHES, sdk, *caches, tmp_path / "state")


BROKEN = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = dict(np.load(sys.argv[3]))
frame = {name: value[0] for name, value in given.items()}
with edge_model.Model(sys.argv[2]) as model:
    for attempt in (
        lambda: model.step(frame), lambda: model.step(frame), lambda: model.save_state(sys.argv[4]), model.reset,
        lambda: model.step(frame),
    ):
        try:
            attempt()
            print("done")
        except edge_model.EdgeError as fault:
            print(fault.code, str(fault).partition(":")[0])
"""


def test_a_step_that_fails_on_its_way_leaves_no_half_written_state(sdk, caches, tmp_path):
    """Its output is not what the manifest says, which shows after the caches were written."""
    folder, inputs_file = caches
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    manifest = json.loads((damaged / "manifest.json").read_text())
    manifest["outputs"][0]["shape"] = [1, 17]
    (damaged / "manifest.json").write_text(json.dumps(manifest))
    lines = python(BROKEN, sdk, damaged, inputs_file, tmp_path / "state").splitlines()
    changed = "5 a step failed while it changed the state"
    assert [line[: len(changed)] for line in lines[1:4]] == [changed, changed, "done"]
    assert lines[0] == lines[4]
    assert lines[0].startswith('3 output "y" is ')


def test_the_commands_say_which_caches_are_in_place(caches, tmp_path):
    folder, inputs_file = caches
    options = ["--board", "local", "--root", tmp_path / "root"]
    report = json.loads(done("deploy", folder, *options, "--budget", 0, "--json", "-").out)
    assert [pair["in_place"] for pair in report["state"]["pairs"]] == [True] * 4
    assert "two buffers" not in done("inspect", "package", folder).out
    done("run", *options, "--stream", inputs_file, "-o", tmp_path / "out.npz")
    loaded = source.load_request(Model(str(folder.parent / "net.onnx"), detection="use"))
    with np.load(tmp_path / "out.npz") as outputs, np.load(inputs_file) as arrays:
        assert_near(dict(outputs), expected(loaded, dict(arrays)), 1e-5)
    for command in (["bench", "--budget", 0.05], ["profile", "--runs", 3]):
        assert json.loads(done(*command, *options, "--json", "-").out)


def test_a_gate_runs_the_steps_of_caches_in_place(caches, tmp_path):
    folder, _ = caches
    options = ["--board", "local", "--root", tmp_path / "root"]
    again = nets.save(state_nets.transformer(), tmp_path, "again.onnx")
    done("build", again, "--state", "auto", "-o", tmp_path / "again")
    done("deploy", folder, *options, "--budget", 0)
    gate_options = ["--base", "current", "--least", 50, "--worst", 400, "--round-ms", 20, "--rounds", 8]
    gate = toolchain("gate", tmp_path / "again", *gate_options, *options)
    assert gate.code in {0, 6, 7}, gate.err


# --- commands ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def device(releases, tmp_path_factory):
    """Return the options of a device of this machine that runs the first release."""
    options = ["--board", "local", "--root", tmp_path_factory.mktemp("device") / "root"]
    report = json.loads(done("deploy", releases[0].folder, *options, "--budget", 0, "--json", "-").out)
    assert report["state"] == {"pairs": [{"input": "h", "output": "hn", "in_place": False}], "steps": states.STEPS}
    return options


def test_a_stream_is_run_in_pieces_that_pass_the_state_on(device, releases, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_PIECE_SAMPLES", 7)
    loaded = source.load_request(Model(str(releases[0].folder.parent / "first.onnx"), states={"h": "hn"}))
    steps = sequence("gru", loaded, 20)
    steps["x"].tofile(tmp_path / "x.raw")
    report = parsed("run", *device, "--stream", tmp_path / "x.raw", "-o", tmp_path / "raw.npz")
    assert (report["samples"], report["pieces"], report["is_sequence"]) == (20, 3, True)
    np.savez(tmp_path / "x.npz", **steps)
    done("run", *device, "--stream", tmp_path / "x.npz", "--steps", 9, "-o", tmp_path / "some.npz")
    with np.load(tmp_path / "raw.npz") as raw, np.load(tmp_path / "some.npz") as some:
        assert_near(dict(raw), expected(loaded, steps), 1e-5)
        np.testing.assert_array_equal(some["y"], raw["y"][:9])


def test_a_pipe_and_a_constant_input(device, releases, tmp_path, monkeypatch):
    x = np.full((1, 1, 16), 0.5, np.float32)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(np.tile(x, (5, 1, 1)).tobytes())))
    done("run", *device, "--stream", "-", "-o", tmp_path / "pipe.npz")
    np.savez(tmp_path / "x.npz", x=x)
    done("run", *device, "--input", tmp_path / "x.npz", "--steps", 5, "-o", tmp_path / "constant.npz")
    with np.load(tmp_path / "pipe.npz") as pipe, np.load(tmp_path / "constant.npz") as constant:
        np.testing.assert_array_equal(pipe["y"], constant["y"])
        assert (pipe["y"][1:] != pipe["y"][:-1]).any()


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_a_measurement_steps(command, device, releases):
    more = ["--budget", 0.05] if command == "bench" else ["--runs", 3]
    assert json.loads(done(command, *device, *more, "--json", "-").out)


def test_a_gate_refuses_another_state(device, releases, tmp_path):
    path = releases[0].folder.parent / "first.onnx"
    done("build", path, "--state", "none", "-o", tmp_path / "stateless")
    refused = toolchain("gate", tmp_path / "stateless", "--base", "current", *device)
    assert (refused.code, "do not have the same state" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize("name", ["gru", "aliases"])
def test_a_state_in_the_memory_of_a_gpu(name, sdk, tmp_path, monkeypatch):
    opencl.require_opencl()
    monkeypatch.setenv("EDGE_OPENCL_CACHE", str(tmp_path / "cache"))
    model = named(name, tmp_path)
    done("build", *words(model), "--board", "opencl-local", "-o", tmp_path / "bundle")
    loaded = source.load_request(model)
    steps = sequence(name, loaded, 12)
    np.savez(tmp_path / "in.npz", **steps)
    python(STEP, sdk, tmp_path / "bundle", tmp_path / "in.npz", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as outputs:
        assert_near(dict(outputs), expected(loaded, steps), LIMITS[name])


# --- boards --------------------------------------------------------------------------------------------------------


def test_a_sequence_on_a_virtual_board(virtual_boards, tmp_path):
    path = nets.save(state_nets.gru(), tmp_path)
    options = ["--board", "rpi4", "--host", virtual_boards.name("rpi4"), "--devices", virtual_boards.devices]
    options += ["--root", "~/state-test", "--threads", 1]
    report = json.loads(
        done("deploy", path, "--state", "auto", "--toolchain", "host", *options, "--budget", 0, "--json", "-").out
    )
    assert (report["outputs"]["ok"], report["state"]["steps"]) == (True, states.STEPS)
    loaded = source.load_request(Model(path, detection="use"))
    steps = sequence("gru", loaded, 12)
    steps["x"].tofile(tmp_path / "x.raw")
    done("run", *options, "--stream", tmp_path / "x.raw", "-o", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as outputs:
        assert_near(dict(outputs), expected(loaded, steps), 1e-5)
