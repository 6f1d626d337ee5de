"""The `vta` commands: what a program of the accelerator says, and how its instructions are encoded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolchain import _options
from toolchain._commands import Result
from toolchain.backends.vta import config, disasm
from toolchain.backends.vta._fields import Field
from toolchain.backends.vta.isa import Isa, Revision
from toolchain.backends.vta.stream import Stream
from toolchain.errors import InputError

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
