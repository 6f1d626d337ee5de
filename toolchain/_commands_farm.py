"""The `farm` commands: the lab's devices are served over RPC, leased and locked; virtual boards are made."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import _options
from toolchain._commands import Console, Result
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.farm import VirtualBoard

_HEADS = ("NAME", "BOARD", "KEY", "STATE", "CLIENT", "LEASE", "LAST TRIAL", "TEMP", "FAILURES", "")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_HOUR_S = 3600
_names = click.argument("names", nargs=-1, metavar="[NAME]...")


@click.group("farm")
def farm() -> None:
    """Serve the lab's devices for tuning over RPC; make virtual boards to test on."""


@farm.command("up")
@_names
@click.option("--virtual", metavar="rpi4=2,pynq=1", help="Make virtual boards instead, so many of each type.")
@click.option("--kernel", is_flag=True, help="With --virtual: whole machines with a kernel; slower to start.")
@click.option("--devices", type=_options.PATH, help="The lab's devices.toml; ./devices.toml by default.")
@_options.json_flag
@click.pass_obj
def up(  # noqa: PLR0913 - a command has these options
    console: Console, names: tuple[str, ...], virtual: str | None, devices: Path | None, *, kernel: bool, as_json: bool
) -> Result:
    """Serve the lab's devices, all of them or the named ones, at TVM's RPC tracker and through SSH alone."""
    if virtual:
        if names or devices:
            raise InputError(
                "--virtual makes boards, and serves none",
                hint="run `toolchain farm up --virtual ...` first, then `toolchain farm up`",
            )
        return _made(console, virtual, kernel=kernel, as_json=as_json)
    if kernel:
        raise InputError("--kernel goes with --virtual", hint="toolchain farm up --virtual rpi4=1 --kernel")
    from toolchain import _farm_serving, board  # noqa: PLC0415 - the help needs no pydantic

    places = _farm_serving.choose(names, board.load_devices(devices), board.load)
    found = _farm_serving.up(places, console.say)
    return _shown(found, (), as_json=as_json)


def _made(console: Console, virtual: str, *, kernel: bool, as_json: bool) -> Result:
    from toolchain import farm as virtual_farm  # noqa: PLC0415 - as above
    from toolchain import report  # noqa: PLC0415 - as above

    found = virtual_farm.up(virtual_farm.parse_wanted(virtual), console.say, kernel=kernel)
    rows = [(one.name, one.board, one.kind, str(one.port), _running(one), "emulated") for one in found]
    table = report.columns([("NAME", "BOARD", "KIND", "SSH PORT", "STATE", ""), *rows])
    return Result(f"{table}\nmake deploy BOARD={found[0].board} HOST={found[0].name}", found, as_json)


@farm.command("down")
@_names
@_options.json_flag
@click.pass_obj
def down(console: Console, names: tuple[str, ...], *, as_json: bool) -> Result:
    """Serve devices no longer, and remove virtual boards with what was on them: all, or the named ones."""
    from toolchain import _farm_serving  # noqa: PLC0415 - as above

    served = _farm_serving.served_names() if names else ()
    virtual = [one.name for one in _virtual()] if names else []
    unknown = [name for name in names if name not in {*served, *virtual}]
    if unknown:
        raise InputError(
            f"the farm has no board {unknown[0]!r}",
            details="it has: " + (", ".join(dict.fromkeys([*served, *virtual])) or "none"),
            hint="`toolchain farm status` lists them",
        )
    gone = list(_farm_serving.down([name for name in names if name in served])) if served or not names else []
    for name in gone:
        console.say(f"{name} is served no longer")
    gone += _removed(console, [name for name in names if name in virtual], everything=not names)
    return Result("", list(dict.fromkeys(gone)), as_json)


def _removed(console: Console, names: Sequence[str], *, everything: bool) -> tuple[str, ...]:
    from toolchain import farm as virtual_farm  # noqa: PLC0415 - as above

    if not names and not (everything and _has_virtual()):
        return ()
    return virtual_farm.down(names, console.say)


def _has_virtual() -> bool:
    """Tell whether there ever were virtual boards; a lab without them needs no Docker."""
    from toolchain import board  # noqa: PLC0415 - as above

    return board.farm_devices().parent.exists()


def _virtual() -> tuple[VirtualBoard, ...]:
    from toolchain import farm as virtual_farm  # noqa: PLC0415 - as above

    return virtual_farm.status() if _has_virtual() else ()


@farm.command("status")
@_options.json_flag
@click.pass_obj
def status(console: Console, *, as_json: bool) -> Result:
    """Show the boards: who uses them, since when, what they did last, and how hot they are."""
    from toolchain import _farm_serving  # noqa: PLC0415 - as above
    from toolchain.errors import DeviceError  # noqa: PLC0415 - as above

    found = _farm_serving.status()
    try:
        virtual = _virtual()
    except DeviceError as fault:  # no reason not to tell about the others
        if found is None:
            raise
        console.say(f"virtual boards: {fault.message}")
        virtual = ()
    if found is None:
        console.say("no devices are served; `toolchain farm up` serves them")
    return _shown(found, virtual, as_json=as_json)


