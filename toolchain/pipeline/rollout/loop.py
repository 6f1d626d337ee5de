"""The loop of a roll-out: it deploys to one group after the other, as long as not too many devices fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from toolchain.failure import Failure
from toolchain.pipeline.rollout.groups import Thresholds
from toolchain.pipeline.rollout.result import failure_kind
from toolchain.pipeline.rollout.state import Record, State, StateFile
from toolchain.pipeline.rollout.threads import DeviceThreads, Outcome, Visit
from toolchain.printable import printable
from toolchain.process import tail
from toolchain.progress import Progress, stage

_MAX_TEXT = 2000  # letters of a device's messages that are kept


class Work(Protocol):
    def deploy(self, visit: Visit) -> Outcome:
        """Bring the package to a device, check and measure it; `visit.report_release` is called before any change."""

    def roll_back_device(self, visit: Visit, before: str) -> Outcome:
        """Make the release current again that a device ran before the roll-out."""


@dataclass(frozen=True)
class Rules:
    """How a roll-out is done."""

    parallel: int = 8  # devices at once
    thresholds: Thresholds = field(default_factory=Thresholds)
    roll_back: bool = False  # whether the group in which it stops is rolled back
    limit_s: float = 1800.0  # seconds that one device may take


class Loop:
    """A roll-out at work."""

    def __init__(self, state: StateFile, work: Work, rules: Rules, progress: Progress) -> None:
        self._state, self._work, self._rules, self._progress = state, work, rules, progress
        self._threads = DeviceThreads(self, rules.parallel, rules.limit_s)

    @property
    def _devices(self) -> Mapping[str, Record]:
        return self._state.devices

    def run(self) -> str:
        """Deploy until every device is done, or the roll-out stops; return why it stopped, empty if it did not.

        Devices that failed or were rolled back in an earlier run are tried again; devices that are done are skipped.
        If an earlier run was interrupted while it rolled back, only that is finished.
        """
        self._state.save()
        try:
            if self._in_state("returning"):
                return self._roll_back_group("an earlier run stopped while it rolled its group back")
            for group in sorted({record.group for record in self._devices.values()}):
                if why := self._deploy(group):
                    return self._roll_back_group(why, group) if self._rules.roll_back else why
            return ""
        finally:
            self._threads.leave()

    def _in_state(self, *states: State, group: int = 0) -> list[str]:
        """Name the devices in one of these states, of one group or of all."""
        return [name for name, record in self._devices.items() if record.state in states and group in {0, record.group}]

    # --- forwards ---

    def _deploy(self, group: int) -> str:
        """Deploy to a group; return why the roll-out stops with it, empty if it goes on."""
        size = sum(record.group == group for record in self._devices.values())
        # Devices that an earlier run left in flight come first, since their release is unknown.
        remaining = [
            *self._in_state("running", group=group),
            *self._in_state("waiting", "failed", "returned", group=group),
        ]
        if not remaining:
            return ""
        for name in remaining:
            record = self._devices[name]
            if record.state in {"failed", "returned"}:  # earlier failures do not count again
                self._state.put(name, Record(record.group, before=record.before, after=record.after))
        groups = max(record.group for record in self._devices.values())
        self._progress(stage(f"group {group} of {groups}: {len(remaining)} of {size} device(s) to do"))
        self._threads.run(remaining, self._work.deploy, lambda: self._is_over(group, size))
        succeeded, failed = len(self._in_state("done", group=group)), len(self._in_state("failed", group=group))
        if self._is_over(group, size):
            limit = "all of it" if failed == size else f"--stop-after {self._thresholds.error}"
            return f"{failed} of the {size} device(s) of group {group} failed: {limit}"
        if not self._thresholds.passes(succeeded, size):
            limit = f"--success-threshold {self._thresholds.success:g}"
            return f"only {succeeded} of {size} device(s) of group {group} succeeded: {limit}"
        return ""

    @property
    def _thresholds(self) -> Thresholds:
        return self._rules.thresholds

    def _is_over(self, group: int, size: int) -> bool:
        return self._thresholds.stops(len(self._in_state("failed", group=group)), size)

    # --- backwards ---

    def _roll_back_group(self, why: str, group: int = 0) -> str:
        """Roll a group back, or finish what an earlier run was rolling back; return why the roll-out stops."""
        new = self._state.plan.package
        for name in self._in_state("done", "failed", group=group) if group else []:
            record = self._devices[name]
            # Only devices that may run the new release, and only because of this roll-out.
            if record.before not in {None, "", new} and record.after in {None, new}:
                self._state.put(name, dataclasses.replace(record, state="returning"))
        self._state.save()  # if it is killed from here on, the next run continues to roll back
        names = self._in_state("returning")
        if names:
            self._progress(stage(f"rolling {len(names)} device(s) back to the previous release"))
        self._threads.run(
            names, lambda visit: self._work.roll_back_device(visit, self._devices[visit.name].before or "")
        )
        pending = len(self._in_state("returning"))
        group_records = [record for record in self._devices.values() if record.group == group]
        first_releases = sum(record.before == "" and record.after != "" for record in group_records)
        exceptions = [
            (pending, "could not be rolled back"),
            (first_releases, "had no previous release and keep the new one"),
        ]
        more = "".join(f", {count} {text}" for count, text in exceptions if count)
        return f"{why}; {len(names) - pending} device(s) were rolled back{more}"

    # --- the methods of `threads.Journal` ---

    def begin(self, name: str) -> None:
        record = self._devices[name]
        if record.state != "returning":
            self._state.put(name, record.as_running())

    def note_release(self, name: str, digest: str) -> str:
        record = self._devices[name]
        if record.state != "returning":
            record = record.with_release(digest, self._state.plan.package)
            self._state.put(name, record)
        return record.before or ""

    def end(self, visit: Visit, outcome: Outcome | BaseException) -> None:
        record, seconds = self._devices[visit.name], round(visit.seconds, 3)
        if record.state == "returning":
            if isinstance(outcome, Outcome):
                notes = filter(None, (record.details, printable(outcome.note)))
                new = dataclasses.replace(record, state="returned", after=outcome.after, details="\n".join(notes))
            else:
                new = _with_failure(record, outcome)  # its rollback is still pending
        elif isinstance(outcome, Outcome):
            new = dataclasses.replace(
                record,
                state="done",
                after=outcome.after,
                latency_ms=outcome.latency_ms,
                emulated=outcome.emulated,
                seconds=seconds,
            )
        else:
            after = visit.after if visit.knows_release else record.after
            new = dataclasses.replace(_with_failure(record, outcome), state="failed", after=after, seconds=seconds)
        self._state.put(visit.name, new)
        self._progress(f"  {visit.name}: {status_text(new)}, {seconds:.1f} s")

    def save(self) -> None:
        self._state.save()


def _with_failure(record: Record, fault: BaseException) -> Record:
    """Return a record with a failure; its texts are printable, so that they steer no terminal, and short."""
    failure = Failure.of(fault)
    return dataclasses.replace(
        record,
        kind=failure_kind(fault),
        exit_code=failure.exit_code or 0,
        error=printable(failure.message)[:_MAX_TEXT],
        details=printable(tail(failure.details))[-_MAX_TEXT:],
        hint=printable(failure.hint)[:_MAX_TEXT],
    )


def status_text(record: Record) -> str:
    if record.state == "done":
        mark = " (emulated)" if record.emulated else ""
        return "done" if record.latency_ms is None else f"done, {record.latency_ms:.3g} ms{mark}"
    if record.state in {"failed", "returning"} and record.kind:
        verdict = "FAILED" if record.state == "failed" else "NOT ROLLED BACK"
        return f"{verdict}, {record.kind}: {record.error}"
    return {"returned": "rolled back", "returning": "to be rolled back"}.get(record.state, record.state)
