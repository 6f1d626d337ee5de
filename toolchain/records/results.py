"""The results of candidates, in tuning and in records alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cause = Literal["", "build", "crash", "timeout", "refused", "suspicious", "spills", "costly"]
"""Why a candidate has no latency: it did not compile; it crashed its process; it took too long; the server reported an
error; its times stayed doubtful when they were taken again; or a model saw that it spills or costs too much, so it was
not measured. Empty if it has a latency. A lost board is not a cause: the trial is run again on another board."""

Verdict = Literal["", "faster", "untuned"]
"""What a final decided: that the record's candidate is faster than the untuned kernel, or that the kernel stays
untuned. Empty in the record of a trial, which decides nothing."""

LEAST_S = 5e-9
"""Least possible latency of a kernel in seconds: a call takes longer."""

PRUNED: frozenset[str] = frozenset({"spills", "costly"})
"""The causes of candidates that were not measured."""


@dataclass(frozen=True)
class TensorArg:
    """One argument of a kernel."""

    dtype: str
    shape: tuple[int, ...]