@farm.command("lock")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
@click.option("--for", "span", metavar="2h", help="How long: seconds, or a number with s, m, h or d; 1h by default.")
@_options.json_flag
@click.pass_obj
def lock(console: Console, name: str, command: tuple[str, ...], span: str | None, *, as_json: bool) -> Result | int:
    """Keep the board NAME for yourself: for some time, or for as long as CMD runs.

    CMD finds the board through TVM_TRACKER_HOST, TVM_TRACKER_PORT and TVM_TRACKER_KEY; its exit code is passed on.
    Without CMD no client gets the board at all until `toolchain farm release NAME`.
    """
    from toolchain import _farm_leases, _farm_serving, process  # noqa: PLC0415 - as above

    if not command:
        found = _farm_serving.lock(name, seconds(span) if span else _HOUR_S)
        text = f"{name} is yours until {_moment(found['until'])}; `toolchain farm release {name}` gives it back"
        return Result(text, found, as_json)
    if span:
        raise InputError("--for and a command exclude each other", hint="the board is held until the command ends")
    with _farm_leases.lease("", [name], who=" ".join(command)) as lease:
        host, port = lease.tracker
        key = lease.boards[0].key
        console.say(f"{name} is held for {command[0]}")
        environment = {"TVM_TRACKER_HOST": host, "TVM_TRACKER_PORT": str(port), "TVM_TRACKER_KEY": key}
        return process.attend(command, environment)


@farm.command("release")
@click.argument("name")
@_options.json_flag
def release(name: str, *, as_json: bool) -> Result:
    """Give the board NAME, which was locked, back to everybody."""
    from toolchain import _farm_serving  # noqa: PLC0415 - as above

    _farm_serving.release(name)
    return Result(f"{name} is for everybody again", {"board": name}, as_json)


def seconds(text: str) -> float:
    """Read a time span such as `90`, `90s`, `30m`, `2h` or `1d`.

    Raises:
        InputError: It is none.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not found or float(found[1]) <= 0:
        raise InputError(f"{text!r} is no time span", hint="write 90, 90s, 30m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


# --- what status shows ---


def _shown(found: Mapping[str, Any] | None, virtual: Sequence[VirtualBoard], *, as_json: bool) -> Result:
    from toolchain import report  # noqa: PLC0415 - as above

    served = found["boards"] if found else []
    stock = found["stock"] if found else []
    unserved = [one for one in virtual if one.name not in {board["name"] for board in served}]
    rows = [_row(board) for board in served] + [_stock_row(one) for one in stock] + [_virtual_row(o) for o in unserved]
    warnings = _warnings(found) if found else []
    lines = [report.columns([_HEADS, *rows])]
    if found:
        lines.append("tracker: {}:{}".format(*found["tracker"]))
    lines += [f"warning: {warning}" for warning in warnings]
    document = {
        "tracker": found["tracker"] if found else None,
        "boards": served,
        "stock": stock,
        "virtual": [dataclasses.asdict(one) for one in unserved],
        "warnings": warnings,
    }
    return Result("\n".join(lines), document, as_json)


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    notes = ["emulated"] if one["emulated"] else []
    notes += [one["fault"]["message"]] if one["fault"] else []
    return (
        one["name"],
        one["board"],
        one["key"],
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
        return f"until {_moment(hold['until'])}"
    since = hold["since"] if hold else one["session_since"]
    return f"since {_moment(since)}" if since else ""


def _trial(trial: Mapping[str, Any]) -> str:
    how = "" if trial["ok"] else "failed, "
    return f"{trial['what']}: {how}{trial['seconds']:.1f} s, {max(0.0, time.time() - trial['time']):.0f} s ago"


def _moment(when: float) -> str:
    form = "%H:%M:%S" if abs(when - time.time()) < _UNITS["d"] / 2 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(when))


def _stock_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"{one['host']}:{one['port']}", "", one["key"], "stock", *[""] * 6)


def _virtual_row(one: VirtualBoard) -> tuple[str, ...]:
    note = f"emulated, {one.kind}, SSH port {one.port}, not served"
    return (one.name, one.board, "", _running(one), *[""] * 5, note)


def _running(one: VirtualBoard) -> str:
    return "running" if one.running else "stopped"


def _warnings(found: Mapping[str, Any]) -> list[str]:
    warnings = [
        f"{one['host']}:{one['port']} serves {one['key']} and was not started by this farm: whoever reaches it can run "
        "code there, and nobody restarts it"
        for one in found["stock"]
    ]
    return warnings + ([found["fault"]["message"]] if found["fault"] else [])
