"""Two releases of one model, layer by layer: run in turns on one device, so that what drifts drifts for both."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolchain import stats, temporary
from toolchain.backends import backend_of
from toolchain.backends.base import Backend
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import Installed
from toolchain.device.lock import Owner
from toolchain.device.profiling import Watched
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline.profile import MACHINE, ProfileRequest, Side, run_seconds, watch
from toolchain.pipeline.profile.rows import is_kernel, node_text, nodes_in_order, operator
from toolchain.progress import Step
from toolchain.stats import Estimate
from toolchain.tables import Table
from toolchain.units import duration

ROUNDS = 16
"""Turns of each side; an even number, since each goes first in every other one."""
_LEAST_RUNS = 5
_ERRORS = 0.01  # that any layer's interval misses is no likelier than this
_MOST_OF_IT = 0.8
_Key = tuple[str, int, int]
_NAMED = 3  # of layers that are held against others together, and of those that are against none


@dataclass(frozen=True)
class Layer:
    """A layer of both releases, or of one; or several between two that match, which other kernels compute in each.

    Attributes:
        name: Operator and shapes, as the new one has them.
        new: Its kernel in the new release, or its kernels; empty where that has none for it.
        base: That of the base.
        new_ms: Milliseconds in the new one, the median of the rounds.
        base_ms: Milliseconds in the base.
        change: How much longer the new one takes: 0.05 is 5 % more; None where only one has something there.
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
        """Whether the interval says so; of a layer that nothing is held against nobody can say it."""
        return self.change is not None and self.change.low > 0


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
        layers: The layers in order.
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
        alone = [layer.name for layer in unmatched(self)]
        return {"schema_version": 1, **found, **digests, "carriers": carried, "not_matched": alone}


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


def unmatched(found: Against) -> tuple[Layer, ...]:
    """Return the layers that nothing is held against, since the other release has nothing there, the longest first."""
    return tuple(sorted((one for one in found.layers if one.change is None), key=lambda one: -abs(one.more_ms)))


def check(new: Side, base: Side) -> None:
    """Refuse to hold a release against itself, or against one of another model.

    Raises:
        InputError: It is so.
    """
    if new.digest == base.digest:
        raise InputError(
            "--against names the release that is profiled", details=new.digest, hint="name another release or package"
        )
    one, other = ([(spec.name, spec.dtype, spec.shape) for spec in side.manifest.inputs] for side in (new, base))
    if one != other:
        raise InputError(
            f"{new.manifest.name} and {base.manifest.name} have different inputs, so they are different models",
            hint="`toolchain releases` lists what the device keeps",
        )


def run(
    sides: tuple[Side, Side],
    given: inputs.Source,
    program: Program,
    device: ConnectedDevice,
    request: ProfileRequest,
    tell: Callable[[str], None],
) -> Against:
    """Profile two releases in turns under one lock; the device keeps the release that it has.

    Args:
        sides: The release of interest, and the one that it is compared with.
        given: What both are run with.
        program: The runner for the device.
        device: The device.
        request: How; its runs are divided among the rounds, at least five in each.
        tell: Called with progress.

    Raises:
        InputError: As `check`.
        VerificationError: The device does not fit.
        DeviceError: It is lost, busy or full, or a model does not run on it.
    """
    new, base = sides
    check(new, base)
    releases = [side.release(program, device, request.threads) for side in sides]
    arrays = inputs.make(given, new.manifest.inputs)
    with temporary.folder() as work, device.store.lock(Owner.here("profile")):
        try:
            installed = [release.install(arrays, Path(work)) for release in releases]
            return turns(sides, installed, request, tell)
        finally:
            if new.bundle or base.bundle:
                device.store.prune(device.board.keep)


