r"""How much memory and time weights of 4 and 8 bits save: one fully connected layer against float32 and ONNX Runtime.

    python benchmarks/weights.py [--rows 1 16 128] [--bits 4 8] [--levels 0 4] [--zeros] [--inputs 4096]
                                 [--outputs 4096] [--block 32] [--threads 2] [--rounds 10] [--json FILE]
                                 [--work FOLDER [--prepare]] [--peers FOLDER]

For each number of rows, bits and `accuracy_level` it writes two files: a MatMulNBits of random weights, and a MatMul of
the same weights in float32; with `--zeros`, each block has a zero point. Each is built by `toolchain build` and opened
by the Python of `toolchain sdk`, and loaded in ONNX Runtime as well. The four take turns in processes of their own, as
in `cpu.py`. A ratio below 1 means that ours with few bits is faster. `params` is the size of the bundle's weights over
that of the float32 build; `GB/s` is how fast ours reads them, where one row has to read all of them, and then the share
of what a loop reaches that reads as many bytes again and again with as many threads (a C program, by ziglang).

With `--prepare`, everything is built in the folder and nothing is measured; a later run with that folder measures.

The exit code is 1 where our outputs differ from ONNX Runtime's of the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import _peers_networks as networks
import _product
import numpy as np
import onnx
from _engine import read, save
from cpu import Child, Settings, in_turns
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from benchmarks import _ab

_LIMITS = {0: 1e-4, 4: 1e-3}  # of the largest result; a number between two steps may be rounded to either
_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """A fully connected layer.

    Attributes:
        zeros: Whether each block of weights has a zero point.
        level: `accuracy_level`: 4 lets data be rounded to int8.
    """

    rows: int
    inputs: int
    outputs: int
    bits: int
    block: int
    zeros: bool
    level: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of inputs that share a scale."""
        return -(-self.inputs // self.block)

    def __str__(self) -> str:
        """Name it in a table."""
        more = [*(["zero points"] if self.zeros else []), *([f"level {self.level}"] if self.level else [])]
        return ", ".join([f"{self.rows}x{self.inputs}x{self.outputs}", f"{self.bits} bits", *more])


def models(case: Case) -> dict[str, onnx.ModelProto]:
    """Return the layer with weights of few bits, and with the same weights in float32."""
    stream = np.random.default_rng(0)
    numbers = stream.integers(0, 1 << case.bits, (case.outputs, case.blocks * case.block)).astype(np.uint8)
    grid = (case.outputs, case.blocks)
    scales = ((0.5 + stream.random(grid)) / (1 << case.bits) / np.sqrt(case.inputs)).astype(np.float32)
    zeros = stream.integers(0, 1 << case.bits, grid).astype(np.uint8)
    tensors = {"w": _packed(numbers, case).reshape(*grid, -1), "s": scales.reshape(-1)}
    about = {"K": case.inputs, "N": case.outputs, "bits": case.bits, "block_size": case.block}
    about |= {"accuracy_level": case.level} if case.level else {}
    if case.zeros:
        tensors["z"] = _packed(np.pad(zeros, ((0, 0), (0, case.blocks % 2))), case).reshape(-1)
    few = helper.make_node("MatMulNBits", ["x", *tensors], ["y"], domain=_DOMAIN, **about)
    middle = zeros if case.zeros else np.full(grid, 1 << (case.bits - 1), np.uint8)
    floats = (numbers.reshape(*grid, -1) - middle.astype(np.float32)[:, :, None]) * scales[:, :, None]
    weights = np.ascontiguousarray(floats.reshape(case.outputs, -1)[:, : case.inputs].T)
    return {
        "packed": _model(case, few, tensors),
        "float32": _model(case, helper.make_node("MatMul", ["x", "w"], ["y"]), {"w": weights}),
    }


def _packed(numbers: NDArray[np.uint8], case: Case) -> NDArray[np.uint8]:
    packed: NDArray[np.uint8] = numbers if case.bits == 8 else numbers[:, ::2] | numbers[:, 1::2] << 4
    return packed


def _model(case: Case, node: onnx.NodeProto, constants: dict[str, NDArray[Any]]) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [case.rows, size])
        for name, size in (("x", case.inputs), ("y", case.outputs))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "layer", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def measured(case: Case, settings: Settings) -> dict[str, Any]:
    """Time ours and ONNX Runtime's in turns, after `prepared`."""
    with contextlib.ExitStack() as stack:
        children: dict[str, Child] = {}
        sizes: dict[str, int] = {}
        for kind in ("packed", "float32"):
            children |= dict(_loaded(kind, replace(settings, work=settings.work / kind), stack, sizes))
        answers = {name: read(child.answers)[0]["y"] for name, child in children.items()}
        turns = in_turns(children, settings.rounds)
    reference = answers["ort packed"]
    seconds = {name: [[value / 1e3 for value in turn] for turn in rounds] for name, rounds in turns.items()}
    median = {name: float(np.median([np.median(turn) for turn in rounds])) for name, rounds in seconds.items()}
    return {
        "case": str(case),
        "level": case.level,
        "rows": case.rows,
        "params": sizes["packed"] / sizes["float32"],
        "params_bytes": sizes,
        "difference": {
            name: float(np.abs(value - reference).max() / np.abs(reference).max()) for name, value in answers.items()
        },
        "median_ms": {name: 1e3 * value for name, value in median.items()},
        "gb_per_s": {kind: sizes[kind] / median[f"ours {kind}"] / 1e9 for kind in sizes},
        "readable_gb_per_s": {kind: reading_speed(sizes[kind], settings.threads) for kind in sizes},
        "ratios": {name: _ab.ratio(seconds["ours packed"], seconds[name]) for name in turns if name != "ours packed"},
    }


