"""The result of a roll-out: what each device runs, what failed, and with which error the command ends."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import errors
from toolchain.devices import Device
from toolchain.errors import ToolchainError
from toolchain.pipeline.rollout.groups import Thresholds
from toolchain.pipeline.rollout.state import Plan, Record
from toolchain.pipeline.rollout.threads import LateError

SCHEMA_VERSION = 1
_MAX_FAILURES = 20
_STATES = ("done", "failed", "waiting", "running", "returning", "returned")


# The first class that an error is an instance of counts, so subclasses come before their base.
_KINDS: dict[type[BaseException], str] = {
    errors.BusyError: "busy",
    errors.UnreachableError: "unreachable",
    errors.FullError: "full",
    LateError: "timeout",
    errors.HostKeyError: "host key",
    errors.MismatchError: "wrong machine",
    errors.OutputError: "wrong output",
    errors.UnhealthyError: "unhealthy",
    errors.RegressionError: "slow",
    errors.InconclusiveError: "too few samples",
    errors.VerificationError: "verification",
    errors.DeviceError: "device",
    errors.InputError: "input",
    ToolchainError: "other",
}
# The gravest one last: a device with wrong results counts for more than one that is off.
_CODES: dict[int, type[ToolchainError]] = {
    kind.exit_code: kind
    for kind in (
        errors.BusyError,
        errors.InputError,
        errors.BuildError,
        errors.DeviceError,
        ToolchainError,
        errors.InconclusiveError,
        errors.RegressionError,
        errors.VerificationError,
    )
}


def failure_kind(fault: BaseException) -> str:
    return next((name for kind, name in _KINDS.items() if isinstance(fault, kind)), "internal")


def gravest_error(codes: set[int]) -> type[ToolchainError]:
    """Return the class of errors with which a roll-out ends whose devices failed with these exit codes."""
    return next((_CODES[code] for code in reversed(_CODES) if code in codes), ToolchainError)


@dataclass(frozen=True)
class Rollout:
    """A roll-out that has ended, or stopped."""

    plan: Plan
    devices: Mapping[str, Record]
    hosts: Mapping[str, Device]
    thresholds: Thresholds
    stopped: str  # why it stopped; empty if it went through all groups
    state: Path  # the file from which it can be resumed
    seconds: float  # duration of this run
    left_out: int = 0  # how many devices of the fleet have another board type, or none
    supported_until: str = ""  # the last day of the publisher's support for the package; empty for none

    @property
    def counts(self) -> Counter[str]:
        """How many devices are in each state."""
        return Counter(record.state for record in self.devices.values())

    @property
    def failures(self) -> dict[str, Record]:
        """The devices on which something failed, by name."""
        return {name: record for name, record in self.devices.items() if record.exit_code}

    @property
    def emulated(self) -> bool:
        """Whether some latency is an emulator's."""
        return any(record.emulated for record in self.devices.values())

    @property
    def sentence(self) -> str:
        finished, size = self.counts["done"], len(self.devices)
        text = f"{finished} of {size} device(s) run {self.plan.model} {self.plan.package[:16]}"
        return f"{text}; stopped: {self.stopped}" if self.stopped else text

    def fault(self) -> ToolchainError | None:
        """Return the error that the roll-out ends with; None if every device is done."""
        if self.counts["done"] == len(self.devices):
            return None
        error = gravest_error({record.exit_code for record in self.failures.values()})
        lines = [
            f"{name}: {record.kind} (exit code {record.exit_code}): {record.error}"
            for name, record in self.failures.items()
        ]
        more = [f"and {len(lines) - _MAX_FAILURES} more"] if len(lines) > _MAX_FAILURES else []
        return error(
            self.sentence,
            details="\n".join([*lines[:_MAX_FAILURES], *more]),
            hint=f"fix the causes and run the same command again: it resumes from {self.state}",
        )

    def groups(self) -> list[tuple[int, Counter[str]]]:
        """Return the number of devices in each state, group by group."""
        numbers = sorted({record.group for record in self.devices.values()})
        return [
            (number, Counter(record.state for record in self.devices.values() if record.group == number))
            for number in numbers
        ]

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types; docs/rollout.md describes every field."""
        return {
            "schema_version": SCHEMA_VERSION,
            "sentence": self.sentence,
            "stopped": self.stopped or None,
            "package": f"sha256:{self.plan.package}",
            "model": self.plan.model,
            "board": self.plan.board,
            "slot": self.plan.slot,
            "emulated": self.emulated,
            "state_file": str(self.state),
            "waves": list(self.plan.waves),
            "error_threshold": str(self.thresholds.error),
            "success_threshold": self.thresholds.success,
            "left_out": self.left_out,
            "supported_until": self.supported_until,
            "seconds": round(self.seconds, 3),
            "groups": [
                {"group": number, "devices": counts.total(), **{name: counts[name] for name in _STATES}}
                for number, counts in self.groups()
            ],
            "devices": [
                {
                    "name": name,
                    "host": self.hosts[name].host,
                    **dataclasses.asdict(record),
                    "before": record.before and f"sha256:{record.before}",
                    "after": record.after and f"sha256:{record.after}",
                    "kind": record.kind or None,
                }
                for name, record in self.devices.items()
            ],
        }
