"""The command line: the only place that prints and exits. Rooms are imported when a command needs them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolchain import (
    __version__,
    _commands_backends,
    _commands_containers,
    _commands_farm,
    _commands_quantize,
    _commands_records,
    _commands_survey,
    _commands_tuning,
    _options,
)
from toolchain._commands import Console, Result
from toolchain.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, InputError, ToolchainError

if TYPE_CHECKING:
    from types import FrameType

    from toolchain import inputs, model
    from toolchain.board import Board, Device
    from toolchain.pipeline import Lab, Model, Pipeline, Settings
    from toolchain.report import Report


def main() -> None:
    """Run the command line; every failure becomes a message and the exit code of its kind."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        found = cli.main(standalone_mode=False)
        if isinstance(found, Result):
            _print_result(found)
    except ToolchainError as fault:
        sys.exit(_show(fault))
    except click.ClickException as fault:
        fault.show()
        sys.exit(InputError.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # `toolchain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as fault:  # noqa: BLE001 - whatever is left is our own fault, and is told as such
        sys.exit(_show_internal(fault))
    sys.exit(found if isinstance(found, int) else 0)


def _terminated(_number: int, _frame: FrameType | None) -> None:
    """End on SIGTERM as on Ctrl-C: through every `finally`."""
    raise KeyboardInterrupt


def _debugging() -> bool:
    return "--debug" in sys.argv or bool(os.environ.get("TOOLCHAIN_DEBUG"))


def _show(fault: ToolchainError) -> int:
    if _debugging():
        traceback.print_exception(fault)
    click.echo(f"error: {fault.message}", err=True)
    if fault.details:
        click.echo("\n".join(f"  {line}" for line in fault.details.splitlines()), err=True)
    if fault.hint:
        click.echo(f"hint: {fault.hint}", err=True)
    return fault.exit_code


def _show_internal(fault: Exception) -> int:
    if _debugging():
        traceback.print_exception(fault)
    click.echo(f"internal error: {type(fault).__name__}: {fault}", err=True)
    click.echo("hint: run it again with --debug and report what it prints", err=True)
    return EXIT_INTERNAL


def _say(text: str) -> None:
    """Tell about progress: on standard error, so that results can be piped."""
    click.echo(text, err=True)


def _print_result(found: Result) -> None:
    if found.as_json:
        _print_json(found.document)
    elif found.text:
        click.echo(found.text)
    if found.fault:
        raise found.fault


class _Table:
    """Shows a table that changes: in place on a terminal; elsewhere its last line alone, every half minute."""

    _EVERY_S = 30.0

    def __init__(self) -> None:
        self._height = 0
        self._shown = -self._EVERY_S

    def say(self, text: str) -> None:
        """Tell something between two states of the table; the next one stands below it."""
        self._height = 0
        _say(text)

    def redraw(self, text: str) -> None:
        """Show the table as it is now."""
        *rows, last = text.splitlines()
        if sys.stderr.isatty():
            # A line that wraps or a table that scrolls could not be drawn over.
            width, height = shutil.get_terminal_size()
            foot = textwrap.wrap(last, width - 1)
            shown = [*(row[: width - 1] for row in rows), *foot][-(height - 1) :]
            up = f"\x1b[{self._height}F\x1b[J" if self._height else ""
            click.echo(up + "\n".join(shown), err=True)
            self._height = len(shown)
        elif time.monotonic() - self._shown >= self._EVERY_S:
            self._shown = time.monotonic()
            click.echo(last, err=True)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, default=dataclasses.asdict))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toolchain")
@click.option("--debug", is_flag=True, help="Show where an error came from.")
@click.pass_context
def cli(context: click.Context, *, debug: bool) -> None:  # noqa: ARG001 - see _debugging
    """Compile a neural network for your board, deploy it over SSH, check it and measure it there."""
    table = _Table()
    context.obj = Console(table.say, table.redraw)


# --- boards ----------------------------------------------------------------------------------------------------


@cli.group(invoke_without_command=True)
@_options.json_flag
@click.pass_context
def boards(context: click.Context, *, as_json: bool) -> None:
    """List the board types; check a board file."""
    if context.invoked_subcommand:
        return
    from toolchain import board, report

    found = [board.load(name) for name in board.names()]
    if as_json:
        _print_json(found)
        return
    rows = [(item.name, item.backend, item.machine, item.connection, item.description) for item in found]
    click.echo(report.columns([("BOARD", "BACKEND", "MACHINE", "REACHED BY", ""), *rows]))


