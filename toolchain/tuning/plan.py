"""What a tuning run is asked for, and how much of it is on its way at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from toolchain import files
from toolchain.records import Key
from toolchain.records.lines import AHEAD, BATCH
from toolchain.records.tasks import Task
from toolchain.tuning.search import Tuner
from toolchain.tuning.trials import Options

_MOST_BATCH = 128
_BOARDS_A_ROUND = 4  # candidates of a round for each board: a search costs little more where more is found at once
_ON_THEIR_WAY = 4  # candidates for each board while others are searched: one runs, the others are built or wait for it
_ROUNDS_OF_A_TASK = 2  # at least, so that a search learns of what it found


@dataclass(frozen=True)
class Pace:
    """How much of a run is on its way at a time. What a run finds follows from it, so it stays what it was at first.

    Attributes:
        batch: Candidates of one round.
        ahead: Candidates that are built and measured while others are searched; 0 where that would disturb the
            measuring.
    """

    batch: int = BATCH
    ahead: int = AHEAD

    @property
    def first_batch(self) -> int:
        """Candidates of the first round of a task, so that few trials reach every task."""
        return min(self.batch, BATCH) // 2


UNDISTURBED = Pace(ahead=0)
"""For a machine that searches and builds what it measures itself."""


def pace_for(boards: int, trials_each: int) -> Pace:
    """Return a pace at which boards have work at any time.

    The later a search learns of results, the less it is guided by them: few boards have short rounds.

    Args:
        boards: How many there are.
        trials_each: Trials of the run for each of its tasks.
    """
    batch = max(BATCH, min(_MOST_BATCH, _BOARDS_A_ROUND * boards, trials_each // _ROUNDS_OF_A_TASK))
    return Pace(batch, max(AHEAD, _ON_THEIR_WAY * boards))


@dataclass(frozen=True)
class Plan:
    """What a run is asked for.

    Attributes:
        tuner: Search strategy.
        trials: Trials of the whole run, those of an earlier part of it included.
        seed: Seed of the search.
        per_task: Most trials of one task; 0 for no limit.
        early_stop: Trials without a gain after which a task is left; 0 for never.
        budget_s: Seconds after which no new round begins; 0 for no limit.
        options: How candidates are measured.
        pace: How much is on its way at a time.
        passing_bytes: Bytes of the model's weights.
        prune: How many times as much as the best known a candidate may cost by a model, which must not see it spill
            either, to be measured; 0 where no model is asked.
        fresh: Whether all is measured anew, and what there is of these kernels is passed over.
    """

    tuner: Tuner = "evolutionary-xgb"
    trials: int = 500
    seed: int = 0
    per_task: int = 0
    early_stop: int = 0
    budget_s: float = 0.0
    options: Options = field(default_factory=Options)
    pace: Pace = field(default_factory=Pace)
    passing_bytes: int = 0
    prune: float = 0.0
    fresh: bool = False

    def run_id(self, key: Key, tasks: Sequence[Task], pruned_by: str = "") -> str:
        """Name the run that these settings make: records of the same name are a part of it.

        Args:
            key: What its records are found under.
            tasks: What is tuned.
            pruned_by: Which model rules candidates out: another one rules out others.
        """
        settings = asdict(self)
        # Where a run ends or begins does not change the way there, and its pace is kept with its beginning.
        for name in ("trials", "budget_s", "fresh", "pace"):
            del settings[name]
        if not self.prune:  # such runs are called what they were before there was pruning
            del settings["prune"]
        named = [settings, key.id, sorted(task.workload for task in tasks), *([pruned_by] if pruned_by else [])]
        return files.sha256_bytes(files.canonical_json(named))[:12]
