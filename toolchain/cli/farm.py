"""The `farm` commands: serve the lab's devices over RPC, lease and lock them, and start virtual boards."""

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

from toolchain.cli import common, declare, helptext
from toolchain.cli.connection import DeviceOptions
from toolchain.cli.console import Console, Result, with_next
from toolchain.cli.gathering import gather, option, record, same, single
from toolchain.errors import InputError
from toolchain.report import Table

if TYPE_CHECKING:
    from toolchain.tuning.build.cluster.scheduler import Scheduler
    from toolchain.virtual.fleet import VirtualBoard

_HEADS = ("NAME", "BOARD", "STATE", "CLIENT", "LEASE", "LAST TRIAL", "TEMP", "FAILURES", "NOTES")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_HOUR_S = 3600
_names = click.argument("names", nargs=-1, metavar="[NAME]...")


@declare.group()
def farm() -> None:
    pass


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
    musl: bool = option(
        "--musl", is_flag=True, help="With --virtual: boards with musl and busybox, as Alpine and OpenWrt have."
    )
    devices: Path | None = same(DeviceOptions, "devices")


@farm.command("up")
@_names
@gather("options", UpOptions)
@declare.json_flag
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
        return _start_virtual(console, options, as_json=as_json)
    for name in ("kernel", "musl"):
        if getattr(options, name):
            hint = f"toolchain farm up --virtual rpi4=1 --{name}"
            raise InputError(f"--{name} is only for virtual boards", hint=hint)
    from toolchain import board, devices
    from toolchain.farm import client

    served = client.choose(names, devices.load_devices(options.devices), board.load)
    result = _status_result(client.up(served, console.say), (), as_json=as_json)
    return with_next(result, [["toolchain", "tune", "MODEL", "--board", served[0].board.name]])


def _start_virtual(console: Console, options: UpOptions, *, as_json: bool) -> Result:
    from toolchain.virtual import fleet

    if options.kernel and options.musl:
        raise InputError(
            "virtual boards with a kernel of their own have Debian's user land", hint="leave --kernel or --musl out"
        )
    counts = fleet.parse_counts(options.virtual or "")
    started = fleet.up(counts, console.say, kernel=options.kernel, musl=options.musl)
    rows = [
        (board.name, board.board, board.kind, str(board.port), _power_state(board), "emulated") for board in started
    ]
    table = Table(rows, ("NAME", "BOARD", "KIND", "SSH PORT", "STATE", "NOTES"))
    deploy = ["toolchain", "deploy", "MODEL", "--board", started[0].board, "--host", started[0].name]
    return with_next(Result(table, started, as_json), [deploy])


@farm.command("down")
@_names
@declare.json_flag
@click.pass_obj
def down(console: Console, names: tuple[str, ...], *, as_json: bool) -> Result:
    """Stop serving all devices, or the named ones.

    Virtual boards are removed, with everything on them.
    """
    from toolchain.farm import client
    from toolchain.virtual import fleet

    served = client.served_names() if names else ()
    virtual = [board.name for board in _virtual_boards()] if names else []
    unknown = [name for name in names if name not in {*served, *virtual}]
    if unknown:
        raise InputError(
            f"the farm has no board {unknown[0]!r}",
            details="it has: " + (", ".join(dict.fromkeys([*served, *virtual])) or "none"),
            hint="`toolchain farm status` lists them",
        )
    # Without names, everything is stopped.
    gone = list(client.down([name for name in names if name in served])) if served or not names else []
    for name in gone:
        console.say(f"{name} is no longer served")
    virtual_names = [name for name in names if name in virtual]
    if virtual_names or (not names and _has_virtual()):
        gone += fleet.down(virtual_names, console.say)
    return Result("", list(dict.fromkeys(gone)), as_json)


def _has_virtual() -> bool:
    """Return whether there ever were virtual boards; a lab without them needs no Docker."""
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
@declare.json_flag
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
    except DeviceError as fault:  # without Docker, the served devices can still be listed
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
@declare.json_flag
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
        until = _moment(reservation["until"])
        text = f"{name} is reserved for you until {until}; `toolchain farm release {name}` ends that"
        return Result(text, reservation, as_json)
    if span:
        raise InputError("--for and a command cannot be combined", hint="leave --for out")
    with contextlib.ExitStack() as stack:
        command_line = " ".join(command)
        lease = patience.get(lambda: stack.enter_context(leases.lease("", [name], who=command_line, patience=patience)))
        console.say(f"{name} is reserved for {command[0]}")
        code = process.attend(command, {WITHIN: lease.boards[0].within})
        lease.check(name)  # if the lease was lost on the way, the command's measurements are not valid
        return code


