"""The time of a run that an accelerator takes, and the time that is left to the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.pipeline.profile.rows import Row
from toolchain.units import duration

_MAX_FUNCTIONS = 5


@dataclass(frozen=True)
class CpuFunction:
    """A function of the CPU: `calls` and `ms` are of all its calls in a run; `kernel` is empty between kernels."""

    kernel: str
    operator: str
    calls: int
    ms: float


@dataclass(frozen=True)
class Split:
    """The time of a run on a board with an accelerator."""

    accelerator_ms: float  # of its calls on the device; a simulator's time if it is simulated
    accelerator_calls: int
    modelled_ms: float  # of the same calls, as the model of the accelerator computes it
    cpu_ms: float  # everything else
    cpu_share: float | None  # of both; None if the accelerator is simulated, whose time is not the board's
    cpu: tuple[CpuFunction, ...]  # the functions of the CPU, the longest first

    def facts(self) -> list[tuple[str, str]]:
        calls, accelerator = f"{self.accelerator_calls} calls", duration(self.accelerator_ms)
        modelled = duration(self.modelled_ms)
        functions = ", ".join(f"{function.operator} {duration(function.ms)}" for function in self.cpu[:_MAX_FUNCTIONS])
        more = f", {len(self.cpu) - _MAX_FUNCTIONS} more" if len(self.cpu) > _MAX_FUNCTIONS else ""
        if self.cpu_share is None:
            accelerator_text = f"modelled: {modelled}, {calls}; the simulator itself took {accelerator}"
            cpu_text = f"{duration(self.cpu_ms)} (emulated, so no share of a run)"
        else:
            accelerator_text = f"{accelerator}, {1 - self.cpu_share:.1%}, {calls}; modelled: {modelled}"
            cpu_text = f"{duration(self.cpu_ms)}, {self.cpu_share:.1%}"
        return [("accelerator", accelerator_text), ("left to the CPU", f"{cpu_text}: {functions}{more}")]


def split(rows: Sequence[Row], *, emulated: bool) -> Split | None:
    """Return how a run's time is split; None if no accelerator with a model computes any of it."""
    offloaded = [row for row in rows if row.modelled_ms is not None]
    if not offloaded:
        return None
    others = [row for row in rows if row.modelled_ms is None]
    functions: dict[str, CpuFunction] = {}
    for row in others:
        earlier = functions.get(row.kernel)
        ms = row.ms + (earlier.ms if earlier else 0.0)
        functions[row.kernel] = CpuFunction(row.kernel, row.operator, row.calls, ms)
    accelerator_ms, cpu_ms = sum(row.ms for row in offloaded), sum(row.ms for row in others)
    return Split(
        accelerator_ms=accelerator_ms,
        accelerator_calls=len(offloaded),
        modelled_ms=sum(row.modelled_ms or 0.0 for row in offloaded),
        cpu_ms=cpu_ms,
        cpu_share=None if emulated or not accelerator_ms + cpu_ms else cpu_ms / (accelerator_ms + cpu_ms),
        cpu=tuple(sorted(functions.values(), key=lambda function: -function.ms)),
    )
