"""Checks of requirements: what each one probes, what it has found, and what brings what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from toolchain.errors import ToolchainError

T = TypeVar("T")


@dataclass(frozen=True)
class Check(Generic[T]):
    """One requirement. A check that needs the finding of another one gets it as an argument of its probe."""

    name: str  # of the requirement, in a few words
    probe: Callable[[], T]  # returns what is there, or raises the fault, whose hint is the remedy
    remedy: str = ""  # what brings it, if that does not depend on the fault
    board: str = ""  # board type that has the requirement; empty if every one has it

    def outcome(self) -> Outcome:
        """Probe, and return the result, which may be a fault."""
        try:
            finding = self.probe()
        except ToolchainError as fault:
            return Outcome(self.name, self.board, fault.message, self.remedy or fault.hint, passed=False)
        return Outcome(self.name, self.board, str(finding), self.remedy, passed=True)


@dataclass(frozen=True)
class Outcome:
    """The result of a check, for people."""

    name: str  # of the requirement
    board: str  # board type that has it; empty if every one has it
    observation: str  # the finding, or the message of the fault
    remedy: str
    passed: bool

    @property
    def found(self) -> str:
        """What is there; empty if it is missing."""
        return self.observation if self.passed else ""


class Checklist:
    """Runs checks one after the other, and reports all faults together."""

    def __init__(self) -> None:
        self._faults: dict[str, ToolchainError] = {}

    def find(self, check: Check[T]) -> T | None:
        """Return the finding of a check; None after a fault, which is noted."""
        try:
            return check.probe()
        except ToolchainError as fault:
            self._faults[check.name] = fault
            return None

    def passed(self, finding: T | None) -> T:
        """Return a finding if no check has failed.

        Raises:
            ToolchainError: As `raise_faults`.
        """
        self.raise_faults()
        if finding is None:
            raise RuntimeError("a check that has found nothing has no fault")
        return finding

    def raise_faults(self, subject: str = "") -> None:
        """Raise the faults, if there are any.

        Args:
            subject: Whose faults they are, for the message about several.

        Raises:
            ToolchainError: The only fault; or all of them in one error, of the class of the first.
        """
        if not self._faults:
            return
        first = next(iter(self._faults.values()))
        if len(self._faults) == 1:
            raise first
        texts = []
        for name, fault in self._faults.items():
            lines = [f"{name}: {fault.message}", *fault.details.splitlines()]
            texts.append("\n  ".join([*lines, f"hint: {fault.hint}"] if fault.hint else lines))
        message = f"{len(texts)} problems: {', '.join(self._faults)}"
        if subject:
            message = f"{len(texts)} obstacles on {subject}; first: {first.message}"
        raise type(first)(message, details="\n".join(texts), hint=first.hint)
