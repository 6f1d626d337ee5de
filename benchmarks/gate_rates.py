"""How often the gate's rule is right, on recorded rounds: what it says of pairs of which one side is slower by so much.

    python benchmarks/gate_rates.py [calm|neighbours|hostile ...] [--pairs 1000] [--worst 5] [--json FILE]

Both sides of a pair are the same release: rounds that followed each other when they were recorded (`rounds.py`), in
turns, who goes first alternates. A change multiplies one side. Pairs start at even distances in a recording, so that
they overlap where it is shorter than they are together. Ends with 1 where a rate is beyond its limit.

Limits: of pairs without a change at most 1 % are alarms. Of those 5 % slower at least 95 % are found and at most 1 %
passed where the logarithms of the rounds have a standard deviation of 6 % or less; elsewhere at most 4 % are passed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _recorded
from toolchain.report import Table
from toolchain.stats import Rule, Verdict

CHANGES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.10, -0.05)
ALARMS, FOUND, PASSED, PASSED_NOISY = 0.01, 0.95, 0.01, 0.04
CALM_SD = 0.06
_JUDGED = 0.05


@dataclass(frozen=True)
class Rates:
    """What the rule made of pairs with one change.

    Attributes:
        noise: Kind of noise.
        change: By how much one side is slower: 0.05 is 5 %.
        pairs: How many pairs were judged.
        regression: Share that was called a regression.
        passed: Share that passed.
        inconclusive: Share of the rest.
        rounds: Rounds that a pair took on average, those that confirm included.
    """

    noise: str
    change: float
    pairs: int
    regression: float
    passed: float
    inconclusive: float
    rounds: float


def pair(medians: NDArray[np.float64], start: int, rounds: int) -> NDArray[np.float64]:
    """Return the log ratios of so many rounds of a pair whose first process is the one at `start`."""
    logs = np.log(medians[start : start + 2 * rounds]).reshape(rounds, 2)
    return (logs[:, 1] - logs[:, 0]) * np.where(np.arange(rounds) % 2, -1, 1)


def rates(noise: str, medians: NDArray[np.float64], change: float, pairs: int, rule: Rule) -> Rates:
    """Judge pairs of one recording."""
    rounds = rule.looks[-1] + rule.confirming
    verdicts, rounds_used = [], 0
    for start in np.linspace(0, len(medians) - 2 * rounds, pairs).astype(int).tolist():
        remaining = (pair(medians, start, rounds) + math.log1p(change)).tolist()[::-1]
        verdicts.append(rule.decide(remaining.pop).verdict)
        rounds_used += rounds - len(remaining)
    shares = (verdicts.count(verdict) / pairs for verdict in (Verdict.REGRESSION, Verdict.PASS, Verdict.INCONCLUSIVE))
    return Rates(noise, change, pairs, *shares, rounds_used / pairs)


def faults(all_rates: Sequence[Rates], sd: float) -> list[str]:
    """Say which rates of one kind of noise are beyond their limits.

    Args:
        all_rates: The rates.
        sd: Standard deviation of the logarithms of the rounds.
    """
    by_change = {entry.change: entry for entry in all_rates}
    same, slower, calm = by_change.get(0.0), by_change.get(_JUDGED), sd <= CALM_SD
    limits = []
    if same:
        limits.append((same.regression > ALARMS, f"{same.regression:.1%} alarms without a change, limit {ALARMS:.0%}"))
    if slower:
        limit = PASSED if calm else PASSED_NOISY
        limits.append((slower.passed > limit, f"{slower.passed:.1%} of +5 % passed, limit {limit:.0%}"))
        limits.append((calm and slower.regression < FOUND, f"{slower.regression:.1%} of +5 % found, limit {FOUND:.0%}"))
    return [f"{all_rates[0].noise}: {text}" for beyond, text in limits if beyond]


def table(all_rates: Sequence[Rates]) -> str:
    """Render rates for a terminal."""
    rows = [["noise", "change", "regression", "pass", "inconclusive", "rounds"]]
    for entry in all_rates:
        shares = (f"{share:.1%}" for share in (entry.regression, entry.passed, entry.inconclusive))
        rows.append([entry.noise, f"{entry.change:+.0%}" if entry.change else "0", *shares, f"{entry.rounds:.1f}"])
    return str(Table(rows))


def main() -> None:
    """Print the tables, and end with 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=_recorded.KINDS, metavar="KIND")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--worst", type=float, default=5.0, help="per cent; the rule's")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rule = Rule(worst=options.worst / 100)
    wrong: list[str] = []
    document: list[dict[str, Any]] = []
    for kind in options.kinds:
        recording = _recorded.load(kind)
        all_rates = [rates(kind, recording.medians, change, options.pairs, rule) for change in CHANGES]
        print(f"{kind}: {len(recording.rounds)} rounds of {recording.about['model']}, {recording.spread()}")
        print(f"{table(all_rates)}\n", flush=True)
        wrong += faults(all_rates, recording.sd)
        document.append({**recording.about, "log_sd": recording.sd, "rates": [asdict(entry) for entry in all_rates]})
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if wrong:
        sys.exit("beyond their limits:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
