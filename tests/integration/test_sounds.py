"""Releases with steps for sounds: deployed, run, and used by an application, beside numpy's own steps."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest

from tests.integration.test_sdk import C, compiled, python_binding, ran, sdk  # noqa: F401 - the fixture
from tests.support import sound_features, sound_nets
from tests.support.beams import most_probable
from tests.support.commands import done, parsed, toolchain
from toolchain import bundle
from toolchain.models.ort import onnxruntime
from toolchain.native.sounds import encode

WAV = "wav:rate=16000"
MEL = "mel:like=librosa,fft=512,hop=160,mels=20,log=db"
STEPS = ["--pre", f"{WAV},resample=torchaudio", "--pre", "window:hop=2000", "--pre", MEL, "--pre", "mean=-40"]
STEPS += ["--pre", "std=40", "--post", "softmax", "--post", "topk:k=2,labels=words.txt"]
WORDS = ("yes", "no", "stop", "go")


def drawn(count, seed, rate=16000):
    stream, time = np.random.default_rng(seed), np.arange(count) / rate
    tones = sum(np.sin(2 * np.pi * hertz * time * (1 + time)) for hertz in stream.uniform(100, 4000, 4))
    return np.rint(3000 * tones + stream.normal(0, 300, count)).astype(np.int16)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A keyword model, and a model of letters with a pipeline.toml beside it; and sounds."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "letters").mkdir()
    onnx.save(sound_nets.keywords(), folder / "keywords.onnx")
    onnx.save(sound_nets.letters(), folder / "letters" / "letters.onnx")
    (folder / "letters" / "tokens.txt").write_text("".join(f"{token}\n" for token in sound_nets.TOKENS))
    (folder / "letters" / "pipeline.toml").write_text(
        'pre = ["wav:rate=16000", "mel:like=kaldi,mels=20", "normalize=bands"]\npost = ["ctc:labels=tokens.txt"]\n'
    )
    (folder / "words.txt").write_text("".join(f"{label}\n" for label in WORDS))
    encode(drawn(4000, 0), 16000).tofile(folder / "short.wav")
    encode(drawn(20000, 1, 44100), 44100).tofile(folder / "long.wav")
    return folder


def outputs_of(path, feeds):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": feeds.astype(np.float32)})[0]


def expected_shares(models, samples):
    """Spectrogram, model and softmax by numpy and ONNX Runtime, for one window."""
    power = sound_features.power_spectrogram(samples, 512, 160, 512, "zeros")
    bands = sound_features.decibels(sound_features.slaney_filters(16000, 512, 20, 0, 8000) @ power)
    scores = outputs_of(models / "keywords.onnx", (bands[None, None] + 40) / 40)[0]
    return np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()


def check_words(objects, shares, first=0.0):
    best = np.argsort(-shares)[:2]
    assert [item["number"] for item in objects] == list(best)
    assert [item["label"] for item in objects] == [WORDS[number] for number in best]
    np.testing.assert_allclose([item["score"] for item in objects], shares[best], atol=1e-4)
    np.testing.assert_allclose([item["seconds"] for item in objects], [[first, first + 0.25]] * 2, atol=1e-6)


@pytest.fixture(scope="module")
def keywords(models, tmp_path_factory):
    """The keyword model's bundle, deployed to a store of this machine, and the words that lead there."""
    root, folder = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("bundle") / "keywords"
    options = ["--board", "local", "--root", root]
    steps = [step.replace("words.txt", str(models / "words.txt")) for step in STEPS]
    build_options = [*options, *steps, "--sound", models / "short.wav", "-o", folder, "--budget", 0, "--json", "-"]
    report = json.loads(done("deploy", models / "keywords.onnx", *build_options).out)
    assert report["sounds"] == {"bytes": 8044, "objects": 2, "text": ""}
    return bundle.load(folder), options


def test_words_on_this_machine(keywords, models, tmp_path):
    release, options = keywords
    assert release.manifest.sounds.labels == WORDS
    assert "--sound short.wav" in release.manifest.command
    report = parsed("run", *options, "--sound", models / "short.wav", "-o", tmp_path / "y.npz")
    check_words(report["objects"][0]["objects"], expected_shares(models, drawn(4000, 0) / 32768))
    output = done("run", *options, "--sound", models, "-o", tmp_path / "y.npz").out
    assert re.search(r"short\.wav .* 0\.00 +0\.25", output)
    assert output.count("long.wav") == 2 * 3


