"""The `vta` commands: what a program of the accelerator says, and how its instructions are encoded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from toolchain import files, outputs
from toolchain.backends.base.attributes import EXACT
from toolchain.backends.vta import listing
from toolchain.backends.vta.backend import Vta
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.backends.vta.device import devices, self_test
from toolchain.backends.vta.device.profiles import profiles_for
from toolchain.backends.vta.isa import Isa, Revision, config, disasm
from toolchain.backends.vta.isa.fields import Field
from toolchain.backends.vta.isa.stream import MAGIC, Stream
from toolchain.board import Board
from toolchain.cli import connection, helptext, options
from toolchain.cli.connection import BoardOptions, DeviceOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gathered, option, record
from toolchain.compile.applicable_records import record_key
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.farm import boards
from toolchain.pipeline import tune
from toolchain.records import RecordFile, default_path
from toolchain.records.tasks import called, layer_hash, layer_of
from toolchain.tables import Table
from toolchain.units import duration

_REVISIONS = {one.date: one for one in Revision}
_NEWEST = Revision.V2020_12

_STREAMS = "the streams of kernels"


@dataclass(frozen=True)
class MachineOptions:
    """Which machine a program is for."""

    config_path: Path | None = option(
        "--config",
        type=options.PATH,
        help="Configuration of the accelerator, a vta_config.json. Default: that of the toolchain.",
    )
    revision: str | None = option(
        "--revision",
        type=click.Choice(list(_REVISIONS)),
        help=f"Revision of the instruction encoding. Default: {_NEWEST.date}.",
    )

    def chosen(self) -> tuple[config.VtaConfig | None, Revision | None]:
        """Return both as far as they are given."""
        machine = config.load(self.config_path) if self.config_path else None
        return machine, _REVISIONS[self.revision] if self.revision else None


_machine = gathered("machine", MachineOptions)


@click.group("vta", cls=helptext.Group)
def vta() -> None:
    """Inspect programs of the VTA accelerator."""


@vta.command("disasm")
@click.argument("file", type=options.PATH)
@helptext.option("--raw", is_flag=True, help="FILE contains only instructions of 16 bytes, without a header.")
@_machine
@helptext.option("--uops", "with_uops", is_flag=True, help="Also show the micro-ops that each instruction runs.")
@options.json_flag
def disassemble(file: Path, *, raw: bool, with_uops: bool, machine: MachineOptions, as_json: bool) -> Result:
    """List the instructions of FILE, a compiled kernel."""
    stream = _read(file, *machine.chosen(), raw=raw)
    if as_json:
        return Result("", disasm.document(stream, with_uops=with_uops), as_json)
    return Result(disasm.listing(stream, with_uops=with_uops), None)


@vta.command("isa")
@_machine
@options.json_flag
def show_isa(machine: MachineOptions, *, as_json: bool) -> Result:
    """Show the fields of each instruction, with their bits and allowed values."""
    chosen, encoding = machine.chosen()
    isa = Isa(chosen or config.DEFAULT, encoding or _NEWEST)
    fields = {opcode: [_field_document(one) for one in found] for opcode, found in isa.fields().items()}
    document = {"config": isa.config.name, "revision": isa.revision.date, "instructions": fields}
    return Result(_isa_text(isa), document, as_json)


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
    model: options.ModelOptions = record(options.ModelOptions)
    records: Path | None = option(
        "--records", type=options.PATH, help="File of tuning records to apply. Default: yours, or the project's."
    )
    output: Path | None = option(
        "-o",
        "--output",
        type=options.PATH,
        metavar="FOLDER",
        help="Write the instruction stream of each kernel into this folder.",
    )


@vta.command("kernels")
@options.model_argument
@gathered("asked", KernelsOptions)
@options.json_flag
@click.pass_obj
def kernels(console: Console, /, source: str, asked: KernelsOptions, *, as_json: bool) -> Result:
    """List the kernels of MODEL on the accelerator.

    For each one: tiles, instructions and modelled cycles.
    """
    kind = _with_vta(BoardOptions(asked.board_name).board())
    if asked.output:
        outputs.check_folder(asked.output, _STREAMS, _foreign)
    found = _kernels(source, kind, asked, console)
    if asked.output:
        _write(found, asked.output)
    machine = devices.device(kind).config
    profiles = profiles_for(machine)
    totals = {one.label: listing.total_ms(found, one.label) for one in profiles}
    summary = ", ".join(f"{label} {duration(value)}" for label, value in totals.items())
    basis = [f"{one.label}: {one.calibration}" for one in profiles if one.calibration]
    document = {"config": machine.name, "kernels": [one.document() for one in found], "modelled_ms": totals}
    told = f"all calls: {summary}; cycles are modelled, not measured; a deploy reports those of the board's own profile"
    shown: list[str | Table] = [listing.table(found, profiles), told, *basis]
    return Result(shown, document, as_json)


@vta.command("self-test")
@connection.device
@options.json_flag
@click.pass_obj
def self_test_command(console: Console, /, device: DeviceOptions, *, as_json: bool) -> Result:
    """Test every kind of instruction on the accelerators of boards.

    The results are compared with known values.
    """
    kind = _with_vta(device.board())
    with boards.open_boards(device.boards(kind, "self-test"), console.say) as held:
        found = {place.name: self_test.self_test(place, devices.device(kind)) for place in held.places}
    text = "\n".join(
        f"{name}: {one.device}, {one.configuration}, revision {Revision(one.revision).date}: "
        + ", ".join(f"{check} ok" for check in one.passed)
        + f"; memory: {one.memory}"
        + (f" ({one.passed_over})" if one.passed_over else "")
        for name, one in found.items()
    )
    return Result(text, {name: asdict(one) for name, one in found.items()}, as_json)


def _with_vta(kind: Board) -> Board:
    if kind.backend != "vta":
        raise InputError(f"board {kind.name} has no VTA", hint="`toolchain boards` lists those whose backend is vta")
    return kind


def _write(found: Sequence[listing.Kernel], folder: Path) -> None:
    with outputs.replacing(folder, _STREAMS, _foreign) as staging:
        for number, one in enumerate(found):
            (staging / f"{number:02}-{one.name}.vta").write_bytes(one.stream.encoded())


def _foreign(folder: Path) -> str:
    others = [path.name for path in sorted(folder.iterdir()) if not _is_stream(path)]
    return f"it holds {others[0]}, which is not a kernel's stream" if others else ""


def _is_stream(path: Path) -> bool:
    if path.suffix != ".vta" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def _kernels(source: str, kind: Board, asked: KernelsOptions, console: Console) -> list[listing.Kernel]:
    """Return the kernels as a build has them: tasks of one shape may differ in the buffers of their network."""
    lowered = tune.extract(BuildRequest(asked.model.model(source), kind, console.say)).lowered
    layers = [(layer_of(function), function.attrs) for _, function in called(lowered)]
    calls = Counter((layer, str(attributes.get(EXACT, layer))) for layer, attributes in layers if is_layer(layer))
    best = _best(asked.records or default_path(kind.name), kind)
    templates = Vta(kind).templates
    return [
        listing.kernel(Conv2d.from_json(exact), number, best.get(layer_hash(layer)), templates)
        for (layer, exact), number in calls.items()
    ]


def _best(path: Path, kind: Board) -> dict[str, Any]:
    """Return what the best tuning record says of each workload."""
    if not path.exists():
        return {}
    found = RecordFile(path).catalog().best(record_key(Vta(kind), emulated=kind.emulated))
    return {workload: json.loads(record.trace) for workload, record in found.items()}


def _read(file: Path, machine: config.VtaConfig | None, encoding: Revision | None, *, raw: bool) -> Stream:
    data = _bytes(file)
    try:
        found = _raw(data, machine, encoding) if raw else Stream.decode(data)
    except InputError as fault:
        hint = fault.hint if raw else "compile the kernel again; a file of bare instructions needs --raw"
        raise InputError(f"{file}: {fault.message}", details=fault.details, hint=hint) from fault
    if machine not in {None, found.config} or encoding not in {None, found.revision}:
        raise InputError(
            f"{file} is for {found.config.name}, revision {found.revision.date}",
            hint="leave --config and --revision out: the file names its machine itself",
        )
    return found


def _bytes(file: Path) -> bytes:
    try:
        return files.read_limited(file)
    except OSError as fault:
        raise InputError(f"cannot read {file}: {fault.strerror or fault}") from fault


def _raw(data: bytes, machine: config.VtaConfig | None, encoding: Revision | None) -> Stream:
    isa = Isa(machine or config.DEFAULT, encoding or _NEWEST)
    return Stream(isa.config, isa.revision, (), isa.decode_all(data), (), ())


def _isa_text(isa: Isa) -> str:
    head = f"{isa.config.name}, revision {isa.revision.date}"
    return "\n".join([head, *(row for opcode, fields in isa.fields().items() for row in _rows(opcode, fields))])


def _rows(opcode: str, fields: tuple[Field, ...]) -> list[str]:
    return ["", opcode, *(f"  {one.name:<16}{_bits(one):<10}{one.width:>3}  {_values(one)}" for one in fields)]


def _bits(field: Field) -> str:
    return f"{field.low}..{field.low + field.width - 1}" if field.width > 1 else str(field.low)


def _values(field: Field) -> str:
    return ", ".join(f"{one.name} {code}" for code, one in enumerate(field.members)) or field.allowed


def _field_document(field: Field) -> dict[str, Any]:
    values = {one.name: code for code, one in enumerate(field.members)}
    return {"name": field.name, "low": field.low, "width": field.width, "signed": field.signed, "values": values}
