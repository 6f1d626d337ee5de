"""The search over a layer's templates: their candidates one after the other, the most promising first."""

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
    """Proposes the templates' kernels of layers.

    Args:
        templates: The kernels that the backend writes itself.
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._tried: dict[str, set[str]] = {}

    def tried(self, task: Task) -> set[str]:
        """Return the keys of all candidates of a task that are not proposed any more."""
        return self._tried.setdefault(task.workload, set())

    def propose(self, task: Task, count: int) -> list[Candidate]:
        """List up to `count` candidates that were not tried yet."""
        left = [one for one in self._templates.candidates(task.layer) if choice_hash(one) not in self.tried(task)]
        found = (self.rebuilt(task, one) for one in left[:count])
        return [one for one in found if one is not None]

    def base(self, task: Task, shipped: Choice | None) -> Candidate:
        """Return what computes a layer where nothing was tuned: by a choice that comes with the toolchain, if any."""
        candidates = self._templates.candidates(task.layer)
        found = (self.rebuilt(task, one) for one in (shipped, *candidates) if one is not None)
        return next(one for one in found if one is not None)

    def rebuilt(self, task: Task, trace: Any) -> Candidate | None:
        """Make a candidate again from its settings; None if they are none for its layer."""
        module = self._templates.module(task.layer, trace) if isinstance(trace, dict) else None
        return None if module is None else Candidate(choice_hash(trace), trace, module)


def choice_hash(choice: Any) -> str:
    """Return the hash of a template's settings as 16 hexadecimal digits."""
    return files.sha256_bytes(json.dumps(choice, sort_keys=True).encode())[:16]