def test_the_windows_of_a_sound_of_another_rate(keywords, models, tmp_path):
    report = parsed("run", *keywords[1], "--sound", models / "long.wav", "-o", tmp_path / "y.npz")
    samples = sound_features.resampled(drawn(20000, 1, 44100) / 32768, 44100, 16000)
    objects = report["objects"][0]["objects"]
    assert len(samples) == 7257
    assert len(objects) == 6
    for window in range(3):
        shares = expected_shares(models, np.pad(samples, (0, 4000))[window * 2000 : window * 2000 + 4000])
        check_words(objects[2 * window : 2 * window + 2], shares, window * 0.125)


def expected_text(models, samples):
    bands = sound_features.kaldi_bands(samples.astype(float), 16000, 400, 160, 20)
    normalized = (bands - bands.mean(axis=0)) / np.sqrt(bands.var(axis=0) + 1e-7)
    best = outputs_of(models / "letters" / "letters.onnx", normalized[None])[0].argmax(axis=1)
    tokens = [token for number, token in enumerate(best) if number == 0 or token != best[number - 1]]
    return "".join(sound_nets.TOKENS[token] for token in tokens if token).replace("|", " ").strip()


@pytest.fixture(scope="module")
def letters(models, tmp_path_factory):
    root, folder = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("bundle") / "letters"
    options = ["--board", "local", "--root", root]
    done("deploy", models / "letters" / "letters.onnx", *options, "--budget", 0, "-o", folder)
    return folder, options


def test_a_text_of_a_file_beside_the_model(letters, models, tmp_path):
    samples = drawn(4400, 3)
    encode(samples, 16000).tofile(tmp_path / "said.wav")
    report = parsed("run", *letters[1], "--sound", tmp_path / "said.wav", "-o", tmp_path / "y.npz")
    text = expected_text(models, samples)
    assert len(text) > 3
    assert report["texts"] == [{"sample": str(tmp_path / "said.wav"), "text": text}]
    assert text in done("run", *letters[1], "--sound", tmp_path / "said.wav", "-o", tmp_path / "y.npz").out


@pytest.fixture(scope="module")
def beam(models, tmp_path_factory):
    """The model of letters, whose text a beam reads."""
    root, folder = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("bundle") / "beam"
    options = ["--board", "local", "--root", root]
    steps = ["--pre", WAV, "--pre", "mel:like=kaldi,mels=20", "--pre", "normalize=bands", "--post", "softmax"]
    steps += ["--post", f"ctc:labels={models / 'letters' / 'tokens.txt'},beam=8"]
    done("deploy", models / "letters" / "letters.onnx", *options, *steps, "--budget", 0, "-o", folder)
    return folder, options


def test_the_most_probable_text(beam, models, tmp_path):
    differs = False
    for seed in range(6):
        samples = drawn(4400, seed)
        encode(samples, 16000).tofile(tmp_path / "said.wav")
        report = parsed("run", *beam[1], "--sound", tmp_path / "said.wav", "-o", tmp_path / "y.npz")
        bands = sound_features.kaldi_bands(samples.astype(float), 16000, 400, 160, 20)
        normalized = (bands - bands.mean(axis=0)) / np.sqrt(bands.var(axis=0) + 1e-7)
        scores = outputs_of(models / "letters" / "letters.onnx", normalized[None])[0].astype(float)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        labels, _ = most_probable(shares / shares.sum(axis=1, keepdims=True), 8)
        text = "".join(sound_nets.TOKENS[label] for label in labels).replace("|", " ").strip()
        assert report["texts"][0]["text"] == text
        differs |= text != expected_text(models, samples)
    assert differs


@pytest.mark.parametrize("name", ["beam", "letters", "keywords"])
def test_a_sound_after_the_first_allocates_nothing(name, request, sdk, models, tmp_path):  # noqa: F811
    folder = request.getfixturevalue(name)[0]
    encode(drawn(4000, 5), 16000).tofile(tmp_path / "said.wav")
    program = compiled(sdk, C / "again.c", tmp_path / "again")
    outcome = ran(program, getattr(folder, "folder", folder), tmp_path / "said.wav", 0, 0)
    assert (outcome.returncode, outcome.stderr, outcome.stdout.split()[0]) == (0, "", "0")