def prepared(case: Case, folder: Path) -> None:
    """Write the layer both ways, and build it, unless that is done."""
    for kind, proto in models(case).items():
        work = folder / kind
        (work / "copy").mkdir(parents=True, exist_ok=True)
        if not _product.is_built(work / "ours"):
            onnx.save(proto, work / "given.onnx")
            _product.build(networks.obtain(str(work / "given.onnx"), work / "copy"), work / "ours")


def _loaded(
    kind: str, settings: Settings, stack: contextlib.ExitStack, sizes: dict[str, int]
) -> Iterator[tuple[str, Child]]:
    """Start ours and ONNX Runtime with a model, and note the size of our weights."""
    network = networks.obtain(str(settings.work / "given.onnx"), settings.work / "copy")
    save(settings.work / "inputs.npz", network.samples(1))
    folder = settings.work / "ours"
    sizes[kind] = (folder / _product.BUNDLE / "params.safetensors").stat().st_size
    for name, model in (("ours", folder), ("ort", network.path)):
        yield f"{name} {kind}", stack.enter_context(Child(name, model, network, settings))


@cache
def reading_speed(size: int, threads: int) -> float:
    """Return how many GB/s a loop reads of so many bytes that it reads again and again."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        program, source = Path(folder) / "reading", Path(__file__).with_name("_reading.c")
        arguments = ["-m", "ziglang", "cc", "-O3", "-march=native", source, "-o", program, "-lpthread"]
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        completed = subprocess.run([program, str(size), str(threads)], check=True, capture_output=True, text=True)
    return float(completed.stdout)


def main() -> None:
    """Measure each case, and print a table."""
    arguments = parsed()
    cases = [
        Case(rows, arguments.inputs, arguments.outputs, bits, arguments.block, arguments.zeros, level)
        for rows in arguments.rows
        for bits in arguments.bits
        for level in arguments.levels
    ]
    results = []
    heads = ["layer", "params", "ms", "GB/s (of what a loop reads)"]
    heads += ["over ours in float32", "over ONNX Runtime, same file", "over it, float32"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        for number, case in enumerate(cases):
            work = (arguments.work or Path(folder)).resolve() / str(case).replace(", ", "-").replace(" ", "-")
            prepared(case, work)
            if arguments.prepare:
                print(f"{number + 1} of {len(cases)} is built", file=sys.stderr, flush=True)
                continue
            settings = Settings(arguments.threads, arguments.rounds, work, peers=arguments.peers)
            results.append(result := measured(case, settings))
            print(line(result), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    wrong = [result["case"] for result in results if result["difference"]["ours packed"] > _LIMITS[result["level"]]]
    if wrong:
        sys.exit(f"wrong outputs: {'; '.join(wrong)}")


def line(result: dict[str, Any]) -> str:
    """Render a line of the table."""
    speed, readable = result["gb_per_s"]["packed"], result["readable_gb_per_s"]["packed"]
    read = f"{speed:.1f} ({speed / readable:.0%})" if result["rows"] == 1 else "-"
    ratios = [_ab.rendered(result["ratios"][name]) for name in ("ours float32", "ort packed", "ort float32")]
    cells = [result["case"], f"{result['params']:.3f}", f"{result['median_ms']['ours packed']:.3g}", read, *ratios]
    return f"| {' | '.join(cells)} |"


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8], choices=[4, 8])
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 4], choices=[0, 4], help="of accuracy_level")
    parser.add_argument("--zeros", action="store_true", help="with a zero point for each block")
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--outputs", type=int, default=4096)
    parser.add_argument("--block", type=int, default=32, help="inputs that share a scale")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep models and bundles here, and use those")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="a folder of pip's --target with ONNX Runtime")
    parser.add_argument("--prepare", action="store_true", help="build what --work lacks, and measure nothing")
    arguments = parser.parse_args()
    if arguments.prepare and not arguments.work:
        parser.error("--prepare needs --work")
    return arguments


if __name__ == "__main__":
    main()
