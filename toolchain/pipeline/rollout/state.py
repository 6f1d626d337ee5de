"""The state of a roll-out, in one file that a person can read; whoever runs the same command again goes on from it.

The file is replaced whole, after each event. It has a line for each device, so that two of them can be compared.
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
_SHOWN = 5

State = Literal["waiting", "running", "done", "failed", "returning", "returned"]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


@checked_dataclass(frozen=True, config=CONFIG)
class Record:
    """What is known of one device.

    Attributes:
        group: Its group, from 1 on.
        state: `waiting`; `running`, at work on it now or when the roll-out ended, so that the device is asked; `done`;
            `failed`; `returning`, the release before is to be made current again; `returned`, it is.
        before: Digest of the release that it ran before; empty for none, None while that is not known.
        after: Digest of the release that it ran when it was left, in the same way.
        kind: What kind of failure it was, such as `unreachable`; empty without one.
        exit_code: What `deploy` would have ended with.
        error: The failure in one sentence.
        details: What was seen.
        hint: What to do.
        latency_ms: Median of the release on it.
        emulated: Whether that is an emulator's.
        seconds: How long it took.
    """

    group: int
    state: State = "waiting"
    before: Digest | None = None
    after: Digest | None = None
    kind: str = ""
    exit_code: int = 0
    error: str = ""
    details: str = ""
    hint: str = ""
    latency_ms: float | None = None
    emulated: bool = False
    seconds: float = 0.0

    def at_work(self) -> Record:
        """Return it as an attempt begins: what an earlier one said is gone, but for what the device runs.

        Of one that broke off nobody knows how far it came.
        """
        return Record(self.group, "running", self.before, None if self.state == "running" else self.after)

    def found(self, current: str, new: str) -> Record:
        """Return it with the release that the device runs as the attempt begins.

        A device that runs the new one already had it before, or has it of an attempt that was not told how it ended.
        """
        before = current if current != new or self.before is None else self.before
        return dataclasses.replace(self, before=before, after=current)


@checked_dataclass(frozen=True, config=CONFIG)
class Plan:
    """What a roll-out is of. With another one it is another roll-out.

    Attributes:
        package: Digest of the package.
        model: Name of its model.
        board: Its board type.
        fleet: Digest of all that is said of the devices of that type.
        waves: The waves, as they were given.
    """

    package: Digest
    model: str
    board: str
    fleet: str
    waves: tuple[str, ...]


@checked_dataclass(frozen=True, config=CONFIG)
class _Document:
    rollout_version: Literal[1]
    plan: Plan
    devices: dict[str, Record]


class StateFile:
    """The state of a roll-out and its file.

    Args:
        path: The file.
        plan: What the roll-out is of.
        devices: What is known of each device.
    """

    def __init__(self, path: Path, plan: Plan, devices: Mapping[str, Record]) -> None:
        self.path, self.plan = path, plan
        self._devices = dict(devices)
        self._lines = {name: _line(name, one) for name, one in devices.items()}

    @property
    def devices(self) -> Mapping[str, Record]:
        """What is known of each device, by its name."""
        return self._devices

    def put(self, name: str, record: Record) -> None:
        """Change what is known of a device; `save` writes it."""
        self._devices[name] = record
        self._lines[name] = _line(name, record)

    def save(self) -> None:
        """Write the file, whole or not at all.

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
def held(path: Path) -> Iterator[None]:
    """Have a state file for the time of a block: two roll-outs with one file cannot run at once.

    Raises:
        BusyError: Another one has it.
        InputError: It cannot be written there, or something else is.
    """
    outputs.check_file(path, "the state of a roll-out", foreign)
    beside = path.with_name(f".{path.name}.lock")
    try:
        handle = locks.open_lock(beside)
    except OSError as fault:
        raise files.unwritable(beside, fault) from fault
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
    """Say why a file is no state of a roll-out; empty if it is one."""
    try:
        found = json.loads(files.read_limited(path))
    except InputError as fault:
        return fault.message
    except (ValueError, RecursionError):
        return "it is not JSON"
    return "" if isinstance(found, dict) and _MARK in found else "it is a different JSON document"


def opened(path: Path, plan: Plan, groups: Mapping[str, int], *, fresh: bool) -> StateFile:
    """Return the state of a roll-out: that of an earlier run, or a new one; the caller holds the file.

    Args:
        path: The file.
        plan: What the roll-out is of.
        groups: The group of each device.
        fresh: Whether it begins anew, whatever is in the file.

    Raises:
        InputError: The file has faults, or is of another roll-out.
    """
    if fresh or not path.exists() or not path.stat().st_size:
        return StateFile(path, plan, {name: Record(group) for name, group in groups.items()})
    found = _read(path)
    if changed := _changed(found, plan, groups):
        raise InputError(
            f"{path} is the state of a different roll-out: {', '.join(changed)}",
            details="\n".join(changed.values()),
            hint="use --fresh to start again (devices keep the files that they have), or --state FILE for another file",
        )
    return StateFile(path, plan, found.devices)


def _read(path: Path) -> _Document:
    found, faults = validate(_Document, files.read_json(path), "state of a roll-out")
    if found is None:
        shown = "\n".join(map(str, faults[:_SHOWN]))
        raise InputError(f"{path} has {len(faults)} fault(s)", details=shown, hint="use --fresh to start again")
    return found  # type: ignore[no-any-return]


def _changed(found: _Document, plan: Plan, groups: Mapping[str, int]) -> dict[str, str]:
    """Name what is another than the file says, each with both sides."""
    was, changed = found.plan, {}
    if was.package != plan.package:
        named = [f"{one.model} sha256:{one.package}" for one in (was, plan)]
        changed["another package"] = f"package: {named[0]}, and now {named[1]}"
    if found.devices.keys() != groups.keys():
        changed["other devices"] = f"devices: {_difference(found.devices.keys(), groups.keys())}"
    elif was.fleet != plan.fleet:
        changed["a changed fleet"] = "fleet: an address, a limit or the order of its devices changed"
    if was.waves != plan.waves:
        changed["other waves"] = f"waves: {','.join(was.waves)}, and now {','.join(plan.waves)}"
    elif not changed and {name: one.group for name, one in found.devices.items()} != groups:
        changed["other groups"] = "groups: these waves put devices into other groups than the file has"
    return changed


def _difference(before: Any, after: Any) -> str:
    sides = (("removed", before - after), ("new", after - before))
    told = [f"{len(names)} {word}, such as {', '.join(sorted(names)[:_SHOWN])}" for word, names in sides if names]
    return "; ".join(told)
