"""What int8 and a board lose of an answer: `toolchain evaluate` of networks with trained weights, on three boards.

    python benchmarks/evaluate.py [NAME ...] [--board local --board vta-sim --board rpi4=HOST] [--samples 100]
                                  [--json FILE] [--work FOLDER]

A classifier (which way up is a line of text?), a detector (where is the word?) and a network for sound (which note is
it?), from public wheels (tests/data/third_party.toml), on data that is drawn here, with labels: text of Pillow's font,
and tones. Each is built as it is, and in int8 as `toolchain quantize` makes it for the board; the reference is the
float model in ONNX Runtime. A board other than `local` and `vta-sim` needs the name of a device, such as that of a
virtual board (`toolchain farm up --virtual rpi4=1`). The functions at the end are what a user's project would have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

Drawn = tuple[np.ndarray, np.ndarray]  # an input, and what is right

_LETTERS = "abcdefghijkmnopqrstuvwxyzABCDEFGHKLMNPRSTUVWXYZ23456789"
_CALIBRATION = 32
_RATE = 22050  # samples of sound in a second
_LOWEST_NOTE = 21  # MIDI's number of the lowest key of a piano
_CERTAIN = 0.3  # score of a pixel of text
_DRIFT = 0.03


def main() -> None:
    """Evaluate each network on each board, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], metavar="NAME")
    parser.add_argument("--board", action="append", help="local, vta-sim, or BOARD=HOST")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, help="keep models, data and packages in this folder, which is new")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        work = (options.work or Path(folder)).resolve()
        for name in options.names or CASES:
            prepared = _prepared(name, work / name, options.samples)
            for board in options.board or ["local", "vta-sim"]:
                rows += _on_board(CASES[name], prepared, board)
    print(_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _prepared(name: str, folder: Path, count: int) -> Path:
    """Write a network, samples with labels, and others for the calibration."""
    from tests.support import third_party

    loaded, case = third_party.loaded(third_party.MODELS[name]), CASES[name]
    (spec,) = loaded.inputs
    folder.mkdir(parents=True)
    (folder / "float.onnx").write_bytes(loaded.proto.SerializeToString(deterministic=True))
    for kind, first, number in (("data", 0, count), ("calibration", 100_000, _CALIBRATION)):
        (folder / kind).mkdir()
        for seed in range(first, first + number):
            data, right = case.draw(np.random.default_rng(seed), spec.shape)
            more = {"box" if right.ndim else "label": right} if kind == "data" else {}
            np.savez(folder / kind / f"{seed:06d}.npz", **{spec.name: data}, **more)
    return folder


def _on_board(case: Case, folder: Path, board: str) -> list[dict[str, Any]]:
    name, _, host = board.partition("=")
    backend = "vta" if name.startswith("vta") else "cpu"
    int8 = folder / f"int8-{backend}.onnx"
    if not int8.exists():
        limits = ["--min-snr", str(case.least_db)] if backend == "cpu" else []
        _run(
            "quantize",
            folder / "float.onnx",
            "--for",
            backend,
            "--calibration",
            folder / "calibration",
            *limits,
            "-o",
            int8,
        )
    rows = []
    for title, file in (("float32", folder / "float.onnx"), ("int8", int8)):
        if backend == "vta" and title == "float32":
            continue  # VTA has integers alone
        package = folder / f"{name}-{title}"
        _run("build", file, "--board", name, "-o", package, "--toolchain", "host")
        arguments = ["--data", folder / "data", "--metric", case.metric, "--model", folder / "float.onnx"]
        arguments += ["--compiled", file] if title == "int8" else []
        arguments += ["--host", host] if host else []
        report = _run("evaluate", package, *arguments, "--board", name, "--root", folder / "root", as_json=True)
        rows.append({"network": folder.name, "metric": case.metric, "board": name, "build": title, "report": report})
        print(_table(rows[-1:]), file=sys.stderr, flush=True)
    return rows


def _run(*arguments: object, as_json: bool = False) -> Any:
    program = Path(sys.executable).with_name("toolchain")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [str(program), *map(str, arguments), *(["--json"] if as_json else [])]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=HERE)
    if completed.returncode:
        raise SystemExit(f"toolchain {arguments[0]} failed: {completed.stderr.strip()[-1000:]}")
    return json.loads(completed.stdout) if as_json else None


