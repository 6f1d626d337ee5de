"""How quick a network is on this machine's CPU: our build against ONNX Runtime, MNN and OpenVINO, in turns.

    python benchmarks/cpu.py [NETWORK ...] [--threads 2] [--seconds 20] [--records FILE | --no-records]
                             [--without winograd] [--peers-only] [--footprint] [--per-layer]
                             [--json FILE] [--work FOLDER]

NETWORK is a name of the zoo, one of the onnx wheel (vgg19, inception_v1, ...), one that PyTorch exported (vit-dynamo,
bert-script, ...: tests/data/exported), a file of a public wheel (nudenet-320n, ...: tests/data/third_party.toml), any
of these with `-int8` behind it, or an .onnx file; `exported`, `listed` and `third-party` stand for all of their kind.
Ours is what `toolchain build NETWORK --board local` makes. The peers are optional, but for ONNX Runtime:

    pip install --no-deps openvino==2025.3.0 MNN==3.6.1

All engines get the same file, inputs and number of threads, and their outputs are compared with ONNX Runtime's. The
exit code is 1 where ours are off, or where a network could not be measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import _peers
import _peers_tables
import _peers_turns
import numpy as np

if TYPE_CHECKING:
    from _peers import Arrays, Engine
    from _peers_networks import Network

    from toolchain.bundle import Bundle

_FEW_DISTURBED = 0.5
_INT8_SAMPLES = 8
_EXACT = 1e-20  # 200 dB stand for no noise at all


@dataclass(frozen=True)
class Given:
    """What the user asked for."""

    threads: int
    seconds: float
    records: Path | None
    no_records: bool
    without: list[str]
    peers_only: bool
    footprint: bool
    per_layer: bool
    work: Path


# --- one network, in a process of its own ------------------------------------------------------------------------


def measured(name: str, given: Given) -> dict[str, Any]:
    """Build and load a network in all engines, compare their outputs, and time them in turns."""
    import _peers_networks as networks

    from toolchain.device import bench
    from toolchain.shell import open_shell

    network = networks.obtain(name, given.work)
    bundle, build_s = (None, None) if given.peers_only else built(network, given)
    engines = dict(loaded(network, bundle, given))
    found: dict[str, Any] = {"name": name, "quantized": network.quantized, "build_s": build_s}
    found["outputs"] = compared(engines, network)
    _peers_turns.settle()
    before = bench.conditions(open_shell(None))
    turns, disturbed = _peers_turns.in_turns(engines, given.seconds)
    _peers_turns.settle()
    after = bench.conditions(open_shell(None))
    found["engines"] = {key: _peers_turns.summary(value) for key, value in turns.items()}
    found["ratios"] = _peers_turns.ratios(turns)
    found["conditions"] = {"before": asdict(before), "after": asdict(after)}
    found["disturbed"] = disturbed
    found["doubts"] = doubts(turns, before, after, given.threads)
    found["doubts"] += [f"other work disturbed {disturbed:.0%} of the rounds"] if disturbed > _FEW_DISTURBED else []
    if given.per_layer and bundle:
        found["layers"] = layers(engines["ours"], bundle, given.threads)
    if given.footprint:
        found["footprint"] = footprints(network, bundle, [one for one in engines if one != "ours"], given)
    return found


def built(network: Network, given: Given) -> tuple[Bundle, float]:
    """Do what `toolchain build NETWORK --board local` does; returns the bundle and the seconds it took."""
    from toolchain import board
    from toolchain.cli.options import KernelOptions
    from toolchain.models import inputs
    from toolchain.models.request import Model
    from toolchain.pipeline import BuildRequest, Pipeline

    kind = board.load("local").resolved()
    without = KernelOptions(without=given.without).left_out(kind)
    fed = given.work / f"{network.path.stem}.npz"
    np.savez(fed, **network.samples(1)[0])
    model = Model(network.build, network.shapes, inputs.Source(npz=fed), network.fixed)
    request = BuildRequest(model, kind, note, records=given.records, tuned=not given.no_records, without=without)
    start = time.perf_counter()
    made = Pipeline(request).build(given.work / f"{network.path.stem}-local")
    return made, time.perf_counter() - start


def loaded(network: Network, bundle: Bundle | None, given: Given) -> Iterator[tuple[str, Engine]]:
    """Load a network in every engine that is here and can run it; ours comes last, as TVM binds threads to cores."""
    left_out = {*_peers.missing(), *(["mnn"] if network.quantized else [])}  # MNN would compute QDQ models in float32
    shapes: dict[str, tuple[int, ...]] = {}  # of ONNX Runtime's outputs: it is the first
    for name, kind in _peers.PEERS.items():
        if name in left_out:
            continue
        try:
            engine = kind(network.path, network.source.output_names, given.threads)
            check_shapes(answer(engine, network.samples(1)[0]), shapes)
        except Exception as fault:  # noqa: BLE001 - of what class the engines' faults are, each decides for itself
            note(f"{_peers.TITLES[name]} is left out: {fault}")
        else:
            yield name, engine
    if bundle:
        yield "ours", _peers.Ours(bundle, given.threads)


def check_shapes(outputs: Arrays, wanted: dict[str, tuple[int, ...]]) -> None:
    """See that outputs have the shapes that the first engine's have, which are noted."""
    found = {name: value.shape for name, value in outputs.items()}
    if wanted and found != wanted:
        raise ValueError(f"its outputs are {found}, and not {wanted}")
    wanted.update(found)


