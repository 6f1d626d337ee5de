"""What int8 costs and gains on a CPU: `toolchain quantize --for cpu` beside ONNX Runtime's quantizer, and float32.

    python benchmarks/int8.py [NAME ...] [--min-snr 30] [--threads 2] [--rounds 8] [--json FILE]
                              [--work FOLDER [--prepare]] [--peers FOLDER]

The networks come from public wheels, with trained weights (tests/data/third_party.toml). Both quantizers get the same
16 samples: pictures of words where an input is a picture, otherwise random numbers. ONNX Runtime's tool has its
defaults, with a scale for each channel of the weights; ours keeps layers float until the outputs have `--min-snr` dB on
the samples. Signal over noise, and how often the first class is the same, are of ONNX Runtime, on other samples.

ONNX Runtime refuses some files that its own tool writes; then the table has dashes.

Each file is then measured where its maker would run it, in turns, in processes of their own as in `cpu.py`: float32 and
our int8 file in our library, float32 and ONNX Runtime's int8 file in ONNX Runtime.

Quantizing takes minutes, which nobody measures. With `--prepare`, everything is quantized and built in the folder, and
nothing is measured; a later run with that folder measures what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import _peers_networks
import _product
import numpy as np
import onnx
from _engine import save
from cpu import Child, Settings, cpu_name, in_turns, note
from quantize import picture, quantized_by_onnxruntime

from benchmarks import _ab
from toolchain.errors import ToolchainError
from toolchain.models import converters, inputs, ort, simplify
from toolchain.models import source as models
from toolchain.quantize.calibrate import Probe
from toolchain.quantize.network import Noise
from toolchain.report import Table
from toolchain.tensors import TensorSpec

CLASSIFIERS = ("ppocr-v2-cls", "orientation")
NETWORKS = (
    *CLASSIFIERS,
    *("nudenet-320n", "ppocr-v4-det", "ddddocr-det", "centerface", "layout-cdla"),
    *("ppocr-v4-rec", "ddddocr-common", "basic-pitch", "iclabel"),
)
_SAMPLES, _OTHERS = 16, 16
_CHANNELS = 3  # of a picture
_PREPARED = "prepared.json"

Arrays = dict[str, np.ndarray]


def samples_of(name: str, source: models.SourceModel, seeds: Sequence[int]) -> list[Arrays]:
    """Return samples of a network: pictures for its only input if that is one."""
    specs = source.inputs
    is_picture = len(specs) == 1 and len(specs[0].shape) == 4 and specs[0].shape[1] == _CHANNELS
    return [_pictures(name, specs[0], seed) if is_picture else inputs.random(specs, seed) for seed in seeds]


def _pictures(name: str, spec: TensorSpec, seed: int) -> Arrays:
    """Return a batch of pictures."""
    batch = [picture(name, spec, seed + 10_000 * number)[spec.name] for number in range(spec.shape[0])]
    return {spec.name: np.concatenate(batch)}


def quantized_by_us(source: Path, target: Path, samples: Sequence[Arrays], min_snr: float) -> dict[str, Any]:
    """Quantize by the command; returns its report, with the seconds that it took."""
    folder = target.with_suffix(".samples")
    folder.mkdir()
    for number, sample in enumerate(samples):
        np.savez(folder / f"{number}.npz", **sample)
    program = Path(sys.executable).with_name("toolchain")
    command = [program, "quantize", source, "--for", "cpu", "--calibration", folder, "--min-snr", str(min_snr)]
    start = time.monotonic()
    completed = subprocess.run([*command, "-o", target, "--json"], check=False, capture_output=True, text=True)
    if completed.returncode:
        raise RuntimeError(completed.stderr.strip()[-500:])
    return json.loads(completed.stdout) | {"seconds": time.monotonic() - start}


def fidelity(exact: Probe, file: Path, results: Sequence[str], samples: Sequence[Arrays]) -> dict[str, float]:
    """Compare a quantized file with the network in floats."""
    other = Probe(models.load(str(file)).proto, list(results), optimized=False)
    noise, same = Noise(), 0
    for sample in samples:
        expected, actual = exact.run(sample), other.run(sample)
        for result in results:
            noise.add(expected[result], actual[result])
        same += int(expected[results[0]].argmax() == actual[results[0]].argmax())
    return {"snr_db": noise.ratio, "first_class": same / len(samples)}


def prepared(name: str, work: Path, min_snr: float) -> dict[str, Any]:
    """Quantize a network by both, build it, and compare both files with it; the results, if that is done already."""
    if (work / _PREPARED).exists():
        document: dict[str, Any] = json.loads((work / _PREPARED).read_text(encoding="utf-8"))
        return document
    work.mkdir(parents=True)
    loaded = models.load(str(_peers_networks.obtain(name, work).path))
    files = {kind: work / f"{kind}.onnx" for kind in ("float", "ours", "folded", "theirs")}
    onnx.save(onnx.shape_inference.infer_shapes(simplify.plain(loaded, converters.names())), files["float"])
    floats = models.load(str(files["float"]))
    results, exact = list(floats.output_names), Probe(floats.proto, list(floats.output_names))
    samples = samples_of(name, floats, range(_SAMPLES))
    others = samples_of(name, floats, range(1000, 1000 + _OTHERS))
    row: dict[str, Any] = {"network": name, "report": quantized_by_us(files["float"], files["ours"], samples, min_snr)}
    # What ONNX Runtime's tool asks for: its own fusions first, such as of batch normalisations.
    ort.quantization().shape_inference.quant_pre_process(files["float"], files["folded"], skip_symbolic_shape=True)
    quantized_by_onnxruntime(files["folded"], files["theirs"], "QDQ", samples)
    row["ours"] = fidelity(exact, files["ours"], results, others)
    try:
        row["theirs"] = fidelity(exact, files["theirs"], results, others)
    except ToolchainError as fault:
        note(f"ONNX Runtime refuses what its own quantizer made of {name}: {fault.details}")
        row["theirs"] = None
    save(work / "inputs.npz", others[:1])
    for kind in ("float", "ours"):
        folder = work / f"{kind}-ours"
        _product.build(_peers_networks.obtain(str(files[kind]), work), folder)
        row[f"{kind}_params"] = sum(path.stat().st_size for path in folder.rglob("params*"))
    (work / _PREPARED).write_text(json.dumps(row), encoding="utf-8")
    return row


def measured(name: str, settings: Settings, min_snr: float) -> dict[str, Any]:
    """Measure the files of a network, after `prepared`."""
    work = settings.work / name
    row = prepared(name, work, min_snr)
    with contextlib.ExitStack() as stack:
        inside = Settings(**{**vars(settings), "work": work})
        children = {}
        engines = [("float", "ours"), ("float", "ort"), ("ours", "ours")] + [("theirs", "ort")] * bool(row["theirs"])
        for kind, engine in engines:
            file = work / f"{kind}.onnx"
            model = work / f"{kind}-ours" if engine == "ours" else file
            child = Child(engine, model, _peers_networks.obtain(str(file), work), inside)
            children[f"{kind} {engine}"] = stack.enter_context(child)
        turns = in_turns(children, settings.rounds)
    seconds = {key: [[value / 1000 for value in turn] for turn in each] for key, each in turns.items()}
    row["ms"] = {key: float(np.median([np.median(turn) for turn in each])) for key, each in turns.items()}
    row["speedup"] = _ab.ratio(seconds["float ours"], seconds["ours ours"])
    row["against_onnxruntime"] = _ab.ratio(seconds["ours ours"], seconds["theirs ort"]) if row["theirs"] else None
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Render the results."""
    head = ["network", "dB ours", "dB ORT", "class ours", "class ORT", "float layers", "quantize s"]
    head += ["MB float32", "MB int8", "float32 ms", "int8 ms", "ORT float32", "ORT int8", "speed-up", "ours/ORT int8"]
    lines = [head]
    for row in rows:
        in_float, layers = len(row["report"]["kept"]), len(row["report"]["layers"])
        sides = [row[side] for side in ("ours", "theirs")]
        is_classifier, against = row["network"] in CLASSIFIERS, row["against_onnxruntime"]
        times = [row["ms"].get(key) for key in ("float ours", "ours ours", "float ort", "theirs ort")]
        lines.append(
            [
                row["network"],
                *(f"{side['snr_db']:.1f}" if side else "-" for side in sides),
                *(f"{side['first_class']:.0%}" if side and is_classifier else "-" for side in sides),
                f"{in_float} of {in_float + layers}",
                f"{row['report']['seconds']:.0f}",
                *(f"{row[key] / 1e6:.1f}" for key in ("float_params", "ours_params")),
                *(f"{ms:.2f}" if ms else "-" for ms in times),
                f"{row['speedup']['value']:.2f}",
                f"{against['value']:.2f}" if against else "-",
            ]
        )
    ratios = ([row[key]["value"] for row in rows if row[key]] for key in ("speedup", "against_onnxruntime"))
    means = [math.exp(sum(map(math.log, each)) / max(1, len(each))) for each in ratios]
    lines.append(["geometric mean", *[""] * (len(head) - 3), *(f"{mean:.2f}" for mean in means)])
    return str(Table(lines))


