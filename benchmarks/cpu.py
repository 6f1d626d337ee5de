r"""How quick a network is on this machine's CPU, quiet or busy: libedge_model against other engines, in turns.

    python benchmarks/cpu.py [NETWORK ...] [--threads 2] [--rounds 10] [--busy N ...] [--quota PERCENT ...]
                             [--slow PERCENT ...] [--peers FOLDER] [--before CHECKOUT] [--bfloat16]
                             [--board BOARD] [--records FILE | --no-records] [--without winograd] [--footprint]
                             [--json FILE] [--work FOLDER [--built]]

NETWORK is a name of the zoo, one of the onnx wheel (vgg19, inception_v1, ...), one that PyTorch exported (vit-dynamo,
bert-script, ...: tests/data/exported), a file of a public wheel (nudenet-320n, ...: tests/data/third_party.toml), any
of these with `-int8` behind it, or an .onnx file; `exported`, `listed` and `third-party` stand for all of their kind.

Ours is what a user runs: `toolchain build NETWORK`, opened by the Python of `toolchain sdk`. ONNX Runtime comes with
this project; other peers, and newer ones, from a folder:

    pip install --no-deps --target FOLDER onnxruntime==1.32.0 openvino==2026.4.1 MNN==3.6.1 ncnn==1.0.20261020 \
        pnnx==20261020

Every engine has a process of its own, and gets the same file, inputs and number of threads. They take turns of half a
second, in changing order, with a pause before each in which the threads of the one before go to sleep. A ratio is the
median over the rounds of the ratios of both engines' medians. `--busy` starts busy loops at ordinary priority,
`--quota` limits each engine to some percent of one CPU (150: one and a half), and `--slow` its threads but the first,
as on a board with cores of different speed. Each of their values is a condition of
its own, under which all engines are measured: `--busy 0 1 2 --quota 150` are four. `--before` measures an older
checkout, which has a virtual environment of its own, as one more engine; `--bfloat16` measures the network built with
that option, which is compared with OpenVINO's default on CPUs with the instruction. `--board x86_64-v3` builds ours for
a CPU without AVX-512; ONEDNN_MAX_CPU_ISA=AVX2 limits OpenVINO to the same instructions. The other peers have no such
limit.

The exit code is 1 where our outputs differ from ONNX Runtime's, or where a network could not be measured.
`--markdown FILE` prints the tables of docs/cpu.md from an earlier `--json FILE`, and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

sys.path.insert(0, str(Path(__file__).parent.parent))

import _neighbours
import _peers
import _peers_tables
import _product
import numpy as np
from _engine import read, save

from benchmarks import _ab

if TYPE_CHECKING:
    from _peers import Arrays
    from _peers_networks import Network

_TURN_S, _PAUSE_S = 0.5, 0.15
_PATIENCE_S = 300.0
_INT8_SAMPLES = 8
_EXACT = 1e-20  # 200 dB stand for no noise at all
_TWICE = 0.75  # of the time of one thread is what two threads take at most, where they have a core each


@dataclass(frozen=True)
class Condition:
    """What an engine runs under.

    Attributes:
        busy: Busy loops beside it.
        quota: Percent of one CPU that it may use; None for all it can get.
        slow: Percent of one CPU that its threads but the first may use.
    """

    busy: int = 0
    quota: int | None = None
    slow: int | None = None

    def __str__(self) -> str:
        """Name it in a table."""
        if self.slow:
            return f"other threads {self.slow} %"
        return f"quota {self.quota} %" if self.quota else f"{self.busy} busy" if self.busy else "quiet"


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    threads: int
    rounds: int
    work: Path
    conditions: Sequence[Condition] = (Condition(),)
    peers: Path | None = None
    before: Path | None = None
    bfloat16: bool = False
    board: str = "local"
    build: Sequence[str] = ()
    engines: Sequence[str] = ()
    built: bool = False


class Child:
    """An engine in its process."""

    def __init__(self, name: str, model: Path, network: Network, settings: Settings) -> None:
        self.answers = settings.work / f"{name}.outputs.npz"
        inputs = settings.work / "inputs.npz"
        command = [sys.executable, Path(__file__).with_name("_engine.py"), name, model, inputs, self.answers]
        command += [str(settings.threads), *network.source.output_names]
        more = [str(settings.peers)] if settings.peers else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(more), "OMP_NUM_THREADS": str(settings.threads)}
        self._errors = (settings.work / f"{name}.log").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        self._requests, self._replies = cast("IO[str]", self.process.stdin), cast("IO[str]", self.process.stdout)
        self.loaded: Mapping[str, float] = self._answer()

    def turn(self, seconds: float) -> list[float]:
        """Let it run for a while; returns the milliseconds of each run."""
        self._requests.write(f"{seconds}\n")
        self._requests.flush()
        times: list[float] = self._answer()
        return times

    def _answer(self) -> Any:
        line = self._replies.readline()
        if line:
            return json.loads(line)
        self.process.wait(_PATIENCE_S)
        self._errors.seek(0)
        raise RuntimeError((self._errors.read().strip().splitlines() or ["it ended"])[-1][:300])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._errors.close()


@dataclass
class Measured:
    """What one network took under one condition.

    Attributes:
        turns: By engine and round, the milliseconds of each run.
        outputs: By engine but ONNX Runtime, how far its outputs are from ONNX Runtime's.
        footprint: By engine, what loading took.
    """

    name: str
    condition: Condition
    quantized: bool
    turns: dict[str, list[list[float]]]
    outputs: dict[str, dict[str, float]]
    footprint: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types, with medians, 99th percentiles and ratios."""
        return {
            "name": self.name,
            "condition": str(self.condition),
            "quantized": self.quantized,
            "engines": {name: _summary(turns) for name, turns in self.turns.items()},
            "ratios": {name: _ratio(self.turns["ours"], turns) for name, turns in self.turns.items() if name != "ours"},
            "bfloat16": self._bfloat16(),
            "outputs": self.outputs,
            "footprint": self.footprint,
        }

    def _bfloat16(self) -> dict[str, Any] | None:
        """Return what ours takes in bfloat16 over OpenVINO's default, where both were measured."""
        sides = [self.turns[name] for name in (_peers.BFLOAT16, "openvino-as-is") if name in self.turns]
        return _ratio(*sides) if len(sides) == 2 else None


