"""The `records` commands: what is in files of tuning records, and what is made of them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import tables
from toolchain.cli import options
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gathered, option
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.records import Catalog, Key, Record, Written
    from toolchain.records.forgetting import Which
    from toolchain.records.maintenance import Row, Table

_file = click.argument("file", type=options.PATH, required=False)
_board = click.option(
    "--board", "board_name", default="local", show_default=True, help="Whose file, where no FILE is named."
)
_target = click.option("--target", "target_id", metavar="ID", help="Only this target; `records show` prints the IDs.")
_output = click.option("-o", "--output", type=options.PATH, required=True, help="Where to write.")


@click.group("records")
def records() -> None:
    """Look at tuning records; keep the best, merge them, export them, or forget some."""


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
    found = _read(source, console)
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
    """Print what decides of each kernel in FILE, for each target: the candidate that a build applies, if any."""
    source = file or _board_file(board_name, console)
    found = _read(source, console)
    chosen = [record for key in _keys(found, target_id, source) for record in found.best(key).values()]
    return Result("\n".join(_best_line(found, one) for one in chosen), chosen, as_json)


@dataclass(frozen=True)
class ForgetOptions:
    """The options of `records forget`."""

    board_name: str = option("--board", default="local", show_default=True, help="Whose file, where no FILE is named.")
    target_id: str | None = option(
        "--target", metavar="ID", help="Those of this target; `records show` prints the IDs."
    )
    model: str | None = option(
        "--model", metavar="MODEL", callback=options.telling("model"), help="Those of this model's kernels."
    )
    name: str | None = option("--op", metavar="NAME", help="Those of kernels with this in the name that `show` prints.")
    machine: str | None = option("--machine", metavar="NAME", help="Those that the board of this name measured.")
    older: str | None = option(
        "--older-than", metavar="30d", help="Those that were measured longer ago: a number with s, m, h or d."
    )
    everything: bool = option("--all", is_flag=True, help="All of them.")
    dry: bool = option("--dry-run", is_flag=True, help="Only say what would be forgotten.")

    def which(self, console: Console) -> Which:
        """Return what is to be forgotten.

        Raises:
            InputError: Nothing says what, or --all is beside something that does.
        """
        from toolchain.cli.farm import seconds
        from toolchain.records.forgetting import Which

        limits = (self.target_id, self.model, self.name, self.machine, self.older)
        if any(one is not None for one in limits) == self.everything:
            raise InputError(
                "it is not said which records are to be forgotten"
                if not self.everything
                else "--all goes without a choice",
                hint="choose with --target, --model, --op, --machine or --older-than, or --all; try --dry-run first",
            )
        before = time.time() - seconds(self.older) if self.older is not None else None
        return Which(self._workloads(console), self.name or "", self.target_id or "", self.machine or "", before)

    def _workloads(self, console: Console) -> frozenset[str] | None:
        if self.model is None:
            return None
        from toolchain.compile.request import BuildRequest
        from toolchain.pipeline import tune

        kind = BoardOptions(board_name=self.board_name).board()
        request = BuildRequest(options.ModelOptions().model(self.model), kind, console.say)
        return frozenset(task.workload for task in tune.extract(request).tasks)


@records.command("forget")
@_file
@gathered("asked", ForgetOptions)
@options.json_flag
@click.pass_obj
def forget(console: Console, /, file: Path | None, asked: ForgetOptions, *, as_json: bool) -> Result:
    """Take records out of FILE, so that they are measured anew; what all the options say must be true of them."""
    from toolchain.records import RecordFile, forgetting

    which = asked.which(console)
    source = file or _board_file(asked.board_name, console)
    if asked.target_id:
        _keys(_read(source, console), asked.target_id, source)
    found = forgetting.forget(RecordFile(source, console.say), which, dry=asked.dry)
    verb = "would be forgotten" if asked.dry else "forgotten"
    text = (
        f"{source}: {found.trials} trials and {found.finals} finals of {found.workloads} kernels {verb},"
        f" {found.kept} records stay"
    )
    document = {"file": str(source), "dry_run": asked.dry, "trials": found.trials, "finals": found.finals}
    document |= {"workloads": found.workloads, "kept": found.kept}
    return Result(text, document, as_json)


@records.command("distill")
@click.argument("file", type=options.PATH)
@_output
@click.option("--keep", default=1, show_default=True, type=click.IntRange(min=1), help="Candidates of each kernel.")
@options.json_flag
@click.pass_obj
def distill(console: Console, /, file: Path, output: Path, keep: int, *, as_json: bool) -> Result:
    """Keep the best records of FILE for each target; -o may name FILE itself."""
    from toolchain.records import maintenance

    return _written(maintenance.distill(file, output, keep, console.say), output, as_json=as_json)


@records.command("merge")
@click.argument("sources", metavar="FILE...", type=options.PATH, nargs=-1, required=True)
@_output
@options.json_flag
@click.pass_obj
def merge(console: Console, /, sources: tuple[Path, ...], output: Path, *, as_json: bool) -> Result:
    """Write the records of several files to one, each once; -o may name one of them."""
    from toolchain.records import maintenance

    return _written(maintenance.merge(sources, output, console.say), output, as_json=as_json)


@records.command("export")
@click.argument("file", type=options.PATH)
@_output
@_target
@options.json_flag
@click.pass_obj
def export(console: Console, /, file: Path, output: Path, target_id: str | None, *, as_json: bool) -> Result:
    """Write FILE's records of one target as a database of MetaSchedule's, into the folder that -o names."""
    from toolchain.records import export as records_export

    found = _read(file, console)
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


def _read(source: Path, console: Console) -> Catalog:
    from toolchain.records import RecordFile

    return RecordFile(source, console.say).catalog()


def _keys(found: Catalog, target_id: str | None, source: Path) -> tuple[Key, ...]:
    keys = tuple(key for key in found.keys if target_id is None or key.id == target_id)
    if target_id is not None and not keys:
        raise InputError(
            f"{source} has no records for target {target_id}",
            details="\n".join(map(_key_text, found.keys)),
            hint="`toolchain records show` prints the IDs of those there are",
        )
    return keys


def _written(made: Written, output: Path, *, as_json: bool) -> Result:
    document = {"file": str(output), "workloads": made.workloads, "trials": made.trials}
    return Result(f"{output}: {made.trials} records of {made.workloads} kernels", document, as_json)


# --- text ------------------------------------------------------------------------------------------------------


def _key_text(key: Key) -> str:
    threads = f", {key.threads} thread(s)" if key.threads else ""
    measured = f", measured with {key.options}" if key.options else ""
    return f"{key.id}  {key.target}, TVM {key.tvm}{threads}{measured}" + _mark(key)


def _mark(key: Key) -> str:
    return f"  {key.mark.upper()}" + (f" for {key.modelled}" if key.modelled else "") if key.mark else ""


def _shown(table: Table) -> list[str | tables.Table]:
    heads = ("TASK", "TRIALS", "FAILED", "LATENCY", "GFLOPS", "BOARD", "TUNER", "FINAL", "WORKLOAD")
    rows = [_row_cells(row) for row in table.rows]
    return [f"target {_key_text(table.key)}", tables.Table(rows, heads, numbers=[1, 3, 4], spare=[8, 6, 4, 5])]


def _row_cells(row: Row) -> tuple[str, ...]:
    return (
        row.name or "?",
        str(row.trials),
        ", ".join(f"{cause} {count}" for cause, count in row.failures.items()) or "-",
        "-" if row.latency_s is None else _milliseconds(row.latency_s),
        "-" if row.gflops is None else f"{row.gflops:.2f}",
        row.board or "-",
        row.tuner or "-",
        _final(row),
        row.workload,
    )


def _final(row: Row) -> str:
    """Say what the last final decided; no final was held of records of before there were any."""
    return f"{row.gain:.2f}x" if row.verdict == "faster" and row.gain else row.verdict or "-"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4f} ms"


def _best_line(found: Catalog, record: Record) -> str:
    known = found.workloads.get(record.workload)
    stays = "  untuned" if record.verdict == "untuned" else ""
    return f"{record.key.id}  {known.name if known else record.workload}  {_milliseconds(record.latency_s)}{stays}"


def _table_document(table: Table) -> dict[str, Any]:
    key = table.key
    target = {"id": table.id, "target": json.loads(key.target), "tvm": key.tvm, "emulated": key.emulated}
    target |= {"modelled": key.modelled} if key.modelled else {}
    target |= {"threads": key.threads} if key.threads else {}
    target |= {"options": json.loads(key.options)} if key.options else {}
    return {**target, "tasks": table.rows}
