"""Sounds as streams, of models with a state: deployed, run, and heard by an application, beside numpy's own loop."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.integration.test_sdk import C, compiled, python_binding, ran, sdk  # noqa: F401 - the fixture
from tests.support import sound_nets, third_party
from tests.support.commands import done, parsed, toolchain
from tests.support.parts import require
from toolchain import bundle
from toolchain.models.ort import onnxruntime
from toolchain.native.sounds import encode

SILERO = "silero-vad-op15"
STEPS = ["--post", "topk:k=1,labels=speech.txt"]


def drawn(count, seed, channels=1):
    """Draw samples of 16 bits: bursts of tones, with noise."""
    stream, time = np.random.default_rng(seed), np.arange(count) / 16000
    tones = sum(np.sin(2 * np.pi * hertz * time) for hertz in stream.uniform(100, 2000, 5)) * (np.sin(9 * time) > 0)
    noise = stream.normal(0, 200, (count, channels))
    return np.rint(2500 * tones[:, None] + noise).astype(np.int16).squeeze()


def expected_scores(path, samples, context, size, states):
    """Score each window as the model's author does: the samples of before, and a state that is passed on."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [spec.name for spec in session.get_outputs()]
    samples = np.pad(samples.astype(np.float32) / 32768, (0, -len(samples) % size))
    state, before, scores = np.zeros(states["state"][1], np.float32), np.zeros(context, np.float32), []
    for start in range(0, len(samples), size):
        window = np.concatenate([before, samples[start : start + size]])
        feeds = {states["sound"]: window[None], states["state"][0]: state, **states["others"]}
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        state, before = outputs[states["next"]], window[-context:]
        scores.append(float(outputs[states["score"]].squeeze()))
    return np.array(scores)


SMALL = {"sound": "x", "state": ("h", (1, 8)), "next": "hn", "score": "y", "others": {}}
LARGE = {"sound": "input", "state": ("state", (2, 1, 128)), "next": "stateN", "score": "output"}
LARGE["others"] = {"sr": np.array(16000, np.int64)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    onnx.save(sound_nets.listener(), path / "listener.onnx")
    (path / "speech.txt").write_text("speech\n")
    return path


def deployed(model, folder, store_folder, context, *more):
    options = ["--board", "local", "--root", store_folder / "store"]
    steps = ["--pre", "wav:rate=16000", "--pre", f"window:context={context}"]
    steps += [argument.replace("speech.txt", str(folder / "speech.txt")) for argument in STEPS]
    out = done(
        "deploy", model, *options, *steps, *more, "--budget", 0, "-o", store_folder / "bundle", "--json", "-"
    ).out
    return json.loads(out), options


@pytest.fixture(scope="module")
def listener(folder, tmp_path_factory):
    store_folder = tmp_path_factory.mktemp("listener")
    report, options = deployed(folder / "listener.onnx", folder, store_folder, 32, "--state", "h=hn")
    assert (report["sounds"]["objects"], report["state"]["steps"]) == (32, 32)
    return bundle.load(store_folder / "bundle"), options


def check(objects, scores, hop):
    assert [item["label"] for item in objects] == ["speech"] * len(scores)
    np.testing.assert_allclose([item["score"] for item in objects], scores, atol=2e-4)
    starts = np.arange(len(scores)) * hop / 16000
    np.testing.assert_allclose([item["seconds"][0] for item in objects], starts, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose([item["seconds"][1] for item in objects], starts + hop / 16000, rtol=1e-5)


def test_a_score_for_each_window(listener, folder, tmp_path, monkeypatch):
    """Of a WAV file, and of raw samples from a file and a pipe."""
    samples = drawn(5000, 1)
    scores = expected_scores(folder / "listener.onnx", samples, 32, 64, SMALL)
    assert len(scores) == 79
    assert np.ptp(scores) > 0.1
    encode(samples, 16000).tofile(tmp_path / "said.wav")
    samples.tofile(tmp_path / "said.raw")
    for option, name in (("--sound", "said.wav"), ("--stream", "said.wav"), ("--stream", "said.raw")):
        report = parsed("run", *listener[1], option, tmp_path / name, "-o", tmp_path / "y.npz")
        assert (report["samples"], report["is_sequence"]) == (1, False)
        check(report["objects"][0]["objects"], scores, 64)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(samples.tobytes())))
    report = parsed("run", *listener[1], "--stream", "-", "-o", tmp_path / "y.npz")
    check(report["objects"][0]["objects"], scores, 64)
    report = parsed("run", *listener[1], "--stream", tmp_path / "said.raw", "--steps", 7, "-o", tmp_path / "y.npz")
    check(report["objects"][0]["objects"], scores[:7], 64)
    assert listener[0].manifest.sounds.plan.hop == 64


