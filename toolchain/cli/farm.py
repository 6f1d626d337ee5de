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
from toolchain.cli.gathering import gather, option, record, same, single
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
@gather("options", UpOptions)
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
        return _start_virtual(console, options.virtual, kernel=options.kernel, as_json=as_json)
    if options.kernel:
        raise InputError("--kernel is only for virtual boards", hint="toolchain farm up --virtual rpi4=1 --kernel")
    from toolchain import board, devices
    from toolchain.farm import client

    served = client.choose(names, devices.load_devices(options.devices), board.load)
    result = _status_result(client.up(served, console.say), (), as_json=as_json)
    return with_next(result, [["toolchain", "tune", "MODEL", "--board", served[0].board.name]])


def _start_virtual(console: Console, virtual: str, *, kernel: bool, as_json: bool) -> Result:
    from toolchain.virtual import fleet

    started = fleet.up(fleet.parse_counts(virtual), console.say, kernel=kernel)
    rows = [(board.name, board.board, board.kind, str(board.port), _running(board), "emulated") for board in started]
    table = Table(rows, ("NAME", "BOARD", "KIND", "SSH PORT", "STATE", "NOTES"))
    deploy = ["toolchain", "deploy", "MODEL", "--board", started[0].board, "--host", started[0].name]
    return with_next(Result(table, started, as_json), [deploy])


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
    virtual = [board.name for board in _virtual_boards()] if names else []
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


def _virtual_boards() -> tuple[VirtualBoard, ...]:
    from toolchain.virtual import fleet

    return fleet.status() if _has_virtual() else ()


@dataclass(frozen=True)
class StatusOptions:
    """The options of `farm status`."""

    builders: common.BuilderOptions = record(common.BuilderOptions)


@farm.command("status")
@gather("options", StatusOptions)
@common.json_flag
@click.pass_obj
def status(console: Console, /, options: StatusOptions, *, as_json: bool) -> Result:
    """Show the boards, who uses them and who waits for them.

    With --builders, the workers of that Dask scheduler are listed as well.
    """
    from toolchain.errors import DeviceError
    from toolchain.farm import client

    scheduler = options.builders.scheduler()
    farm_status = client.status()
    try:
        virtual = _virtual_boards()
    except DeviceError as fault:  # no reason not to tell about the others
        if farm_status is None:
            raise
        console.say(f"virtual boards: {fault.message}")
        virtual = ()
    if farm_status is None:
        console.say("no devices are served; `toolchain farm up` serves them")
    return _status_result(farm_status, virtual, scheduler, as_json=as_json)


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
        held_for = parse_span(span) if span else _HOUR_S
        reservation = patience.get(lambda: client.lock(name, held_for))
        text = f"{name} is reserved for you until {_moment(reservation['until'])}; `toolchain farm release {name}` ends that"
        return Result(text, reservation, as_json)
    if span:
        raise InputError(
            "--for and a command cannot be combined",
            hint="leave --for out",
        )
    with contextlib.ExitStack() as stack:
        command_line = " ".join(command)
        lease = patience.get(lambda: stack.enter_context(leases.lease("", [name], who=command_line, patience=patience)))
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


def parse_span(text: str) -> float:
    """Read a time span such as `90`, `90s`, `30m`, `2h` or `1d`.

    Raises:
        InputError: It is none.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not match or float(match[1]) <= 0:
        raise InputError(f"{text!r} is not a valid time span", hint="write 90, 90s, 30m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


# --- what status shows ---


def _status_result(
    farm_status: Mapping[str, Any] | None,
    virtual: Sequence[VirtualBoard],
    scheduler: Scheduler | None = None,
    *,
    as_json: bool,
) -> Result:
    served = farm_status["boards"] if farm_status else []
    unserved = [item for item in virtual if item.name not in {board["name"] for board in served}]
    rows = [_board_row(board) for board in served] + [_virtual_row(o) for o in unserved]
    queue = farm_status.get("queue", []) if farm_status else []  # a daemon that an earlier toolchain started has none
    document = {"boards": served, "queue": queue, "virtual": [dataclasses.asdict(item) for item in unserved]}
    output: list[str | Table] = [Table(rows, _HEADS, numbers=[7], spare=[7, 6]), *map(_queue_line, queue)]
    if scheduler is not None:
        builders = _builders(scheduler)
        document["builders"] = [dataclasses.asdict(item) for item in builders]
        output.append(_builder_table(builders) if builders else f"the Dask scheduler at {scheduler} has no workers")
    return Result(output, document, as_json)


def _builders(scheduler: Scheduler) -> Sequence[Seen]:
    from toolchain.tuning.build.cluster.survey import survey

    return survey(scheduler)


def _builder_table(builders: Sequence[Seen]) -> Table:
    rows = [
        (
            builder.name,
            str(builder.processes),
            str(builder.candidates),
            builder.refused and f"refused: {builder.refused}",
        )
        for builder in builders
    ]
    return Table(rows, ("BUILDER", "PROCESSES", "CANDIDATES", "NOTES"), numbers=[1, 2], spare=[3])


def _queue_line(request: Mapping[str, Any]) -> str:
    boards = ", ".join(request["names"]) or " ".join(filter(None, [str(request["most"] or "any"), request["board"]]))
    return f"waiting, {request['place']}: {request['who']} for {boards}, since {_moment(request['since'])}"


def _board_row(board: Mapping[str, Any]) -> tuple[str, ...]:
    notes = ["emulated"] if board["emulated"] else []
    notes += [board["fault"]["message"]] if board["fault"] else []
    return (
        board["name"],
        board["board"],
        board["state"],
        board["hold"]["who"] if board["hold"] else "",
        _span(board),
        _trial(board["trial"]) if board["trial"] else "",
        f"{board['celsius']:.0f} C" if board["celsius"] is not None else "",
        str(board["failures"]),
        ", ".join(notes),
    )


def _span(board: Mapping[str, Any]) -> str:
    hold = board["hold"]
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


def _virtual_row(board: VirtualBoard) -> tuple[str, ...]:
    note = f"emulated, {board.kind}, SSH port {board.port}, not served"
    return (board.name, board.board, _running(board), *[""] * 5, note)


def _running(board: VirtualBoard) -> str:
    return "running" if board.running else "stopped"