@farm.command("release")
@click.argument("name")
@declare.json_flag
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
    """Return the seconds of a time span such as `90`, `90s`, `30m`, `2h` or `1d`.

    Raises:
        InputError: It is not a time span.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not match or float(match[1]) <= 0:
        raise InputError(f"{text!r} is not a valid time span", hint="write 90, 90s, 30m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


# --- the output of `status` --------------------------------------------------------------------------------------


def _status_result(
    farm_status: Mapping[str, Any] | None,
    virtual: Sequence[VirtualBoard],
    scheduler: Scheduler | None = None,
    *,
    as_json: bool,
) -> Result:
    served = farm_status["boards"] if farm_status else []
    unserved = [item for item in virtual if item.name not in {board["name"] for board in served}]
    rows = [_board_row(board) for board in served]
    for item in unserved:
        note = f"emulated, {item.kind}, SSH port {item.port}, not served"
        rows.append((item.name, item.board, _power_state(item), *[""] * 5, note))
    queue = farm_status.get("queue", []) if farm_status else []  # the daemon of an older toolchain has none
    document = {"boards": served, "queue": queue, "virtual": [dataclasses.asdict(item) for item in unserved]}
    output: list[str | Table] = [Table(rows, _HEADS, numbers=[7], spare=[7, 6]), *map(_queue_line, queue)]
    if scheduler is not None:
        from toolchain.tuning.build.cluster.roster import survey

        workers = survey(scheduler)
        document["builders"] = [dataclasses.asdict(worker) for worker in workers]
        worker_rows = [
            (
                worker.name,
                str(worker.processes),
                str(worker.candidates),
                worker.refused and f"refused: {worker.refused}",
            )
            for worker in workers
        ]
        heads = ("BUILDER", "PROCESSES", "CANDIDATES", "NOTES")
        table = Table(worker_rows, heads, numbers=[1, 2], spare=[3])
        output.append(table if workers else f"the Dask scheduler at {scheduler} has no workers")
    return Result(output, document, as_json)


def _queue_line(request: Mapping[str, Any]) -> str:
    boards = ", ".join(request["names"]) or " ".join(filter(None, [str(request["most"] or "any"), request["board"]]))
    return f"waiting, {request['place']}: {request['who']} for {boards}, since {_moment(request['since'])}"


def _board_row(board: Mapping[str, Any]) -> tuple[str, ...]:
    notes = ["emulated"] if board["emulated"] else []
    notes += [board["fault"]["message"]] if board["fault"] else []
    trial, last_trial = board["trial"], ""
    if trial:
        age_s = max(0.0, time.time() - trial["time"])
        prefix = "" if trial["ok"] else "failed, "
        last_trial = f"{trial['what']}: {prefix}{trial['seconds']:.1f} s, {age_s:.0f} s ago"
    return (
        board["name"],
        board["board"],
        board["state"],
        board["hold"]["who"] if board["hold"] else "",
        _lease_text(board["hold"]),
        last_trial,
        f"{board['celsius']:.0f} C" if board["celsius"] is not None else "",
        str(board["failures"]),
        ", ".join(notes),
    )


def _lease_text(hold: Mapping[str, Any] | None) -> str:
    if not hold:
        return ""
    since = f"since {_moment(hold['since'])}"
    if hold["until"]:
        return f"{since} until {_moment(hold['until'])}"
    heard_s = hold.get("heard_s")  # seconds since the holder's last sign of life
    return since if heard_s is None else f"{since}, alive {heard_s:.0f} s ago"


def _moment(when: float) -> str:
    """Format a time (seconds since 1970); the date is left out if it is within half a day."""
    form = "%H:%M:%S" if abs(when - time.time()) < _UNITS["d"] / 2 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(when))


def _power_state(board: VirtualBoard) -> str:
    return "running" if board.running else "stopped"