def _summary(turns: Sequence[Sequence[float]]) -> dict[str, Any]:
    samples = np.concatenate([np.asarray(turn) for turn in turns])
    return {
        "median_ms": float(np.median([np.median(turn) for turn in turns])),
        "p99_ms": float(np.percentile(samples, 99)),
        "runs": len(samples),
        "rounds_ms": [round(float(np.median(turn)), 5) for turn in turns],
    }


def _ratio(ours: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return what ours takes over what the other takes; below 1 ours is quicker."""
    to_seconds = [[[value / 1000 for value in turn] for turn in side] for side in (ours, other)]
    p99 = [float(np.percentile(np.concatenate([np.asarray(turn) for turn in side]), 99)) for side in (ours, other)]
    return _ab.ratio(*to_seconds) | {"p99": p99[0] / p99[1]}


# --- one network -------------------------------------------------------------------------------------------------


def measured(name: str, settings: Settings) -> Iterator[Measured]:
    """Build a network, load it in all engines, compare their outputs, and time them in turns under each condition."""
    import _peers_networks as networks

    network = networks.obtain(name, settings.work)
    save(settings.work / "inputs.npz", network.samples(_INT8_SAMPLES if network.quantized else 1))
    with contextlib.ExitStack() as stack:
        children = dict(_loaded(network, settings, stack))
        answers = {key: read(child.answers) for key, child in children.items()}
        how = agreement if network.quantized else difference
        outputs = {key: how(answer, answers["ort"]) for key, answer in answers.items() if key != "ort"}
        footprint = {key: child.loaded for key, child in children.items()}
        for condition in settings.conditions:
            with beside(condition, children):
                turns = in_turns(children, settings.rounds)
            yield Measured(name, condition, network.quantized, turns, outputs, footprint)


@contextlib.contextmanager
def beside(condition: Condition, children: Mapping[str, Child]) -> Iterator[None]:
    """Keep up a condition."""
    with contextlib.ExitStack() as stack:
        for child in children.values():
            if condition.quota:
                stack.enter_context(_neighbours.quota(child.process.pid, condition.quota))
            if condition.slow:
                stack.enter_context(_neighbours.slow(child.process.pid, condition.slow))
        stack.enter_context(_neighbours.loops(condition.busy))
        yield


def in_turns(children: Mapping[str, Child], rounds: int) -> dict[str, list[list[float]]]:
    """Time all engines in rounds; each is first, last and in between equally often, as what drifts drifts for all."""
    turns: dict[str, list[list[float]]] = {name: [] for name in children}
    for number in range(rounds):
        for name in _ab.order(list(children), number):
            time.sleep(_PAUSE_S)
            turns[name].append(children[name].turn(_TURN_S))
    return turns


def _loaded(network: Network, settings: Settings, stack: contextlib.ExitStack) -> Iterator[tuple[str, Child]]:
    """Start every engine that is here and can run a network; without ours or ONNX Runtime there is no result."""
    needed = ("ort", "ours")
    reference: Arrays = {}
    also = [name for name, enabled in (("before", settings.before), (_peers.BFLOAT16, settings.bfloat16)) if enabled]
    for name in dict.fromkeys((*needed, *also, *settings.engines)):
        if network.quantized and name in _peers.FLOAT_ONLY:
            continue
        try:
            model = _built(network, name, settings) if name in _peers.OURS else network.path
            child = stack.enter_context(Child(name, model, network, settings))
            answer = read(child.answers)[0]
            reference = reference or answer
            _check_shapes(answer, reference)
        except (RuntimeError, ValueError) as fault:
            if name in needed:
                raise RuntimeError(f"{_peers.TITLES[name]}: {fault}") from fault
            note(f"{_peers.TITLES[name]} is left out: {fault}")
        else:
            yield name, child


def _built(network: Network, name: str, settings: Settings) -> Path:
    folder = settings.work / f"{network.path.stem}-{name}"
    older = settings.before / ".venv" / "bin" if settings.before and name == "before" else None
    precision = ["--bfloat16"] if name == _peers.BFLOAT16 else []
    if not (settings.built and _product.is_built(folder)):
        _product.build(network, folder, [*settings.build, *precision], older, settings.board)
    return folder


def _check_shapes(outputs: Arrays, reference: Arrays) -> None:
    shapes, expected = ({name: value.shape for name, value in arrays.items()} for arrays in (outputs, reference))
    if shapes != expected:
        raise ValueError(f"its outputs are {shapes}, and not {expected}")


def difference(outputs: Sequence[Arrays], reference: Sequence[Arrays]) -> dict[str, float]:
    """Return the largest difference, absolute and relative to the largest value of its tensor."""
    from toolchain import tensors

    comparisons = [
        tensors.compare(output, other, _peers_tables.LIMIT) for output, other in zip(outputs, reference, strict=True)
    ]
    # JSON knows no infinity, which stands for outputs that are no numbers.
    return {
        key: min(max(getattr(comparison, key) for comparison in comparisons), sys.float_info.max)
        for key in ("max_abs", "max_rel")
    }


def agreement(outputs: Sequence[Arrays], reference: Sequence[Arrays]) -> dict[str, float]:
    """Return how often the largest class is the same, and the signal-to-noise ratio in dB.

    Engines round between integer layers in their own ways, so that single values say little.
    """
    key = next(iter(reference[0]))
    got, expected = (
        np.stack([arrays[key].ravel() for arrays in many]).astype(np.float64) for many in (outputs, reference)
    )
    signal, noise = float(np.sum(expected**2)), float(np.sum((got - expected) ** 2))
    return {
        "top1_agreement": float(np.mean(got.argmax(axis=1) == expected.argmax(axis=1))),
        "snr_db": 10 * math.log10(signal / max(noise, signal * _EXACT)),
    }


# --- the machine -------------------------------------------------------------------------------------------------


def cores_doubt() -> str | None:
    """Say so if two threads are hardly quicker than one here: two CPUs may be one core, or be throttled by a host."""
    if len(os.sched_getaffinity(0)) < 2:
        return "this process may use one CPU only"
    program = [sys.executable, "-c", "s = 0\nfor i in range(6_000_000): s += i"]
    single, double = (min(_together(program, count) / count for _ in range(3)) for count in (1, 2))
    if double < _TWICE * single:
        return None
    times = 2 * double / single
    return f"two busy processes take {times:.2f} times as long as one: the CPUs share a core, or are throttled"


def _together(command: Sequence[str], count: int) -> float:
    start = time.perf_counter()
    for process in [subprocess.Popen(command) for _ in range(count)]:
        process.wait()
    return time.perf_counter() - start


def cpu_name() -> str:
    """Return what the kernel calls the CPU; its architecture where it does not say."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else os.uname().machine


# --- all networks ------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure each network, and print the tables."""
    arguments = parsed()
    if arguments.markdown:
        print(markdown(arguments.markdown))
        return
    doubt = cores_doubt()
    note(f"doubtful: {doubt}" if doubt else "two threads have a core each")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        settings = settings_of(arguments, Path(folder))
        rows = {name: attempted(name, settings) for name in arguments.networks}
    results = [result.document() for each in rows.values() for result in each]
    if len(rows) > 1:
        print("\n\n".join(_peers_tables.by_condition(results)))
    if arguments.footprint:
        print(f"\n{_peers_tables.footprint_table(results)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(document(results, settings, doubt), indent=2) + "\n", encoding="utf-8")
    wrong = {result["name"] for result in results if not _peers_tables.right(result["outputs"].get("ours", {}))}
    missing = [name for name, each in rows.items() if len(each) < len(settings.conditions)]
    if wrong or missing:
        sys.exit(f"wrong outputs: {', '.join(sorted(wrong)) or 'none'}; not measured: {', '.join(missing) or 'none'}")


def markdown(path: Path) -> str:
    """Render the tables of an earlier run's file."""
    try:
        return _peers_tables.markdown(json.loads(path.read_text(encoding="utf-8"))["networks"])
    except (OSError, ValueError, LookupError, TypeError) as fault:
        sys.exit(f"{path} is not a file of --json: {fault!r}")


def attempted(name: str, settings: Settings) -> list[Measured]:
    """Measure a network and print its rows; what fails is named on the standard error, and its rows are missing."""
    from toolchain.errors import ToolchainError

    note(f"--- {name}")
    results: list[Measured] = []
    try:
        for result in measured(name, settings):
            results.append(result)
            note(f"{result.condition}\n{_peers_tables.table([result.document()])}")
    except ToolchainError as fault:
        note("\n".join(filter(None, (fault.message, fault.details, fault.hint))))
    except (RuntimeError, OSError) as fault:
        note(f"{name} is not measured: {fault}")
    if len(results) == len(settings.conditions):
        print("\n\n".join(_peers_tables.by_condition([result.document() for result in results])) + "\n", flush=True)
    return results


def document(results: Sequence[dict[str, Any]], settings: Settings, doubt: str | None) -> dict[str, Any]:
    """Return everything as JSON's types."""
    return {
        "schema_version": 3,
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": settings.threads,
        "doubt": doubt,
        "versions": _peers.versions(),
        "geometric_means": {
            condition: _peers_tables.geometric_means(each) for condition, each in _peers_tables.grouped(results).items()
        },
        "networks": results,
    }


def parsed() -> argparse.Namespace:
    """Read the command line."""
    import _peers_networks as networks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=networks.DEFAULT, metavar="NETWORK")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each engine")
    parser.add_argument("--busy", type=int, nargs="+", default=[], metavar="N", help="busy loops beside the engines")
    parser.add_argument(
        "--quota", type=int, nargs="+", default=[], metavar="PERCENT", help="CPU time of each engine: 100 is one CPU"
    )
    parser.add_argument(
        "--slow", type=int, nargs="+", default=[], metavar="PERCENT", help="CPU time of threads but an engine's first"
    )
    parser.add_argument("--peers", type=Path, help="folder with other engines' packages")
    parser.add_argument("--before", type=Path, help="an older checkout, to be measured as well")
    parser.add_argument("--bfloat16", action="store_true", help="measure a build in bfloat16 as well")
    parser.add_argument("--engine", action="append", choices=_peers.PEERS, help="only these peers")
    parser.add_argument("--board", default="local", help="a board type whose code this machine can run")
    records = parser.add_mutually_exclusive_group()
    records.add_argument("--records", help="tuning records to apply; `shipped`: the toolchain's own")
    records.add_argument("--no-records", action="store_true", help="apply no tuning records")
    parser.add_argument("--without", action="append", default=[], help="do not use a template, such as winograd; `all`")
    parser.add_argument("--footprint", action="store_true", help="peak memory and load time")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the tables of an earlier --json FILE")
    parser.add_argument("--work", type=Path, help="keep models and bundles in this folder")
    parser.add_argument("--built", action="store_true", help="use the bundles that --work has, of whatever version")
    arguments = parser.parse_args()
    for name, minimum in (("threads", 1), ("rounds", 1), ("busy", 0), ("quota", 1), ("slow", 1)):
        if any(value < minimum for value in np.atleast_1d(getattr(arguments, name))):
            parser.error(f"--{name} is at least {minimum}")
    if arguments.before and not (arguments.before / ".venv" / "bin" / "toolchain").exists():
        parser.error(f"{arguments.before} has no .venv/bin/toolchain: run `make setup` there")
    arguments.networks = networks.named(arguments.networks)
    return arguments


def settings_of(arguments: argparse.Namespace, folder: Path) -> Settings:
    """Take what the user asked for from the command line; `folder` is where files go by default."""
    work = (arguments.work or folder).resolve()
    work.mkdir(parents=True, exist_ok=True)
    build = ["--records", arguments.records] if arguments.records else []
    build += ["--no-records"] if arguments.no_records else []
    build += [argument for name in arguments.without for argument in ("--without", name)]
    if arguments.peers:
        sys.path.insert(0, str(arguments.peers.resolve()))
    chosen = dict.fromkeys([*(arguments.engine or _peers.PEERS), "ort"])
    present = _peers.versions()
    for name in [engine for engine in chosen if engine not in present]:
        note(f"{_peers.TITLES[name]} is left out, as it is not installed; see --help")
    return Settings(
        threads=arguments.threads,
        rounds=arguments.rounds,
        conditions=[
            *(Condition(busy=count) for count in arguments.busy),
            *(Condition(quota=percent) for percent in arguments.quota),
            *(Condition(slow=percent) for percent in arguments.slow),
        ]
        or [Condition()],
        peers=arguments.peers.resolve() if arguments.peers else None,
        before=arguments.before.resolve() if arguments.before else None,
        bfloat16=arguments.bfloat16,
        board=arguments.board,
        build=build,
        engines=[engine for engine in chosen if engine in present],
        work=work,
        built=arguments.built,
    )


def note(line: str) -> None:
    """Tell about progress, apart from the results."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
