"""Two releases of one model, layer by layer: run in turns on one device, so that what drifts drifts for both."""

from __future__ import annotations

import difflib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolchain import stats
from toolchain.backends import backend_of
from toolchain.backends.base import Backend
from toolchain.device import deploy, profiling
from toolchain.device.lock import Owner
from toolchain.device.profiling import Watched
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline.device import Lab
from toolchain.pipeline.profile import MACHINE, Side, Wanted, placed
from toolchain.pipeline.profile.rows import is_kernel, operator
from toolchain.progress import Step
from toolchain.stats import Estimate
from toolchain.tables import Table

ROUNDS = 16
"""Turns of each side; an even number, since each goes first in every other one."""
_LEAST_RUNS = 5
_ERRORS = 0.01  # that any layer's interval misses is no likelier than this
_MOST_OF_IT = 0.8


@dataclass(frozen=True)
class Layer:
    """A layer of both releases, or of one.

    Attributes:
        name: Operator and shapes, as the new one has them.
        new: Its kernel in the new release; empty where that has none like it.
        base: Its kernel in the base.
        new_ms: Milliseconds in the new one, the median of the rounds.
        base_ms: Milliseconds in the base.
        change: How much longer the new one takes: 0.05 is 5 % more; None where only one has it.
    """

    name: str
    new: str
    base: str
    new_ms: float
    base_ms: float
    change: Estimate | None

    @property
    def more_ms(self) -> float:
        """Milliseconds that the new one takes more."""
        return self.new_ms - self.base_ms

    @property
    def is_slower(self) -> bool:
        """Whether the interval says so, or the base has nothing like it."""
        return self.change.low > 0 if self.change else not self.base


