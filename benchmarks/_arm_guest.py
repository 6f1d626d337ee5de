"""One engine in the emulated Python: it runs a model under the plugin's eyes (qemu_lines.c).

    python _arm_guest.py ENGINE MODEL INPUTS.npz OUTPUTS.npz OUTPUT...

Outputs are those of the first run, which also fills the caches; a second one is counted.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _peers
from benchmarks._engine import answer, read, save

_RESET, _WRITE, _START = 1, 2, 3
_MARK = 0x7A000000


class Ort(_peers.Ort):
    """ONNX Runtime's wheel; the environment has the variable that turns its telemetry off."""

    @staticmethod
    def library() -> Any:
        """Import it."""
        return importlib.import_module("onnxruntime")


class Ncnn(_peers.Ncnn):
    """ncnn in float32, of files that were converted before."""

    def load(self, model: Path) -> bool:
        """Load `MODEL.param`, and `MODEL.bin` if there is one: ncnn's own networks come without weights."""
        weights = model.with_suffix(".bin")
        if self._net.load_param(str(model)):
            return True
        return bool(self._net.load_model(str(weights) if weights.exists() else self._library.DataReaderFromEmpty()))


class NcnnHalf(Ncnn):
    """ncnn's default: in half precision where the core computes so."""

    float16 = True


class Mnn(_peers.Mnn):
    """MNN in float32, of a file that was converted before."""

    @staticmethod
    def converted(model: Path) -> Path:
        """Return the file."""
        return model


class MnnHalf(Mnn):
    """MNN in half precision where the core computes so."""

    precision = "low"


ENGINES: Mapping[str, type[Any]] = {
    "onnxruntime": Ort,
    "ncnn": Ncnn,
    "ncnn-float16": NcnnHalf,
    "mnn": Mnn,
    "mnn-float16": MnnHalf,
}


def mark(number: int) -> None:
    """Tell the plugin something, by a call that the kernel refuses."""
    with contextlib.suppress(OSError):
        os.getpgid(_MARK + number)


def main(words: Sequence[str]) -> None:
    """Load, run and count."""
    name, model, inputs, outputs, *names = words
    engine = ENGINES[name](Path(model), names, 1)
    fed = read(Path(inputs))[0]
    mark(_START)
    save(Path(outputs), [answer(engine, fed)])
    engine.feed(fed)  # MNN computes in its inputs
    mark(_RESET)
    engine.run()
    mark(_WRITE)
    os._exit(0)  # what ends the process is not of interest, and takes long


if __name__ == "__main__":
    main(sys.argv[1:])
