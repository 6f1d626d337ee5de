"""The builders that a scheduler has at this moment, for the status of the farm."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.errors import BuildersError
from toolchain.tuning.build.cluster import member
from toolchain.tuning.build.cluster.roster import difference, list_workers
from toolchain.tuning.build.cluster.scheduler import Scheduler, error_text


@dataclass(frozen=True)
class BuilderStatus:
    """The status of a builder.

    Attributes:
        name: Its address.
        processes: Candidates that it compiles at a time.
        candidates: Pending candidates of all tuning runs.
        refused: Why a tuning run of this toolchain would not use it; empty if it would.
    """

    name: str
    processes: int
    candidates: int
    refused: str = ""


def survey(scheduler: Scheduler) -> tuple[BuilderStatus, ...]:
    """Return the status of a scheduler's workers, in the order of their addresses.

    Raises:
        InputError: Dask is not installed, or the connection is not safe.
        BuildersError: No scheduler answers.
    """
    with scheduler.client() as client:
        workers = list_workers(scheduler, client)
        identity = member.identity()
        try:
            pending = client.processing()
            answers = client.run(member.identity, workers=list(workers), on_error="return") if workers else {}
        except Exception as fault:  # Dask raises many classes
            raise BuildersError(f"the Dask scheduler at {scheduler} is lost", details=error_text(fault)) from fault
    return tuple(
        BuilderStatus(
            address,
            int(facts["nthreads"]),
            len(pending.get(address, ())),
            difference(answers.get(address), identity),
        )
        for address, facts in sorted(workers.items())
    )