@boards.command("check")
@click.argument("file", type=_options.PATH)
@_options.json_flag
def boards_check(file: Path, *, as_json: bool) -> None:
    """Explain every fault of a board FILE."""
    from toolchain import board

    _found, faults = board.check(file)
    if as_json:
        _print_json(faults)
    elif not faults:
        click.echo(f"{file}: a valid board file")
    if faults:
        raise InputError(f"{file} has {len(faults)} fault(s)", details="\n".join(map(str, faults)))


@boards.command("schema")
def boards_schema() -> None:
    """Print the JSON Schema of board files, for editors."""
    from toolchain import board

    _print_json(board.schema())


# --- models ----------------------------------------------------------------------------------------------------


@cli.group("model")
def model_group() -> None:
    """List the predefined networks; look into a model."""


@model_group.command("list")
@_options.json_flag
def model_list(*, as_json: bool) -> None:
    """List the predefined networks; their weights are random, from a seed."""
    from toolchain import report, zoo

    found = [{"name": name, "description": zoo.describe(name)} for name in zoo.NAMES]
    if as_json:
        _print_json(found)
        return
    click.echo(report.columns([(item["name"], item["description"]) for item in found]))


@model_group.command("inspect")
@click.argument("source")
@_options.shape_option
@_options.json_flag
def model_inspect(source: str, shapes: tuple[str, ...], *, as_json: bool) -> None:
    """Show a model's signature, size, work and operators, and what cannot be imported."""
    from toolchain import model

    found = model.inspect(model.load(source, _options.parse_shapes(shapes)))
    if as_json:
        _print_json(found)
        return
    click.echo(_inspection_text(found))


def _inspection_text(found: model.Inspection) -> str:
    from toolchain import report

    rows = [
        ("model", f"{found.name}, opset {found.opset}"),
        *(("input", str(spec)) for spec in found.inputs),
        *(("output", str(spec)) for spec in found.outputs),
        ("parameters", f"{found.parameters / 1e6:.2f} million"),
        ("work", "unknown: a shape is open" if found.gflops is None else f"{found.gflops:.3f} GFLOPs a run"),
        ("operators", ", ".join(f"{name} {count}" for name, count in found.operators.items())),
        *(("not importable", str(node)) for node in found.unsupported),
    ]
    return report.columns(rows)


# --- build and package -----------------------------------------------------------------------------------------


@cli.command()
@click.argument("source", metavar="MODEL")
@_options.board_option
@click.option("-o", "--output", type=_options.PATH, help="Folder for the bundle; build/MODEL-BOARD by default.")
@_options.toolchain_option
@_options.shape_option
@_options.seed_option
@_options.input_options
@_options.records_options
@_options.kernel_options
@_options.json_flag
def build(source: str, output: Path | None, *, as_json: bool, **options: Any) -> None:
    """Compile MODEL (a zoo name or an .onnx file) for a board into a bundle."""
    kind = _options.chosen_board(options)
    made = _pipeline(kind, options).build(_model_of(source, options), output)
    if as_json:
        _print_json({"folder": str(made.folder), "digest": f"sha256:{made.digest}", "manifest": made.manifest})
        return
    click.echo(f"{made.folder}: {made.manifest.name} for {kind.name}, sha256:{made.digest}")


def _pipeline(kind: Board, options: dict[str, Any], *, tuned: bool = True, emulated: bool = False) -> Pipeline:
    from toolchain.pipeline import Pipeline

    if options["records"] and options["no_records"]:
        raise InputError("--records names what --no-records leaves out", hint="leave one of them out")
    tuned, emulated = tuned and not options["no_records"], emulated or kind.emulated or options["emulated"]
    records = options["records"] if tuned else None
    without = _commands_tuning.without(kind, options)
    return Pipeline(kind, _say, options["toolchain"] or "", records, tuned=tuned, emulated=emulated, without=without)


def _model_of(source: str, options: dict[str, Any]) -> Model:
    from toolchain.pipeline import Model

    return Model(source, _options.parse_shapes(options["shapes"]), _source_of(options))


def _source_of(options: dict[str, Any]) -> inputs.Source:
    from toolchain import inputs

    return inputs.Source(options["npz"], options["image"], options["seed"])


@cli.command()
@click.argument("folder", type=_options.PATH)
@click.option("-o", "--output", type=_options.PATH, required=True, help="The package, such as model.oci.tar.")
@_options.json_flag
def package(folder: Path, output: Path, *, as_json: bool) -> None:
    """Pack the bundle in FOLDER as one OCI image-layout archive."""
    from toolchain import bundle

    made = bundle.load(folder)
    bundle.pack(made, output)
    if as_json:
        _print_json({"package": str(output), "digest": f"sha256:{made.digest}", "bytes": output.stat().st_size})
        return
    click.echo(f"{output}: {output.stat().st_size / 2**20:.1f} MiB, sha256:{made.digest}")


# --- devices ---------------------------------------------------------------------------------------------------


