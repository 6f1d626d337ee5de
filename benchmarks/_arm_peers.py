"""Networks in our build and in the peers' wheels, run under QEMU on the cores of Arm boards and counted."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import _arm_model, _peers, _qemu
from benchmarks._arm_cycles import Cycles
from benchmarks._arm_model import Core, Cost, Counts
from benchmarks._arm_sysroot import Sysroot
from benchmarks._engine import read, save
from toolchain import board, files, tensors
from toolchain.compile.request import BuildRequest
from toolchain.errors import BuildError
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.pipeline.source import BundleSource

if TYPE_CHECKING:
    from benchmarks._peers import Arrays
    from benchmarks._peers_networks import Network

_SOURCE = Path(__file__).with_name("qemu_lines.c")
_TREE = Path(__file__).parent.parent
_TIMEOUT_S = 3600.0
_LAYOUT = 1  # of the files that the plugin writes
_HALF = "-float16"
OURS = "ours"
PEERS = ("onnxruntime", "ncnn", "mnn")
_CHECKOUT = "ncnn's own network"


@dataclass(frozen=True)
class Row:
    """What one run of a network takes in an engine.

    Attributes:
        core: The core's name.
        network: Name of the network.
        engine: `ours`, a peer, or one of these with `-float16` behind it.
        cost: What it takes.
        difference: Largest difference of its outputs from ONNX Runtime's on this machine, over the largest of these;
            None where they cannot be compared.
        note: What is different about it.
    """

    core: str
    network: str
    engine: str
    cost: Cost
    difference: float | None = None
    note: str = ""

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        own = {"core": self.core, "network": self.network, "engine": self.engine, "note": self.note}
        return {"method": "modelled", **own, "difference": self.difference, **self.cost.document()}


@dataclass
class Simulated:
    """A core with its caches under QEMU.

    Attributes:
        sysroot: The programs.
        core: The core.
        work: Folder for plugins, models, and what was counted before: a file that is there is not counted again.
    """

    sysroot: Sysroot
    core: Core
    work: Path
    _plugin: Path = field(init=False)
    _cycles: Cycles = field(init=False)

    def __post_init__(self) -> None:
        """Compile the plugin."""
        self._plugin = _qemu.plugin(self.work, _SOURCE)
        self._cycles = Cycles(self.sysroot, self.core.llvm, self.work / f"cycles.{self.core.llvm}.json")
        self._root = self.sysroot.root(self.core.name, self.core.midr, self.core.flags)

    def _options(self, out: Path) -> list[str]:
        lasts = sorted({one.last for one in _arm_model.boards().values() if one.core == self.core.name})
        return [f"out={out}", f"l1={self.core.l1}", *(f"last={last}" for last in lasts)]

    def peer(self, engine: str, model: Path, fed: Arrays, names: Sequence[str]) -> tuple[Cost, Arrays]:
        """Run a model in a peer; returns what it takes, and the outputs.

        Raises:
            BuildError: The peer fails.
        """
        parts = [_LAYOUT, self._options(Path("out")), engine, files.sha256_file(model)]
        key = files.sha256_bytes("\n".join(map(str, parts)).encode())[:16]
        counted, answers = (self.work / f"{engine}.{self.core.name}.{key}.{kind}" for kind in ("lines", "npz"))
        if not (counted.exists() and answers.exists()):
            with tempfile.TemporaryDirectory(prefix="toolchain-", dir=self.work) as scratch:
                place = Path(scratch)
                save(place / "inputs.npz", [fed])
                words = ["-plugin", ",".join([str(self._plugin), *self._options(place / "lines"), "marked=on"])]
                variables = {"OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1", "HOME": str(place)}
                python = self.sysroot.python(self._root, [_TREE], variables)
                script = [Path(__file__).with_name("_arm_guest.py"), engine, model, place / "inputs.npz"]
                command = [self.sysroot.qemu, "-cpu", self.core.qemu, *words, *python, *script, place / "outputs.npz"]
                self.sysroot.run([*command, *names], timeout=_TIMEOUT_S)
                (place / "outputs.npz").rename(answers)
                (place / "lines").rename(counted)
        return self._cost(_arm_model.counted(counted.read_text())), read(answers)[0]

    def ours(self, network: Network, *, float16: bool = False) -> tuple[Cost, float]:
        """Build a network and run it in the runner; returns what it takes, and how far its outputs are off."""
        kind = board.load(self.core.build).resolved().with_precision(float16=float16)
        shapes = {name: shape for name, shape in network.shapes.items() if shape and name not in network.fixed}
        model = Model(network.build, shapes, inputs.Source(), network.fixed)
        request = BuildRequest(model, kind, toolchain="host", tuned=False, threads=1)
        settings = (self.sysroot.qemu, self._plugin, self.core.qemu, self._root, self.sysroot.environment)
        tool = _qemu.Emulator(*settings)
        with tempfile.TemporaryDirectory(prefix="toolchain-", dir=self.work) as scratch:
            made = BundleSource(request).build(Path(scratch) / "bundle")
            out, counts = Path(scratch) / "lines", list[Counts]()
            for timed in (0, 1):
                ran = tool.run(made, kind, self._options(out), timed)
                counts.append(_arm_model.counted(out.read_text()))
        return self._cost(_arm_model.difference(counts[1], counts[0])), ran.difference

    def _cost(self, counts: Counts) -> Cost:
        return self._cycles.cost(counts)


def rows(
    simulated: Simulated, network: Network, peers: Sequence[str], checkout: Path | None, tell: Callable[[str], None]
) -> Iterator[Row]:
    """Run a network in every engine that computes it as it is meant: int8 in int8.

    Args:
        simulated: The core.
        network: The network.
        peers: Which peers.
        checkout: ncnn's repository, for its own quantized networks.
        tell: Gets a line for a peer that fails, which is left out.
    """
    core = simulated.core
    halves = (False, True) if core.computes_in_half and not network.quantized else (False,)
    for half in halves:
        cost, off = simulated.ours(network, float16=half)
        yield Row(core.name, network.name, OURS + _HALF * half, cost, off)
    fed = network.samples(1)[0]
    reference = _reference(network, fed)
    for peer in peers:
        if network.quantized and peer in _peers.FLOAT_ONLY:
            yield from own_network(simulated, network.name, checkout if peer == "ncnn" else None)
            continue
        try:
            model = _converted(simulated.sysroot, peer, network.path)
            for engine in (peer + _HALF * half for half in halves if not half or peer in _peers.FLOAT_ONLY):
                cost, outputs = simulated.peer(engine, model, fed, network.source.output_names)
                shaped = {name: _shaped(outputs[name], value) for name, value in reference.items()}
                off = tensors.compare(shaped, reference).max_rel
                yield Row(core.name, network.name, engine, cost, off)
        except BuildError as fault:
            tell(f"{core.name}, {network.name}: {peer} is left out. {fault.message} {fault.details}")


def own_network(simulated: Simulated, name: str, checkout: Path | None) -> Iterator[Row]:
    """Run ncnn's own version of a network, if there is a checkout of its repository, and a file for that name.

    It has its defaults: where the core computes in half precision, so does ncnn what is not in int8.
    """
    from benchmarks import _arm_calibrate

    own = _arm_calibrate.published().networks.get(name)
    if checkout is None or own is None:
        return
    param = _arm_calibrate.param(checkout, own)
    engine = "ncnn" + _HALF * simulated.core.computes_in_half
    cost, _ = simulated.peer(engine, param, {"data": np.zeros(_arm_calibrate.shape(param), np.float32)}, ["output"])
    yield Row(simulated.core.name, name, "ncnn", cost, None, _CHECKOUT)


def _reference(network: Network, fed: Arrays) -> dict[str, Any]:
    engine = _peers.Ort(network.path, network.source.output_names, 1)
    engine.feed(fed)
    engine.run()
    return engine.outputs()


def _shaped(output: Any, reference: Any) -> Any:
    """Give an output the shape of its reference: engines without a batch, or with another number of ones, agree."""
    return np.asarray(output, reference.dtype).reshape(reference.shape)


def _converted(sysroot: Sysroot, peer: str, model: Path) -> Path:
    """Return the file of a model that a peer reads."""
    try:
        if peer == "ncnn":
            return _peers.ncnn_model(model)[0]
        if peer == "mnn":
            python = sysroot.python(sysroot.folder / "guest", [], {})
            libraries = f"LD_LIBRARY_PATH={sysroot.environment['LD_LIBRARY_PATH']}"
            return _peers.mnn_model(model, ["env", libraries, sysroot.qemu, *python])
    except RuntimeError as fault:
        raise BuildError(str(fault)) from fault
    return model


def table(found: Sequence[Row]) -> list[str]:
    """Return a table in Markdown for each board with one of the cores."""
    from benchmarks import _arm_calibrate

    heads = (
        "network",
        "engine",
        "M instructions",
        "core M cycles",
        "k lines",
        "ms",
        "ours / it",
        "bounds",
        "difference",
    )
    lines: list[str] = []
    for one in _arm_model.boards().values():
        own = [row for row in found if row.core == one.core]
        if not own:
            continue
        title = f"{one.title} ({one.core}, {one.mhz / 1000:g} GHz, 1 thread), modelled"
        lines += [f"{title}. {_arm_calibrate.error(one)}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += [_line(row, _counterpart(row, own), one) for row in own]
        lines += ["", *_means(own, one), ""]
    return lines


def _counterpart(row: Row, found: Sequence[Row]) -> Row | None:
    """Return our row that a peer's is compared with: the same network in the same precision."""
    name = OURS + _HALF * row.engine.endswith(_HALF)
    return next((one for one in found if (one.network, one.engine) == (row.network, name)), None)


