"""Two releases of one model, layer by layer: run in turns on one device, so that what drifts drifts for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolchain import stats, temporary
from toolchain.backends import backend_of
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import Installed
from toolchain.device.lock import Owner
from toolchain.device.profiling import Watched
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline.profile import ProfileRequest, run_seconds, watch
from toolchain.pipeline.profile.layers import ERRORS, ROUNDS, Layer, WatchedRelease, compare_layers, median_ms
from toolchain.pipeline.sides import Side
from toolchain.progress import Step
from toolchain.stats import Estimate
from toolchain.tables import Table
from toolchain.units import duration

_LEAST_RUNS = 5
_MOST_OF_IT = 0.8
_NAMED = 3  # of layers that are held against others together, and of those that are against none


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
    """Refuse to compare a release with itself, or with one of another model."""
    if new.digest == base.digest:
        raise InputError(
            "--against names the release that is profiled", details=new.digest, hint="name another release or package"
        )
    new_inputs, base_inputs = (
        [(spec.name, spec.dtype, spec.shape) for spec in side.manifest.inputs] for side in (new, base)
    )
    if new_inputs != base_inputs:
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
    graphs = [side.kernels(device) for side in sides]
    run_s = [run_seconds(release, pinned=request.pinned) for release in installed]
    runs = max(_LEAST_RUNS, -(-request.runs // ROUNDS))
    for number in range(ROUNDS):
        tell(Step("profiling both in turns", number, ROUNDS, "rounds"))
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            watched[index].append(watch(installed[index], runs, run_s[index], pinned=request.pinned))
    plain = [[each.plain_ns for each in turns_of_side] for turns_of_side in watched]
    new_release, base_release = (
        WatchedRelease(kernels, rounds) for kernels, rounds in zip(graphs, watched, strict=True)
    )
    return Against(
        model=new.manifest.name,
        board=device.board.name,
        host=device.name,
        emulated=device.emulated,
        new_digest=new.digest,
        base_digest=base.digest,
        rounds=ROUNDS,
        new_ms=median_ms(plain[0]),
        base_ms=median_ms(plain[1]),
        change=stats.estimate(stats.log_ratios(*plain), 1 - ERRORS).change(),
        layers=compare_layers(new.manifest.name, new_release, base_release, backend_of(device.board)),
    )


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
