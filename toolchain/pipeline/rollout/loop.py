"""The loop: group after group is deployed to, as long as not too many devices fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from toolchain.failure import Failure
from toolchain.pipeline.rollout import kinds
from toolchain.pipeline.rollout.crew import Crew, Outcome, Visit
from toolchain.pipeline.rollout.groups import Thresholds
from toolchain.pipeline.rollout.state import Record, State, StateFile
from toolchain.process import tail
from toolchain.progress import stage
from toolchain.tables import printable

_KEPT = 2000  # letters of what a device says


class Work(Protocol):
    """What is done on one device."""

    def deploy(self, visit: Visit) -> Outcome:
        """Bring the package to a device, check and measure it there; `visit.found` comes before any change."""

    def take_back(self, visit: Visit, before: str) -> Outcome:
        """Make the release current again that a device ran before."""


@dataclass(frozen=True)
class Rules:
    """How a roll-out is done.

    Attributes:
        parallel: Devices at once.
        thresholds: When it stops.
        roll_back: Whether the group in which it stops is taken back.
        limit_s: Seconds that one device may take.
    """

    parallel: int = 8
    thresholds: Thresholds = field(default_factory=Thresholds)
    roll_back: bool = False
    limit_s: float = 1800.0


class Loop:
    """A roll-out at work.

    Args:
        state: What is known so far, and its file.
        work: What is done on a device.
        rules: How it is done.
        tell: Told about each group and each device.
    """

    def __init__(self, state: StateFile, work: Work, rules: Rules, tell: Callable[[str], None]) -> None:
        self._state, self._work, self._rules, self._tell = state, work, rules, tell
        self._crew = Crew(self, rules.parallel, rules.limit_s)

    @property
    def _devices(self) -> Mapping[str, Record]:
        return self._state.devices

    def run(self) -> str:
        """Go on until every device is done, or the roll-out stops; return why it stopped, empty if it did not.

        Devices that failed in an earlier run, or were taken back, are tried again; those that are done are left alone.
        A release that an earlier run did not finish to take back is taken back first, and that is all.
        """
        self._state.save()
        try:
            if self._named("returning"):
                return self._take_back("an earlier run stopped while it rolled its group back")
            for group in sorted({one.group for one in self._devices.values()}):
                if why := self._deploy(group):
                    return self._take_back(why, group) if self._rules.roll_back else why
            return ""
        finally:
            self._crew.leave()

    def _named(self, *states: State, group: int = 0) -> list[str]:
        """Name the devices in one of these states, of one group or of all."""
        return [name for name, one in self._devices.items() if one.state in states and group in {0, one.group}]

    # --- forwards ---

    def _deploy(self, group: int) -> str:
        """Deploy to a group; return why the roll-out stops with it, empty if it goes on."""
        size = sum(one.group == group for one in self._devices.values())
        # First of all those that an earlier run left in flight: nobody knows what they run.
        left = [*self._named("running", group=group), *self._named("waiting", "failed", "returned", group=group)]
        if not left:
            return ""
        self._forget(left)
        groups = max(one.group for one in self._devices.values())
        self._tell(stage(f"group {group} of {groups}: {len(left)} of {size} device(s) to do"))
        self._crew.run(left, self._work.deploy, lambda: self._is_over(group, size))
        done, failed = len(self._named("done", group=group)), len(self._named("failed", group=group))
        if self._is_over(group, size):
            limit = "all of it" if failed == size else f"--stop-after {self._thresholds.error}"
            return f"{failed} of the {size} device(s) of group {group} failed: {limit}"
        if not self._thresholds.passes(done, size):
            least = f"--success-threshold {self._thresholds.success:g}"
            return f"only {done} of {size} device(s) of group {group} succeeded: {least}"
        return ""

    def _forget(self, names: list[str]) -> None:
        """Let devices begin anew that failed earlier: their failures do not count again. In flight stays in flight."""
        for name in names:
            one = self._devices[name]
            if one.state in {"failed", "returned"}:
                self._state.put(name, Record(one.group, before=one.before, after=one.after))

    @property
    def _thresholds(self) -> Thresholds:
        return self._rules.thresholds

    def _is_over(self, group: int, size: int) -> bool:
        return self._thresholds.stops(len(self._named("failed", group=group)), size)

    # --- backwards ---

    def _take_back(self, why: str, group: int = 0) -> str:
        """Take a group back, or go on with what an earlier run was to take back; return why the roll-out stops."""
        for name in self._named("done", "failed", group=group) if group else []:
            if self._is_to_return(self._devices[name]):
                self._state.put(name, dataclasses.replace(self._devices[name], state="returning"))
        self._state.save()  # a run that is killed from here on is one that takes back
        names = self._named("returning")
        if names:
            self._tell(stage(f"rolling {len(names)} device(s) back to the previous release"))
        self._crew.run(names, lambda visit: self._work.take_back(visit, self._devices[visit.name].before or ""))
        left = len(self._named("returning"))
        kept = sum(one.before == "" and one.after != "" for one in self._devices.values() if one.group == group)
        told = [(left, "could not be rolled back"), (kept, "had no previous release and keep the new one")]
        more = "".join(f", {count} {words}" for count, words in told if count)
        return f"{why}; {len(names) - left} device(s) were rolled back{more}"

    def _is_to_return(self, one: Record) -> bool:
        """Tell whether a device may run the new release only because of this roll-out."""
        new = self._state.plan.package
        return one.before not in {None, "", new} and one.after in {None, new}

    # --- what becomes of the work: see `crew.Journal` ---

    def began(self, name: str) -> None:
        """Note that work on a device begins."""
        one = self._devices[name]
        if one.state != "returning":
            self._state.put(name, one.at_work())

    def found(self, name: str, digest: str) -> None:
        """Note what a device runs before anything is changed."""
        one = self._devices[name]
        if one.state != "returning":
            self._state.put(name, one.found(digest, self._state.plan.package))

    def ended(self, visit: Visit, found: Outcome | BaseException) -> None:
        """Note what came of the work on a device, and tell it."""
        one, seconds = self._devices[visit.name], round(visit.seconds, 3)
        if one.state == "returning":
            new = self._back(one, found)
        elif isinstance(found, Outcome):
            new = dataclasses.replace(
                one,
                state="done",
                after=found.after,
                latency_ms=found.latency_ms,
                emulated=found.emulated,
                seconds=seconds,
            )
        else:
            after = visit.after if visit.has_found else one.after
            new = dataclasses.replace(_failed(one, found), state="failed", after=after, seconds=seconds)
        self._state.put(visit.name, new)
        self._tell(f"  {visit.name}: {described(new)}, {seconds:.1f} s")

    def save(self) -> None:
        """Write the state."""
        self._state.save()

    @staticmethod
    def _back(one: Record, found: Outcome | BaseException) -> Record:
        if not isinstance(found, Outcome):
            return _failed(one, found)  # and its rollback is still pending
        if found.note:
            one = dataclasses.replace(one, details="\n".join(filter(None, (one.details, printable(found.note)))))
        return dataclasses.replace(one, state="returned", after=found.after)


def _failed(one: Record, fault: BaseException) -> Record:
    """Return a record with a failure, in words that steer no terminal and fill no disk."""
    told = Failure.of(fault)
    return dataclasses.replace(
        one,
        kind=kinds.kind_of(fault),
        exit_code=told.exit_code or 0,
        error=printable(told.message)[:_KEPT],
        details=printable(tail(told.details))[-_KEPT:],
        hint=printable(told.hint)[:_KEPT],
    )


def described(one: Record) -> str:
    """Say in a few words how a device stands."""
    if one.state == "done":
        mark = " (emulated)" if one.emulated else ""
        return "done" if one.latency_ms is None else f"done, {one.latency_ms:.3g} ms{mark}"
    if one.state in {"failed", "returning"} and one.kind:
        word = "FAILED" if one.state == "failed" else "NOT ROLLED BACK"
        return f"{word}, {one.kind}: {one.error}"
    return {"returned": "rolled back", "returning": "to be rolled back"}.get(one.state, one.state)