def test_an_evaluation_reads_sounds(keywords, models, tmp_path):
    rows = ["file,label"]
    for seed in range(12):
        samples = drawn(4000, seed)
        encode(samples, 16000).tofile(tmp_path / f"{seed}.wav")
        rows.append(f"{seed}.wav,{expected_shares(models, samples / 32768).argmax()}")
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    evaluation = ["--model", models / "keywords.onnx", "--data", tmp_path / "data.csv", "--metric", "top1"]
    report = parsed("evaluate", "current", *keywords[1], *evaluation)
    assert [side["value"] for side in report["sides"]] == [100, 100]


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("empty.wav", b"", "does not begin with RIFF"),
        ("cut.wav", encode(drawn(4000, 0), 16000).tobytes()[:-1], "is truncated"),
        (
            "odd.wav",
            encode(drawn(4000, 0), 16000).tobytes().replace(b"\x01\x00\x01\x00", b"\x55\x00\x01\x00"),
            "format 85",
        ),
        ("long.wav", encode(drawn(4500, 0), 16000).tobytes(), "has 4500 samples, and the model takes 4400"),
        ("rate.wav", encode(drawn(400, 0), 8000).tobytes(), "has 8000 Hz, and the model takes 16000 Hz"),
    ],
)
def test_a_wrong_sound_is_one_clear_error(letters, name, contents, message, tmp_path):
    (tmp_path / name).write_bytes(contents)
    outcome = toolchain("run", *letters[1], "--sound", tmp_path / name, "-o", tmp_path / "y.npz")
    assert (outcome.code, message in outcome.err, name in outcome.err) == (2, True, True), outcome.err


def test_pictures_and_sounds_are_not_mixed(letters, models, tmp_path):
    outcome = toolchain("run", *letters[1], "--image", models / "short.wav", "-o", tmp_path / "y.npz")
    assert (outcome.code, "are for sounds" in outcome.err) == (2, True), outcome.err
    outcome = toolchain("build", models / "keywords.onnx", "--sound", models / "short.wav", "-o", tmp_path / "no")
    assert (outcome.code, "no steps that make its input" in outcome.err) == (2, True), outcome.err


def test_a_device_that_prepares_otherwise_is_refused(letters, monkeypatch):
    """As a device with a fault would: here, this machine's reference is another one."""
    from toolchain.native import sounds

    right = sounds.Computer.prepare
    monkeypatch.setattr(
        sounds.Computer,
        "prepare",
        lambda self, *arguments, **keyword_arguments: right(self, *arguments, **keyword_arguments) * np.float32(1.001),
    )
    outcome = toolchain("deploy", letters[0], *letters[1], "--budget", 0)
    assert (outcome.code, "makes another input of a sound" in outcome.err) == (5, True), outcome.err


@pytest.fixture(scope="module")
def edge_model(sdk):  # noqa: F811 - as pytest has it
    """The Python binding of the SDK, and the library."""
    return python_binding(), sdk / "lib" / "libedge_model.so.1"


def test_an_application_hears_the_same(edge_model, keywords, letters, models):
    binding, library = edge_model
    samples = drawn(4000, 0)
    with binding.Model(keywords[0].folder, library=library) as model:
        shares = expected_shares(models, samples / 32768)
        stereo = np.stack([samples, samples], axis=1)
        floats = (samples / 32768).astype(np.float32)
        recordings = [((models / "short.wav").read_bytes(), {})]
        recordings += [(array, {"rate": 16000}) for array in (samples, stereo, floats)]
        for sound, options in recordings:
            heard = model.run_audio(sound, **options)
            objects = [
                {"number": item.number, "label": item.label, "score": item.score, "seconds": (item.left, item.right)}
                for item in heard.objects
            ]
            check_words(objects, shares)
            assert heard.text == ""
        assert len(model.run_audio((models / "long.wav").read_bytes()).objects) == 6
        with pytest.raises(binding.EdgeError, match="is truncated") as caught:
            model.run_audio((models / "short.wav").read_bytes()[:-2])
        assert caught.value.code == 2
        with pytest.raises(ValueError, match="needs its rate"):
            model.run_audio(samples)
        with pytest.raises(binding.EdgeError, match="no steps for pictures"):
            model.run_image(np.zeros((4, 4, 3), np.uint8))
    with binding.Model(letters[0], library=library) as model:
        samples = drawn(4400, 3)
        assert model.run_audio(samples, rate=16000).text == expected_text(models, samples)


@pytest.mark.nightly
def test_words_on_an_emulated_board(virtual_boards, models, tmp_path):
    options = ["--board", "rpi4", "--host", virtual_boards.name("rpi4"), "--devices", virtual_boards.devices]
    steps = [step.replace("words.txt", str(models / "words.txt")) for step in STEPS]
    build_options = [*options, *steps, "--toolchain", "host", "--budget", 0, "--json", "-"]
    report = json.loads(done("deploy", models / "keywords.onnx", *build_options).out)
    assert report["sounds"]["objects"] == 2
    run_report = parsed("run", *options, "--sound", models / "short.wav", "-o", tmp_path / "y.npz", "--threads", 1)
    check_words(run_report["objects"][0]["objects"], expected_shares(models, drawn(4000, 0) / 32768))
