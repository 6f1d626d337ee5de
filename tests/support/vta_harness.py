"""The driver of VTA on Zynq boards over a model of the FPGA's blocks: the C++ of `vta_model/`, built once a session."""

from __future__ import annotations

import base64
import ctypes
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.paths import ROOT
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.isa.stream import Stream

MODEL = ROOT / "tests" / "vta_model"
RUNTIME = ROOT / "toolchain" / "runtime" / "vta"
_ERROR_BYTES = 2048


class HarnessError(Exception):
    """What the C++ says."""


def build(folder: Path) -> ctypes.CDLL:
    """Compile the model with the driver, as one source."""
    sources = [path for path in sorted(RUNTIME.glob("*.cc")) if path.name != "functions.cc"]
    source, library = folder / "harness.cc", folder / "libharness.so"
    sources += [MODEL / "model.cc", MODEL / "harness.cc"]
    source.write_text("".join(f'#include "{path}"\n' for path in sources))
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    includes = [f"-I{RUNTIME}", f"-I{MODEL}"]
    subprocess.run(["g++", *flags, *includes, str(source), "-o", str(library), "-ldl"], check=True)
    return ctypes.CDLL(str(library))


def call(function, *arguments) -> str:
    """Call a function of the harness; returns what it writes where its errors would be."""
    text = ctypes.create_string_buffer(_ERROR_BYTES)
    if function(*arguments, text):
        raise HarnessError(text.value.decode(errors="replace"))
    return text.value.decode()


class Board:
    """A board whose FPGA is modelled, wired as its own unless told otherwise. Faults: see `vta_model/model.h`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        name: str = "pynq-z1",
        revision: int = 2,
        *,
        never_done: bool = False,
        forgets_flush: bool = False,
        forgets_invalidate: bool = False,
        coherent: bool | None = None,
        kernel_coherent: bool = False,
        physical: int = 0,
        pages: int = 0,
    ) -> None:
        self.name, self._library = name, library
        library.harness_create.restype = ctypes.c_void_p
        library.harness_log.restype = ctypes.c_char_p
        wired = name == "pynq-z1" if coherent is None else coherent
        faults = (never_done, forgets_flush, forgets_invalidate, wired, kernel_coherent)
        self._handle = ctypes.c_void_p(
            library.harness_create(name.encode(), revision, *faults, ctypes.c_uint64(physical), pages)
        )

    def close(self) -> None:
        """End it."""
        self._library.harness_destroy(self._handle)

    def break_down(self) -> None:
        """Let no program end any more."""
        self._library.harness_set_never_done(self._handle, 1)

    def repair(self) -> None:
        """Let programs end again."""
        self._library.harness_set_never_done(self._handle, 0)

    def init(self) -> None:
        """Program the FPGA, which is not modelled, and test it."""
        call(self._library.harness_init, self._handle)

    def run(self, stream: Stream | str, arrays: Sequence[np.ndarray], device: str = "", stays: int = 0) -> None:
        """Run a stream, or its text, on arrays; those whose bits are set may stay in the device's memory."""
        text = stream if isinstance(stream, str) else base64.b64encode(stream.encoded()).decode()
        data = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        sizes = (ctypes.c_uint64 * len(arrays))(*(array.nbytes for array in arrays))
        name = (device or self.name).encode()
        call(
            self._library.harness_run,
            self._handle,
            name,
            text.encode(),
            data,
            sizes,
            len(arrays),
            ctypes.c_uint64(stays),
        )

    def hold(self, arrays: Sequence[np.ndarray]) -> int:
        """Say that arrays are constant, until what this returns is released."""
        data = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        sizes = (ctypes.c_uint64 * len(arrays))(*(array.nbytes for array in arrays))
        self._library.harness_hold.restype = ctypes.c_uint64
        return int(self._library.harness_hold(self._handle, data, sizes, len(arrays)))

    def release(self, handle: int) -> None:
        """Take that back."""
        self._library.harness_release(self._handle, ctypes.c_uint64(handle))

    def traffic(self) -> list[dict[str, Any]]:
        """Return what was copied on each device."""
        return json.loads(call(self._library.harness_traffic, self._handle))

    def self_test(self, device: str = "") -> str:
        """Return what the self-test says."""
        return call(self._library.harness_self_test, self._handle, (device or self.name).encode())

    def reconfigure(self, config: VtaConfig) -> None:
        """Say which configuration the bitstream has."""
        logs = (ctypes.c_uint8 * 9)(*(getattr(config, name) for name in config.__dataclass_fields__))
        call(self._library.harness_reconfigure, self._handle, logs)

    def log(self) -> list[str]:
        """Return what was done to the registers and the memory since this was last asked."""
        return self._library.harness_log(self._handle).decode().splitlines()

    def write(self, physical: int, value: int) -> None:
        """Write a register, past the driver."""
        call(self._library.harness_write, self._handle, ctypes.c_uint64(physical), value)
