"""The tuning commands: what is tuned, the tuning itself, and what it gained."""

from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import _options
from toolchain._commands import Console, Result

if TYPE_CHECKING:
    from toolchain.board import Board
    from toolchain.pipeline import Model
    from toolchain.tuning.places import Wanted
    from toolchain.tuning.session import Request
    from toolchain.tuning.tasks import Task
    from toolchain.tuning.tuner import Plan


@click.command("tasks")
@click.argument("source", metavar="MODEL")
@_options.board_option
@_options.shape_option
@_options.seed_option
@_options.kernel_options
@_options.operators_option
@_options.json_flag
def tasks_command(source: str, shapes: tuple[str, ...], seed: int, *, as_json: bool, **options: Any) -> Result:
    """List the kernels of MODEL that can be tuned: shape, operator, weight, work."""
    from toolchain import report  # noqa: PLC0415 - the help needs none of this
    from toolchain.tuning import session, tasks  # noqa: PLC0415 - as above

    kind = _options.chosen_board(options)
    extracted = session.extract(_model(source, shapes, seed), kind, without(kind, options))
    found = tasks.select(extracted.tasks, options["operators"])
    rows = [
        (str(task.id), task.name, task.operator, task.shape, str(task.weight), f"{task.gflop:.4f}") for task in found
    ]
    text = report.columns([("ID", "TASK", "OPERATOR", "SHAPE", "WEIGHT", "GFLOPs"), *rows])
    total = sum(task.weight * task.gflop for task in found)
    return Result(f"{text}\n{len(found)} tasks, {total:.4f} GFLOPs a run", [_row(task) for task in found], as_json)


def _row(task: Task) -> dict[str, Any]:
    kept = ("id", "name", "operator", "shape", "weight", "gflop", "workload")
    return {name: getattr(task, name) for name in kept} | {"args": [dataclasses.asdict(one) for one in task.args]}


def _model(source: str, shapes: tuple[str, ...], seed: int) -> Model:
    from toolchain import inputs  # noqa: PLC0415 - as above
    from toolchain.pipeline import Model  # noqa: PLC0415 - as above

    return Model(source, _options.parse_shapes(shapes), inputs.Source(None, None, seed))


@click.command("tune")
@click.argument("source", metavar="MODEL")
@_options.device_options
@_options.toolchain_option
@_options.shape_option
@_options.seed_option
@_options.tuning_options
@_options.kernel_options
@_options.threads_option
@_options.operators_option
@click.option("--records", type=_options.PATH, help="File of records; records/BOARD.jsonl by default.")
@click.option("--tracker", metavar="HOST:PORT", help="A tracker of your own, instead of the farm.")
@click.option("--key", help="Key of the boards at that tracker; the board type by default.")
@click.option("--report", "report_path", type=_options.PATH, help="Write the report as an HTML page.")
@_options.json_flag
@click.pass_obj
def tune_command(
    console: Console, /, source: str, report_path: Path | None, *, as_json: bool, **options: Any
) -> Result:
    """Tune the kernels of MODEL on boards of one type; an interrupted run goes on where it was."""
    from toolchain import files  # noqa: PLC0415 - as above
    from toolchain.tuning import tune_report  # noqa: PLC0415 - as above

    if report_path:
        _check_writable(report_path)
    found = tuned(console, source, options)
    if report_path:
        files.write_atomic(report_path, tune_report.html(found).encode())
    return Result(tune_report.table(found), found.document(), as_json)


def _check_writable(path: Path) -> None:
    """See that a file can be written: hours later is no time to learn that it cannot."""
    from toolchain import files  # noqa: PLC0415 - as above

    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as fault:
        raise files.unwritable(path, fault) from fault


def tuned(console: Console, source: str, options: dict[str, Any]) -> Any:
    """Tune as a command's options say; returns the TuneReport."""
    from toolchain.tuning import session  # noqa: PLC0415 - as above

    return session.run(_request(source, options), console.say, console.redraw)


def _request(source: str, options: dict[str, Any]) -> Request:
    from toolchain.tuning import session  # noqa: PLC0415 - as above

    kind = _options.chosen_board(options)
    return session.Request(
        model=_model(source, options["shapes"], options["seed"]),
        boards=wanted_boards(kind, source, options),
        plan=session.plan_for(kind, _plan(kind, options)),
        operators=options.get("operators", ()),
        records=options["records"],
        toolchain=options["toolchain"] or "",
        without=without(kind, options),
    )


