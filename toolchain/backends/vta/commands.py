"""The `vta` commands: what a program of the accelerator says, and how its instructions are encoded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from toolchain import _commands_tuning, _options, compiler, files, inputs, report
from toolchain._commands import Console, Result
from toolchain.backends import vta
from toolchain.backends.vta import config, disasm, listing, on_board
from toolchain.backends.vta._devices import device
from toolchain.backends.vta._fields import Field
from toolchain.backends.vta.isa import Isa, Revision
from toolchain.backends.vta.layers import Conv2d, is_layer
from toolchain.backends.vta.simulator import Profile
from toolchain.backends.vta.stream import Stream
from toolchain.board import Board
from toolchain.errors import InputError
from toolchain.pipeline import Model
from toolchain.tuning import places, session
from toolchain.tuning.records import RecordFile, default_path

_REVISIONS = {one.date: one for one in Revision}
_NEWEST = Revision.V2020_12

_machine_options = _options.all_of(
    click.option("--config", type=_options.PATH, help="The machine's vta_config.json; the default one if not given."),
    click.option("--revision", type=click.Choice(list(_REVISIONS)), help=f"Its encoding; {_NEWEST.date} if not given."),
)


@click.group()
def group() -> None:
    """Look into programs of the VTA accelerator."""


@group.command("disasm")
@click.argument("file", type=_options.PATH)
@click.option("--raw", is_flag=True, help="FILE is bare instructions of 16 bytes.")
@_machine_options
@click.option("--uops", "with_uops", is_flag=True, help="Show the micro-ops that each instruction runs.")
@_options.json_flag
def disassemble(file: Path, *, raw: bool, with_uops: bool, as_json: bool, **options: Any) -> Result:
    """List the instructions of FILE, a compiled kernel."""
    stream = _read(file, *_chosen(options), raw=raw)
    if as_json:
        return Result("", disasm.document(stream, with_uops=with_uops), as_json)
    return Result(disasm.listing(stream, with_uops=with_uops), None)


@group.command("isa")
@_machine_options
@_options.json_flag
def show_isa(*, as_json: bool, **options: Any) -> Result:
    """Show the fields of each instruction: their bits, and what they may hold."""
    machine, encoding = _chosen(options)
    isa = Isa(machine or config.DEFAULT, encoding or _NEWEST)
    fields = {opcode: [_field_document(one) for one in found] for opcode, found in isa.fields().items()}
    document = {"config": isa.config.name, "revision": isa.revision.date, "instructions": fields}
    return Result(_isa_text(isa), document, as_json)


@group.command("kernels")
@click.argument("source", metavar="MODEL")
@click.option("--board", "board_name", default="vta-sim", show_default=True, help="Board type, or its .toml.")
@_options.shape_option
@_options.seed_option
@click.option("--records", type=_options.PATH, help="Tuning records to apply; records/BOARD.jsonl by default.")
@click.option("-o", "--output", "folder", type=_options.PATH, help="Write each kernel's stream into this folder.")
@_options.json_flag
@click.pass_obj
def kernels_command(console: Console, /, source: str, folder: Path | None, *, as_json: bool, **options: Any) -> Result:
    """List the kernels of MODEL on the array: tiles, instructions, and modelled cycles."""
    kind = _options.chosen_board(options)
    found = _kernels(source, _with_vta(kind), options, console)
    if folder:
        _write(found, folder)
    totals = {label: listing.total_ms(found, label) for label in map(listing.label, Profile)}
    summary = ", ".join(f"{label} {value:.1f} ms" for label, value in totals.items())
    text = report.columns(listing.table(found)) + f"\nall calls: {summary}; cycles are modelled, not measured"
    return Result(text, {"kernels": [one.document() for one in found], "modelled_ms": totals}, as_json)


@group.command("self-test")
@_options.device_options
@_options.json_flag
@click.pass_obj
def self_test_command(console: Console, /, *, as_json: bool, **options: Any) -> Result:
    """Let boards try their array: every kind of instruction, against values that are known."""
    kind = _with_vta(_options.chosen_board(options))
    with places.opened(_commands_tuning.wanted_boards(kind, "self-test", options), console.say) as held:
        found = {place.name: on_board.self_test(place, device(kind).name) for place in held.places}
    text = "\n".join(
        f"{name}: {one.device}, {one.configuration}, revision {Revision(one.revision).date}: "
        + ", ".join(f"{check} ok" for check in one.passed)
        for name, one in found.items()
    )
    return Result(text, {name: asdict(one) for name, one in found.items()}, as_json)


def _with_vta(kind: Board) -> Board:
    if kind.backend != "vta":
        raise InputError(f"board {kind.name} has no VTA", hint="`toolchain boards` lists those whose backend is vta")
    return kind


def _write(kernels: Sequence[listing.Kernel], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise files.unwritable(folder, fault) from fault
    for number, one in enumerate(kernels):
        files.write_atomic(folder / f"{number:02}-{one.name}.vta", one.stream.encoded())


def _kernels(source: str, kind: Board, options: Mapping[str, Any], console: Console) -> list[listing.Kernel]:
    model = Model(source, _options.parse_shapes(options["shapes"]), inputs.Source(seed=options["seed"]))
    known = session.extract(model, kind, (), console.say)
    best = _best(options["records"] or default_path(kind.name), kind)
    offers = vta.templates(kind)
    return [
        listing.kernel(Conv2d.from_json(one.layer), one.weight, best.get(one.workload), offers)
        for one in known.tasks
        if is_layer(one.layer)
    ]


def _best(path: Path, kind: Board) -> dict[str, Any]:
    """Return what the best tuning record says of each workload."""
    if not path.exists():
        return {}
    found = RecordFile(path).read().best(compiler.record_key(kind, emulated=kind.emulated))
    return {workload: json.loads(record.trace) for workload, record in found.items()}


def _chosen(options: Mapping[str, Any]) -> tuple[config.VtaConfig | None, Revision | None]:
    file, revision = options["config"], options["revision"]
    return config.load(file) if file else None, _REVISIONS[revision] if revision else None


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
        return file.read_bytes()
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