def compared(engines: dict[str, Engine], network: Network) -> dict[str, dict[str, float]]:
    """Run all engines with the same inputs, and hold their outputs against ONNX Runtime's.

    Every engine keeps the first of the inputs for the measurement.
    """
    fed = network.samples(_INT8_SAMPLES if network.quantized else 1)
    outputs = {name: [answer(engine, one) for one in reversed(fed)] for name, engine in engines.items()}
    how = agreement if network.quantized else difference
    return {name: how(outputs[name], outputs["ort"]) for name in engines if name != "ort"}


def answer(engine: Engine, inputs: Arrays) -> Arrays:
    """Run once with some inputs."""
    engine.feed(inputs)
    engine.run()
    return engine.outputs()


def difference(outputs: Sequence[Arrays], reference: Sequence[Arrays]) -> dict[str, float]:
    """Return the largest difference, absolute and relative to the largest value of its tensor."""
    from toolchain import tensors

    found = [tensors.compare(one, other, _peers_tables.LIMIT) for one, other in zip(outputs, reference, strict=True)]
    # JSON knows no infinity, which stands for outputs that are no numbers.
    return {key: min(max(getattr(one, key) for one in found), sys.float_info.max) for key in ("max_abs", "max_rel")}


def agreement(outputs: Sequence[Arrays], reference: Sequence[Arrays]) -> dict[str, float]:
    """Return how often the largest class is the same, and the signal-to-noise ratio in dB.

    Engines round between integer layers in their own ways, so that single values say little.
    """
    key = next(iter(reference[0]))
    got, wanted = (np.stack([one[key].ravel() for one in many]).astype(np.float64) for many in (outputs, reference))
    signal, noise = float(np.sum(wanted**2)), float(np.sum((got - wanted) ** 2))
    return {
        "top1_agreement": float(np.mean(got.argmax(axis=1) == wanted.argmax(axis=1))),
        "snr_db": 10 * math.log10(signal / max(noise, signal * _EXACT)),
    }


def doubts(turns: dict[str, _peers_turns.Turns], before: Any, after: Any, threads: int) -> list[str]:
    """Say what makes the times doubtful, from the engine that should be the steadiest."""
    from toolchain.device import bench

    latency = bench.statistics([float(np.median(one)) for one in turns["ort"]])
    cpus = len(os.sched_getaffinity(0))
    return list(bench.doubts(latency, before, after, threads=threads, cpus=cpus, emulated=False))


# --- more than time ----------------------------------------------------------------------------------------------


def layers(engine: Engine, bundle: Bundle, threads: int) -> dict[str, Any]:
    """Return the time and speed of each kernel of ours, and the peak that the cores can do."""
    import _peers_layers

    from toolchain import board
    from toolchain.backends import backend_of

    kind = board.load("local").resolved()
    backend = backend_of(kind)
    found = _peers_layers.kernels(engine, bundle, backend.templates)
    return {
        "peak_gflops": _peers_layers.peak_gflops(backend.target, threads),
        "peak_core_gflops": _peers_layers.peak_gflops(backend.target, 1),
        "kernels": [{**asdict(one), "gflops": one.gflops} for one in found],
    }


def footprints(network: Network, bundle: Bundle | None, peers: Sequence[str], given: Given) -> dict[str, Any]:
    """Return memory and load time of each engine in a process of its own: three runs, and for ours the C++ runner."""
    fed = network.samples(1)[0]
    found = {"ours": runner_footprint(bundle, fed, given)} if bundle else {}
    with tempfile.TemporaryDirectory() as folder:
        data, result = Path(folder) / "inputs.npz", Path(folder) / "result.json"
        np.savez(data, **fed)
        for name in peers:
            words = [sys.executable, Path(__file__).with_name("_peers_footprint.py"), name, network.path, data]
            words += [str(given.threads), result, *network.source.output_names]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            found[name] = json.loads(result.read_text(encoding="utf-8"))
    return found


def runner_footprint(bundle: Bundle, fed: Arrays, given: Given) -> dict[str, float]:
    """Ask the C++ runner for its load time and peak memory; its own code is in both, there is nothing to import."""
    from toolchain import board, tensors
    from toolchain.device import runner
    from toolchain.native import programs
    from toolchain.shell import open_shell

    kind = board.load("local").resolved()
    program = programs.build(programs.RUNNER, kind.triple, kind.machine, note)
    with tempfile.TemporaryDirectory() as folder:
        tensors.save(Path(folder) / runner.INPUTS, fed)
        places = {"runners": str(program.path.parent), "inputs": folder}
        plan = runner.Plan(budget_s=0, min_runs=2, max_runs=2)  # two, beside the first
        release = str(bundle.folder.resolve())
        words = {"release": release, "threads": given.threads, "plan": plan, "outputs": bundle.manifest.outputs}
        run = runner.call(open_shell(None), folder, places, **words)
    return {
        "import_ms": 0.0,
        "load_ms": run.load_ms,
        "first_run_ms": run.warmup_ns[0] / 1e6,
        "peak_mib": run.peak_rss_kib / 1024,
    }


