"""The `farm` commands: the lab's devices are served over RPC, leased and locked; virtual boards are made."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain.cli import common, helptext
from toolchain.cli.connection import DeviceOptions
from toolchain.cli.console import Console, Result, with_next
from toolchain.cli.gathering import gathered, option, record, same, single
from toolchain.errors import InputError
from toolchain.tables import Table

if TYPE_CHECKING:
    from toolchain.tuning.build.cluster.scheduler import Scheduler
    from toolchain.tuning.build.cluster.survey import Seen
    from toolchain.virtual.fleet import VirtualBoard

_HEADS = ("NAME", "BOARD", "STATE", "CLIENT", "LEASE", "LAST TRIAL", "TEMP", "FAILURES", "NOTES")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_HOUR_S = 3600
_names = click.argument("names", nargs=-1, metavar="[NAME]...")


@click.group("farm", cls=helptext.Group)
def farm() -> None:
    """Serve the lab's devices for tuning; start virtual boards."""


@dataclass(frozen=True)
class UpOptions:
    """The options of `farm up`."""

    virtual: str | None = option(
        "--virtual", metavar="rpi4=2,pynq=1", help="Start virtual boards instead, with a number for each board type."
    )
    kernel: bool = option(
        "--kernel",
        is_flag=True,
        help="With --virtual: emulate whole machines with a kernel of their own, which start more slowly.",
    )
    devices: Path | None = same(DeviceOptions, "devices")


@farm.command("up")
@_names
@gathered("options", UpOptions)
@common.json_flag
@click.pass_obj
def up(console: Console, /, names: tuple[str, ...], options: UpOptions, *, as_json: bool) -> Result:
    """Serve all devices of the lab, or the named ones.

    Only this user can use them. With --virtual, virtual boards are started instead.
    """
    if options.virtual:
        if names or options.devices:
            raise InputError(
                "--virtual starts boards and does not serve devices",
                hint="run `toolchain farm up --virtual ...` first, then `toolchain farm up`",
            )
        return _made(console, options.virtual, kernel=options.kernel, as_json=as_json)
    if options.kernel:
        raise InputError("--kernel is only for virtual boards", hint="toolchain farm up --virtual rpi4=1 --kernel")
    from toolchain import board, devices
    from toolchain.farm import client

    places = client.choose(names, devices.load_devices(options.devices), board.load)
    result = _shown(client.up(places, console.say), (), as_json=as_json)
    return with_next(result, [["toolchain", "tune", "MODEL", "--board", places[0].board.name]])


def _made(console: Console, virtual: str, *, kernel: bool, as_json: bool) -> Result:
    from toolchain.virtual import fleet

    found = fleet.up(fleet.parse_counts(virtual), console.say, kernel=kernel)
    rows = [(one.name, one.board, one.kind, str(one.port), _running(one), "emulated") for one in found]
    table = Table(rows, ("NAME", "BOARD", "KIND", "SSH PORT", "STATE", "NOTES"))
    deploy = ["toolchain", "deploy", "MODEL", "--board", found[0].board, "--host", found[0].name]
    return with_next(Result(table, found, as_json), [deploy])


@farm.command("down")
@_names
@common.json_flag
@click.pass_obj
def down(console: Console, names: tuple[str, ...], *, as_json: bool) -> Result:
    """Stop serving all devices, or the named ones.

    Virtual boards are removed, with everything on them.
    """
    from toolchain.farm import client

    served = client.served_names() if names else ()
    virtual = [one.name for one in _virtual()] if names else []
    unknown = [name for name in names if name not in {*served, *virtual}]
    if unknown:
        raise InputError(
            f"the farm has no board {unknown[0]!r}",
            details="it has: " + (", ".join(dict.fromkeys([*served, *virtual])) or "none"),
            hint="`toolchain farm status` lists them",
        )
    gone = list(client.down([name for name in names if name in served])) if served or not names else []
    for name in gone:
        console.say(f"{name} is no longer served")
    gone += _removed(console, [name for name in names if name in virtual], everything=not names)
    return Result("", list(dict.fromkeys(gone)), as_json)


def _removed(console: Console, names: Sequence[str], *, everything: bool) -> tuple[str, ...]:
    from toolchain.virtual import fleet

    if not names and not (everything and _has_virtual()):
        return ()
    return fleet.down(names, console.say)


def _has_virtual() -> bool:
    """Tell whether there ever were virtual boards; a lab without them needs no Docker."""
    from toolchain import devices

    return devices.farm_devices().parent.exists()


def _virtual() -> tuple[VirtualBoard, ...]:
    from toolchain.virtual import fleet

    return fleet.status() if _has_virtual() else ()


@dataclass(frozen=True)
class StatusOptions:
    """The options of `farm status`."""

    builders: common.BuilderOptions = record(common.BuilderOptions)


@farm.command("status")
@gathered("options", StatusOptions)
@common.json_flag
@click.pass_obj
def status(console: Console, /, options: StatusOptions, *, as_json: bool) -> Result:
    """Show the boards, who uses them and who waits for them.

    With --builders, the workers of that Dask scheduler are listed as well.
    """
    from toolchain.errors import DeviceError
    from toolchain.farm import client

    scheduler = options.builders.scheduler()
    found = client.status()
    try:
        virtual = _virtual()
    except DeviceError as fault:  # no reason not to tell about the others
        if found is None:
            raise
        console.say(f"virtual boards: {fault.message}")
        virtual = ()
    if found is None:
        console.say("no devices are served; `toolchain farm up` serves them")
    return _shown(found, virtual, scheduler, as_json=as_json)


