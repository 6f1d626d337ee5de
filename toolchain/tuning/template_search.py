"""The search over a layer's templates: their candidates in order, the most promising first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tvm

from toolchain import files
from toolchain.backends.base import Choice, Templates
from toolchain.records.tasks import Task


@dataclass(frozen=True)
class Candidate:
    """One way to schedule a kernel.

    Attributes:
        key: Structural hash of the scheduled module, or hash of a template's settings, in hexadecimal.
        trace: The schedule's trace, or a template's settings, as JSON.
        module: The scheduled TIR module.
        schedule: MetaSchedule's schedule, postprocessing included; None for a template's kernel.
    """

    key: str
    trace: Any
    module: tvm.IRModule
    schedule: Any = None


class TemplateSearch:
    """Proposes candidates for layers that templates of the backend compute."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._tried: dict[str, set[str]] = {}

    def tried(self, task: Task) -> set[str]:
        """Return the keys of all candidates of a task that are not proposed again; callers may add to it."""
        return self._tried.setdefault(task.workload, set())

    def propose(self, task: Task, count: int) -> list[Candidate]:
        """List up to `count` candidates that were not tried yet."""
        tried = self.tried(task)
        untried = [choice for choice in self._templates.candidates(task.layer) if choice_hash(choice) not in tried]
        candidates = (self.rebuild(task, choice) for choice in untried[:count])
        return [candidate for candidate in candidates if candidate is not None]

    def base(self, task: Task, shipped: Choice | None) -> Candidate:
        """Return the untuned kernel of a layer: by the shipped choice if there is one, else by the first template."""
        choices = (shipped, *self._templates.candidates(task.layer))
        candidates = (self.rebuild(task, choice) for choice in choices if choice is not None)
        return next(candidate for candidate in candidates if candidate is not None)

    def rebuild(self, task: Task, trace: Any) -> Candidate | None:
        """Rebuild a candidate from its settings; None if they do not fit its layer."""
        module = self._templates.module(task.layer, trace) if isinstance(trace, dict) else None
        return None if module is None else Candidate(choice_hash(trace), trace, module)


def choice_hash(choice: Any) -> str:
    # Sorted, so that equal settings have the same hash.
    return files.sha256_bytes(json.dumps(choice, sort_keys=True).encode())[:16]
