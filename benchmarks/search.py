"""Is tuned slower than the default, and how does it stand to stock MetaSchedule? Tunes by both, then runs in turns.

    python benchmarks/search.py [--networks vit-script ...] [--trials 128] [--turns 24] [--round 16] [--board BOARD]
                                [--estimates] [--no-stock] [--json FILE] [--work FOLDER]

Each network is tuned by `toolchain tune` and by TVM's `tune_relax`, each in a process of its own, with as many trials;
the toolchain's finals come on top. Then ONNX Runtime and four builds run the network, in turns, in one process, on as
many threads as there are CPUs: what the toolchain deploys without the user's records and with those of this run, and
what TVM makes without a database and with that of this run. TVM gets the graph and the target that the toolchain has.

`--round` is how many candidates TVM measures of a kernel before it goes on to another one. With its default of 64 most
kernels of a network would have no trial at all; 16 is what the toolchain does.

`--board` is a board type that this machine can run, such as `x86_64-v3` for its code without AVX-512. With
`--estimates` the default is a build without any records, as on a CPU that the shipped ones are not for. `--no-stock`
leaves TVM's own tuner out, which takes most of the time.

The exit code is 1 where outputs are not the same, in which case no times are told, or where tuned is slower than the
default by more than 2 %. `layernorm-softmax` is a chain of those two that is made here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _ab, _peers, _peers_turns, _product, _stock
from benchmarks._peers_networks import Network, obtain
from benchmarks.rounds import cpu_name
from toolchain import bundle
from toolchain.records import SHIPPED
from toolchain.report import Table

NORMS = "layernorm-softmax"
NETWORKS = ("vit-script", "unet-script", NORMS)
ORT = "ONNX Runtime"
BUILDS = ("default", "tuned", "TVM", "TVM tuned")
PAIRS = (("default", "tuned"), ("TVM tuned", "tuned"), ("TVM tuned", "default"), ("TVM", "TVM tuned"), (ORT, "tuned"))
"""Of which the second is told to be how many times as fast as the first."""

LIMIT = 1e-3
SLOWER = 0.02
THREADS = os.cpu_count() or 1
_DEPTH = 4
_SPREAD = 8.0


def norms(path: Path) -> None:
    """Write a network of LayerNorm and Softmax: four of each, of a transformer's shapes, with a sum before each."""
    draw = np.random.default_rng(0)
    shapes = {"hidden": (128, 768), "scores": (12, 128, 128)}
    weights, nodes, last = {"spread": np.float32(_SPREAD)}, [], dict(zip(shapes, shapes, strict=True))
    nodes.append(helper.make_node("Mul", ["scores", "spread"], ["mask"]))  # or all of a softmax would be near alike
    for layer in range(_DEPTH):
        weights |= {f"{name}_{layer}": draw.normal(mean, 0.1, 768) for name, mean in (("scale", 1), ("bias", 0))}
        end = "out" if layer == _DEPTH - 1 else str(layer)
        nodes += [
            helper.make_node("Add", [last["hidden"], "hidden"], [f"hidden_sum_{layer}"]),
            helper.make_node(
                "LayerNormalization",
                [f"hidden_sum_{layer}", f"scale_{layer}", f"bias_{layer}"],
                [f"hidden_{end}"],
            ),
            helper.make_node("Add", [last["scores"], "mask"], [f"scores_sum_{layer}"]),
            helper.make_node("Softmax", [f"scores_sum_{layer}"], [f"scores_{end}"]),
        ]
        last = {name: f"{name}_{end}" for name in shapes}
    ends = [
        [helper.make_tensor_value_info(f"{name}{end}", TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        for end in ("", "_out")
    ]
    constants = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, NORMS, *ends, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def network_of(name: str, folder: Path) -> Network:
    """Make the ONNX file of a network."""
    if name != NORMS:
        return obtain(name, folder)
    norms(folder / f"{NORMS}.onnx")
    return dataclasses.replace(obtain(str(folder / f"{NORMS}.onnx"), folder), name=NORMS)


def tuned(network: Network, options: argparse.Namespace, records: Path) -> dict[str, Any]:
    """Tune with the toolchain; returns what became of the trials and of the kernels."""
    program = Path(sys.executable).with_name("toolchain")
    command = [program, "tune", network.path, "--board", options.board, "--trials", str(options.trials)]
    command += ["--records", records, "--json"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    verdicts = [task["verdict"] for task in report["tasks"]]
    return {
        "trials": report["trials"]["total"],
        "failed": sum(report["trials"]["failed"].values()),
        "tuning_s": report["seconds"],
        "kernels": len(verdicts),
        "replaced": verdicts.count("faster"),
    }


def built(network: Network, options: Sequence[str | Path], folder: Path) -> _peers.Ours:
    """Load what a user builds with some options."""
    _product.build(network, folder, options)
    return _peers.Ours(folder, (), THREADS)


def differences(engines: Mapping[str, Any], inputs: _peers.Arrays) -> dict[str, float]:
    """Return the largest difference of each engine's outputs from ONNX Runtime's, all of which keep the inputs."""
    outputs = {}
    for name, engine in engines.items():
        engine.feed(inputs)
        engine.run()
        outputs[name] = engine.outputs()
    right = outputs[ORT]
    return {
        name: max(float(np.max(np.abs(arrays[key].astype(np.float64) - right[key]))) for key in right)
        for name, arrays in outputs.items()
    }


def of_network(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tune a network by both, and run all builds of it in turns."""
    folder.mkdir(parents=True)
    network = network_of(name, folder)
    note(f"--- {name}: toolchain tune")
    row: dict[str, Any] = {"network": name, "toolchain": tuned(network, options, folder / "records.jsonl")}
    if options.stock:
        note(f"--- {name}: tune_relax")
        row["stock"] = _stock.tuned(
            str(network.path), options.trials, folder, options.round, board_name=options.board, build=True
        )
    note(f"--- {name}: {options.turns} turns")
    default = ["--no-records"] if options.estimates else ["--records", SHIPPED]
    engines = {
        # The first, since TVM binds threads to CPUs.
        ORT: _peers.Ort(network.path, network.source.output_names, THREADS),
        "default": built(network, ["--board", options.board, *default], folder / "default"),
        "tuned": built(network, ["--board", options.board, "--records", folder / "records.jsonl"], folder / "tuned"),
    }
    for title, library in (("TVM", _stock.UNTUNED), ("TVM tuned", _stock.TUNED)) if options.stock else ():
        engines[title] = _stock.Engine(folder / library, network.source.inputs, network.source.output_names)
    libraries = [folder / kind / _product.BUNDLE / bundle.LIBRARY for kind in ("default", "tuned")]
    row["same_code"] = libraries[0].read_bytes() == libraries[1].read_bytes()
    row["max_abs"] = differences(engines, network.samples(1)[0])
    if not same(row):
        return row
    bursts = _ab.in_turns(
        {title: partial(_peers_turns.quiet_burst, engine) for title, engine in engines.items()}, options.turns
    )
    turns = {title: [samples for samples, _ in each] for title, each in bursts.items()}
    seconds = {title: [[value / 1000 for value in turn] for turn in each] for title, each in turns.items()}
    row["disturbed"] = sum(not quiet for each in bursts.values() for _, quiet in each)
    row["engines"] = {title: _peers_turns.summary(each) for title, each in turns.items()}
    pairs = [pair for pair in PAIRS if set(pair) <= set(seconds)]
    row["ratios"] = {f"{new} / {base}": _ab.ratio(seconds[base], seconds[new]) for base, new in pairs}
    return row


def same(row: Mapping[str, Any]) -> bool:
    """Whether all engines computed the same; what is no number is not."""
    return all(value <= LIMIT for value in row["max_abs"].values())


def verdict(row: Mapping[str, Any]) -> str:
    """Say whether tuned is as fast as the default."""
    if not same(row):
        return "outputs DIFFER"
    if row["same_code"]:
        return "the same code"
    ratio = row["ratios"]["tuned / default"]
    low, _ = ratio["ci95"] or (0.0, 0.0)
    if ratio["value"] < 1 - SLOWER:
        return "SLOWER"
    return "not slower" if low >= 1 - SLOWER else "not surely as fast"


def rendered(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what came out."""
    good = [row for row in rows if same(row)]
    engines = [title for title in (ORT, *BUILDS) if any(title in row["engines"] for row in good)]
    pairs = [f"{new} / {base}" for base, new in PAIRS if {base, new} <= set(engines)]
    times = [["network", *(f"{title} ms" for title in engines)]]
    times += [[row["network"], *(f"{row['engines'][title]['median_ms']:.3f}" for title in engines)] for row in good]
    ratios = [["times as fast (95 %)", *pairs, "tuned is, to the default"]]
    ratios += [[row["network"], *(_ab.rendered(row["ratios"][pair]) for pair in pairs), verdict(row)] for row in good]
    if len(good) > 1:
        ratios.append(["geometric mean", *(f"{mean_ratio(good, pair):.3f}" for pair in pairs), ""])
    lines = [str(Table(table)) + "\n" for table in (times, ratios)]
    for row in rows:
        for which in [title for title in ("toolchain", "stock") if title in row]:
            result = row[which]
            counts = f"{result['trials']} trials, {result['failed']} failed, {result['tuning_s']:.0f} s"
            kernels = f"{result['replaced']} of {result['kernels']} kernels replaced, the others stay untuned"
            lines.append(f"{row['network']}, {which}: {counts}; {kernels}")
        off = ", ".join(f"{name} {value:.1e}" for name, value in row["max_abs"].items() if name != ORT)
        end = f"other work disturbed {row['disturbed']} turns" if same(row) else "NOT TIMED"
        lines.append(f"{row['network']}: outputs off ONNX Runtime's by {off}; {end}")
    return "\n".join(lines)


def mean_ratio(rows: Sequence[Mapping[str, Any]], pair: str) -> float:
    """Return the geometric mean of a ratio over all networks."""
    return math.exp(sum(math.log(row["ratios"][pair]["value"]) for row in rows) / len(rows))


def note(line: str) -> None:
    """Tell about progress, apart from the results."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Tune, run in turns, tell; the figures so far are kept after each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--round", type=int, default=16)
    parser.add_argument("--board", default="local")
    parser.add_argument("--estimates", action="store_true", help="the default has no records")
    parser.add_argument("--no-stock", dest="stock", action="store_false", help="without TVM's own tuner")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, help="keep models, records and builds in this folder, which is new")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        for name in options.networks:
            rows.append(of_network(name, options, (options.work or Path(folder)).resolve() / Path(name).stem))
            note(rendered(rows[-1:]))
            if options.json:
                about = {"cpu": cpu_name(), "threads": THREADS, "trials": options.trials, "turns": options.turns}
                options.json.write_text(json.dumps({**about, "round": options.round, "rows": rows}, indent=1))
    print(rendered(rows))
    if any(verdict(row) in {"SLOWER", "outputs DIFFER"} for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
