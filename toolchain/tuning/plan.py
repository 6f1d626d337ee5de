"""The settings of a tuning run, and how many of its candidates are pending at a time."""

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
_ROUND_PER_BOARD = 4  # candidates of a round for each board: a search for more at once costs little more
_PENDING_PER_BOARD = 4  # candidates while others are searched: one runs, the others are built or wait
_ROUNDS_OF_A_TASK = 2  # at least, so that the search learns from results


@dataclass(frozen=True)
class Pace:
    """How many candidates of a run are pending at a time. The results depend on it, so a resumed run keeps its pace.

    Attributes:
        batch: Candidates of one round.
        ahead: Candidates that are built and measured while others are searched; 0 where that would disturb the
            measurements.
    """

    batch: int = BATCH
    ahead: int = AHEAD

    @property
    def first_batch(self) -> int:
        """Candidates of the first round of a task, so that few trials reach every task."""
        return min(self.batch, BATCH) // 2


UNDISTURBED = Pace(ahead=0)
"""For a machine that measures on its own CPUs: it must not search or build meanwhile."""


def pace_for(boards: int, trials_each: int) -> Pace:
    """Return a pace at which boards always have work.

    The later a search learns of results, the less they guide it: with few boards, rounds are short. `trials_each` are
    the trials of the run for each of its tasks.
    """
    batch = max(BATCH, min(_MOST_BATCH, _ROUND_PER_BOARD * boards, trials_each // _ROUNDS_OF_A_TASK))
    return Pace(batch, max(AHEAD, _PENDING_PER_BOARD * boards))


@dataclass(frozen=True)
class Plan:
    """The settings of a run.

    Attributes:
        tuner: Search strategy.
        trials: Trials of the whole run, those of an earlier part of it included.
        seed: Seed of the search.
        per_task: Most trials of one task; 0 for no limit.
        early_stop: Trials without a gain after which a task is not tuned any further; 0 for never.
        budget_s: Seconds after which no new round begins; 0 for no limit.
        options: How candidates are measured.
        pace: How many candidates are pending at a time.
        passing_bytes: Bytes of the model's weights.
        prune: A candidate is measured only if a model sees no spills in it and its cost is at most this many times that
            of the best; 0 to measure all.
        fresh: Whether earlier records of these kernels are ignored, and all is measured anew.
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
        """Return the name of the run with these settings: records of the same name are a part of it.

        Args:
            key: What its records are made for.
            tasks: The kernels to tune.
            pruned_by: The model that rules candidates out: another model rules out others.
        """
        settings = asdict(self)
        # A run may be resumed with other limits; its pace is recorded with its beginning.
        for name in ("trials", "budget_s", "fresh", "pace"):
            del settings[name]
        if not self.prune:  # keeps the names of runs from before there was pruning
            del settings["prune"]
        identity = [settings, key.id, sorted(task.workload for task in tasks), *([pruned_by] if pruned_by else [])]
        return files.sha256_bytes(files.canonical_json(identity))[:12]