@farm.command("lock")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
@helptext.option("--for", "span", metavar="2h", help="How long: seconds, or a number with s, m, h or d. Default: 1h.")
@single(DeviceOptions, "wait_s")
@common.json_flag
@click.pass_obj
def lock(
    console: Console, name: str, command: tuple[str, ...], span: str | None, wait_s: float, *, as_json: bool
) -> Result | int:
    """Reserve the board NAME for some time, or while CMD runs.

    CMD and all processes that it starts can lease the board, as `toolchain tune` does, and deploy to it; the exit code
    is that of CMD. Without CMD, nobody can lease the board or deploy to it until `toolchain farm release NAME`.
    """
    from toolchain import process
    from toolchain.device.lock import WITHIN
    from toolchain.device.waiting import Patience
    from toolchain.farm import client, leases

    patience = Patience(wait_s, console.say)
    if not command:
        held_for = seconds(span) if span else _HOUR_S
        found = patience.get(lambda: client.lock(name, held_for))
        text = f"{name} is reserved for you until {_moment(found['until'])}; `toolchain farm release {name}` ends that"
        return Result(text, found, as_json)
    if span:
        raise InputError(
            "--for and a command cannot be combined",
            hint="leave --for out",
        )
    with contextlib.ExitStack() as stack:
        what = " ".join(command)
        lease = patience.get(lambda: stack.enter_context(leases.lease("", [name], who=what, patience=patience)))
        console.say(f"{name} is reserved for {command[0]}")
        code = process.attend(command, {WITHIN: lease.boards[0].within})
        lease.check(name)  # whoever did not have the board to the end does not take what was measured for good
        return code


@farm.command("release")
@click.argument("name")
@common.json_flag
def release(name: str, *, as_json: bool) -> Result:
    """Release the board NAME, no matter who reserved it.

    A lock ends. A lease ends with its session, and its user is told why.
    """
    from toolchain.farm import client

    hold = client.release(name)
    text = f"{name} released"
    if hold:
        text += f" (was {hold['kind']} by {hold['who']} since {_moment(hold['since'])})"
    return Result(text, {"board": name, "was": hold}, as_json)


def seconds(text: str) -> float:
    """Read a time span such as `90`, `90s`, `30m`, `2h` or `1d`.

    Raises:
        InputError: It is none.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not found or float(found[1]) <= 0:
        raise InputError(f"{text!r} is not a valid time span", hint="write 90, 90s, 30m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


# --- what status shows ---


def _shown(
    found: Mapping[str, Any] | None,
    virtual: Sequence[VirtualBoard],
    scheduler: Scheduler | None = None,
    *,
    as_json: bool,
) -> Result:
    served = found["boards"] if found else []
    unserved = [one for one in virtual if one.name not in {board["name"] for board in served}]
    rows = [_row(board) for board in served] + [_virtual_row(o) for o in unserved]
    queue = found.get("queue", []) if found else []  # a daemon that an earlier toolchain started has none
    document = {"boards": served, "queue": queue, "virtual": [dataclasses.asdict(one) for one in unserved]}
    told: list[str | Table] = [Table(rows, _HEADS, numbers=[7], spare=[7, 6]), *map(_waiting, queue)]
    if scheduler is not None:
        builders = _builders(scheduler)
        document["builders"] = [dataclasses.asdict(one) for one in builders]
        told.append(_builder_table(builders) if builders else f"the Dask scheduler at {scheduler} has no workers")
    return Result(told, document, as_json)


def _builders(scheduler: Scheduler) -> Sequence[Seen]:
    from toolchain.tuning.build.cluster.survey import survey

    return survey(scheduler)


def _builder_table(found: Sequence[Seen]) -> Table:
    rows = [(o.name, str(o.processes), str(o.candidates), o.refused and f"refused: {o.refused}") for o in found]
    return Table(rows, ("BUILDER", "PROCESSES", "CANDIDATES", "NOTES"), numbers=[1, 2], spare=[3])


def _waiting(one: Mapping[str, Any]) -> str:
    what = ", ".join(one["names"]) or " ".join(filter(None, [str(one["most"] or "any"), one["board"]]))
    return f"waiting, {one['place']}: {one['who']} for {what}, since {_moment(one['since'])}"


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    notes = ["emulated"] if one["emulated"] else []
    notes += [one["fault"]["message"]] if one["fault"] else []
    return (
        one["name"],
        one["board"],
        one["state"],
        one["hold"]["who"] if one["hold"] else "",
        _span(one),
        _trial(one["trial"]) if one["trial"] else "",
        f"{one['celsius']:.0f} C" if one["celsius"] is not None else "",
        str(one["failures"]),
        ", ".join(notes),
    )


def _span(one: Mapping[str, Any]) -> str:
    hold = one["hold"]
    if hold and hold["until"]:
        return f"since {_moment(hold['since'])} until {_moment(hold['until'])}"
    if not hold:
        return ""
    heard = hold.get("heard_s")
    alive = "" if heard is None else f", alive {heard:.0f} s ago"
    return f"since {_moment(hold['since'])}{alive}"


def _trial(trial: Mapping[str, Any]) -> str:
    how = "" if trial["ok"] else "failed, "
    return f"{trial['what']}: {how}{trial['seconds']:.1f} s, {max(0.0, time.time() - trial['time']):.0f} s ago"


def _moment(when: float) -> str:
    form = "%H:%M:%S" if abs(when - time.time()) < _UNITS["d"] / 2 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(when))


def _virtual_row(one: VirtualBoard) -> tuple[str, ...]:
    note = f"emulated, {one.kind}, SSH port {one.port}, not served"
    return (one.name, one.board, _running(one), *[""] * 5, note)


def _running(one: VirtualBoard) -> str:
    return "running" if one.running else "stopped"
