"""What came of a roll-out: which devices run what, which failed, and what the command ends with."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.devices import Device
from toolchain.errors import ToolchainError
from toolchain.pipeline.rollout import kinds
from toolchain.pipeline.rollout.groups import Thresholds
from toolchain.pipeline.rollout.state import Plan, Record

SCHEMA_VERSION = 1
_SHOWN = 20
_COUNTED = ("done", "failed", "waiting", "running", "returning", "returned")


@dataclass(frozen=True)
class Rollout:
    """A roll-out that has ended, for now.

    Attributes:
        plan: What it is of.
        devices: What is known of each device.
        hosts: Where each is.
        thresholds: When it stops.
        stopped: Why it stopped; empty if it went through all groups.
        state: The file that it goes on from.
        seconds: How long this run took.
        left_out: How many devices of the fleet are of other board types, or of none.
    """

    plan: Plan
    devices: Mapping[str, Record]
    hosts: Mapping[str, Device]
    thresholds: Thresholds
    stopped: str
    state: Path
    seconds: float
    left_out: int = 0

    @property
    def counts(self) -> Counter[str]:
        """How many devices are in each state."""
        return Counter(one.state for one in self.devices.values())

    @property
    def failures(self) -> dict[str, Record]:
        """The devices on which something failed, by name."""
        return {name: one for name, one in self.devices.items() if one.exit_code}

    @property
    def emulated(self) -> bool:
        """Whether some latency is an emulator's."""
        return any(one.emulated for one in self.devices.values())

    @property
    def sentence(self) -> str:
        """What came of it, in one sentence."""
        done, size = self.counts["done"], len(self.devices)
        told = f"{done} of {size} device(s) run {self.plan.model} {self.plan.package[:16]}"
        return f"{told}; stopped: {self.stopped}" if self.stopped else told

    def fault(self) -> ToolchainError | None:
        """Return the error that the roll-out ends with; None if every device is done."""
        if self.counts["done"] == len(self.devices):
            return None
        kind = kinds.gravest({one.exit_code for one in self.failures.values()})
        lines = [f"{name}: {one.kind} (exit code {one.exit_code}): {one.error}" for name, one in self.failures.items()]
        more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        return kind(
            self.sentence,
            details="\n".join([*lines[:_SHOWN], *more]),
            hint=f"fix the causes and run the same command again: it resumes from {self.state}",
        )

    def groups(self) -> list[tuple[int, Counter[str]]]:
        """Return how many devices of each group are in each state."""
        numbers = sorted({one.group for one in self.devices.values()})
        return [
            (number, Counter(one.state for one in self.devices.values() if one.group == number)) for number in numbers
        ]

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it; docs/rollout.md describes every field."""
        return {
            "schema_version": SCHEMA_VERSION,
            "sentence": self.sentence,
            "stopped": self.stopped or None,
            "package": f"sha256:{self.plan.package}",
            "model": self.plan.model,
            "board": self.plan.board,
            "emulated": self.emulated,
            "state_file": str(self.state),
            "waves": list(self.plan.waves),
            "error_threshold": str(self.thresholds.error),
            "success_threshold": self.thresholds.success,
            "left_out": self.left_out,
            "seconds": round(self.seconds, 3),
            "groups": [
                {"group": number, "devices": counts.total(), **{name: counts[name] for name in _COUNTED}}
                for number, counts in self.groups()
            ],
            "devices": [self._device(name, one) for name, one in self.devices.items()],
        }

    def _device(self, name: str, one: Record) -> dict[str, Any]:
        named = {"before": _digest(one.before), "after": _digest(one.after), "kind": one.kind or None}
        return {"name": name, "host": self.hosts[name].host, **dataclasses.asdict(one), **named}


def _digest(known: str | None) -> str | None:
    return f"sha256:{known}" if known else known
