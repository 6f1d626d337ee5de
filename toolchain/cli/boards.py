"""Commands for board types: list them, check a board file, add a device, and find what this machine lacks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain.cli import common, completion, declare
from toolchain.cli.connection import AddressOptions, DeviceOptions, SlotOptions, open_device
from toolchain.cli.console import SCREEN, Console, Result, json_text, with_next
from toolchain.cli.gathering import gather, option, same
from toolchain.errors import BuildError, DeviceError, InputError, ToolchainError, VerificationError
from toolchain.progress import stage
from toolchain.report import Table, parts

if TYPE_CHECKING:
    from toolchain.adoption import Adoption, AdoptionRequest
    from toolchain.checks import Outcome
    from toolchain.shell.host_keys import UnknownHostKeyError

_SMOKE = "mlp"
_SMOKE_S = 1.0


@declare.group()
def board() -> None:
    pass


@board.command("list")
@declare.json_flag
def board_list(*, as_json: bool) -> Result:
    """List the board types."""
    from toolchain import board as board_files

    board_types = [board_files.load(name) for name in board_files.names()]
    rows = [(item.name, item.backend, item.machine, item.connection, item.description) for item in board_types]
    return Result(
        Table(rows, ("BOARD", "BACKEND", "MACHINE", "REACHED BY", "DEVICES"), spare=[3, 2]), board_types, as_json
    )


@board.command("check")
@click.argument("file", type=common.PATH)
@declare.json_flag
def board_check(file: Path, *, as_json: bool) -> Result:
    """Check a board file and explain every fault."""
    from toolchain import board as board_files

    board, faults = board_files.check(file)
    if board:
        from toolchain import backends  # TVM takes two seconds, which a fault in the text needs not

        faults = backends.faults(board.resolved())
    if not faults:
        return Result(f"{file}: a valid board file", [], as_json)
    fault = InputError(f"{file} has {len(faults)} fault(s)", details="\n".join(map(str, faults)))
    return Result("", faults, as_json, fault=fault)


@board.command("schema")
@declare.json_flag
def board_schema(*, as_json: bool) -> Result:
    """Print the JSON Schema of board files, for editors."""
    from toolchain import board

    schema = board.schema()
    return Result(json_text(schema), schema, as_json)


@dataclass(frozen=True)
class AddOptions:
    """The options of `board add`."""

    fingerprint: str = option(
        "--fingerprint",
        metavar="SHA256:...",
        default="",
        help="Fingerprint of the device's host key, as the device itself shows it. Default: ask at the terminal.",
    )
    name: str = option(
        "--name", metavar="NAME", default="", help="Name of the device in devices.toml. Default: its address."
    )
    board_name: str = option(
        "--board",
        default="",
        metavar="BOARD",
        shell_complete=completion.boards,
        help="Board type, or the name for a new one. Default: the type that fits best, or a new one.",
    )
    no_deploy: bool = option("--no-deploy", is_flag=True, help=f"Do not deploy {_SMOKE} at the end as a test.")
    emulated: bool | None = option(
        "--emulated/--no-emulated",
        default=None,
        help="Whether the device is emulated. Default: as it reports itself.",
    )
    wait_s: float = same(DeviceOptions, "wait_s")
    devices: Path | None = same(AddressOptions, "devices")
    root: str | None = same(AddressOptions, "root")
    identity: Path | None = same(AddressOptions, "identity")
    ssh_config: Path | None = same(AddressOptions, "ssh_config")
    known_hosts: tuple[Path, ...] = same(AddressOptions, "known_hosts")

    def address(self, host: str) -> SlotOptions:
        """Return the options with which other commands reach the device."""
        return SlotOptions(
            board_name=self.board_name,
            host=host,
            devices=self.devices,
            root=self.root,
            identity=self.identity,
            ssh_config=self.ssh_config,
            known_hosts=self.known_hosts,
            wait_s=self.wait_s,
        )

    def request(self, host: str, extra: Sequence[str] = ()) -> AdoptionRequest:
        """Return what the command has to do.

        Args:
            host: The device's address.
            extra: Other arguments, for the command that a hint repeats.
        """
        from toolchain.adoption import AdoptionRequest

        address = self.address(host)
        arguments = ["--no-deploy"] if self.no_deploy else []
        arguments += ["--wait", f"{self.wait_s:g}"] if self.wait_s else []
        return AdoptionRequest(
            host,
            address.ssh(),
            self.fingerprint,
            self.name,
            self.board_name,
            address.folder(),
            self.devices,
            self.emulated,
            (*arguments, *extra),
        )


@board.command("add")
@click.argument("host", metavar="USER@HOST[:PORT]|adb:SERIAL")
@gather("options", AddOptions)
@declare.json_flag
@click.pass_obj
def board_add(console: Console, /, host: str, options: AddOptions, *, as_json: bool) -> Result:
    """Add a device to devices.toml.

    The command asks the device what it is, chooses its board type and tests a deploy. You confirm its host key first,
    unless it is reached by adb. A board file is written only if no board type fits.
    """
    from toolchain import adoption

    request = options.request(adoption.resolve_address(host), ["--json"] if as_json else [])
    entry = adoption.choose_entry(request)

    def approve(fault: UnknownHostKeyError) -> None:
        _confirm_host_key(fault, request, console)

    console.say(stage(f"asking {host} what it is"))
    with adoption.connect(request, approve) as shell:
        adopted = adoption.adopt(request, entry, shell)
    document = _document(adopted, options)
    deployed = None
    if options.no_deploy or adopted.running:
        console.say(
            f"the test deploy is skipped: the device runs {adopted.running}"
            if adopted.running
            else "the test deploy is skipped"
        )
    else:
        deployed = _deploy_smoke(console, options, adopted)
        document["deploy"] = deployed.document
    text = [_summary_table(adopted), *parts(deployed.text if deployed else "")]
    if deployed:  # its text ends with its own next commands
        return Result(text, document, as_json)
    return with_next(Result(text, document, as_json), [_next_command(options, adopted)])


def _confirm_host_key(fault: UnknownHostKeyError, request: AdoptionRequest, console: Console) -> None:
    """Ask the user to confirm a host key, or compare it with the fingerprint that they passed.

    Raises:
        VerificationError: The key is another one, or was not confirmed.
    """
    from toolchain import adoption
    from toolchain.shell import parse_address

    key = fault.key
    on_device = "for f in /etc/ssh/*_key.pub; do ssh-keygen -lf $f; done"
    device = key.alias == parse_address(request.host).host
    if device and request.fingerprint:
        adoption.check_fingerprint(key.host, key.fingerprint, request.fingerprint)
        console.say(f"{key.host} has the {key.kind} host key {key.fingerprint}, as asked for")
        return
    if not sys.stdin.isatty():  # no one can confirm the key, so the hint has the fingerprint to check
        again = request.command(fingerprint=key.fingerprint)
        hint = f"compare it with what the device itself shows ({on_device}), then: {again}"
        raise VerificationError(fault.message, details=fault.details, hint=hint if device else fault.hint)
    SCREEN.close()
    click.echo(f"{key.host} has the {key.kind} host key\n  {key.fingerprint}", err=True)
    click.echo(
        f"No key of it is known yet. Compare it with what the device itself shows:\n  {on_device}",
        err=True,
    )
    if not click.confirm(f"Is it the same? Trust this key from now on ({key.file})?", err=True):
        raise VerificationError(
            f"the host key of {key.host} was not confirmed",
            details="nothing was written, and nothing was sent to the device",
            hint="compare the fingerprints at the device, then run the same command again",
        )


def _deploy_smoke(console: Console, options: AddOptions, adopted: Adoption) -> Result:
    """Deploy the smallest network to the new device, as a test."""
    from dataclasses import replace

    from toolchain.cli.device import DeployOptions, run_deploy

    # The entry has the root and the SSH configuration.
    address = options.address(adopted.entry.name)
    address = replace(address, board_name=_board_argument(options, adopted), root=None, ssh_config=None)
    settings = DeployOptions(device=address, measuring=common.MeasureOptions(budget=_SMOKE_S))
    try:
        return run_deploy(console, _SMOKE, settings)
    except ToolchainError as fault:  # the device was added, which the error must not hide
        progress = f"{adopted.entry.name} stands in {adopted.entry.file}; a deploy of {_SMOKE} to it failed"
        details = f"{progress}\n{fault.details}".rstrip()
        raise type(fault)(
            fault.message, details=details, hint=fault.hint or shlex.join(_next_command(options, adopted))
        ) from fault


def _board_argument(options: AddOptions, adopted: Adoption) -> str:
    return options.board_name if options.board_name.endswith(".toml") else adopted.choice.board.name


def _next_command(options: AddOptions, adopted: Adoption) -> list[str]:
    """Return the command that deploys to the new device."""
    argv = ["toolchain", "deploy", "MODEL", "--board", _board_argument(options, adopted), "--host", adopted.entry.name]
    flags = [("--devices", options.devices), ("-i", options.identity)]
    flags += [("--known-hosts", file) for file in options.known_hosts]
    return [*argv, *(argument for name, file in flags if file for argument in (name, str(file)))]


def _summary_table(adopted: Adoption) -> Table:
    from toolchain.adoption import summary

    board, chosen = adopted.choice.board, adopted.choice
    how = f"new, {adopted.board_file}" if adopted.board_file else board.description
    entry = "added to" if adopted.entry.old is None else "changed in" if adopted.changed else "stands in"
    return summary.table(
        adopted.probe,
        [
            ("board", f"{board.name} ({how}), for {board.target.mcpu} {' '.join(board.target.mattr)}".rstrip()),
            ("or", f"--board {', '.join(chosen.accelerated)}" if chosen.accelerated else ""),
            *(("note", note) for note in chosen.notes),
            ("entry", f"{adopted.entry.name} {entry} {adopted.entry.file}"),
        ],
    )


def _document(adopted: Adoption, options: AddOptions) -> dict[str, object]:
    from toolchain.adoption import summary

    device = adopted.device
    return {
        "device": summary.document(adopted.probe),
        "board": adopted.choice.board,
        "board_file": str(adopted.board_file) if adopted.board_file else None,
        "accelerated": adopted.choice.accelerated,
        "notes": adopted.choice.notes,
        "name": adopted.entry.name,
        "devices": str(adopted.entry.file),
        "entry": {"board": device.board, "host": device.host, "root": device.root, "emulated": device.emulated},
        "written": adopted.changed,
        "running": adopted.running or None,
        "deploy": None,
        "next": [shlex.join(_next_command(options, adopted))],
    }


@dataclass(frozen=True)
class DoctorOptions(AddressOptions):
    """Which board type, and which device, `doctor` checks."""

    board_name: str = option(
        "--board",
        default="",
        metavar="BOARD",
        shell_complete=completion.boards,
        help="Check only this board, or that of --host; exit code 3 if something is missing for it.",
    )


def _check_device(options: DoctorOptions, console: Console) -> tuple[tuple[Outcome, ...], DeviceError | None]:
    """Check a device, if one is named or if this machine is the device.

    Returns:
        The outcomes, and the error if the device could not be reached.
    """
    from toolchain.adoption import needs
    from toolchain.checks import Outcome
    from toolchain.pipeline import doctor as doctors

    board = options.board()
    name = options.host or options.place or ""
    if not name and not (board.connection == "local" and needs.any_of(board)):
        return (), None
    try:
        with open_device(board, options) as device:
            root = options.folder() or device.entry.root or board.root
            outcomes = doctors.examine_device(board, device.shell, root, name)
    except DeviceError as fault:
        unreachable = f"device {name or 'of this machine'}"
        return (Outcome(unreachable, board.name, fault.message, fault.hint or fault.message, passed=False),), fault
    if name and needs.any_of(board) and all(outcome.passed for outcome in outcomes):
        request = options.board_request(board, "hardware")
        outcomes = (*outcomes, doctors.compare_hardware(board, request, console.say))
    return outcomes, None


def _check_address(options: DoctorOptions) -> bool:
    """Refuse address options without a device; return whether the device is reached by adb."""
    from toolchain.shell import check_options, is_adb

    if not (options.host or options.place):
        if any([options.root, options.identity, options.ssh_config, options.devices, *options.known_hosts]):
            raise InputError("options for reaching a device are given, but no device", hint="add --host or --place")
        return False
    device = options.device(options.board())
    check_options(device.host, options.ssh())
    return is_adb(device.host)


@declare.command()
@gather("options", DoctorOptions)
@declare.json_flag
@click.pass_obj
def doctor(console: Console, /, options: DoctorOptions, *, as_json: bool) -> Result:
    """With --host, the device is checked as well. An accelerator that it has is compared with the board file."""
    from toolchain import board as board_files
    from toolchain.pipeline import doctor as doctors

    by_adb = _check_address(options)
    board_name = options.board_name or (options.board().name if options.host or options.place else "")
    boards = [options.board()] if board_name else [board_files.load(name) for name in board_files.names()]
    of_device, fault = _check_device(options, console) if board_name else ((), None)
    outcomes = (*doctors.examine(boards, by_adb=by_adb), *of_device)
    missing = [outcome for outcome in outcomes if not outcome.passed]
    lacks: ToolchainError | None = fault
    if board_name and missing and not fault:
        lacks = BuildError(f"board {board_name} lacks {len(missing)} thing(s)", hint=missing[0].remedy)
    return Result(doctors.render_text(outcomes), doctors.document(outcomes), as_json, lacks)
