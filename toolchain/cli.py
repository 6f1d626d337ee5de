"""The command line: the only place that prints and exits. Rooms are imported when a command needs them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolchain import __version__
from toolchain.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, InputError, ToolchainError

if TYPE_CHECKING:
    from types import FrameType

    from toolchain import inputs, model
    from toolchain.board import Board, Device
    from toolchain.pipeline import Lab, Model, Settings
    from toolchain.report import Report

    Command = TypeVar("Command", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)


def main() -> None:
    """Run the command line; every failure becomes a message and the exit code of its kind."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = cli.main(standalone_mode=False)
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
    sys.exit(code if isinstance(code, int) else 0)


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


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, default=dataclasses.asdict))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toolchain")
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def cli(*, debug: bool) -> None:
    """Compile a neural network for your board, deploy it over SSH, check it and measure it there."""


# --- options that several commands share -----------------------------------------------------------------------

_json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_board_option = click.option(
    "--board", "board_name", default="local", show_default=True, help="Board type, or its .toml."
)
_shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME:1,3,224,224", help="Fix an open input shape."
)
_seed_option = click.option("--seed", default=0, show_default=True, help="Seed of zoo weights and of random inputs.")


def _all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Apply several options to a command, in the order in which help shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_device_options = _all_of(
    _board_option,
    click.option("--host", help="user@address[:port], or a name in devices.toml."),
    click.option("--devices", type=_PATH, help="The lab's devices.toml; ./devices.toml by default."),
    click.option("--root", help="Folder on the device, instead of the board's."),
    click.option("-i", "--identity", type=_PATH, help="SSH private key."),
    click.option("--ssh-config", type=_PATH, help="SSH configuration, instead of ~/.ssh/config."),
    click.option("--known-hosts", type=_PATH, multiple=True, help="Trusted host keys, instead of ~/.ssh/known_hosts."),
)
_input_options = _all_of(
    click.option("--input", "npz", type=_PATH, help="Inputs as an .npz file, one array for each input."),
    click.option("--image", type=_PATH, help="A picture, with the usual ImageNet preprocessing."),
    click.option("--labels", type=_PATH, help="Class names, one a line, for a top-5 table."),
)
_bench_options = _all_of(
    click.option(
        "--budget", default=10.0, show_default=True, type=click.FloatRange(0.0, 3600.0), help="Seconds to time."
    ),
    click.option(
        "--threads", type=click.IntRange(1, 1024), help="Threads; the board file's, or every CPU, by default."
    ),
    click.option(
        "--json", "json_path", type=click.Path(path_type=Path, allow_dash=True), help="Write report.json; - prints it."
    ),
    click.option("--junit", "junit_path", type=_PATH, help="Write JUnit XML for CI."),
)


def _parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shapes[name] = ()
        if not name or not shapes[name] or min(shapes[name]) < 1:
            raise InputError(f"--shape {text} is not of the form NAME:1,3,224,224")
    return shapes


# --- boards ----------------------------------------------------------------------------------------------------


@cli.group(invoke_without_command=True)
@_json_flag
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
@click.argument("file", type=_PATH)
@_json_flag
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
@_json_flag
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
@_shape_option
@_json_flag
def model_inspect(source: str, shapes: tuple[str, ...], *, as_json: bool) -> None:
    """Show a model's signature, size, work and operators, and what cannot be imported."""
    from toolchain import model

    found = model.inspect(model.load(source, _parse_shapes(shapes)))
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
@_board_option
@click.option("-o", "--output", type=_PATH, help="Folder for the bundle; build/MODEL-BOARD by default.")
@_shape_option
@_seed_option
@_input_options
@_json_flag
def build(source: str, board_name: str, output: Path | None, *, as_json: bool, **options: Any) -> None:
    """Compile MODEL (a zoo name or an .onnx file) for a board into a bundle."""
    from toolchain import board
    from toolchain.pipeline import Pipeline

    kind = board.load(board_name).resolved()
    made = Pipeline(kind, _say).build(_model_of(source, options), output)
    if as_json:
        _print_json({"folder": str(made.folder), "digest": f"sha256:{made.digest}", "manifest": made.manifest})
        return
    click.echo(f"{made.folder}: {made.manifest.name} for {kind.name}, sha256:{made.digest}")


def _model_of(source: str, options: dict[str, Any]) -> Model:
    from toolchain.pipeline import Model

    return Model(source, _parse_shapes(options["shapes"]), _source_of(options))


def _source_of(options: dict[str, Any]) -> inputs.Source:
    from toolchain import inputs

    return inputs.Source(options["npz"], options["image"], options["seed"])


@cli.command()
@click.argument("folder", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="The package, such as model.oci.tar.")
@_json_flag
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

    kind = board.load(options["board_name"]).resolved()
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
        config_file=options["ssh_config"],
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
@_device_options
@_shape_option
@_seed_option
@_input_options
@_bench_options
@click.option("--tolerance", type=click.FloatRange(min=0.0), help="Limit for the outputs' relative difference.")
@click.option("-o", "--output", type=_PATH, help="Keep the bundle in this folder.")
def deploy_command(source: str, output: Path | None, **options: Any) -> None:
    """Build a model (or take a package or a bundle), deploy it, check its outputs there and measure it."""
    from toolchain.pipeline import Pipeline

    kind, _device = _found(options)  # before a minute goes into a build for it
    job = Pipeline(kind, _say)
    with _junit_on_failure(options["junit_path"], f"{kind.name}.{Path(source).stem}"), _scratch() as scratch:
        made, given = job.obtain(_model_of(source, options), output or scratch / "bundle")
        program = job.runner()
        with contextlib.ExitStack() as stack:
            with job.stages.timed("connect"):
                lab = stack.enter_context(_opened(options))
            _write_report(job.deploy(made, given, program, lab, _settings(options), _Upload().show), options)


def _settings(options: dict[str, Any]) -> Settings:
    from toolchain.pipeline import Settings

    return Settings(options["budget"], options["threads"] or 0, options.get("tolerance"), options["labels"])


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


@cli.command("bench")
@_device_options
@_seed_option
@_input_options
@_bench_options
def bench_command(**options: Any) -> None:
    """Measure the release that a device runs."""
    from toolchain.pipeline import Pipeline

    kind, _device = _found(options)
    with _junit_on_failure(options["junit_path"], kind.name), _opened(options) as lab:
        _write_report(Pipeline(kind, _say).bench(_source_of(options), lab, _settings(options)), options)


@cli.command()
@_device_options
@_json_flag
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
@_device_options
@_json_flag
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
@_device_options
@_json_flag
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


@cli.command()
@click.option("--board", "board_name", help="Only this board; exit 3 if something is missing for it.")
@_json_flag
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
