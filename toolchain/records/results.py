"""What is said of a candidate that ran, or did not, in tuning and in records alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cause = Literal["", "build", "crash", "timeout", "refused", "suspicious", "spills", "costly"]
"""Why a candidate has no latency: it did not compile; it ended the process that ran it; it took too long; what
runs it reported an error; its times cannot be believed, however often they are taken; or a model said that it spills or
costs too much, so that no board was asked. Empty where it has one. A lost board is no cause: the trial is run again
elsewhere."""

Verdict = Literal["", "faster", "untuned"]
"""What a final decided of a kernel: that its record's candidate is faster than what the kernel is untuned, or that it
stays untuned. Empty where a record is of a single trial, which decides nothing."""

LEAST_S = 5e-9
"""Seconds that no kernel takes less than: calling one takes longer."""

PRUNED: frozenset[str] = frozenset({"spills", "costly"})
"""The causes of candidates that no board was asked about."""


@dataclass(frozen=True)
class TensorArg:
    """One argument of a kernel."""

    dtype: str
    shape: tuple[int, ...]
