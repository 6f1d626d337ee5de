"""What of a run an accelerator takes, and what is left to the CPU: by time, not by the number of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.pipeline.profile.rows import Row
from toolchain.units import duration

_MOST_NAMED = 5


@dataclass(frozen=True)
class Part:
    """A function of the CPU, all of its calls in a run together.

    Attributes:
        kernel: Its name; empty for what is between kernels.
        operator: What it computes.
        calls: How often a run calls it.
        ms: Milliseconds of these.
    """

    kernel: str
    operator: str
    calls: int
    ms: float


@dataclass(frozen=True)
class Split:
    """The time of a run on a board with an accelerator.

    Attributes:
        accelerator_ms: What its calls took on the device; those of a simulator where it is simulated.
        accelerator_calls: How many these are.
        modelled_ms: What the model of the accelerator says they take.
        cpu_ms: All else.
        cpu_share: That, of both; None where the accelerator is simulated, which takes another time.
        cpu: The functions of the CPU, the longest first.
    """

    accelerator_ms: float
    accelerator_calls: int
    modelled_ms: float
    cpu_ms: float
    cpu_share: float | None
    cpu: tuple[Part, ...]

    def facts(self) -> list[tuple[str, str]]:
        """Return it for people, as names and texts."""
        calls, taken = f"{self.accelerator_calls} calls", duration(self.accelerator_ms)
        modelled = duration(self.modelled_ms)
        parts = ", ".join(f"{one.operator} {duration(one.ms)}" for one in self.cpu[:_MOST_NAMED])
        more = f", {len(self.cpu) - _MOST_NAMED} more" if len(self.cpu) > _MOST_NAMED else ""
        if self.cpu_share is None:
            array = f"modelled: {modelled}, {calls}; the simulator itself took {taken}"
            cpu = f"{duration(self.cpu_ms)} (emulated, so no share of a run)"
        else:
            array = f"{taken}, {1 - self.cpu_share:.1%}, {calls}; modelled: {modelled}"
            cpu = f"{duration(self.cpu_ms)}, {self.cpu_share:.1%}"
        return [("accelerator", array), ("left to the CPU", f"{cpu}: {parts}{more}")]


def split(rows: Sequence[Row], *, emulated: bool) -> Split | None:
    """Return how a run's time is split; None where no accelerator computes that there is a model of.

    Args:
        rows: Those of a profile.
        emulated: Whether the times are an emulator's, or a simulator's.
    """
    own = [row for row in rows if row.modelled_ms is not None]
    if not own:
        return None
    array, cpu = sum(row.ms for row in own), sum(row.ms for row in rows if row.modelled_ms is None)
    return Split(
        accelerator_ms=array,
        accelerator_calls=len(own),
        modelled_ms=sum(row.modelled_ms or 0.0 for row in own),
        cpu_ms=cpu,
        cpu_share=None if emulated or not array + cpu else cpu / (array + cpu),
        cpu=_parts([row for row in rows if row.modelled_ms is None]),
    )


def _parts(rows: Sequence[Row]) -> tuple[Part, ...]:
    found: dict[str, Part] = {}
    for row in rows:
        before = found.get(row.kernel)
        ms = row.ms + (before.ms if before else 0.0)
        found[row.kernel] = Part(row.kernel, row.operator, row.calls, ms)
    return tuple(sorted(found.values(), key=lambda part: -part.ms))
