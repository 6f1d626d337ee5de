"""Features of sounds by numpy: the formulas of librosa, torchaudio and Kaldi, written apart from the C++ code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def hann(size: int) -> Array:
    """Return the periodic window, as scipy.signal.get_window and torch.hann_window have it."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)


def power_spectrogram(samples: Array, fft: int, hop: int, win: int, pad: str | None) -> Array:
    """Return (bins, frames), by numpy's transform of all frames at once."""
    if pad:
        samples = np.pad(samples, fft // 2, mode={"zeros": "constant", "reflect": "reflect"}[pad])
    window = np.zeros(fft)
    window[(fft - win) // 2 : (fft - win) // 2 + win] = hann(win)
    frames = np.lib.stride_tricks.sliding_window_view(samples, fft)[::hop]
    return np.abs(np.fft.rfft(frames * window, axis=1)).T ** 2


def slaney_filters(rate: int, fft: int, mels: int, low: float, high: float) -> Array:
    """Return librosa.filters.mel: Slaney's scale, each band with the same area."""

    def to_mel(hertz: Any) -> Any:
        return np.where(hertz < 1000, hertz * 3 / 200, 15 + np.log(np.maximum(hertz, 1e-9) / 1000) / (np.log(6.4) / 27))

    def to_hertz(mel: Any) -> Any:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((np.log(6.4) / 27) * (mel - 15)))

    points = to_hertz(np.linspace(to_mel(np.float64(low)), to_mel(np.float64(high)), mels + 2))
    filters = _triangles(points, np.fft.rfftfreq(fft, 1 / rate))
    return filters * (2 / (points[2:] - points[:-2]))[:, None]


def htk_filters(rate: int, fft: int, mels: int, low: float, high: float) -> Array:
    """Return the transpose of torchaudio.functional.melscale_fbanks with mel_scale="htk"."""
    ends = [2595 * math.log10(1 + hertz / 700) for hertz in (low, high)]
    points = 700 * (10 ** (np.linspace(*ends, mels + 2) / 2595) - 1)
    return _triangles(points, np.linspace(0, rate // 2, fft // 2 + 1))


def _triangles(points: Array, bins: Array) -> Array:
    slopes = points[:, None] - bins[None]
    steps = np.diff(points)[:, None]
    return np.maximum(0, np.minimum(-slopes[:-2] / steps[:-1], slopes[2:] / steps[1:]))


def decibels(power: Array, top: float | None = 80.0) -> Array:
    """Return librosa.power_to_db, and torchaudio's AmplitudeToDB("power")."""
    levels = 10 * np.log10(np.maximum(power, 1e-10))
    return levels if top is None else np.maximum(levels, levels.max() - top)


def cosine_transform(bands: Array, count: int) -> Array:
    """Return the orthonormal DCT-II of the first axis."""
    size = len(bands)
    matrix = np.cos(np.pi / size * (np.arange(size) + 0.5)[None] * np.arange(count)[:, None]) * np.sqrt(2 / size)
    matrix[0] /= np.sqrt(2)
    return matrix @ bands


def kaldi_bands(samples: Array, rate: int, win: int, hop: int, mels: int, low: float = 20.0) -> Array:
    """Return compute-fbank-feats without dither, (frames, bands), of samples in the range of 16 bits."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, win)[::hop].copy()
    frames -= frames.mean(axis=1, keepdims=True)
    frames -= 0.97 * np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames *= (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / (win - 1))) ** 0.85
    fft = 1 << (win - 1).bit_length()
    power = np.abs(np.fft.rfft(frames, fft, axis=1))[:, :-1] ** 2

    def to_mel(hertz: Any) -> Any:
        return 1127 * np.log(1 + np.asarray(hertz) / 700)

    points = np.linspace(to_mel(low), to_mel(rate / 2), mels + 2)
    weights = _triangles(points, to_mel(np.arange(fft // 2) * rate / fft))
    return np.log(np.maximum(power @ weights.T, 1.1920928955078125e-07))


def kaldi_mfcc(samples: Array, rate: int, win: int, hop: int, mels: int, count: int) -> Array:
    """Return compute-mfcc-feats with --use-energy=false and --dither=0."""
    bands = kaldi_bands(samples, rate, win, hop, mels)
    lifter = 1 + 11 * np.sin(np.pi * np.arange(count) / 22)
    return cosine_transform(bands.T, count).T * lifter


def resampled(samples: Array, old: int, new: int) -> Array:
    """Return torchaudio.functional.resample with its defaults, as one matrix product for each output."""
    divisor = math.gcd(old, new)
    old, new = old // divisor, new // divisor
    base = min(old, new) * 0.99
    width = math.ceil(6 * old / base)
    offsets = np.arange(-width, width + old)[None] / old - np.arange(new)[:, None] / new
    t = np.clip(offsets * base, -6, 6)
    kernels = np.sinc(t) * np.cos(t * np.pi / 12) ** 2 * base / old
    padded = np.pad(samples, (width, width + old))
    blocks = np.lib.stride_tricks.sliding_window_view(padded, 2 * width + old)[::old]
    return (blocks @ kernels.T).reshape(-1)[: -(-new * len(samples) // old)]