def test_each_sound_begins_with_a_state_of_zeros(listener, folder, tmp_path):
    for number in range(2):
        encode(drawn(900, number), 16000).tofile(tmp_path / f"{number}.wav")
    report = parsed("run", *listener[1], "--sound", tmp_path, "-o", tmp_path / "y.npz")
    for number in range(2):
        scores = expected_scores(folder / "listener.onnx", drawn(900, number), 32, 64, SMALL)
        check(report["objects"][number]["objects"], scores, 64)


def test_the_author_s_own_loop_of_silero(folder, tmp_path):
    model_entry = third_party.MODELS[SILERO]
    require(model_entry.wheel.file, "a way to the package index", third_party.reachable(model_entry))
    path = third_party.obtain(model_entry)
    more = ["--state", "state=stateN", "--shape", "input:1,576", "--shape", "state:2,1,128", "--fix", "sr=16000"]
    report, options = deployed(path, folder, tmp_path, 64, *more)
    assert report["sounds"]["objects"] == 32
    samples = drawn(40000, 3)
    encode(samples, 16000).tofile(tmp_path / "said.wav")
    run_report = parsed("run", *options, "--stream", tmp_path / "said.wav", "-o", tmp_path / "y.npz")
    scores = expected_scores(path, samples, 64, 512, LARGE)
    check(run_report["objects"][0]["objects"], scores, 512)
    assert len(scores) == 79


WRONG = [
    (["--sound", "slow.wav"], "has 8000 Hz, and the model takes 16000 Hz"),
    (["--stream", "slow.wav"], "slow.wav: the sound has 8000 Hz, and the model takes 16000 Hz"),
    (["--stream", "odd.raw"], "odd.raw has 7 bytes, which are not samples of 16 bits"),
    (["--stream", "empty.raw"], "empty.raw has 0 bytes, which are not samples of 16 bits"),
    (["--stream", "cut.wav"], "cut.wav: the WAV file is truncated"),
    (["--stream", "short.raw", "--steps", "9"], "short.raw ends after 100 samples, before --steps 9"),
    (["--stream", "slow.wav", "--steps", "1"], "slow.wav is a WAV file, which is run as a whole"),
    (["--stream", "short.raw", "--sound", "slow.wav"], "--sound and --stream cannot be combined"),
    (["--sound", "slow.wav", "--steps", "2"], "--steps cannot be combined with --sound"),
    (["--image", "slow.wav"], "are for sounds"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_wrong_stream_is_one_clear_error(listener, options, message, tmp_path):
    encode(drawn(500, 0), 8000).tofile(tmp_path / "slow.wav")
    (tmp_path / "cut.wav").write_bytes(encode(drawn(500, 0), 16000).tobytes()[:-3])
    (tmp_path / "odd.raw").write_bytes(b"1234567")
    (tmp_path / "empty.raw").write_bytes(b"")
    drawn(100, 0).tofile(tmp_path / "short.raw")
    arguments = [tmp_path / argument if "." in argument else argument for argument in options]
    outcome = toolchain("run", *listener[1], *arguments, "-o", tmp_path / "y.npz")
    assert (outcome.code, message in outcome.err) == (2, True), outcome.err


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["--pre", "resize:stretch=8"], "a model with a state takes no steps for pictures"),
        (["--pre", "wav:rate=16000", "--pre", "window:context=96"], "context must be a number from 0 to 95"),
        (["--pre", "wav:rate=16000", "--pre", "window:contxt=9"], "no parameter 'contxt'"),
        (["--pre", "wav:rate=16000", "--post", "topk:k=1,output=hn"], "the model's outputs are y"),
    ],
)
def test_steps_that_do_not_fit_a_state_are_refused(folder, steps, message, tmp_path):
    outcome = toolchain("build", folder / "listener.onnx", "--state", "h=hn", *steps, "-o", tmp_path / "no")
    assert (outcome.code, message in outcome.err) == (2, True), outcome.err


@pytest.fixture(scope="module")
def binding(sdk):  # noqa: F811 - as pytest has it
    """The Python binding of the SDK."""
    return python_binding(), sdk / "lib" / "libedge_model.so.1"