def turns(
    sides: Sequence[Side], installed: Sequence[Installed], request: ProfileRequest, tell: Callable[[str], None]
) -> Against:
    """Profile two releases that are on the device already; the caller holds its lock, as a gate does.

    Args:
        sides: The release of interest, and the one that it is compared with.
        installed: Both on the device.
        request: How.
        tell: Called with progress.

    Raises:
        DeviceError: The device is lost, or a model does not run on it.
    """
    new, base = sides
    device = installed[0].release.device
    watched: tuple[list[Watched], list[Watched]] = ([], [])
    run_s = [run_seconds(release, pinned=request.pinned) for release in installed]
    runs = max(_LEAST_RUNS, -(-request.runs // ROUNDS))
    for number in range(ROUNDS):
        tell(Step("profiling both in turns", number, ROUNDS, "rounds"))
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            watched[index].append(watch(installed[index], runs, run_s[index], pinned=request.pinned))
    plain = [[each.plain_ns for each in turns_of_side] for turns_of_side in watched]
    return Against(
        model=new.manifest.name,
        board=device.board.name,
        host=device.name,
        emulated=device.emulated,
        new_digest=new.digest,
        base_digest=base.digest,
        rounds=ROUNDS,
        new_ms=_middle(plain[0]),
        base_ms=_middle(plain[1]),
        change=stats.estimate(stats.log_ratios(*plain), 1 - _ERRORS).change(),
        layers=_layers(new, base, watched, backend_of(device.board)),
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

    key: _Key
    name: str
    kernel: str
    rounds: tuple[tuple[int, ...], ...]


def _layers(new: Side, base: Side, seen: Sequence[Sequence[Watched]], backend: Backend) -> tuple[Layer, ...]:
    ours, theirs = (_parts(side, watched, backend) for side, watched in zip((new, base), seen, strict=True))
    stretches = list(_stretches([one.key for one in ours], [one.key for one in theirs]))
    confidence = 1 - max(_ERRORS / max(1, len(stretches)), 2.0 ** (1 - ROUNDS) * 1.001)
    return tuple(_layer(ours[one], theirs[other], confidence) for one, other in stretches)


def _stretches(ours: Sequence[_Key], theirs: Sequence[_Key]) -> Iterator[tuple[slice, slice]]:
    """Yield what is held against each other: layers that are the same, and all that lies between two of them.

    Two builds that fuse differently compute the same in other kernels. Only their sums say whether it takes longer.
    """
    done = (0, 0)
    for block in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        if (block.a, block.b) != done:
            between = slice(done[0], block.a), slice(done[1], block.b)
            sizes = [[key[1:] for key in keys[part]] for keys, part in zip((ours, theirs), between, strict=True)]
            if sizes[0] == sizes[1] and all(any(one) for one in sizes[0]):  # the same layers, by other operators
                yield from _one_by_one(done[0], done[1], len(sizes[0]))
            else:
                yield between
        yield from _one_by_one(block.a, block.b, block.size)
        done = block.a + block.size, block.b + block.size


def _one_by_one(first: int, second: int, count: int) -> Iterator[tuple[slice, slice]]:
    for step in range(count):
        yield slice(first + step, first + step + 1), slice(second + step, second + step + 1)


def _layer(new: Sequence[_Part], base: Sequence[_Part], confidence: float) -> Layer:
    name, kernels = _briefly([one.name for one in new or base]), [_kernels(new), _kernels(base)]
    sums = [_sums(new), _sums(base)]
    times = [_middle(rounds) if rounds else 0.0 for rounds in sums]
    change = stats.estimate(stats.log_ratios(*sums), confidence).change() if all(sums) else None
    return Layer(name, kernels[0], kernels[1], times[0], times[1], change)


def _kernels(parts: Sequence[_Part]) -> str:
    return ", ".join(one.kernel for one in parts)


def _sums(parts: Sequence[_Part]) -> list[tuple[int, ...]]:
    """Return what the parts take together in each run of each round."""
    together = zip(*(one.rounds for one in parts), strict=True)
    return [tuple(map(sum, zip(*samples, strict=True))) for samples in together]


def _briefly(names: Sequence[str]) -> str:
    """Join names, and of many the first."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return " + ".join([*names[:_NAMED], *more])


def _parts(side: Side, rounds: Sequence[Watched], backend: Backend) -> list[_Part]:
    """Return the kernels of a release in order; a process that made other calls than the first is left out."""
    names = [call.name for call in rounds[0].calls]
    alike = [one for one in rounds if [call.name for call in one.calls] == names]
    if len(alike) < len(rounds):
        raise InputError(
            f"{side.manifest.name} calls other kernels in each process, so its layers cannot be compared",
            hint="`toolchain gate` compares whole runs",
        )
    found: list[_Part] = []
    nodes = iter(nodes_in_order([call for call in rounds[0].calls if is_kernel(call)], side.kernels))
    for place, call in enumerate(rounds[0].calls):
        if not is_kernel(call):
            continue
        kernel = side.kernels.get(call.name)
        what = operator(call.name, kernel, backend)
        shapes = [shape for _, shape in kernel.buffers] if kernel and kernel.buffers else [(0,)]
        node = node_text(next(nodes))
        name = f"{len(found) + 1} {what} {_shape(shapes[0])} -> {_shape(shapes[-1])}{node and f' ({node})'}"
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
            duration(one.base_ms),
            duration(one.new_ms),
            duration(one.more_ms, signed=True),
            change_text(one.change),
            f"not matched: {_side(one)}" if one.change is None else "",
        )
        for one in found.layers
    ]
    head = ("LAYER", "BASE", "NEW", "MORE", "CHANGE", "")
    lines = [
        f"{found.model} on {found.board} at {found.host}, {found.rounds} rounds of each{mark}",
        f"a run takes {duration(found.new_ms)}, and {duration(found.base_ms)} in the base: {change_text(found.change)}",
        carried_text(found),
    ]
    return [Table(rows, head, (1, 2, 3), spare=(5,)), "", *lines]


def carried_text(found: Against) -> str:
    """Say which layers carry a slow-down, and which nothing could be held against."""
    worst = carriers(found)
    slower = "slower: " + "; ".join(_more_text(one) for one in worst) if worst else "no layer is measurably slower"
    return "; ".join([slower, *([unmatched_text(found)] if unmatched(found) else [])])


def unmatched_text(found: Against) -> str:
    """Name the layers that nothing is held against, of many the longest; empty where there are none."""
    alone = unmatched(found)
    more = [f"and {len(alone) - _NAMED} more"] if len(alone) > _NAMED else []
    return "not matched: " + ", ".join([*map(_more_text, alone[:_NAMED]), *more]) if alone else ""


def _more_text(layer: Layer) -> str:
    side = f", {_side(layer)}" if layer.change is None else ""
    return f"{layer.name} ({duration(layer.more_ms, signed=True)}{side})"


def change_text(found: Estimate | None) -> str:
    """Write a change with its interval."""
    if found is None:
        return ""
    if not math.isfinite(found.low + found.high):
        return f"{found.value:+.1%}"
    return f"{found.value:+.1%}, within {found.low:+.1%} to {found.high:+.1%}"


def _side(layer: Layer) -> str:
    return "" if layer.change else "only in the new release" if layer.new_ms else "only in the base"