def _found(options: dict[str, Any]) -> tuple[Board, Device]:
    """Decide which device the options name; nothing is asked of it yet."""
    from toolchain import board

    kind = _options.chosen_board(options)
    devices = {} if kind.connection == "local" else board.load_devices(options["devices"])
    return kind, board.find_device(kind, options["host"], devices)


@contextlib.contextmanager
def _opened(options: dict[str, Any]) -> Iterator[Lab]:
    """Connect to the device that the options name."""
    from toolchain import board, shell
    from toolchain.pipeline import Lab
    from toolchain.store import Store

    kind, device = _found(options)
    ssh = shell.SshOptions(
        config_file=options["ssh_config"] or device.ssh_config,
        known_hosts=options["known_hosts"],
        identity=options["identity"],
        password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"),
    )
    address = None if kind.connection == "local" else device.host
    root = board.check_root(options["root"]) if options["root"] else device.root or kind.root
    with shell.open_shell(address, config=ssh) as opened:
        yield Lab(kind, device, opened, Store(opened, root))


@cli.command("deploy")
@click.argument("source", metavar="MODEL-OR-PACKAGE")
@_options.device_options
@_options.toolchain_option
@_options.shape_option
@_options.seed_option
@_options.input_options
@_options.bench_options
@_options.records_options
@_options.kernel_options
@_options.tolerance_option
@click.option("--trials", type=click.IntRange(min=1), help="Tune first, with so many trials; see `toolchain tune`.")
@click.option("-o", "--output", type=_options.PATH, help="Keep the bundle in this folder.")
@click.pass_context
def deploy_command(context: click.Context, /, source: str, output: Path | None, **options: Any) -> None:
    """Build a model (or take a package or a bundle), deploy it, check its outputs there and measure it."""
    from toolchain import device_runtime

    kind, device = _found(options)  # before a minute goes into a build for it
    device_runtime.check(kind.triple)
    if options["trials"]:
        _check_tunable(source, options)
        _commands_tuning.tuned(context.obj, source, _commands_tuning.defaults() | options)
    job = _pipeline(kind, options, emulated=device.emulated)
    with _junit_on_failure(options["junit_path"], f"{kind.name}.{Path(source).stem}"), _scratch() as scratch:
        made, given = job.obtain(_model_of(source, options), output or scratch / "bundle")
        program = job.runner()
        with contextlib.ExitStack() as stack:
            with job.stages.timed("connect"):
                lab = stack.enter_context(_opened(options))
            _write_report(job.deploy(made, given, program, lab, _settings(options), _Upload().show), options)


def _check_tunable(source: str, options: dict[str, Any]) -> None:
    from toolchain import pipeline

    if pipeline.is_built(Path(source)):
        raise InputError("--trials tunes a model, and this one is built already", hint="leave --trials out")
    if options["no_records"]:
        raise InputError("--no-records leaves out what --trials finds", hint="leave one of them out")


def _settings(options: dict[str, Any]) -> Settings:
    from toolchain.pipeline import Settings

    return Settings(
        options["budget"],
        options["threads"] or 0,
        options.get("tolerance"),
        pinned=not options["no_pin"],
        labels=options["labels"],
    )


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="toolchain-") as folder:
        yield Path(folder)


class _Upload:
    """Shows an upload: a percentage that moves on a terminal, a line for each large file elsewhere."""

    _EVERY_S = 5.0

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._moving = sys.stderr.isatty()

    def show(self, name: str, size: int, done: int) -> None:
        if not self._moving and time.monotonic() - self._shown < self._EVERY_S:
            return
        self._shown = time.monotonic()
        text = f"  {name}: {done / 2**20:.1f} of {size / 2**20:.1f} MiB"
        click.echo(f"\r{text}" if self._moving else text, err=True, nl=not self._moving or done >= size)


def _write_report(made: Report, options: dict[str, Any]) -> None:
    from toolchain import files, report

    target = options["json_path"]
    if target == Path("-"):
        _print_json(made.document())
    elif target:
        files.write_atomic(target, files.canonical_json(made.document()))
    if options["junit_path"]:
        files.write_atomic(options["junit_path"], report.junit(made))
    if target != Path("-"):
        click.echo(report.table(made))


@contextlib.contextmanager
def _junit_on_failure(path: Path | None, name: str) -> Iterator[None]:
    """Give CI a JUnit file that names the cause when a deploy fails."""
    try:
        yield
    except ToolchainError as fault:
        if path:
            from toolchain import files, report

            files.write_atomic(path, report.junit_failure(name, fault.message, fault.details))
        raise