def test_an_application_hears_a_stream_in_parts_of_any_size(binding, listener, folder):
    edge_model, library = binding
    stream, samples = np.random.default_rng(5), drawn(5000, 1)
    scores = expected_scores(folder / "listener.onnx", samples, 32, 64, SMALL)
    stereo = np.stack([samples, samples], axis=1)
    with edge_model.Model(listener[0].folder, library=library) as model:
        for chunk_source in (samples, stereo, (samples / 32768).astype(np.float32)):
            windows, start = [], 0
            while start < len(chunk_source):
                size = int(stream.choice([0, 1, 5, 63, 64, 65, 700]))
                windows += model.stream_audio(chunk_source[start : start + size], 16000)
                start += size
            assert len(windows) == 78
            windows += model.end_stream()
            assert [window.number for window in windows] == list(range(79))
            np.testing.assert_allclose([window.objects[0].score for window in windows], scores, atol=2e-4)
            assert model.end_stream() == []
        heard = model.run_audio(samples, rate=16000)
        assert [item.score for item in heard.objects] == [window.objects[0].score for window in windows]


def test_what_does_not_continue_a_stream_leaves_it_as_it_was(binding, listener, folder):
    edge_model, library = binding
    samples = drawn(640, 1)
    scores = expected_scores(folder / "listener.onnx", samples, 32, 64, SMALL)
    with edge_model.Model(listener[0].folder, library=library) as model:
        windows = model.stream_audio(samples[:300], 16000)
        wrong = [(samples, 8000, "has 16000 Hz and 1 channels, and then 8000 Hz and 1")]
        wrong += [(np.stack([samples, samples], 1), 16000, "and then 16000 Hz and 2")]
        wrong += [(np.float32([0, np.nan]), 16000, "not a finite number")]
        for wrong_samples, rate, message in wrong:
            with pytest.raises(edge_model.EdgeError, match=message) as caught:
                model.stream_audio(wrong_samples, rate)
            assert caught.value.code == 2
        with pytest.raises(ValueError, match="needs its rate"):
            model.stream_audio(samples, 0)
        windows += model.stream_audio(samples[300:], 16000)
        np.testing.assert_allclose([window.objects[0].score for window in windows], scores, atol=2e-4)
        model.reset()
        with pytest.raises(edge_model.EdgeError, match="has 8000 Hz, and the model takes 16000 Hz"):
            model.stream_audio(samples, 8000)


def test_a_c_application_hears_a_stream_without_allocations(sdk, listener, folder, tmp_path):  # noqa: F811
    samples = drawn(6400, 2)
    samples.tofile(tmp_path / "said.raw")
    outcome = ran(compiled(sdk, C / "stream.c", tmp_path / "stream"), listener[0].folder, tmp_path / "said.raw")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    scores = expected_scores(folder / "listener.onnx", samples, 32, 64, SMALL)
    *lines, allocations = outcome.stdout.splitlines()
    parsed_scores = np.loadtxt(io.StringIO("\n".join(lines)))
    np.testing.assert_array_equal(parsed_scores[:, 0], np.arange(100))
    np.testing.assert_allclose(parsed_scores[:, 1], scores, atol=2e-4)
    assert int(allocations.split()[0]) == 0


def test_the_example_hears_a_pipe(sdk, listener, folder, tmp_path):  # noqa: F811
    """It prints where scores rise above a half, and where they fall below 0.35."""
    samples = drawn(20000, 2)
    program = compiled(sdk, sdk / "example" / "speech.c", tmp_path / "speech")
    completed = subprocess.run([program, listener[0].folder], input=samples.tobytes(), capture_output=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, b"")
    is_on, expected = False, []
    for number, score in enumerate(expected_scores(folder / "listener.onnx", samples, 32, 64, SMALL)):
        if (score > (0.35 if is_on else 0.5)) != is_on:
            is_on = not is_on
            expected.append(f"{'speech' if is_on else 'silence'} at window {number}, second {number * 0.004:.2f}")
    assert completed.stdout.decode().splitlines() == expected != []


@pytest.mark.nightly
def test_a_stream_on_an_emulated_board(virtual_boards, folder, tmp_path):
    options = ["--board", "rpi4", "--host", virtual_boards.name("rpi4"), "--devices", virtual_boards.devices]
    steps = [
        "--pre",
        "wav:rate=16000",
        "--pre",
        "window:context=32",
        *STEPS[:1],
        f"topk:k=1,labels={folder / 'speech.txt'}",
    ]
    build_options = [*options, *steps, "--state", "h=hn", "--toolchain", "host", "--budget", 0, "--json", "-"]
    report = json.loads(done("deploy", folder / "listener.onnx", *build_options).out)
    assert report["sounds"]["objects"] == 32
    samples = drawn(5000, 1)
    samples.tofile(tmp_path / "said.raw")
    run_report = parsed("run", *options, "--stream", tmp_path / "said.raw", "-o", tmp_path / "y.npz", "--threads", 1)
    check(run_report["objects"][0]["objects"], expected_scores(folder / "listener.onnx", samples, 32, 64, SMALL), 64)
