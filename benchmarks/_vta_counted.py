"""What the kernels of a quantized network are made of: the array's streams, and the instructions of the CPU's.

    python benchmarks/_vta_counted.py NETWORK ... --qemu FOLDER --json FILE

vta_networks.py is what tells times of it. This is apart since it also runs in copies of older commits.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import _arm_calls
import _cortex_a9
import _qemu

from toolchain import board
from toolchain.backends.vta import listing
from toolchain.backends.vta.backend import Vta
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.bundle import Bundle, kernels
from toolchain.bundle.kernels import Kernel
from toolchain.compile.request import BuildRequest
from toolchain.models.inputs import Source
from toolchain.models.request import Model
from toolchain.pipeline import tune
from toolchain.pipeline.source import BundleSource

SIMULATED, BOARD = "vta-sim-armv7", "pynq-z1"
OBJDUMP = "arm-linux-gnueabihf-objdump"
_BYTES = {"float32": 4, "int32": 4, "int64": 8, "float16": 2}
_CALLED = re.compile(r"R\.call_tir(?:_inplace)?\(cls\.(\w+),")
Row = dict[str, Any]


@dataclass(frozen=True)
class Streams:
    """A kernel of the array.

    Attributes:
        stream: Its instructions, in Base64.
        calls: How often a run calls it.
    """

    stream: str
    calls: int


def request(name: str, kind: str) -> BuildRequest:
    """Return what is built."""
    return BuildRequest(Model(name, {}, Source()), board.load(kind).resolved(), toolchain="host", tuned=False)


def streams(name: str) -> list[Streams]:
    """Return the kernels of a network on the array of the board."""
    build_request = request(name, BOARD)
    templates = Vta(build_request.board).templates
    tasks = [task for task in tune.extract(build_request).tasks if is_layer(task.layer)]
    pairs = [(listing.kernel(Conv2d.from_json(task.layer), task.weight, None, templates), task) for task in tasks]
    return [Streams(base64.b64encode(kernel.stream.encoded()).decode(), task.weight) for kernel, task in pairs]


def moved(kernel: Kernel) -> int:
    """Return the bytes of a kernel's arguments."""
    return sum(_BYTES.get(dtype, 1) * math.prod(shape) for dtype, shape in kernel.buffers)


def of_cpu(bundle: Bundle, emulator: Path) -> tuple[list[Row], dict[str, int] | None, float]:
    """Return what the CPU's kernels execute, the bytes that were copied if it is known, and the outputs' difference."""
    text = (bundle.folder / "graph.txt").read_text()
    by_name, times = kernels.read(text), Counter(_CALLED.findall(text))
    library, kind = (bundle.folder / bundle.manifest.library).resolve(), board.load(SIMULATED).resolved()
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        tool = _qemu.Emulator(emulator, _qemu.plugin(Path(scratch)))
        once, twice = (tool.run(bundle, kind, [f"code={library}"], timed) for timed in (0, 1))
    code = _arm_calls.instructions(library, OBJDUMP)
    calls = _arm_calls.calls(code, _arm_calls.counted(once.counted, twice.counted), by_name, _cortex_a9.cycles)
    rows = [
        row(call, by_name[name], times[name])
        for name, call in calls.items()
        if call.instructions and not is_layer(by_name[name].layer)
    ]
    return rows, twice.report.get("copies"), twice.difference


def row(call: _arm_calls.Call, kernel: Kernel, times: int) -> Row:
    """Return what a kernel of the CPU takes in a run, which calls it so many times."""
    count = moved(kernel)
    memory = _cortex_a9.memory_seconds(count) * times * 1e3
    ms = _cortex_a9.computing_seconds(call.serial.cycles, call.parallel.cycles) * 1e3 + memory
    cycles = {"serial_cycles": round(call.serial.cycles), "parallel_cycles": round(call.parallel.cycles)}
    about = {"instructions": call.instructions, **cycles, "bytes_each": count, "memory_ms": memory, "ms": ms}
    return {"name": call.name, "calls": times, **about}


def counted(name: str, emulator: Path) -> Row:
    """Build a network, and count."""
    print(f"building and counting {name}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        bundle = BundleSource(request(name, SIMULATED)).build(Path(scratch) / "bundle")
        rows, copies, difference = of_cpu(bundle, emulator)
    return {
        "network": name,
        "array": [asdict(stream) for stream in streams(name)],
        "cpu": sorted(rows, key=lambda call: -call["ms"]),
        "copies": copies,
        "difference": difference,
    }


def all_of(names: Sequence[str], folder: Path | None) -> list[Row]:
    """Count all networks.

    Args:
        names: Those.
        folder: Where qemu-arm is; None if it is on PATH.
    """
    emulator = _qemu.find("qemu-arm", folder)
    return [counted(name, emulator) for name in names]


def main() -> None:
    """Count, and write a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--qemu", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    options.json.write_text(json.dumps(all_of(options.networks, options.qemu)))


if __name__ == "__main__":
    main()
