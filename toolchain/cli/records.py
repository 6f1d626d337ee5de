"""The `records` commands: show, merge, distill, export and forget tuning records."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import report as reports
from toolchain.cli import common, declare, helptext
from toolchain.cli.connection import BoardOptions
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.records import Key, Records, Written
    from toolchain.records.forgetting import Which
    from toolchain.records.maintenance import Row, Table

_file = click.argument("file", type=common.PATH, required=False)
_board = helptext.option(
    "--board",
    "board_name",
    metavar="BOARD",
    default="local",
    show_default=True,
    help="Board type whose records are used if FILE is left out.",
)
_target = helptext.option(
    "--target", "target_id", metavar="ID", help="Only records for this target; `records show` prints the IDs."
)
_output = helptext.option("-o", "--output", type=common.PATH, required=True, help="Where to write the result.")


@declare.group()
def records() -> None:
    pass


@records.command("show")
@_file
@_board
@_target
@declare.json_flag
@click.pass_obj
def show(console: Console, /, file: Path | None, board_name: str, target_id: str | None, *, as_json: bool) -> Result:
    """Show the tuning records of each kernel, for each target."""
    from toolchain.records import maintenance

    source = file or _board_file(board_name, console)
    contents = _read_records(source, console)
    keys = _matching_keys(contents, target_id, source)
    chosen = [table for table in maintenance.tables(contents) if table.key in keys]
    text = [line for table in chosen for line in ("", *_table_text(table))][1:] or f"{source} holds no trials"
    return Result(text, [_table_document(table) for table in chosen], as_json)


@records.command("best")
@_file
@_board
@_target
@declare.json_flag
@click.pass_obj
def best(console: Console, /, file: Path | None, board_name: str, target_id: str | None, *, as_json: bool) -> Result:
    """Show the record of each kernel that a build applies, for each target."""
    source = file or _board_file(board_name, console)
    contents = _read_records(source, console)
    chosen = [record for key in _matching_keys(contents, target_id, source) for record in contents.best(key).values()]
    rows = []
    for record in chosen:
        workload = contents.workloads.get(record.workload)
        note = "untuned" if record.verdict == "untuned" else ""
        name = workload.name if workload else record.workload
        rows.append((record.key.id, name, _milliseconds(record.latency_s), note))
    text = (
        reports.Table(rows, ("TARGET", "KERNEL", "LATENCY", "NOTES"), numbers=[2])
        if rows
        else f"{source} holds no trials"
    )
    return Result(text, chosen, as_json)


@dataclass(frozen=True)
class ForgetOptions:
    """The options of `records forget`."""

    board_name: str = option(
        "--board",
        metavar="BOARD",
        default="local",
        show_default=True,
        help="Board type whose records are used if FILE is left out.",
    )
    target_id: str | None = option(
        "--target", metavar="ID", help="Records for this target; `records show` prints the IDs."
    )
    model: str | None = option(
        "--model", metavar="MODEL", callback=common.explain_name("model"), help="Records of the kernels of this model."
    )
    name: str | None = option(
        "--op", metavar="NAME", help="Records of kernels whose name, as `records show` prints it, contains NAME."
    )
    machine: str | None = option("--machine", metavar="NAME", help="Records that the device of this name measured.")
    older: str | None = option(
        "--older-than", metavar="30d", help="Records that are older than this: a number with s, m, h or d."
    )
    everything: bool = option("--all", is_flag=True, help="All records.")
    dry: bool = option("--dry-run", is_flag=True, help="Only show what would be forgotten.")

    def which(self, console: Console) -> Which:
        """Return which records to forget.

        Raises:
            InputError: No records are chosen, or --all is combined with a choice.
        """
        from toolchain.cli.farm import parse_span
        from toolchain.records.forgetting import Which

        limits = (self.target_id, self.model, self.name, self.machine, self.older)
        if any(limit is not None for limit in limits) == self.everything:
            raise InputError(
                "no records are chosen" if not self.everything else "--all and a choice of records cannot be combined",
                hint="choose with --target, --model, --op, --machine or --older-than, or --all; try --dry-run first",
            )
        before = time.time() - parse_span(self.older) if self.older is not None else None
        workloads: frozenset[str] | None = None
        if self.model is not None:
            from toolchain.compile.request import BuildRequest
            from toolchain.pipeline import tune

            board = BoardOptions(board_name=self.board_name).board()
            request = BuildRequest(common.ModelOptions().model(self.model), board, console.say)
            workloads = frozenset(task.workload for task in tune.extract(request).tasks)
        return Which(workloads, self.name or "", self.target_id or "", self.machine or "", before)


@records.command("forget")
@_file
@gather("options", ForgetOptions)
@declare.json_flag
@click.pass_obj
def forget(console: Console, /, file: Path | None, options: ForgetOptions, *, as_json: bool) -> Result:
    """Remove records from FILE, so that they are measured again.

    A record is removed if it matches all of the options.
    """
    from toolchain.records import RecordFile, forgetting

    which = options.which(console)
    source = file or _board_file(options.board_name, console)
    if options.target_id:  # a misspelt ID would match nothing, without an error
        _matching_keys(_read_records(source, console), options.target_id, source)
    removal = forgetting.forget(RecordFile(source, console.say), which, dry=options.dry)
    verb = "would be forgotten" if options.dry else "forgotten"
    text = (
        f"{source}: {removal.trials} trials and {removal.finals} finals of {removal.workloads} kernels {verb},"
        f" {removal.kept} records stay"
    )
    document = {"file": str(source), "dry_run": options.dry, "trials": removal.trials, "finals": removal.finals}
    document |= {"workloads": removal.workloads, "kept": removal.kept}
    return Result(text, document, as_json)


@records.command("distill")
@click.argument("file", type=common.PATH)
@_output
@helptext.option(
    "--keep",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of candidates to keep for each kernel.",
)
@declare.json_flag
@click.pass_obj
def distill(console: Console, /, file: Path, output: Path, keep: int, *, as_json: bool) -> Result:
    """Keep only the best records of FILE for each target.

    -o may name FILE itself.
    """
    from toolchain.records import maintenance

    return _summary_result(maintenance.distill(file, output, keep, console.say), output, as_json=as_json)


@records.command("merge")
@click.argument("sources", metavar="FILE...", type=common.PATH, nargs=-1, required=True)
@_output
@declare.json_flag
@click.pass_obj
def merge(console: Console, /, sources: tuple[Path, ...], output: Path, *, as_json: bool) -> Result:
    """Merge the records of several files into one.

    Each record is written once. -o may name one of the files.
    """
    from toolchain.records import maintenance

    return _summary_result(maintenance.merge(sources, output, console.say), output, as_json=as_json)


@records.command("export")
@click.argument("file", type=common.PATH)
@_output
@_target
@declare.json_flag
@click.pass_obj
def export(console: Console, /, file: Path, output: Path, target_id: str | None, *, as_json: bool) -> Result:
    """Write the records of one target as a MetaSchedule database.

    -o names the folder.
    """
    from toolchain.records import export as records_export

    contents = _read_records(file, console)
    keys = _matching_keys(contents, target_id, file)
    if len(keys) != 1:
        raise InputError(
            f"{file} has records for {len(keys)} targets, but a MetaSchedule database holds one",
            details="\n".join(map(_key_text, keys)),
            hint="choose one with --target ID",
        )
    count = records_export.export(contents, keys[0], output)
    document = {"folder": str(output), "target": keys[0].id, "records": count}
    return Result(f"{output}: {count} records in MetaSchedule's format", document, as_json)


def _board_file(board_name: str, console: Console) -> Path:
    """Return the file of a board's records, and report it."""
    from toolchain.records import default_path

    source = default_path(Path(board_name).stem if board_name.endswith(".toml") else board_name)
    console.say(f"tuning records: {source}")
    return source


