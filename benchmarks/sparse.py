r"""How much faster zero blocks of weights make a network: with the sparse templates, without them, and ONNX Runtime.

    python benchmarks/sparse.py [NETWORK ...] [--share 0.4 0.6 0.8 0.9] [--block 16x1] [--threads 2] [--rounds 10]
                                [--json FILE] [--work FOLDER]

NETWORK is as for `benchmarks/cpu.py`. In each, random blocks become zero as with `toolchain model prune --random`.
Every variant is a bundle that `toolchain build` made, in a process of its own; they take turns as in `cpu.py`. The exit
code is 1 where outputs differ from ONNX Runtime's by more than the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import _peers_networks
import _peers_tables
import _product
from _engine import read, save
from cpu import Child, Settings, cpu_name, difference, in_turns

from benchmarks import _ab
from toolchain.models import source, sparsity

_TEMPLATES = ("--without", "sparse", "--without", "sparse_dense")
_SEED = 0


def measure(name: str, share: float, block: sparsity.Block, settings: Settings) -> dict[str, Any]:
    """Prune a network, build it with and without the sparse templates, and time both beside ONNX Runtime."""
    original = source.load(str(_peers_networks.obtain(name, settings.work).path))
    sparsity.prune(original.proto, share, block, _SEED)
    path = settings.work / f"{Path(name).stem}-{share:g}.onnx"
    path.write_bytes(original.proto.SerializeToString(deterministic=True))
    network = _peers_networks.obtain(str(path), settings.work)
    save(settings.work / "inputs.npz", network.samples(1))
    with contextlib.ExitStack() as stack:
        children = {"ort": stack.enter_context(Child("ort", path, network, settings))}
        # `before` is the engine's name for another build of ours.
        for engine, options in (("ours", ()), ("before", _TEMPLATES)):
            folder = settings.work / f"{path.stem}-{engine}"
            _product.build(network, folder, options)
            children[engine] = stack.enter_context(Child(engine, folder, network, settings))
        answers = {engine: read(child.answers) for engine, child in children.items()}
        turns = in_turns(children, settings.rounds)
    seconds = {engine: [[value / 1000 for value in turn] for turn in rounds] for engine, rounds in turns.items()}
    measured = sparsity.measure(original.proto.graph)
    return {
        "network": name,
        "share": share,
        "zeros": measured.zeros if measured else 0.0,
        "speedup": _ab.ratio(seconds["before"], seconds["ours"]),
        "against_onnxruntime": _ab.ratio(seconds["ours"], seconds["ort"]),
        "max_rel": difference(answers["ours"], answers["ort"])["max_rel"],
    }


def main() -> int:
    """Measure each network with each share of zero blocks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["mlp", "resnet-50"], metavar="NETWORK")
    parser.add_argument("--share", type=float, nargs="+", default=[0.4, 0.6, 0.8, 0.9])
    parser.add_argument("--block", type=sparsity.parse_block, default=sparsity.Block(16, 1))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        settings = Settings(options.threads, options.rounds, work)
        print(f"{cpu_name()}, {options.threads} threads, blocks of {options.block}")
        print("network  zero blocks  sparse against dense  ours over ONNX Runtime  difference")
        for name in options.networks:
            for share in options.share:
                result = measure(name, share, options.block, settings)
                results.append(result)
                speedup, over = (result[key]["value"] for key in ("speedup", "against_onnxruntime"))
                print(f"{name}  {share:.0%}  {speedup:.2f} times  {over:.2f}  {result['max_rel']:.1e}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"cpu": cpu_name(), "results": results}, indent=2) + "\n", encoding="utf-8")
    return int(any(result["max_rel"] > _peers_tables.LIMIT for result in results))


if __name__ == "__main__":
    sys.exit(main())