@dataclass(frozen=True)
class Against:
    """Two releases layer by layer.

    Attributes:
        model: Model name.
        board: Board type.
        host: Name of the device.
        emulated: Whether the times are an emulator's.
        new_digest: Digest of the release that is looked at.
        base_digest: Digest of the one it is held against.
        rounds: Turns of each.
        new_ms: A run of the new one, unwatched, the median of the rounds.
        base_ms: One of the base.
        change: How much longer the new one's runs take.
        layers: The layers in the new one's order, those of the base alone after them.
    """

    model: str
    board: str
    host: str
    emulated: bool
    new_digest: str
    base_digest: str
    rounds: int
    new_ms: float
    base_ms: float
    change: Estimate
    layers: tuple[Layer, ...]

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types; a layer that only one has is named by what the other has for it: nothing."""
        found = asdict(self)
        found["change"] = _finite(self.change)
        for row, layer in zip(found["layers"], self.layers, strict=True):
            row |= {"more_ms": layer.more_ms, "change": _finite(layer.change) if layer.change else None}
        digests = {"new_digest": f"sha256:{self.new_digest}", "base_digest": f"sha256:{self.base_digest}"}
        carried = [layer.name for layer in carriers(self)]
        return {"schema_version": 1, **found, **digests, "carriers": carried}


def _finite(found: Estimate) -> dict[str, Any]:
    return {name: value if math.isfinite(value) else None for name, value in asdict(found).items()}


def carriers(found: Against) -> tuple[Layer, ...]:
    """Return the layers that carry a slow-down: those surely slower, the worst first, until they make most of it."""
    slower = sorted((one for one in found.layers if one.is_slower), key=lambda one: -one.more_ms)
    total, kept, made = sum(one.more_ms for one in slower), 0, 0.0
    while kept < len(slower) and made < _MOST_OF_IT * total:
        made += slower[kept].more_ms
        kept += 1
    return tuple(slower[:kept])


def check(new: Side, base: Side) -> None:
    """Refuse to hold a release against itself, or against one of another model.

    Raises:
        InputError: It is so.
    """
    if new.digest == base.digest:
        raise InputError("both are the same release", details=new.digest, hint="--against names another one")
    one, other = ([(spec.name, spec.dtype, spec.shape) for spec in side.manifest.inputs] for side in (new, base))
    if one != other:
        raise InputError(
            f"{new.manifest.name} and {base.manifest.name} have other inputs, so they are not one model",
            hint="`toolchain releases` lists what the device keeps",
        )


def run(  # noqa: PLR0913, PLR0917 - two sides, and what a profile takes
    new: Side,
    base: Side,
    given: inputs.Source,
    program: Program,
    lab: Lab,
    wanted: Wanted,
    tell: Callable[[str], None],
) -> Against:
    """Profile two releases in turns under one lock; the device keeps the release that it has.

    Args:
        new: The one that is looked at.
        base: The one it is held against.
        given: What both are run with.
        program: The runner for the device.
        lab: The device.
        wanted: How; its runs are dealt to the rounds, at least five to each.
        tell: Told about progress.

    Raises:
        InputError: As `check`.
        VerificationError: The device does not fit.
        DeviceError: It is lost, busy or full, or a model does not run on it.
    """
    check(new, base)
    facts = lab.store.facts()
    for side in (new, base):
        deploy.check_fits(side.manifest, program, facts)
    fed = inputs.make(given, new.manifest.inputs)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as work, lab.store.lock(Owner.here("profile")):
        try:
            places = [placed(side, program, fed, lab, Path(work)) for side in (new, base)]
            return turns(new, base, places, lab, wanted, tell)
        finally:
            if new.bundle or base.bundle:
                lab.store.prune(lab.board.keep)


def turns(  # noqa: PLR0913, PLR0917 - as above
    new: Side,
    base: Side,
    places: Sequence[Mapping[str, str]],
    lab: Lab,
    wanted: Wanted,
    tell: Callable[[str], None],
) -> Against:
    """Profile two releases that are on the device already; the caller holds its lock, as a gate does.

    Args:
        new: The one that is looked at.
        base: The one it is held against.
        places: Of each, the folders on the device with the runner, the inputs, and the release (`releases`).
        lab: The device.
        wanted: How.
        tell: Told about progress.

    Raises:
        DeviceError: The device is lost, or a model does not run on it.
    """
    seen: tuple[list[Watched], list[Watched]] = ([], [])
    for number in range(ROUNDS):
        tell(Step("watching both in turns", number, ROUNDS, "rounds"))
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found = profiling.watch(
                lab.shell,
                lab.store.root,
                places[which],
                release=places[which]["releases"],
                threads=wanted.threads or lab.board.threads,
                runs=max(_LEAST_RUNS, -(-wanted.runs // ROUNDS)),
                pinned=wanted.pinned,
            )
            seen[which].append(found)
    plain = [[one.plain_ns for one in watched] for watched in seen]
    return Against(
        model=new.manifest.name,
        board=lab.board.name,
        host=lab.shell.name,
        emulated=lab.emulated,
        new_digest=new.digest,
        base_digest=base.digest,
        rounds=ROUNDS,
        new_ms=_middle(plain[0]),
        base_ms=_middle(plain[1]),
        change=stats.estimate(stats.log_ratios(*plain), 1 - _ERRORS).change(),
        layers=_layers(new, base, seen, backend_of(lab.board)),
    )


def _middle(rounds: Sequence[Sequence[int]]) -> float:
    """Return the median of the rounds' medians, in ms."""
    return float(np.median([np.median(samples) for samples in rounds])) / 1e6


@dataclass(frozen=True)
class _Part:
    """A kernel's call in one release: what it is, and its times by round.

    Attributes:
        key: What a layer of another build has in common with it: operator, and sizes of data and result.
        name: Operator and shapes, for people.
        kernel: Its function's name.
        rounds: Its nanoseconds in each watched run of each round.
    """

    key: tuple[str, int, int]
    name: str
    kernel: str
    rounds: tuple[tuple[int, ...], ...]