def _read_records(source: Path, console: Console) -> Records:
    from toolchain.records import RecordFile

    return RecordFile(source, console.say).read()


def _matching_keys(contents: Records, target_id: str | None, source: Path) -> tuple[Key, ...]:
    keys = tuple(key for key in contents.keys if target_id is None or key.id == target_id)
    if target_id is not None and not keys:
        raise InputError(
            f"{source} has no records for target {target_id}",
            details="\n".join(map(_key_text, contents.keys)),
            hint="`toolchain records show` lists the IDs",
        )
    return keys


def _summary_result(summary: Written, output: Path, *, as_json: bool) -> Result:
    document = {"file": str(output), "workloads": summary.workloads, "trials": summary.trials}
    return Result(f"{output}: {summary.trials} records of {summary.workloads} kernels", document, as_json)


# --- text ------------------------------------------------------------------------------------------------------


def _key_text(key: Key) -> str:
    threads = f", {key.threads} thread(s)" if key.threads else ""
    measured = f", measured with {key.options}" if key.options else ""
    modelled = f" for {key.modelled}" if key.modelled else ""
    mark = f"  {key.mark.upper()}{modelled}" if key.mark else ""
    return f"{key.id}  {key.target}, TVM {key.tvm}{threads}{measured}{mark}"


def _table_text(table: Table) -> list[str | reports.Table]:
    heads = ("TASK", "TRIALS", "FAILED", "LATENCY", "GFLOPS", "BOARD", "TUNER", "FINAL", "WORKLOAD")
    rows = [_row_cells(row) for row in table.rows]
    return [f"target {_key_text(table.key)}", reports.Table(rows, heads, numbers=[1, 3, 4], spare=[8, 6, 4, 5])]


def _row_cells(row: Row) -> tuple[str, ...]:
    # The final compared the best candidate with the untuned kernel; records of older toolchains have none.
    final = f"{row.gain:.2f}x" if row.verdict == "faster" and row.gain else row.verdict or "-"
    return (
        row.name or "?",
        str(row.trials),
        ", ".join(f"{cause} {count}" for cause, count in row.failures.items()) or "-",
        "-" if row.latency_s is None else _milliseconds(row.latency_s),
        "-" if row.gflops is None else f"{row.gflops:.2f}",
        row.board or "-",
        row.tuner or "-",
        final,
        row.workload,
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4f} ms"


def _table_document(table: Table) -> dict[str, Any]:
    key = table.key
    target = {"id": table.id, "target": json.loads(key.target), "tvm": key.tvm, "emulated": key.emulated}
    target |= {"modelled": key.modelled} if key.modelled else {}
    target |= {"threads": key.threads} if key.threads else {}
    target |= {"options": json.loads(key.options)} if key.options else {}
    return {**target, "tasks": table.rows}
