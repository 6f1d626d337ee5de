"""The sounds module of devices, compiled for this machine: the reference of what a device makes of a sound."""

from __future__ import annotations

import ctypes
import io
import wave
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from toolchain import resources
from toolchain.errors import InputError
from toolchain.native import steps
from toolchain.native.steps import Handle
from toolchain.sounds import plan as plans
from toolchain.sounds.plan import Plan

FORMATS = ("wav", "pcm16", "float")
"""Formats of sounds, in the order of their numbers from 1."""


class _Operation(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("value", ctypes.c_float))


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("low", "high", "floor", "offset", "top")),
        *(
            (name, ctypes.c_int32)
            for name in ("rate", "resample", "samples", "hop", "context", "convention", "fft", "win", "step")
        ),
        *((name, ctypes.c_int32) for name in ("mels", "coefficients", "frames", "padding", "power", "logarithm")),
        *((name, ctypes.c_int32) for name in ("bands_first", "element", "operations")),
        ("operation", _Operation * 4),
        *((name, ctypes.c_int32) for name in ("head", "softmax", "most", "classes", "candidates", "blank", "beam")),
    )


class _Sound(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("format", "rate", "channels")),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


@dataclass(frozen=True)
class Recording:
    """A sound: the bytes of a WAV file, or raw samples, as `edge_audio` in the C library."""

    data: NDArray[np.uint8]
    format: str = "wav"
    rate: int = 0
    channels: int = 0


class Computer:
    """Computes the steps of a plan on this machine; not for use by two threads at once."""

    def __init__(self, plan: Plan, progress: Callable[[str], None] | None = None) -> None:
        self._plan, self._handle = plan, Handle("sounds", resources.manual("sound"), progress)
        self._handle.make("create", _plan_struct(plan))

    def windows(self, sound: Recording) -> int:
        """Return how many windows a sound has.

        Raises:
            InputError: It is damaged, or does not fit the plan.
        """
        count = ctypes.c_int32()
        number = FORMATS.index(sound.format) + 1
        data = sound.data.ctypes.data if sound.data.size else None
        given = _Sound(number, sound.rate, sound.channels, data, sound.data.nbytes)
        self._handle.call("open", ctypes.byref(given), ctypes.byref(count))
        return count.value

    def prepare(self, sound: Recording, window: int | None = None, shape: tuple[int, ...] = ()) -> NDArray[Any]:
        """Return the model's input for a window of a sound; for its only one, unless a number is given.

        Raises:
            InputError: The sound is damaged, or does not fit the plan.
        """
        plan = self._plan
        count = self.windows(sound)
        if window is None and count > 1:
            raise InputError(
                f"the sound has {count} windows, and one is possible here",
                hint="pass a shorter sound; `run --sound` and the library take longer ones",
            )
        sides = (plan.frames, plan.bands) if plan.layout == "frames" else (plan.bands, plan.frames)
        result = np.empty(shape or sides, plan.dtype)
        self._handle.call("prepare", ctypes.c_int64(window or 0), steps.address(result), ctypes.c_size_t(result.nbytes))
        return result

    def prepare_all(self, sound: Recording, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the model's input for each window of a sound, along an axis in front.

        Raises:
            InputError: The sound is damaged, or does not fit the plan.
        """
        return np.stack([self.prepare(sound, window, shape) for window in range(self.windows(sound))])

    def find(self, output: NDArray[np.float32], window: int = 0) -> NDArray[Any]:
        """Return the objects that the outputs up to this window's have, as an array of `steps.OBJECT`.

        Raises:
            InputError: The output has another size.
        """
        return self._handle.find(ctypes.c_int64(window), output=output)


def _plan_struct(plan: Plan) -> _Plan:
    numbers = "rate resample samples hop context fft win step mels coefficients frames power softmax most classes"
    result = _Plan(plan.low, plan.high, plan.floor, plan.offset, plan.top)
    for name in (*numbers.split(), "candidates", "blank", "beam"):
        setattr(result, name, int(getattr(plan, name)))
    result.convention = get_args(plans.Convention).index(plan.convention)
    result.padding = get_args(plans.Padding).index(plan.padding)
    result.logarithm = get_args(plans.Logarithm).index(plan.logarithm)
    result.bands_first = int(plan.layout == "bands")
    result.element = get_args(plans.Element).index(plan.dtype)
    result.head = get_args(plans.Head).index(plan.head)
    result.operations = len(plan.operations)
    for number, operation in enumerate(plan.operations):
        result.operation[number] = _Operation(get_args(plans.Kind).index(operation.kind), operation.value)
    return result


def encode(samples: NDArray[Any], rate: int) -> NDArray[np.uint8]:
    """Return a WAV file of samples of 16 bits, with one channel or (samples, channels)."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(samples.shape[1] if samples.ndim > 1 else 1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.ascontiguousarray(samples, "<i2").tobytes())
    return np.frombuffer(stream.getvalue(), np.uint8)


def synthetic(plan: Plan, seed: int, windows: int = 1) -> NDArray[np.uint8]:
    """Draw a WAV file of so many windows: tones that glide, with noise."""
    count = plan.samples - plan.context + (windows - 1) * plan.hop
    stream = np.random.default_rng([seed, plan.samples, plan.rate])
    time = np.arange(count) / plan.rate
    tones = [
        np.sin(2 * np.pi * (start + glide * time) * time)
        for start, glide in stream.uniform([0.01, -0.05], [0.2, 0.05], (3, 2)) * plan.rate
    ]
    waves = 4000 * np.sum(tones, axis=0) + stream.normal(0, 400, count)
    return encode(np.clip(np.rint(waves), -32768, 32767).astype(np.int16), plan.rate)
