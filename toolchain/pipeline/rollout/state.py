"""The state of a roll-out, in one readable file; the same command resumes from it.

The file is replaced atomically after each event. It has one line for each device, so that two states can be compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import files, locks, outputs
from toolchain.errors import BusyError, InputError
from toolchain.validation import CONFIG, validate

VERSION = 1
_MARK = "rollout_version"
_MAX_NAMES = 5

State = Literal["waiting", "running", "done", "failed", "returning", "returned"]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


@checked_dataclass(frozen=True, config=CONFIG)
class Record:
    """The state of one device."""

    group: int  # from 1 on
    # `running`, now or when the roll-out was interrupted; `returning`, to be rolled back to the release before;
    # `returned`, rolled back
    state: State = "waiting"
    before: Digest | None = None  # digest of the release that it ran before; empty for none, None if unknown
    after: Digest | None = None  # digest of the release that it ran when the work ended, in the same way
    kind: str = ""  # kind of the failure, such as `unreachable`; empty without one
    exit_code: int = 0  # with which `deploy` would have ended
    error: str = ""
    details: str = ""
    hint: str = ""
    latency_ms: float | None = None  # median of the release on it
    emulated: bool = False
    seconds: float = 0.0

    def as_running(self) -> Record:
        """Return the record of a new attempt, without earlier failures; what an interrupted attempt left is unknown."""
        return Record(self.group, "running", self.before, None if self.state == "running" else self.after)

    def with_release(self, current: str, new: str) -> Record:
        """Return it with the release that the device runs as the attempt begins."""
        # If it runs the new one, an attempt with unknown end may have deployed it: `before` stays what it was.
        before = current if current != new or self.before is None else self.before
        return dataclasses.replace(self, before=before, after=current)


@checked_dataclass(frozen=True, config=CONFIG)
class Plan:
    """What a roll-out deploys; another plan is another roll-out."""

    package: Digest  # digest of the package
    model: str
    board: str
    fleet: str  # digest of everything that the fleet file says of the devices of that board type
    waves: tuple[str, ...]
    slot: str = ""  # the slot of the devices' stores; empty for the stores' own releases


@checked_dataclass(frozen=True, config=CONFIG)
class _Document:
    rollout_version: Literal[1]
    plan: Plan
    devices: dict[str, Record]


class StateFile:
    """The state of a roll-out and its file."""

    def __init__(self, path: Path, plan: Plan, devices: Mapping[str, Record]) -> None:
        self.path, self.plan = path, plan
        self._devices = dict(devices)
        self._lines = {name: _line(name, record) for name, record in devices.items()}

    @property
    def devices(self) -> Mapping[str, Record]:
        return self._devices

    def put(self, name: str, record: Record) -> None:
        """Change the state of a device in memory; `save` writes it."""
        self._devices[name] = record
        self._lines[name] = _line(name, record)

    def save(self) -> None:
        """Replace the file atomically.

        Raises:
            InputError: It cannot be written.
        """
        head = f'{{"{_MARK}": {VERSION},\n"plan": {_json(dataclasses.asdict(self.plan))},\n"devices": {{\n'
        rows = ",\n".join(self._lines.values())
        files.write_atomic(self.path, f"{head}{rows}\n}}}}\n".encode())


def _line(name: str, record: Record) -> str:
    return f"{_json(name)}: {_json(dataclasses.asdict(record))}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@contextlib.contextmanager
def lock_state(path: Path) -> Iterator[None]:
    """Lock a state file for the time of a block: two roll-outs cannot use one file at once.

    Raises:
        BusyError: Another roll-out has it.
        InputError: It cannot be written, or something else is there.
    """
    outputs.check_file(path, "the state of a roll-out", foreign)
    lock_path = path.with_name(f".{path.name}.lock")
    try:
        handle = locks.open_lock(lock_path)
    except OSError as fault:
        raise files.unwritable(lock_path, fault) from fault
    try:
        if not locks.attempt(handle):
            raise BusyError(
                f"another roll-out is using {path}",
                details=locks.holder(handle),
                hint="run the command again when that has ended, or use another file with --state",
            )
        yield
    finally:
        os.close(handle)


def foreign(path: Path) -> str:
    """Say why a file is not the state of a roll-out; empty if it is."""
    try:
        document = json.loads(files.read_limited(path))
    except InputError as fault:
        return fault.message
    except (ValueError, RecursionError):
        return "it is not JSON"
    return "" if isinstance(document, dict) and _MARK in document else "it is a different JSON document"


def load_state(path: Path, plan: Plan, groups: Mapping[str, int], *, fresh: bool) -> StateFile:
    """Return the state of an earlier run, or a new one if `fresh`; the caller has locked the file.

    Raises:
        InputError: The file has faults, or is of another roll-out.
    """
    if fresh or not path.exists() or not path.stat().st_size:
        return StateFile(path, plan, {name: Record(group) for name, group in groups.items()})
    saved, faults = validate(_Document, files.read_json(path), "state of a roll-out")
    if saved is None:
        details = "\n".join(map(str, faults[:_MAX_NAMES]))
        raise InputError(f"{path} has {len(faults)} fault(s)", details=details, hint="use --fresh to start again")
    if changed := _changed(saved, plan, groups):
        raise InputError(
            f"{path} is the state of a different roll-out: {', '.join(changed)}",
            details="\n".join(changed.values()),
            hint="use --fresh to start again (devices keep the files that they have), or --state FILE for another file",
        )
    return StateFile(path, plan, saved.devices)


def _changed(saved: _Document, plan: Plan, groups: Mapping[str, int]) -> dict[str, str]:
    """Describe the differences between the file and this run, each with both sides."""
    old, changed = saved.plan, {}
    if old.package != plan.package:
        packages = [f"{side.model} sha256:{side.package}" for side in (old, plan)]
        changed["another package"] = f"package: {packages[0]}, and now {packages[1]}"
    if old.slot != plan.slot:
        slots = [f"slot {side.slot}" if side.slot else "no slot" for side in (old, plan)]
        changed["another slot"] = f"slot: {slots[0]}, and now {slots[1]}"
    if saved.devices.keys() != groups.keys():
        sides = (("removed", saved.devices.keys() - groups.keys()), ("new", groups.keys() - saved.devices.keys()))
        changed["other devices"] = "devices: " + "; ".join(
            f"{len(names)} {what}, such as {', '.join(sorted(names)[:_MAX_NAMES])}" for what, names in sides if names
        )
    elif old.fleet != plan.fleet:
        changed["a changed fleet"] = "fleet: an address, a limit or the order of its devices changed"
    if old.waves != plan.waves:
        changed["other waves"] = f"waves: {','.join(old.waves)}, and now {','.join(plan.waves)}"
    elif not changed and {name: record.group for name, record in saved.devices.items()} != groups:
        changed["other groups"] = "groups: these waves put devices into other groups than the file has"
    return changed
