"""Which builders a scheduler has at this moment: what is shown beside the boards of the farm."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.errors import BuildersError
from toolchain.tuning.build.cluster import member
from toolchain.tuning.build.cluster.roster import difference, there
from toolchain.tuning.build.cluster.scheduler import Scheduler, words_of


@dataclass(frozen=True)
class Seen:
    """A builder as it is now.

    Attributes:
        name: Its address.
        processes: How many candidates it compiles at a time.
        candidates: How many it has been given, whoever tunes, and not given back yet.
        refused: Why a tuning run of this toolchain would give it nothing; empty if it would.
    """

    name: str
    processes: int
    candidates: int
    refused: str = ""


def survey(scheduler: Scheduler) -> tuple[Seen, ...]:
    """Look at a scheduler's workers, in the order of their addresses.

    Raises:
        InputError: Dask is not installed, or the connection is not safe.
        BuildersError: No scheduler answers.
    """
    with scheduler.client() as client:
        workers = there(scheduler, client)
        wanted = member.identity()
        try:
            given = client.processing()
            answers = client.run(member.identity, workers=list(workers), on_error="return") if workers else {}
        except Exception as fault:  # of Dask's many classes
            raise BuildersError(f"the Dask scheduler at {scheduler} is lost", details=words_of(fault)) from fault
    return tuple(
        Seen(address, int(one["nthreads"]), len(given.get(address, ())), difference(answers.get(address), wanted))
        for address, one in sorted(workers.items())
    )