def _line(row: Row, ours: Row | None, one: _arm_model.Board) -> str:
    cost = row.cost
    lines = cost.lines[_arm_model.kib(one.last)].total
    words = [row.network, row.engine + (f" ({row.note})" if row.note else ""), f"{cost.instructions / 1e6:.1f}"]
    words += [f"{cost.core_cycles / 1e6:.1f}", f"{lines / 1e3:.0f}", f"{cost.ms(one):.1f}"]
    if ours is None or ours is row:
        words += ["", ""]
    else:
        low, high = _arm_model.bounds(ours.cost, cost, one)
        words += [f"{ours.cost.ms(one) / cost.ms(one):.2f}", f"{low:.2f}-{high:.2f}"]
    words.append("-" if row.difference is None else f"{row.difference:.0e}")
    return "| " + " | ".join(words) + " |"


def _means(found: Sequence[Row], one: _arm_model.Board) -> list[str]:
    """Say how ours compares with the best peer over all networks, for each precision."""
    best: dict[tuple[str, str], float] = {}
    for row in found:
        ours = _counterpart(row, found)
        if ours is not None and ours is not row:
            key = (precision(row), row.network)
            best[key] = max(best.get(key, 0.0), ours.cost.ms(one) / row.cost.ms(one))
    kinds: dict[str, list[float]] = {}
    for (kind, _), ratio in best.items():
        kinds.setdefault(kind, []).append(ratio)
    means = ", ".join(f"{kind} {statistics.geometric_mean(ratios):.2f}" for kind, ratios in kinds.items())
    return [f"Ours over the best peer, geometric mean, modelled: {means}."] if means else []


def precision(row: Row) -> str:
    """Return in what an engine computed a network."""
    if row.engine.endswith(_HALF):
        return "float16"
    return "int8" if row.network.endswith("-int8") else "float32"


def read_rows(path: Path) -> list[Row]:
    """Read rows from a file of JSON."""
    keys = ("core", "network", "engine")
    documents = json.loads(path.read_text(encoding="utf-8"))
    return [
        Row(*(one[key] for key in keys), _arm_model.cost(one), one["difference"], one["note"])
        for one in documents
        if one["method"] == "modelled"
    ]
