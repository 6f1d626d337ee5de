"""Recorded rounds: reading, writing, and how they scatter. The files in data/ are gzipped CSV behind a line of JSON."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import files

FOLDER = Path(__file__).with_name("data")
KINDS = ("calm", "neighbours", "hostile")


@dataclass(frozen=True)
class Round:
    """One process of the runner.

    Attributes:
        at_s: When it began, in seconds since the first.
        median_us: Median of its timed runs, in microseconds.
        runs: How many these were.
        switches: Involuntary context switches of the process.
        busy: Busy processes that the recorder had set beside it.
    """

    at_s: float
    median_us: float
    runs: int
    switches: int
    busy: int


@dataclass(frozen=True)
class Recording:
    """Rounds of one release in one kind of noise, in order, and what they were taken under."""

    about: Mapping[str, Any]
    rounds: tuple[Round, ...]

    @property
    def medians(self) -> NDArray[np.float64]:
        """Median of each round, in microseconds."""
        return np.array([round_.median_us for round_ in self.rounds])

    @property
    def sd(self) -> float:
        """Standard deviation of the logarithms of the medians."""
        return float(np.log(self.medians).std(ddof=1))

    def save(self, path: Path) -> None:
        """Write it; what was there is replaced at once."""
        text = io.StringIO()
        text.write(f"# {json.dumps(self.about)}\n")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(field.name for field in fields(Round))
        rows.writerows(
            (round_.at_s, f"{round_.median_us:.1f}", round_.runs, round_.switches, round_.busy)
            for round_ in self.rounds
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, gzip.compress(text.getvalue().encode(), mtime=0))

    def spread(self) -> str:
        """Say how far its rounds scatter: standard deviation and a robust one of the logarithms, and how they last."""
        logs, switches = np.log(self.medians), np.median([round_.switches for round_ in self.rounds])
        lasting = ", ".join(f"{autocorrelation(logs, lag):.2f} at lag {lag}" for lag in (1, 10))
        scatter = f"log-sd {self.sd:.2%} (robust {robust_sd(logs):.2%})"
        return f"{scatter}, autocorrelation {lasting}, {switches:.0f} switches at the median"


def load(kind: str) -> Recording:
    """Read one of the recordings that come with this project."""
    about, _, table = gzip.decompress((FOLDER / f"{kind}.csv.gz").read_bytes()).decode().partition("\n")
    rows = csv.reader(table.splitlines()[1:])
    rounds = tuple(
        Round(float(at_s), float(median), int(n), int(switches), int(busy)) for at_s, median, n, switches, busy in rows
    )
    return Recording(json.loads(about.removeprefix("# ")), rounds)


def robust_sd(values: NDArray[np.float64]) -> float:
    """Return a standard deviation that outliers do not move: 1.4826 times the median distance from the median."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def autocorrelation(values: NDArray[np.float64], lag: int) -> float:
    """Return the correlation of values with those that follow at some distance."""
    return float(np.corrcoef(values[:-lag], values[lag:])[0, 1])