def _layers(new: Side, base: Side, seen: Sequence[Sequence[Watched]], backend: Backend) -> tuple[Layer, ...]:
    ours, theirs = (_parts(side, watched, backend) for side, watched in zip((new, base), seen, strict=True))
    pairs, count = [], max(1, len(ours))
    confidence = 1 - max(_ERRORS / count, 2.0 ** (1 - ROUNDS) * 1.001)
    matcher = difflib.SequenceMatcher(None, [one.key for one in ours], [one.key for one in theirs], autojunk=False)
    for block in matcher.get_matching_blocks():
        pairs += [(block.a + step, block.b + step) for step in range(block.size)]
    with_base = dict(pairs)
    found = [_layer(one, theirs[with_base[place]] if place in with_base else None, confidence)
             for place, one in enumerate(ours)]  # fmt: skip
    alone = [one for place, one in enumerate(theirs) if place not in set(with_base.values())]
    return (*found, *(Layer(one.name, "", one.kernel, 0.0, _middle(one.rounds), None) for one in alone))


def _layer(new: _Part, base: _Part | None, confidence: float) -> Layer:
    if base is None:
        return Layer(new.name, new.kernel, "", _middle(new.rounds), 0.0, None)
    change = stats.estimate(stats.log_ratios(new.rounds, base.rounds), confidence).change()
    return Layer(new.name, new.kernel, base.kernel, _middle(new.rounds), _middle(base.rounds), change)


def _parts(side: Side, rounds: Sequence[Watched], backend: Backend) -> list[_Part]:
    """Return the kernels of a release in order; a process that made other calls than the first is left out."""
    names = [call.name for call in rounds[0].calls]
    alike = [one for one in rounds if [call.name for call in one.calls] == names]
    if len(alike) < len(rounds):
        raise InputError(
            f"{side.manifest.name} makes other calls in other processes, so its layers cannot be told apart",
            hint="`toolchain gate` and `toolchain compare` hold whole runs against each other",
        )
    found: list[_Part] = []
    for place, call in enumerate(rounds[0].calls):
        if not is_kernel(call):
            continue
        kernel = side.kernels.get(call.name)
        what = operator(call.name, kernel, backend)
        shapes = [shape for _, shape in kernel.buffers] if kernel and kernel.buffers else [(0,)]
        name = f"{len(found) + 1} {what} {_shape(shapes[0])} -> {_shape(shapes[-1])}"
        found.append(
            _Part(
                (what, math.prod(shapes[0]), math.prod(shapes[-1])),
                name,
                call.name,
                tuple(one.calls[place].own_ns for one in alike),
            )
        )
    own = [place for place, call in enumerate(rounds[0].calls) if not is_kernel(call)]
    if own:
        sums = tuple(tuple(map(sum, zip(*(one.calls[place].own_ns for place in own), strict=True))) for one in alike)
        found.append(_Part((MACHINE, 0, 0), MACHINE, "", sums))
    return found


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def shown(found: Against) -> list[str | Table]:
    """Return what a person is shown: the layers, and those that carry a slow-down."""
    mark = "  emulated: says nothing about the real board" if found.emulated else ""
    rows = [
        (
            one.name,
            f"{one.base_ms:.4f}",
            f"{one.new_ms:.4f}",
            f"{one.more_ms:+.4f}",
            change_text(one.change),
            _side(one),
        )
        for one in found.layers
    ]
    head = ("LAYER", "BASE ms", "NEW ms", "MORE ms", "CHANGE", "")
    lines = [
        f"{found.model} on {found.board} at {found.host}, in {found.rounds} turns of each{mark}",
        f"a run takes {found.new_ms:.3f} ms, and {found.base_ms:.3f} ms of the base: {change_text(found.change)}",
        carried_text(found),
    ]
    return [Table(rows, head, (1, 2, 3), spare=(5,)), "", *lines]


def carried_text(found: Against) -> str:
    """Say which layers carry a slow-down."""
    worst = carriers(found)
    if not worst:
        return "no layer is surely slower"
    return "slower: " + "; ".join(f"{one.name} ({one.more_ms:+.3f} ms)" for one in worst)


def change_text(found: Estimate | None) -> str:
    """Write a change with its interval."""
    if found is None:
        return ""
    if not math.isfinite(found.low + found.high):
        return f"{found.value:+.1%}"
    return f"{found.value:+.1%}, within {found.low:+.1%} to {found.high:+.1%}"


def _side(layer: Layer) -> str:
    return "" if layer.change else "new alone" if layer.new else "base alone"
