"""The `vta` commands: list the kernels and the instructions of programs for the accelerator, and test it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from toolchain import files, outputs
from toolchain.backends.base import EXACT
from toolchain.backends.vta import listing
from toolchain.backends.vta.backend import Vta
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.backends.vta.device import devices, self_test
from toolchain.backends.vta.device.devices import profiles_for
from toolchain.backends.vta.isa import Isa, Revision, config, disasm
from toolchain.backends.vta.isa.stream import MAGIC, Stream
from toolchain.board import Board
from toolchain.cli import common, connection, declare, helptext
from toolchain.cli.connection import BoardOptions, DeviceOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.compile.applicable_records import record_key
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.farm import boards
from toolchain.pipeline import tune
from toolchain.records import RecordFile, default_path
from toolchain.records.tasks import called, layer_hash, layer_of
from toolchain.report import Table
from toolchain.units import duration

_REVISIONS = {revision.date: revision for revision in Revision}
_NEWEST = Revision.V2020_12

_STREAMS = "the streams of kernels"


@dataclass(frozen=True)
class MachineOptions:
    """The configuration and the instruction encoding of the accelerator."""

    config_path: Path | None = option(
        "--config",
        type=common.PATH,
        help="Configuration of the accelerator, a vta_config.json. Default: that of the toolchain.",
    )
    revision: str | None = option(
        "--revision",
        type=click.Choice(list(_REVISIONS)),
        help=f"Revision of the instruction encoding. Default: {_NEWEST.date}.",
    )

    def chosen(self) -> tuple[config.VtaConfig | None, Revision | None]:
        """Return both; None for one that is not given."""
        machine = config.load(self.config_path) if self.config_path else None
        return machine, _REVISIONS[self.revision] if self.revision else None


_machine = gather("machine", MachineOptions)


@declare.group()
def vta() -> None:
    pass


@vta.command("disasm")
@click.argument("file", type=common.PATH)
@helptext.option("--raw", is_flag=True, help="FILE contains only instructions of 16 bytes, without a header.")
@_machine
@helptext.option("--uops", "with_uops", is_flag=True, help="Also show the micro-ops that each instruction runs.")
@declare.json_flag
def disassemble(file: Path, *, raw: bool, with_uops: bool, machine: MachineOptions, as_json: bool) -> Result:
    """List the instructions of FILE, a compiled kernel."""
    stream = _read_stream(file, *machine.chosen(), raw=raw)
    text = "" if as_json else disasm.listing(stream, with_uops=with_uops)  # a program may be large
    return Result(text, disasm.document(stream, with_uops=with_uops), as_json)


@vta.command("isa")
@_machine
@declare.json_flag
def show_isa(machine: MachineOptions, *, as_json: bool) -> Result:
    """Show the fields of each instruction, with their bits and allowed values."""
    chosen, encoding = machine.chosen()
    isa = Isa(chosen or config.DEFAULT, encoding or _NEWEST)
    lines = [f"{isa.config.name}, revision {isa.revision.date}"]
    instructions: dict[str, list[dict[str, Any]]] = {}
    for opcode, fields in isa.fields().items():
        lines += ["", opcode]
        instructions[opcode] = []
        for field in fields:
            values = {member.name: code for code, member in enumerate(field.members)}
            bits = f"{field.low}..{field.low + field.width - 1}" if field.width > 1 else str(field.low)
            allowed = ", ".join(f"{name} {code}" for name, code in values.items()) or field.allowed
            lines.append(f"  {field.name:<16}{bits:<10}{field.width:>3}  {allowed}")
            document = {"name": field.name, "low": field.low, "width": field.width, "signed": field.signed}
            instructions[opcode].append({**document, "values": values})
    result = {"config": isa.config.name, "revision": isa.revision.date, "instructions": instructions}
    return Result("\n".join(lines), result, as_json)


@dataclass(frozen=True)
class KernelsOptions:
    """The options of `vta kernels`."""

    board_name: str = option(
        "--board",
        metavar="BOARD",
        default="vta-sim",
        show_default=True,
        help="Board type, or a board file (.toml).",
    )
    model: common.ModelOptions = record(common.ModelOptions)
    records: Path | None = option(
        "--records", type=common.PATH, help="File of tuning records to apply. Default: yours, or the project's."
    )
    output: Path | None = option(
        "-o",
        "--output",
        type=common.PATH,
        metavar="FOLDER",
        help="Write the instruction stream of each kernel into this folder.",
    )


@vta.command("kernels")
@common.model_argument
@gather("options", KernelsOptions)
@declare.json_flag
@click.pass_obj
def kernels(console: Console, /, source: str, options: KernelsOptions, *, as_json: bool) -> Result:
    """List the kernels of MODEL on the accelerator.

    For each one: tiles, instructions and modelled cycles.
    """
    board = _with_vta(BoardOptions(options.board_name).board())
    if options.output:
        outputs.check_folder(options.output, _STREAMS, _foreign)
    kernel_list = _list_kernels(source, board, options, console)
    if options.output:
        with outputs.replacing(options.output, _STREAMS, _foreign) as staging:
            for number, kernel in enumerate(kernel_list):
                (staging / f"{number:02}-{kernel.name}.vta").write_bytes(kernel.stream.encoded())
    machine = devices.device(board).config
    profiles = profiles_for(machine)
    totals = {profile.label: listing.total_ms(kernel_list, profile.label) for profile in profiles}
    summary = ", ".join(f"{label} {duration(value)}" for label, value in totals.items())
    basis = [f"{one.label}: {one.calibration}" for one in profiles if one.calibration]
    document = {"config": machine.name, "kernels": [one.document() for one in kernel_list], "modelled_ms": totals}
    totals_text = (
        f"all calls: {summary}; cycles are modelled, not measured; a deploy reports those of the board's own profile"
    )
    output: list[str | Table] = [listing.table(kernel_list, profiles), totals_text, *basis]
    return Result(output, document, as_json)


@vta.command("self-test")
@connection.device_options
@declare.json_flag
@click.pass_obj
def self_test_command(console: Console, /, device: DeviceOptions, *, as_json: bool) -> Result:
    """Test every kind of instruction on the accelerators of boards.

    The results are compared with known values.
    """
    board = _with_vta(device.board())
    with boards.open_boards(device.board_request(board, "self-test"), console.say) as lease:
        results = {endpoint.name: self_test.self_test(endpoint, devices.device(board)) for endpoint in lease.places}
    text = "\n".join(
        f"{name}: {result.device}, {result.configuration}, revision {Revision(result.revision).date}: "
        + ", ".join(f"{check} ok" for check in result.passed)
        + f"; memory: {result.memory}"
        + (f" ({result.passed_over})" if result.passed_over else "")
        for name, result in results.items()
    )
    return Result(text, {name: asdict(result) for name, result in results.items()}, as_json)


def _with_vta(board: Board) -> Board:
    if board.backend != "vta":
        raise InputError(
            f"board {board.name} has no VTA", hint="`toolchain board list` lists those whose backend is vta"
        )
    return board


def _foreign(folder: Path) -> str:
    """Return why a folder has other files than streams, and so must not be replaced; empty if it has none."""
    for path in sorted(folder.iterdir()):
        head = b""
        if path.suffix == ".vta" and path.is_file():
            with path.open("rb") as stream:
                head = stream.read(len(MAGIC))
        if head != MAGIC:
            return f"it holds {path.name}, which is not a kernel's stream"
    return ""


def _list_kernels(source: str, board: Board, options: KernelsOptions, console: Console) -> list[listing.Kernel]:
    """Return the kernels as a build has them: tasks of one shape may have different buffers in a network."""
    lowered = tune.extract(BuildRequest(options.model.model(source), board, console.say)).lowered
    layers = [(layer_of(function), function.attrs) for _, function in called(lowered)]
    calls = Counter((layer, str(attributes.get(EXACT, layer))) for layer, attributes in layers if is_layer(layer))
    path = options.records or default_path(board.name)
    records = RecordFile(path).read().best(record_key(Vta(board), emulated=board.emulated)) if path.exists() else {}
    best = {workload: json.loads(record.trace) for workload, record in records.items()}
    templates = Vta(board).templates
    return [
        listing.kernel(Conv2d.from_json(exact), number, best.get(layer_hash(layer)), templates)
        for (layer, exact), number in calls.items()
    ]


def _read_stream(file: Path, machine: config.VtaConfig | None, encoding: Revision | None, *, raw: bool) -> Stream:
    try:
        data = files.read_limited(file)
    except OSError as fault:
        raise InputError(f"cannot read {file}: {fault.strerror or fault}") from fault
    try:
        if raw:
            isa = Isa(machine or config.DEFAULT, encoding or _NEWEST)
            stream = Stream(isa.config, isa.revision, (), isa.decode_all(data), (), ())
        else:
            stream = Stream.decode(data)
    except InputError as fault:
        hint = fault.hint if raw else "compile the kernel again; a file of bare instructions needs --raw"
        raise InputError(f"{file}: {fault.message}", details=fault.details, hint=hint) from fault
    if machine not in {None, stream.config} or encoding not in {None, stream.revision}:
        raise InputError(
            f"{file} is for {stream.config.name}, revision {stream.revision.date}",
            hint="leave --config and --revision out: the file names its machine itself",
        )
    return stream