# --- all networks ------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure each network in a process of its own, and print the tables."""
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        given = given_by(arguments, Path(folder))
        if arguments.child:
            run_child(arguments.networks[0], given, arguments.child)
            return
        for name in _peers.missing():
            note(f"{_peers.TITLES[name]} is left out, as it is not installed: {_peers.INSTALL[name]}")
        found = [one for name in arguments.networks if (one := measured_apart(name, given))]
    print(_peers_tables.table(found))
    if given.footprint:
        print(f"\n{_peers_tables.footprint_table(found)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(document(found, given), indent=2) + "\n", encoding="utf-8")
    wrong = [one["name"] for one in found if not _peers_tables.right(one["outputs"].get("ours", {}))]
    if wrong or len(found) < len(arguments.networks):
        sys.exit(f"wrong outputs: {', '.join(wrong) or 'none'}; not measured: {len(arguments.networks) - len(found)}")


def run_child(name: str, given: Given, result: Path) -> None:
    """Measure one network in this process; what a user can mend is told without a traceback."""
    from toolchain.errors import ToolchainError

    try:
        found = measured(name, given)
    except ToolchainError as fault:
        sys.exit("\n".join(filter(None, (fault.message, fault.details, fault.hint))))
    result.write_text(json.dumps(found), encoding="utf-8")


def measured_apart(name: str, given: Given) -> dict[str, Any] | None:
    """Measure one network in a new process; None if that failed, as it has told."""
    note(f"--- {name}")
    result = given.work / "result.json"
    words = [sys.executable, __file__, name, "--child", result, "--work", given.work]
    words += ["--threads", str(given.threads), "--seconds", str(given.seconds)]
    words += ["--records", given.records] if given.records else []
    words += [word for name in given.without for word in ("--without", name)]
    flags = ("no_records", "peers_only", "footprint", "per_layer")
    words += [f"--{flag.replace('_', '-')}" for flag in flags if getattr(given, flag)]
    # TVM takes the number from here when it is imported. MNN writes about the device on the standard output.
    environment = {**os.environ, "TVM_NUM_THREADS": str(given.threads)}
    done = subprocess.run(words, check=False, env=environment, stdout=subprocess.DEVNULL)
    if done.returncode:
        note(f"{name} ended with code {done.returncode}")
        return None
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    for text in found["doubts"]:
        note(f"doubtful: {text}")
    print(f"{_peers_tables.table([found])}\n", flush=True)
    if "layers" in found:
        print(f"{_peers_tables.layers_table(found['layers'])}\n", flush=True)
    return found


def document(found: Sequence[dict[str, Any]], given: Given) -> dict[str, Any]:
    """Return everything as JSON's types."""
    packages = {"ours": "apache-tvm", **{name: _peers.PACKAGES[name] for name in _peers.PEERS}}
    return {
        "schema_version": 1,
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": given.threads,
        "seconds": given.seconds,
        "versions": {
            name: importlib.metadata.version(package)
            for name, package in packages.items()
            if name not in _peers.missing()
        },
        "networks": found,
    }


def cpu_name() -> str:
    """Return what the kernel calls the CPU; its architecture where it does not say."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else os.uname().machine


def parsed() -> argparse.Namespace:
    """Read the command line."""
    import _peers_networks as networks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=networks.DEFAULT, metavar="NETWORK")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine")
    parser.add_argument("--seconds", type=float, default=20.0, help="to time each network, all engines together")
    records = parser.add_mutually_exclusive_group()
    records.add_argument("--records", type=Path, help="tuning records to apply; `shipped`: the toolchain's own")
    records.add_argument("--no-records", action="store_true", help="apply no tuning records")
    parser.add_argument("--without", action="append", default=[], help="do not use a template, such as winograd; `all`")
    parser.add_argument("--peers-only", action="store_true", help="leave ours out")
    parser.add_argument("--footprint", action="store_true", help="peak memory and load time, in fresh processes")
    parser.add_argument("--per-layer", action="store_true", help="GFLOPS of each kernel of ours")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    parser.add_argument("--work", type=Path, help="keep models and bundles in this folder")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.networks = networks.named(arguments.networks)
    return arguments


def given_by(arguments: argparse.Namespace, folder: Path) -> Given:
    """Take what the user asked for from the command line; `folder` is where files go by default."""
    work = (arguments.work or folder).resolve()
    work.mkdir(parents=True, exist_ok=True)
    chosen = ("threads", "seconds", "records", "no_records", "without", "peers_only", "footprint", "per_layer")
    return Given(**{name: getattr(arguments, name) for name in chosen}, work=work)


def note(line: str) -> None:
    """Tell about progress, apart from the results."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
