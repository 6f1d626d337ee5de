"""The `records` commands: what is in files of tuning records, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import tables
from toolchain.cli import options
from toolchain.cli.console import Console, Result
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.records import Key, Record, Records
    from toolchain.records.maintenance import Row, Table

_file = click.argument("file", type=options.PATH, required=False)
_board = click.option(
    "--board", "board_name", default="local", show_default=True, help="Whose file, where no FILE is named."
)
_target = click.option("--target", "target_id", metavar="ID", help="Only this target; `records show` prints the IDs.")
_output = click.option("-o", "--output", type=options.PATH, required=True, help="Where to write.")


@click.group("records")
def records() -> None:
    """Look at tuning records; keep the best, merge them, or export them."""


@records.command("show")
@_file
@_board
@_target
@options.json_flag
@click.pass_obj
def show(console: Console, /, file: Path | None, board_name: str, target_id: str | None, *, as_json: bool) -> Result:
    """Show what is known in FILE of each kernel, for each target."""
    from toolchain.records import maintenance

    source = file or _board_file(board_name, console)
    found = _read(source)
    wanted = _keys(found, target_id, source)
    kept = [table for table in maintenance.tables(found) if table.key in wanted]
    shown = [part for table in kept for part in ("", *_shown(table))][1:] or f"{source} holds no trials"
    return Result(shown, [_table_document(table) for table in kept], as_json)


@records.command("best")
@_file
@_board
@_target
@options.json_flag
@click.pass_obj
def best(console: Console, /, file: Path | None, board_name: str, target_id: str | None, *, as_json: bool) -> Result:
    """Print the best record in FILE of each kernel, for each target."""
    source = file or _board_file(board_name, console)
    found = _read(source)
    chosen = [record for key in _keys(found, target_id, source) for record in found.best(key).values()]
    return Result("\n".join(_best_line(found, one) for one in chosen), chosen, as_json)


@records.command("distill")
@click.argument("file", type=options.PATH)
@_output
@click.option("--keep", default=1, show_default=True, type=click.IntRange(min=1), help="Candidates of each kernel.")
@options.json_flag
def distill(file: Path, output: Path, keep: int, *, as_json: bool) -> Result:
    """Keep the best records of FILE for each target; -o may name FILE itself."""
    from toolchain.records import maintenance

    return _written(maintenance.distill(file, output, keep), output, as_json=as_json)


@records.command("merge")
@click.argument("sources", metavar="FILE...", type=options.PATH, nargs=-1, required=True)
@_output
@options.json_flag
def merge(sources: tuple[Path, ...], output: Path, *, as_json: bool) -> Result:
    """Write the records of several files to one, each once; -o may name one of them."""
    from toolchain.records import maintenance

    return _written(maintenance.merge(sources, output), output, as_json=as_json)


@records.command("export")
@click.argument("file", type=options.PATH)
@_output
@_target
@options.json_flag
def export(file: Path, output: Path, target_id: str | None, *, as_json: bool) -> Result:
    """Write FILE's records of one target as a database of MetaSchedule's, into the folder that -o names."""
    from toolchain.records import export as records_export

    found = _read(file)
    keys = _keys(found, target_id, file)
    if len(keys) != 1:
        raise InputError(
            f"{file} has records for {len(keys)} targets, and a database of MetaSchedule's is for one",
            details="\n".join(map(_key_text, keys)),
            hint="choose one with --target ID",
        )
    count = records_export.export(found, keys[0], output)
    document = {"folder": str(output), "target": keys[0].id, "records": count}
    return Result(f"{output}: {count} records in MetaSchedule's format", document, as_json)


def _board_file(board_name: str, console: Console) -> Path:
    """Find the records of a board, and say where they are."""
    from toolchain.records import default_path

    source = default_path(Path(board_name).stem if board_name.endswith(".toml") else board_name)
    console.say(f"tuning records: {source}")
    return source


def _read(source: Path) -> Records:
    from toolchain.records import RecordFile

    return RecordFile(source).read()


def _keys(found: Records, target_id: str | None, source: Path) -> tuple[Key, ...]:
    keys = tuple(key for key in found.keys if target_id is None or key.id == target_id)
    if target_id is not None and not keys:
        raise InputError(
            f"{source} has no records for target {target_id}",
            details="\n".join(map(_key_text, found.keys)),
            hint="`toolchain records show` prints the IDs of those there are",
        )
    return keys


def _written(made: Records, output: Path, *, as_json: bool) -> Result:
    document = {"file": str(output), "workloads": len(made.workloads), "trials": len(made.trials)}
    return Result(f"{output}: {len(made.trials)} records of {len(made.workloads)} kernels", document, as_json)


# --- text ------------------------------------------------------------------------------------------------------


def _key_text(key: Key) -> str:
    return f"{key.id}  {key.target}, TVM {key.tvm}" + _mark(key)


def _mark(key: Key) -> str:
    return f"  {key.mark.upper()}" + (f" for {key.modelled}" if key.modelled else "") if key.mark else ""


def _shown(table: Table) -> list[str | tables.Table]:
    heads = ("TASK", "TRIALS", "FAILED", "LATENCY", "GFLOPS", "BOARD", "TUNER", "WORKLOAD")
    rows = [_row_cells(row) for row in table.rows]
    return [f"target {_key_text(table.key)}", tables.Table(rows, heads, numbers=[1, 3, 4], spare=[7, 6, 4, 5])]


def _row_cells(row: Row) -> tuple[str, ...]:
    return (
        row.name or "?",
        str(row.trials),
        ", ".join(f"{cause} {count}" for cause, count in row.failures.items()) or "-",
        "-" if row.latency_s is None else _milliseconds(row.latency_s),
        "-" if row.gflops is None else f"{row.gflops:.2f}",
        row.board or "-",
        row.tuner or "-",
        row.workload,
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4f} ms"


def _best_line(found: Records, record: Record) -> str:
    known = found.workloads.get(record.workload)
    return f"{record.key.id}  {known.name if known else record.workload}  {_milliseconds(record.latency_s)}"


def _table_document(table: Table) -> dict[str, Any]:
    key = table.key
    target = {"id": table.id, "target": json.loads(key.target), "tvm": key.tvm, "emulated": key.emulated}
    target |= {"modelled": key.modelled} if key.modelled else {}
    return {**target, "tasks": table.rows}
