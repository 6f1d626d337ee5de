"""Roll-outs to devices that are made up: what each runs is a word, and how it fails is said beforehand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.errors import UnreachableError
from toolchain.pipeline.rollout import Loop, Rules
from toolchain.pipeline.rollout.state import Plan, Record, StateFile
from toolchain.pipeline.rollout.threads import Outcome, Visit

NEW, OLD = "b" * 64, "a" * 64
PLAN = Plan(NEW, "net", "x86_64", "f" * 64, ("1", "100%"))


@dataclass
class Devices:
    """Devices that are deployed to in no time.

    Attributes:
        runs: What each runs.
        faults: What is raised in place of the deploy, by device; of one that is off also when it is taken back.
        late: The same, after the switch.
        lost: Those that cannot be asked any more once something failed.
        deploys: Who was deployed to, in order.
        befores: What each ran before the roll-out, as the roll-out says.
        before: Called as a deploy begins, by its thread.
    """

    runs: dict[str, str]
    faults: dict[str, Exception] = field(default_factory=dict)
    late: dict[str, Exception] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    deploys: list[str] = field(default_factory=list)
    befores: dict[str, str] = field(default_factory=dict)
    before: Callable[[Visit], None] = lambda _visit: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def deploy(self, visit: Visit) -> Outcome:
        name = visit.name
        self.before(visit)
        if isinstance(fault := self.faults.get(name), UnreachableError):
            raise fault
        before = visit.report_release(self.runs[name])
        with self._lock:
            self.befores[name] = before
            self.deploys.append(name)
        if not fault:
            self.runs[name] = NEW
        if fault := fault or self.late.get(name):
            visit.after = None if name in self.lost else self.runs[name]
            raise fault
        return Outcome(NEW, 2.5)

    def roll_back_device(self, visit: Visit, before: str) -> Outcome:
        if isinstance(fault := self.faults.get(visit.name), UnreachableError):
            raise fault
        if self.runs[visit.name] == NEW:
            self.runs[visit.name] = before
        return Outcome(self.runs[visit.name])


def fleet(*sizes: int) -> dict[str, Record]:
    """Return so many devices in each group, called a0, a1, b0 and so on."""
    names = [
        (f"{chr(ord('a') + group)}{number}", group + 1) for group, size in enumerate(sizes) for number in range(size)
    ]
    return {name: Record(group) for name, group in names}


def loop(
    path: Path, records: dict[str, Record], devices: Devices, rules: Rules, messages: list[str] | None = None
) -> Loop:
    lines = [] if messages is None else messages
    return Loop(StateFile(path, PLAN, records), devices, rules, lines.append)