def _table(rows: Sequence[dict[str, Any]]) -> str:
    from toolchain.report import Table

    lines = [["network", "metric", "board", "build", "samples", "float model", "device", "lost (99 %)", "device/file"]]
    for row in rows:
        report = row["report"]
        sides = {side["name"]: side for side in report["sides"]}
        first, *_ = report["comparisons"]
        compiled = [comparison for comparison in report["comparisons"] if comparison["first"] == "compiled"]
        cells = [row["network"], row["metric"], row["board"], row["build"], str(report["data"]["samples"])]
        cells += [f"{sides[side]['value']:.4g}" for side in ("reference", "device")]
        cells += [_loss(first), _loss(compiled[0]) if compiled else "-"]
        lines.append(cells)
    return str(Table(lines))


def _loss(comparison: dict[str, Any]) -> str:
    return f"{comparison['value']:.3g} ({comparison['low']:.3g} to {comparison['high']:.3g})"


# --- what is drawn -----------------------------------------------------------------------------------------------


def _word(random: np.random.Generator, size: tuple[int, int], largest: int) -> tuple[Image.Image, tuple[int, ...]]:
    """Draw a word on a picture of some width and height; return where it is."""
    width, height = size
    image = Image.new("RGB", size, tuple(map(int, random.integers(150, 256, 3))))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(int(random.integers(largest // 2, largest)))
    text = "".join(random.choice(list(_LETTERS), random.integers(5, 9)))
    left, top, right, bottom = map(int, draw.textbbox((0, 0), text, font=font))
    x = int(random.integers(-left, max(1 - left, width - right)))
    y = int(random.integers(-top, max(1 - top, height - bottom)))
    draw.text((x, y), text, fill=tuple(map(int, random.integers(0, 100, 3))), font=font)
    return image, (x + left, y + top, x + right, y + bottom)


def _as_input(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image, np.float32) / 127.5 - 1
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def _turned(random: np.random.Generator, shape: Sequence[int]) -> Drawn:
    image, _ = _word(random, (shape[3], shape[2]), int(shape[2] * 0.7))
    label = int(random.integers(2))
    return _as_input(image.rotate(180) if label else image), np.asarray(label)


def _placed(random: np.random.Generator, shape: Sequence[int]) -> Drawn:
    image, box = _word(random, (shape[3], shape[2]), 48)
    return _as_input(image), np.asarray(box)


def _tone(random: np.random.Generator, shape: Sequence[int]) -> Drawn:
    note = int(random.integers(45, 80))
    times = np.arange(shape[1]) / _RATE
    pitch = 440 * 2 ** ((note - 69) / 12) * (1 + _DRIFT / 100 * random.standard_normal())
    sound = sum(
        np.sin(2 * np.pi * pitch * harmonic * times + random.uniform(0, 6)) / harmonic for harmonic in range(1, 6)
    )
    sound = 0.2 * sound * np.exp(-times * 2) + random.normal(0, 0.003, len(times))
    return sound.astype(np.float32).reshape(shape), np.asarray(note)


# --- metrics, as a user's project has them -----------------------------------------------------------------------


def overlap(outputs: dict[str, np.ndarray], target: Any) -> tuple[float, str]:
    """Score a detector of text: the intersection over union of the pixels that it finds and the word's box."""
    pixels = next(iter(outputs.values()))[0, 0] > _CERTAIN
    left, top, right, bottom = target["box"]
    box = np.zeros_like(pixels)
    box[top:bottom, left:right] = True
    union = np.count_nonzero(pixels | box)
    return float(np.count_nonzero(pixels & box) / max(union, 1)), f"{np.count_nonzero(pixels)} pixels"


def note(outputs: dict[str, np.ndarray], target: Any) -> tuple[float, str]:
    """Score a transcriber of music: whether the key of a piano that it hears most is the right one."""
    keys = next(values for values in outputs.values() if values.shape[-1] == 88)
    heard = _LOWEST_NOTE + int(keys[0].mean(axis=0).argmax())
    return float(heard == int(target["label"])), f"note {heard}"


@dataclass(frozen=True)
class Case:
    """How a network is evaluated."""

    metric: str
    draw: Callable[[np.random.Generator, Sequence[int]], Drawn]
    least_db: int = 30  # of int8 on CPUs, on samples without labels


CASES = {
    "ppocr-v2-cls": Case("top1", _turned),
    "ppocr-v4-det": Case("evaluate:overlap", _placed, least_db=20),
    "basic-pitch": Case("evaluate:note", _tone, least_db=12),
}


if __name__ == "__main__":
    main()