def main() -> None:
    """Measure all networks; what fails is named, and the exit code is 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NAME")
    parser.add_argument("--min-snr", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, help="keep models and bundles in this folder, and use those")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="a folder of pip's --target with ONNX Runtime")
    parser.add_argument("--prepare", action="store_true", help="quantize and build what --work lacks; measure nothing")
    arguments = parser.parse_args()
    if arguments.prepare and not arguments.work:
        parser.error("--prepare needs --work")
    logging.disable(logging.WARNING)  # of ONNX Runtime's tool: one for each layer
    rows, failed = [], []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        work = (arguments.work or Path(folder)).resolve()
        settings = Settings(arguments.threads, arguments.rounds, work, peers=arguments.peers, engines=["ort"])
        for name in arguments.networks:
            note(f"--- {name}")
            try:
                if arguments.prepare:
                    prepared(name, work / name, arguments.min_snr)
                    continue
                rows.append(measured(name, settings, arguments.min_snr))
            except (RuntimeError, ToolchainError) as fault:
                note(f"{name} is not measured: {fault}")
                failed.append(name)
                continue
            note(table(rows[-1:]))
            if arguments.json:
                arguments.json.write_text(json.dumps({"cpu": cpu_name(), "networks": rows}, indent=1), encoding="utf-8")
    if rows:
        print(table(rows))
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
