"""The C++ code for sounds, compiled for this machine, beside the formulas of librosa, torchaudio and Kaldi in numpy."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

from tests.support import sound_features as features
from tests.support.beams import most_probable
from toolchain import sounds
from toolchain.errors import InputError
from toolchain.native.sounds import Computer, Recording, encode, synthetic
from toolchain.steps import Steps
from toolchain.tensors import TensorSpec

STREAM = np.random.default_rng(0)


def random_samples(count, channels=1):
    """Draw samples of 16 bits: tones and noise."""
    time = np.arange(count)[:, None] / np.linspace(3, 40, channels)
    waves = 9000 * np.sin(time) + 5000 * np.sin(time / 7.3) + STREAM.normal(0, 300, (count, channels))
    return np.rint(waves).astype(np.int16)


def computer(shape, *pre, dtype="float32", post=(), output=None, labels=(), rate=16000):
    outputs = None if output is None else [TensorSpec("y", output, "float32")]
    steps = Steps((f"wav:rate={rate}", *pre), tuple(post), labels)
    return Computer(sounds.resolve(steps, [TensorSpec("x", shape, dtype)], outputs).plan)


def wav(samples, rate=16000):
    return Recording(encode(samples, rate))


def close(result, expected):
    result, expected = np.squeeze(result), np.squeeze(expected)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize(("fft", "hop", "win", "mels"), [(512, 160, 400, 40), (400, 160, 400, 80), (480, 240, 480, 23)])
@pytest.mark.parametrize("pad", ["zeros", "reflect", None])
def test_bands_of_librosa(fft, hop, win, mels, pad):
    samples = random_samples(8000)[:, 0]
    power = features.power_spectrogram(samples / 32768, fft, hop, win, pad)
    expected = features.slaney_filters(16000, fft, mels, 60, 7600) @ power
    step = f"mel:fft={fft},hop={hop},win={win},mels={mels},low=60,high=7600,pad={pad or 'none'}"
    shape = (1, *expected.shape)
    for log, of_log in [("none", expected), ("db", features.decibels(expected)), ("log10,offset=1e-6", None)]:
        target = np.log10(np.maximum(expected + 1e-6, 1e-10)) if of_log is None else of_log
        close(computer(shape, "window:samples=8000", f"{step},log={log}").prepare(wav(samples)), target)


def test_defaults_of_librosa_and_torchaudio():
    samples = random_samples(22050)[:, 0]
    power = features.power_spectrogram(samples / 32768, 2048, 512, 2048, "zeros")
    bands = features.slaney_filters(22050, 2048, 128, 0, 11025) @ power
    window = "window:samples=22050"
    close(computer((128, 44), window, "mel:like=librosa", rate=22050).prepare(wav(samples, 22050)), bands)
    expected = features.cosine_transform(features.decibels(bands), 20)
    close(computer((1, 1, 20, 44), window, "mfcc:like=librosa", rate=22050).prepare(wav(samples, 22050)), expected)
    samples = random_samples(16000)[:, 0]
    power = features.power_spectrogram(samples / 32768, 400, 200, 400, "reflect")
    bands = features.htk_filters(16000, 400, 128, 0, 8000) @ power
    close(computer((1, 128, 81), "mel:like=torchaudio").prepare(wav(samples)), bands)
    expected = features.cosine_transform(features.decibels(bands), 40)
    close(computer((1, 40, 81), "mfcc:like=torchaudio").prepare(wav(samples)), expected)
    levels = features.decibels(bands, None)
    close(computer((1, 81, 128), "mel:like=torchaudio,log=db").prepare(wav(samples)), levels.T)


def test_features_of_kaldi():
    samples = random_samples(16000)[:, 0]
    expected = features.kaldi_bands(samples.astype(float), 16000, 400, 160, 80)
    close(computer((1, 98, 80), "mel:like=kaldi,mels=80").prepare(wav(samples[:15920])), expected[:98])
    expected = features.kaldi_mfcc(samples.astype(float), 16000, 400, 160, 23, 13)
    close(computer((98, 13), "window:samples=16000", "mfcc:like=kaldi").prepare(wav(samples)), expected)


def test_the_input_of_whisper():
    samples = random_samples(16000)[:, 0]
    power = features.power_spectrogram(samples / 32768, 400, 160, 400, "reflect")[:, :-1]
    levels = np.log10(np.maximum(features.slaney_filters(16000, 400, 80, 0, 8000) @ power, 1e-10))
    expected = (np.maximum(levels, levels.max() - 8) + 4) / 4
    steps = ["window:samples=16000", "mel:fft=400,hop=160,mels=80,pad=reflect,log=db", "mean=-40", "std=40"]
    close(computer((1, 80, 100), *steps).prepare(wav(samples)), expected)


@pytest.mark.parametrize("size", [2, 6, 8, 30, 64, 105, 343, 400, 1024, 1260])
def test_transforms_of_all_sizes_with_small_factors(size):
    samples = random_samples(size)[:, 0]
    power = features.power_spectrogram(samples / 32768, size, 1, size, None)
    expected = features.htk_filters(16000, size, 3, 0, 8000) @ power
    close(computer((3, 1), f"mel:like=torchaudio,fft={size},hop=1,mels=3,pad=none").prepare(wav(samples)), expected)


@pytest.mark.parametrize(("old", "new"), [(44100, 16000), (8000, 16000), (48000, 16000), (16000, 22050), (11, 16)])
def test_other_rates_are_resampled_as_torchaudio_does(old, new):
    samples = random_samples(1000)[:, 0]
    expected = features.resampled(samples / 32768, old, new)
    steps = Steps((f"wav:rate={new},resample=torchaudio",), ())
    plan = sounds.resolve(steps, [TensorSpec("x", (1, len(expected)), "float32")], None).plan
    close(Computer(plan).prepare(wav(samples, old)), expected)
    plan = sounds.resolve(Steps((*steps.pre, "window:hop=37"), ()), [TensorSpec("x", (64,), "float32")], None).plan
    later = Computer(plan).prepare(wav(samples, old), 3)
    close(later, np.pad(expected, (0, 200))[111 : 111 + 64])


def raw_wav(chunks, form=b"WAVE"):
    body = form + b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def header(number, channels, rate, bits, more=b""):
    block = channels * bits // 8
    return struct.pack("<HHIIHH", number, channels, rate, rate * block % 2**32, block, bits) + more


def recorded(contents):
    return Recording(np.frombuffer(contents, np.uint8))


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize(("number", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_each_kind_of_samples(number, bits, channels):
    values = STREAM.uniform(-1, 1, (50, channels))
    if number == 3:
        data = values.astype(f"<f{bits // 8}")
        expected, stored = data.astype(float), data.tobytes()
    else:
        integers = np.rint(values * (2 ** (bits - 1) - 1)).astype(np.int64)
        expected = integers / 2.0 ** (bits - 1)
        shifted = integers + 128 if bits == 8 else integers
        stored = b"".join(int(value).to_bytes(4, "little", signed=True)[: bits // 8] for value in shifted.reshape(-1))
    guid = b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    extensible = header(0xFFFE, channels, 16000, bits, struct.pack("<HHIH", 22, bits, 0, number) + guid)
    for form in (header(number, channels, 16000, bits), extensible):
        file = raw_wav([(b"LIST", b"odd"), (b"fmt ", form), (b"fact", b"\0" * 4), (b"data", stored), (b"cue ", b"x")])
        close(computer((1, 50)).prepare(recorded(file)), expected.mean(axis=1))


def test_raw_samples_as_microphones_deliver_them():
    samples = random_samples(100, 2)
    expected = samples.mean(axis=1) / 32768
    raw = Recording(samples.reshape(-1).view(np.uint8), "pcm16", 16000, 2)
    close(computer((1, 100)).prepare(raw), expected)
    floats = (samples / 32768).astype(np.float32)
    close(computer((1, 100)).prepare(Recording(floats.reshape(-1).view(np.uint8), "float", 16000, 2)), expected)
    # A file that was written to a pipe does not know its size.
    piped = encode(samples, 16000).tobytes().replace(struct.pack("<I", 400), b"\xff" * 4)
    close(computer((1, 100)).prepare(recorded(piped)), expected)


def test_values_layouts_and_types():
    samples = random_samples(160)[:, 0]
    values = samples / 32768
    normal = (values - values.mean()) / np.sqrt(values.var() + 1e-7)
    close(computer((1, 160), "normalize").prepare(wav(samples)), normal)
    close(computer((160,), "scale=2", "mean=0.5", "std=0.25").prepare(wav(samples)), (values * 2 - 0.5) / 0.25)
    result = computer((1, 160), "scale=127", dtype="int8").prepare(wav(samples), shape=(1, 160))
    np.testing.assert_array_equal(result[0], np.rint((values * 127).astype(np.float32)).astype(np.int8))
    half = computer((160,), dtype="float16").prepare(wav(samples), shape=(160,))
    np.testing.assert_array_equal(half, values.astype(np.float32).astype(np.float16))
    step = "mel:like=torchaudio,fft=32,hop=16,mels=5,log=ln,offset=1e-6"
    bands = computer((5, 11), step).prepare(wav(samples))
    close(computer((11, 5), step).prepare(wav(samples)), bands.T)
    centred = bands - bands.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(bands.var(axis=1, keepdims=True) + 1e-7)
    close(computer((5, 11), step, "normalize=bands").prepare(wav(samples)), expected)


def test_windows_and_padding():
    samples = random_samples(100)[:, 0]
    pipeline = computer((1, 64), "window:hop=20")
    assert pipeline.windows(wav(samples)) == 3
    values = np.pad(samples / 32768, (0, 4))
    for window, first in enumerate((0, 20, 40)):
        close(pipeline.prepare(wav(samples), window), values[first : first + 64])
    close(computer((1, 128)).prepare(wav(samples)), np.pad(samples / 32768, (0, 28)))
    with pytest.raises(InputError, match="has 3 windows, and one is possible here"):
        pipeline.prepare(wav(samples))


@pytest.mark.parametrize(("more", "hop"), [((), 48), (("hop=20",), 20), (("hop=90",), 90)])
def test_windows_with_samples_of_before(more, hop):
    """As the wrapper of silero-vad cuts them: what is before the first window, and after the last one, is zeros."""
    samples = random_samples(500)[:, 0]
    pipeline = computer((1, 64), "window:" + ",".join(["context=16", *more]), post=["topk=1"], output=(1, 1))
    windows = pipeline.windows(wav(samples))
    assert windows == 1 + -(-(500 - 48) // hop)
    values = np.pad(samples / 32768, (16, 200))
    for window in range(windows):
        close(pipeline.prepare(wav(samples), window), values[window * hop : window * hop + 64])
    pipeline.find(np.float32([0.5]))
    result = pipeline.find(np.float32([0.25]), 2)
    np.testing.assert_allclose(result["left"], [0, 2 * hop / 16000], rtol=1e-6)
    np.testing.assert_allclose(result["right"] - result["left"], 48 / 16000, rtol=1e-4)


def test_samples_of_before_at_another_rate():
    samples = random_samples(1000)[:, 0]
    expected = np.pad(features.resampled(samples / 32768, 44100, 16000), (16, 100))
    steps = Steps(("wav:rate=16000,resample=torchaudio", "window:context=16"), ())
    plan = sounds.resolve(steps, [TensorSpec("x", (64,), "float32")], None).plan
    for window in range(7):
        close(Computer(plan).prepare(wav(samples, 44100), window), expected[window * 48 : window * 48 + 64])


def test_classes_of_each_window_have_their_times():
    pipeline = computer((1, 1600), "window:hop=800", post=["softmax", "topk=2"], output=(1, 3))
    assert pipeline.windows(wav(random_samples(2400)[:, 0])) == 2
    pipeline.find(np.array([[0, 1, 2]], np.float32))
    result = pipeline.find(np.array([[5, 1, 2]], np.float32), 1)
    assert [int(label) for label in result["label"]] == [2, 1, 0, 2]
    np.testing.assert_allclose(result["left"], [0, 0, 0.05, 0.05])
    np.testing.assert_allclose(result["right"], [0.1, 0.1, 0.15, 0.15], rtol=1e-6)
    np.testing.assert_allclose(result["score"][:2], np.exp([0, -1]) / np.exp([0, -1, -2]).sum(), rtol=1e-6)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("blank", [0, 3])
def test_labels_are_those_of_an_independent_decoder(seed, blank):
    stream = np.random.default_rng(seed)
    rows = 50
    scores = stream.choice([0.0, 1.0, 2.0, 3.0], (1, rows, 4)).astype(np.float32)
    labels = ("|", "a", "b", "c")
    pipeline = computer((1, 1600), post=[f"ctc:labels=x,blank={blank}"], output=scores.shape, labels=labels)
    result = pipeline.find(scores)
    best = scores[0].argmax(axis=1)
    changes = np.flatnonzero(np.concatenate([[True], best[1:] != best[:-1]]))
    runs = [(start, end, best[start]) for start, end in zip(changes, [*changes[1:], rows], strict=True)]
    runs = [run for run in runs if run[2] != blank]
    assert len(runs) > 5
    assert [int(label) for label in result["label"]] == [label for _, _, label in runs]
    np.testing.assert_allclose(result["left"], [start * 0.1 / rows for start, _, _ in runs], atol=1e-6)
    np.testing.assert_allclose(result["right"], [end * 0.1 / rows for _, end, _ in runs], atol=1e-6)
    np.testing.assert_array_equal(result["score"], [scores[0, start:end, label].max() for start, end, label in runs])


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_finds_what_an_independent_search_finds(seed):
    """On 1,000 tables, also of few different shares, where many texts are as probable."""
    stream = np.random.default_rng(seed)
    for number in range(250):
        rows, classes, width = (int(size) for size in stream.integers([1, 2, 1], [13, 8, 12]))
        blank = int(stream.integers(classes))
        shares = stream.random((rows, classes)) ** 3
        if number % 2:
            shares = stream.choice([0, 0.25, 0.25, 0.5, 1], (rows, classes))
        shares = shares.astype(np.float32)
        pipeline = computer(
            (1, 1600),
            post=[f"ctc:labels=x,blank={blank},beam={width}"],
            output=(1, rows, classes),
            labels=tuple("|abcdefg"[:classes]),
        )
        result = pipeline.find(shares)
        text, positions = most_probable(shares, width, blank)
        assert result["label"].tolist() == text
        np.testing.assert_allclose(result["left"], np.array(positions) * 0.1 / rows, rtol=1e-6)
        np.testing.assert_array_equal(
            result["score"], [shares[row, label] for row, label in zip(positions, text, strict=True)]
        )


def test_a_wide_beam_finds_the_most_probable_text():
    """Of all paths through the table, those of a text are summed up."""
    stream = np.random.default_rng(9)
    for _ in range(20):
        scores = stream.normal(0, 2, (6, 3)).astype(np.float32)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True).astype(float))
        shares /= shares.sum(axis=1, keepdims=True)
        sums: dict[tuple[int, ...], float] = {}
        for path in itertools.product(range(3), repeat=6):
            text = tuple(label for label, _ in itertools.groupby(path) if label)
            sums[text] = sums.get(text, 0) + np.prod([shares[row, label] for row, label in enumerate(path)])
        pipeline = computer((1, 1600), post=["softmax", "ctc:labels=x,beam=128"], output=(6, 3), labels=("-", "a", "b"))
        assert tuple(pipeline.find(scores)["label"]) == max(sums, key=sums.__getitem__)


def test_a_long_text_of_a_beam():
    """Its probability is far below the least double."""
    scores = np.full((4000, 3), 0.3, np.float32)
    scores[range(4000), np.arange(4000) % 2 * 2] = 0.4
    pipeline = computer((1, 1600), post=["ctc:labels=x,beam=4"], output=scores.shape, labels=("-", "a", "b"))
    assert pipeline.find(scores)["label"].tolist() == most_probable(scores, 4)[0]
    assert len(pipeline.find(scores)) > 1000


@pytest.mark.parametrize("value", [-0.1, 1.5, np.nan, np.inf])
def test_what_is_not_a_share_is_refused(value):
    shares = np.full((3, 2), 0.5, np.float32)
    shares[1, 1] = value
    pipeline = computer((1, 1600), post=["ctc:labels=x,beam=4"], output=(3, 2), labels=("-", "a"))
    with pytest.raises(InputError, match=r"row 1 of the model's output has .* not a share.*softmax"):
        pipeline.find(shares)
    pipeline = computer((1, 1600), post=["softmax", "ctc:labels=x,beam=4"], output=(3, 2), labels=("-", "a"))
    if np.isfinite(value):
        pipeline.find(shares)
    else:
        with pytest.raises(InputError, match="row 1 of the model's output has a number that is not finite"):
            pipeline.find(shares)


GOOD = encode(random_samples(100)[:, 0], 16000).tobytes()
FMT = (b"fmt ", header(1, 1, 16000, 16))
WRONG = [
    (b"", "does not begin with RIFF"),
    (b"RIFF", "does not begin with RIFF"),
    (GOOD[:12], "no chunk `data`"),
    (GOOD[:40], "no chunk `data`"),
    (GOOD[:-1], "truncated: its chunk `data` has 200 bytes, and the file 199 more"),
    (GOOD.replace(b"RIFF", b"RIFX"), "does not begin with RIFF"),
    (GOOD.replace(b"RIFF", b"OggS"), "does not begin with RIFF"),
    (raw_wav([FMT, (b"data", b"")]), "the sound is empty"),
    (raw_wav([FMT, (b"data", b"\0" * 3)]), "not a multiple of the 2"),
    (raw_wav([(b"data", b"\0" * 4)]), "no chunk `fmt ` before"),
    (raw_wav([(b"data", b"\0" * 4), FMT]), "no chunk `fmt ` before"),
    (raw_wav([(b"fmt ", FMT[1][:12]), (b"data", b"\0" * 4)]), "`fmt ` has 12 bytes"),
    (raw_wav([(b"fmt ", header(6, 1, 16000, 8)), (b"data", b"\0" * 4)]), "format 6 with 8 bits"),
    (raw_wav([(b"fmt ", header(85, 1, 16000, 16)), (b"data", b"\0" * 4)]), "format 85"),
    (raw_wav([(b"fmt ", header(1, 1, 16000, 12)), (b"data", b"\0" * 4)]), "with 12 bits"),
    (raw_wav([(b"fmt ", header(3, 1, 16000, 16)), (b"data", b"\0" * 4)]), "format 3 with 16 bits"),
    (raw_wav([(b"fmt ", header(1, 0, 16000, 16)), (b"data", b"\0" * 4)]), "0 channels"),
    (raw_wav([(b"fmt ", header(1, 99, 16000, 16)), (b"data", b"\0" * 198)]), "99 channels"),
    (raw_wav([(b"fmt ", header(1, 1, 0, 16)), (b"data", b"\0" * 4)]), "rate of 0 Hz"),
    (raw_wav([(b"fmt ", header(1, 1, 2**32 - 1, 16)), (b"data", b"\0" * 4)]), "rate of"),
    (raw_wav([(b"fmt ", FMT[1][:12] + struct.pack("<HH", 4, 16)), (b"data", b"\0" * 4)]), "blocks of 4"),
    (raw_wav([(b"fmt ", header(0xFFFE, 1, 16000, 16)), (b"data", b"\0" * 4)]), "unknown subformat"),
    (raw_wav([(b"fmt ", header(0xFFFE, 1, 16000, 16, b"\1" * 24)), (b"data", b"\0" * 4)]), "unknown subformat"),
    (raw_wav([(b"fmt ", header(3, 1, 16000, 32)), (b"data", struct.pack("<f", np.nan))]), "not a finite number"),
    (raw_wav([(b"fmt ", header(3, 1, 16000, 64)), (b"data", struct.pack("<d", np.inf))]), "not a finite number"),
    (GOOD[:16] + b"\xff" * 4 + GOOD[20:], "truncated: its chunk `fmt `"),
    (encode(random_samples(100)[:, 0], 8000).tobytes(), "has 8000 Hz, and the model takes 16000 Hz"),
    (encode(random_samples(101)[:, 0], 16000).tobytes(), "has 101 samples, and the model takes 100"),
]  # fmt: skip


@pytest.mark.parametrize(("contents", "message"), WRONG)
def test_a_damaged_or_unsuitable_sound_is_refused(contents, message):
    with pytest.raises(InputError, match=message):
        computer((1, 100)).prepare(recorded(contents))


@pytest.mark.parametrize(
    ("sound", "message"),
    [
        (Recording(np.zeros(8, np.uint8), "pcm16", 0, 1), "rate of 0 Hz"),
        (Recording(np.zeros(8, np.uint8), "pcm16", -5, 1), "rate of -5 Hz"),
        (Recording(np.zeros(8, np.uint8), "pcm16", 16000, 0), "0 channels"),
        (Recording(np.zeros(7, np.uint8), "pcm16", 16000, 1), "7 bytes"),
        (Recording(np.zeros(0, np.uint8), "pcm16", 16000, 1), "is empty"),
        (Recording(np.zeros(8, np.uint8), "pcm16", 48000, 1), "has 48000 Hz"),
        (Recording(encode(random_samples(4)[:, 0], 16000), "wav", 16000, 1), "rate and channels of its own"),
    ],
)
def test_raw_samples_whose_numbers_do_not_agree_are_refused(sound, message):
    with pytest.raises(InputError, match=message):
        computer((1, 100)).prepare(sound)


def test_limits_of_memory():
    steps = Steps(("wav:rate=15999,resample=torchaudio",), ())
    plan = sounds.resolve(steps, [TensorSpec("x", (1, 1 << 22), "float32")], None).plan
    with pytest.raises(InputError, match="cannot be resampled to 15999 Hz in bounded memory"):
        Computer(plan).prepare(wav(random_samples(4)[:, 0], 768000))
    limit = computer((1,), "window:hop=1", post=["topk=100"], output=(1, 200))
    assert limit.windows(wav(random_samples(10485)[:, 0])) == 10485
    with pytest.raises(InputError, match="10486 windows; at most 10485"):
        limit.windows(wav(random_samples(10486)[:, 0]))


def test_a_drawn_sound_fills_the_window():
    plan = sounds.resolve(
        Steps(("wav:rate=8000", "mel:like=kaldi"), ()), [TensorSpec("x", (50, 23), "float32")], None
    ).plan
    pipeline = Computer(plan).prepare(Recording(synthetic(plan, 0)))
    assert pipeline.std() > 1