@cli.command("compare")
@click.argument("source", metavar="MODEL")
@_options.device_options
@_options.toolchain_option
@_options.shape_option
@_options.seed_option
@_options.input_options
@_options.records_options
@_options.kernel_options
@_options.compare_options
@_options.tolerance_option
@_options.json_flag
def compare_command(source: str, *, as_json: bool, **options: Any) -> Result:
    """Run MODEL untuned and tuned in turns on a device, and tell how much faster the tuned one is."""
    from toolchain import compare

    kind, device = _found(options)
    wanted, emulated = _model_of(source, options), device.emulated
    with _scratch() as scratch:
        jobs = [_pipeline(kind, options, tuned=tuned, emulated=emulated) for tuned in (False, True)]
        made = tuple(job.build(wanted, scratch / f"{place}") for place, job in enumerate(jobs))
        compare.check_differ(made[0], made[1])
        program = jobs[1].runner()
        with _opened(options) as lab:
            _say(f"measuring for {options['budget']:g} s")
            found = compare.run(
                (made[0], made[1]),
                program,
                lab.shell,
                lab.store,
                threads=options["threads"] or kind.threads,
                budget_s=options["budget"],
                emulated=lab.emulated,
                keep=kind.keep,
                tolerance=options["tolerance"],
                pinned=not options["no_pin"],
            )
    return Result(compare.table(found), found.document(), as_json)


@cli.command("bench")
@_options.device_options
@_options.seed_option
@_options.input_options
@_options.bench_options
def bench_command(**options: Any) -> None:
    """Measure the release that a device runs."""
    from toolchain.pipeline import Pipeline

    kind, _device = _found(options)
    with _junit_on_failure(options["junit_path"], kind.name), _opened(options) as lab:
        _write_report(Pipeline(kind, _say).bench(_source_of(options), lab, _settings(options)), options)


@cli.command()
@_options.device_options
@_options.json_flag
def status(*, as_json: bool, **options: Any) -> None:
    """Show what a device is and which release it runs."""
    from toolchain import report

    with _opened(options) as lab:
        facts, current = lab.store.facts(), lab.store.current()
    if as_json:
        _print_json({"host": lab.shell.name, "facts": facts, "current": current})
        return
    rows = [
        ("device", f"{lab.shell.name}, {facts.cpu or facts.machine}, {facts.cpus} CPUs, {facts.kernel}"),
        ("free", f"{facts.free_kib / 1024:.0f} MiB in {lab.store.root}"),
        ("release", f"{current.name} {current.digest[:16]}" if current else "none"),
    ]
    click.echo(report.columns(rows))


@cli.command()
@_options.device_options
@_options.json_flag
def releases(*, as_json: bool, **options: Any) -> None:
    """List the releases that a device keeps, the current one marked."""
    from toolchain import report

    with _opened(options) as lab:
        found = lab.store.generations()
    if as_json:
        _print_json(found)
        return
    rows = [
        (
            "*" if item.current else "",
            str(item.number),
            item.digest[:16],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item.time)),
            item.name,
        )
        for item in found
    ]
    click.echo(report.columns([("", "#", "RELEASE", "ACTIVATED", "MODEL"), *rows]))


@cli.command()
@_options.device_options
@_options.json_flag
def rollback(*, as_json: bool, **options: Any) -> None:
    """Make the release before the current one current again."""
    from toolchain import deploy

    with _opened(options) as lab, lab.store.lock(deploy.owner()):
        lab.store.sweep()
        found = lab.store.roll_back()
    if as_json:
        _print_json(found)
        return
    click.echo(f"{lab.shell.name} runs {found.name} {found.digest[:16]} again")


# --- boards at work, and this machine ---------------------------------------------------------------------------

cli.add_command(_commands_farm.farm)
for _command in (
    *_commands_tuning.COMMANDS,
    _commands_survey.survey_command,
    _commands_quantize.quantize_command,
    _commands_records.records,
    _commands_containers.containers_group,
    *_commands_backends.groups(),
):
    cli.add_command(_command)


@cli.command()
@click.option("--board", "board_name", help="Only this board; exit 3 if something is missing for it.")
@_options.json_flag
def doctor(board_name: str | None, *, as_json: bool) -> None:
    """Say what this machine has and lacks for each board."""
    from toolchain import board, report
    from toolchain import doctor as doctors
    from toolchain.errors import BuildError

    checks = doctors.examine([board.load(name) for name in ([board_name] if board_name else board.names())])
    if as_json:
        _print_json(checks)
    else:
        rows = [(item.board or "all", item.what, item.found or f"MISSING: {item.remedy}") for item in checks]
        click.echo(report.columns([("BOARD", "NEEDS", ""), *rows]))
    missing = [item for item in checks if not item.ok]
    if board_name and missing:
        raise BuildError(f"board {board_name} lacks {len(missing)} thing(s)", hint=missing[0].remedy)
