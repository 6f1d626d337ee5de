"""What is said of a candidate that ran, or did not, in tuning and in records alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cause = Literal["", "build", "crash", "timeout", "refused"]
"""Why a candidate has no latency: it did not compile; it ended the process that ran it; it took too long; or what
runs it reported an error. Empty where it has one. A lost board is no cause: the trial is run again elsewhere."""


@dataclass(frozen=True)
class TensorArg:
    """One argument of a kernel."""

    dtype: str
    shape: tuple[int, ...]