def without(kind: Board, options: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the templates that the options leave out, in order.

    Raises:
        InputError: There is no such template.
    """
    from toolchain.backends import BACKENDS  # noqa: PLC0415 - as above
    from toolchain.errors import InputError, did_you_mean  # noqa: PLC0415 - as above

    known = BACKENDS[kind.backend].TEMPLATES
    named = {*options["without"], *(["winograd"] if options["no_winograd"] else [])}
    for name in sorted(named - {"all", *known}):
        hint = did_you_mean(name, known) or "`all` leaves out every one of them"
        there_are = "templates: " + ", ".join(known) if known else f"kernels for {kind.name} are made without templates"
        raise InputError(f"no template is called {name!r}", details=there_are, hint=hint)
    return tuple(sorted(known if "all" in named else named))


def wanted_boards(kind: Board, source: str, options: dict[str, Any]) -> Wanted:
    """Say which boards a command's options name; nothing is asked of them yet."""
    from toolchain import board  # noqa: PLC0415 - as above
    from toolchain.shell import SshOptions  # noqa: PLC0415 - as above
    from toolchain.tuning.places import Wanted, parse_tracker  # noqa: PLC0415 - as above

    tracker = options.get("tracker")
    return Wanted(
        board=kind,
        host=options["host"] or "",
        devices={} if kind.connection == "local" else board.load_devices(options["devices"]),
        ssh=SshOptions(
            config_file=options["ssh_config"],
            known_hosts=options["known_hosts"],
            identity=options["identity"],
            password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"),
        ),
        root=board.check_root(options["root"]) if options["root"] else "",
        tracker=parse_tracker(tracker) if tracker else None,
        key=options.get("key") or "",
        purpose=f"tune {Path(source).stem}",
    )


def _plan(kind: Board, options: dict[str, Any]) -> Plan:
    from toolchain.tuning.trials import Options  # noqa: PLC0415 - as above
    from toolchain.tuning.tuner import Plan  # noqa: PLC0415 - as above

    return Plan(
        tuner=options["tuner"],
        trials=options["trials"],
        seed=options["seed"],
        per_task=options["trials_per_task"],
        early_stop=options["early_stop"],
        budget_s=options["time_budget"],
        options=Options(
            number=options["number"],
            repeat=options["repeat"],
            min_repeat_ms=options["min_repeat_ms"],
            cooldown_s=options["cooldown"],
            cache_flush=options["cache_flush"],
            timeout_s=options["timeout"],
            build_timeout_s=options["build_timeout"],
            threads=options.get("threads") or kind.threads,
            device=kind.target.kind,
        ),
    )


def defaults() -> dict[str, Any]:
    """Return the values of `tune`'s options where none is given, for a command that tunes on its way."""
    return dict(tune_command.make_context("tune", ["MODEL"]).params)


@click.command("hardware")
@_options.device_options
@_options.json_flag
@click.pass_obj
def hardware_command(console: Console, /, *, as_json: bool, **options: Any) -> Result:
    """Show what boards say of their hardware over RPC, held against the board file."""
    from toolchain.tuning import hardware, places  # noqa: PLC0415 - as above

    kind = _options.chosen_board(options)
    rows, lines = [], []
    with places.opened(wanted_boards(kind, "hardware", options), console.say) as held:
        for place in held.places:
            found, notes = hardware.examine(kind, place)
            rows.append({"board": place.name, "hardware": found, "notes": notes})
            lines += [f"{place.name}: {found or 'unknown'}", *(f"warning: {note}" for note in notes)]
    return Result("\n".join(lines), rows, as_json)


@click.command("python-runtime")
@_options.board_option
@_options.json_flag
@click.pass_obj
def python_runtime_command(console: Console, /, *, as_json: bool, **options: Any) -> Result:
    """Build what TVM lacks to use a board's kind of accelerator in Python here.

    Every later `import tvm` loads it: `tvm.device(KIND).exist` then tells whether this machine has such a device.
    """
    from toolchain.backends import BACKENDS  # noqa: PLC0415 - as above

    kind = _options.chosen_board(options)
    path = BACKENDS[kind.backend].python_runtime(console.say)
    return Result(f"{path}: loaded with every import of tvm", {"library": str(path)}, as_json)


COMMANDS = (tasks_command, tune_command, hardware_command, python_runtime_command)
"""What cli.py adds to the command line."""
