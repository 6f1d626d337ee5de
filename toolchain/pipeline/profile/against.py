"""Two releases of one model, layer by layer: run in turns on one device, so that what drifts drifts for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolchain import stats
from toolchain.backends import backend_of
from toolchain.device import profiling
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import Installed, installed_temporarily
from toolchain.device.lock import Owner
from toolchain.device.profiling import Watched
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline import steps
from toolchain.pipeline.ab import Side, Turns
from toolchain.pipeline.profile import ProfileRequest
from toolchain.pipeline.profile.layers import ERRORS, ROUNDS, Layer, WatchedRelease, compare_layers, median_ms
from toolchain.progress import Progress, Step
from toolchain.report import Table
from toolchain.stats import Estimate
from toolchain.units import duration

_MIN_RUNS = 5
_MIN_EXPLAINED = 0.8  # share of a slow-down that its culprits explain
_MAX_UNMATCHED = 3


@dataclass(frozen=True)
class Against:
    """Two releases layer by layer."""

    model: str
    board: str
    host: str
    emulated: bool
    new_digest: str  # digest of the release of interest
    base_digest: str  # digest of the one that it is compared with
    rounds: int  # turns of each
    new_ms: float  # a run of the new one without profiling, the median of the rounds
    base_ms: float
    change: Estimate  # how much longer the new one's runs take
    layers: tuple[Layer, ...]  # in order

    def document(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["change"] = _finite(self.change)
        for row, layer in zip(fields["layers"], self.layers, strict=True):
            row |= {"more_ms": layer.more_ms, "change": _finite(layer.change) if layer.change else None}
        digests = {"new_digest": f"sha256:{self.new_digest}", "base_digest": f"sha256:{self.base_digest}"}
        slower = [layer.name for layer in culprits(self)]
        not_matched = [layer.name for layer in unmatched(self)]
        return {"schema_version": 1, **fields, **digests, "carriers": slower, "not_matched": not_matched}


def _finite(estimate: Estimate) -> dict[str, Any]:
    return {name: value if math.isfinite(value) else None for name, value in asdict(estimate).items()}


def culprits(comparison: Against) -> tuple[Layer, ...]:
    """Return the layers that explain most of a slow-down: those significantly slower, the worst first."""
    slower = sorted((layer for layer in comparison.layers if layer.is_slower), key=lambda layer: -layer.more_ms)
    total_ms, explained_ms = sum(layer.more_ms for layer in slower), 0.0
    main: list[Layer] = []
    for layer in slower:
        if explained_ms >= _MIN_EXPLAINED * total_ms:
            break
        explained_ms += layer.more_ms
        main.append(layer)
    return tuple(main)


def unmatched(comparison: Against) -> tuple[Layer, ...]:
    """Return the layers that have no counterpart in the other release, the longest first."""
    return tuple(
        sorted((layer for layer in comparison.layers if layer.change is None), key=lambda layer: -abs(layer.more_ms))
    )


def run(
    sides: tuple[Side, Side],
    source: inputs.Source,
    program: Program,
    device: ConnectedDevice,
    request: ProfileRequest,
    progress: Progress,
) -> Against:
    """Profile two releases in turns under one lock; the device keeps its current release.

    The runs of the request are divided among the rounds, at least five in each.

    Raises:
        VerificationError: The device does not fit.
        DeviceError: It is lost, busy or full, or a model does not run on it.
    """
    arrays = steps.make_inputs(source, sides[0].manifest)
    releases = [(side.release(program, device, request.threads), arrays) for side in sides]
    with device.store.lock(Owner.here("profile")), installed_temporarily(releases) as installed:
        return profile_installed(sides, installed, request, progress)


def profile_installed(
    sides: Sequence[Side], installed: Sequence[Installed], request: ProfileRequest, progress: Progress
) -> Against:
    """Profile two releases that are on the device already; the caller holds its lock.

    Raises:
        DeviceError: The device is lost, or a model does not run on it.
    """
    new, base = sides
    device = installed[0].release.device
    graphs = [side.kernels for side in sides]
    run_s = [profiling.pace(release, pinned=request.pinned) for release in installed]
    runs = max(_MIN_RUNS, -(-request.runs // ROUNDS))
    watched: tuple[list[Watched], list[Watched]] = ([], [])
    for number, order in Turns().rounds(ROUNDS):
        progress(Step("profiling both in turns", number, ROUNDS, "rounds"))
        for index in order:
            watched[index].append(profiling.watch(installed[index], runs, run_s[index], pinned=request.pinned))
    plain = [[turn.plain_ns for turn in turns] for turns in watched]
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


def render_text(comparison: Against) -> list[str | Table]:
    mark = "  emulated: says nothing about the real board" if comparison.emulated else ""
    rows = [
        (
            layer.name,
            duration(layer.base_ms),
            duration(layer.new_ms),
            duration(layer.more_ms, signed=True),
            change_text(layer.change),
            f"not matched: {_side(layer)}" if layer.change is None else "",
        )
        for layer in comparison.layers
    ]
    head = ("LAYER", "BASE", "NEW", "MORE", "CHANGE", "")
    new_ms, base_ms = duration(comparison.new_ms), duration(comparison.base_ms)
    lines = [
        f"{comparison.model} on {comparison.board} at {comparison.host}, {comparison.rounds} rounds of each{mark}",
        f"a run takes {new_ms}, and {base_ms} in the base: {change_text(comparison.change)}",
        slower_text(comparison),
    ]
    return [Table(rows, head, (1, 2, 3), spare=(5,)), "", *lines]


def slower_text(comparison: Against) -> str:
    """Name the layers that explain a slow-down, and those without a counterpart."""
    worst = culprits(comparison)
    slower = "slower: " + "; ".join(_more_text(layer) for layer in worst) if worst else "no layer is measurably slower"
    return "; ".join([slower, *([unmatched_text(comparison)] if unmatched(comparison) else [])])


def unmatched_text(comparison: Against) -> str:
    """Name the layers without a counterpart, or the longest of them; empty if there are none."""
    layers = unmatched(comparison)
    more = [f"and {len(layers) - _MAX_UNMATCHED} more"] if len(layers) > _MAX_UNMATCHED else []
    return "not matched: " + ", ".join([*map(_more_text, layers[:_MAX_UNMATCHED]), *more]) if layers else ""


def _more_text(layer: Layer) -> str:
    side = f", {_side(layer)}" if layer.change is None else ""
    return f"{layer.name} ({duration(layer.more_ms, signed=True)}{side})"


def change_text(change: Estimate | None) -> str:

    if change is None:
        return ""
    if not math.isfinite(change.low + change.high):
        return f"{change.value:+.1%}"
    return f"{change.value:+.1%}, within {change.low:+.1%} to {change.high:+.1%}"


def _side(layer: Layer) -> str:
    return "" if layer.change else "only in the new release" if layer.new_ms else "only in the base"
