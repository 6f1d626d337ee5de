"""The search over a layer's templates: their candidates one after the other, the most promising first; then finals.

Other work on a machine makes kernels slower, never faster, for a moment or for a minute. So the candidates that count
are measured twice, some time apart, and of two results the lower one holds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from toolchain import files
from toolchain.backends.base import Choice, Templates
from toolchain.records.tasks import Task

_FASTEST = 3  # finalists by their first result
_FAVOURED = 2  # finalists by the estimate: their first result may have been bad luck


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
        self._results: dict[str, dict[str, list[float]]] = {}
        self._finals: set[str] | None = None  # layers whose finalists were proposed, once finals have begun

    def tried(self, task: Task) -> set[str]:
        """Return the keys of all candidates of a task that are not proposed any more."""
        return self._tried.setdefault(task.workload, set())

    def begin_finals(self) -> None:
        """Propose the best candidates of each layer once more, from now on, when all have been tried."""
        self._finals = self._finals or set()

    def learn(self, task: Task, candidates: Sequence[Candidate], samples: Sequence[Sequence[float]]) -> None:
        """Take results into account: the seconds of each candidate's samples, none for one that failed."""
        known = self._results.setdefault(task.workload, {})
        for candidate, seconds in zip(candidates, samples, strict=True):
            self.tried(task).add(candidate.key)
            if seconds:
                known.setdefault(candidate.key, []).append(statistics.median(seconds))

    def propose(self, task: Task, count: int) -> list[Candidate]:
        """List up to `count` candidates that were not tried yet; in the finals, the finalists, once."""
        left = [one for one in self._templates.candidates(task.layer) if choice_hash(one) not in self.tried(task)]
        if not left and self._finals is not None and task.workload not in self._finals:
            self._finals.add(task.workload)
            left = self._finalists(task)
        found = (self.rebuilt(task, one) for one in left[:count])
        return [one for one in found if one is not None]

    def untuned(self, task: Task) -> str:
        """Return the key of the candidate that computes a layer where nothing was tuned; empty if there is none."""
        return next(map(choice_hash, self._templates.candidates(task.layer)), "")

    def _finalists(self, task: Task) -> list[Choice]:
        """Return the candidates to measure again; none where that has been done, or where there is no choice."""
        results = self._results.get(task.workload, {})
        if any(len(one) > 1 for one in results.values()):
            return []
        known = {choice_hash(one): one for one in self._templates.candidates(task.layer)}
        working = [key for key in known if key in results]
        fastest = sorted(working, key=lambda key: min(results[key]))[:_FASTEST]
        chosen = [known[key] for key in dict.fromkeys((*fastest, *working[:_FAVOURED]))]
        return chosen if len(chosen) > 1 else []

    def rebuilt(self, task: Task, trace: Any) -> Candidate | None:
        """Make a candidate again from its settings; None if they are none for its layer."""
        module = self._templates.module(task.layer, trace) if isinstance(trace, dict) else None
        return None if module is None else Candidate(choice_hash(trace), trace, module)


def choice_hash(choice: Any) -> str:
    """Return the hash of a template's settings as 16 hexadecimal digits."""
    return files.sha256_bytes(json.dumps(choice, sort_keys=True).encode())[:16]
