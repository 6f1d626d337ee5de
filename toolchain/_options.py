"""Options that several commands share, and the reading of those that need more than a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.board import Board

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
board_option = click.option(
    "--board", "board_name", default="local", show_default=True, help="Board type, or its .toml."
)
toolchain_option = click.option(
    "--toolchain",
    type=click.Choice(["container", "host"]),
    help="Where libraries are linked; the board file's choice by default.",
)
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME:1,3,224,224", help="Fix an open input shape."
)
seed_option = click.option("--seed", default=0, show_default=True, help="Seed of zoo weights and of random inputs.")


def all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Apply several options to a command, in the order in which help shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


device_options = all_of(
    board_option,
    click.option("--host", help="user@address[:port], or a name in devices.toml."),
    click.option("--devices", type=PATH, help="The lab's devices.toml; ./devices.toml by default."),
    click.option("--root", help="Folder on the device, instead of the board's."),
    click.option("-i", "--identity", type=PATH, help="SSH private key."),
    click.option("--ssh-config", type=PATH, help="SSH configuration, instead of ~/.ssh/config."),
    click.option("--known-hosts", type=PATH, multiple=True, help="Trusted host keys, instead of ~/.ssh/known_hosts."),
)
input_options = all_of(
    click.option("--input", "npz", type=PATH, help="Inputs as an .npz file, one array for each input."),
    click.option("--image", type=PATH, help="A picture, with the usual ImageNet preprocessing."),
    click.option("--labels", type=PATH, help="Class names, one a line, for a top-5 table."),
)
threads_option = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads; the board file's, or every CPU, by default."
)
pin_option = click.option("--no-pin", is_flag=True, help="Let the system move threads between CPUs.")
compare_options = all_of(
    click.option(
        "--budget", default=20.0, show_default=True, type=click.FloatRange(0.0, 3600.0), help="Seconds to time."
    ),
    threads_option,
    pin_option,
)
tolerance_option = click.option(
    "--tolerance", type=click.FloatRange(min=0.0), help="Limit for the outputs' relative difference."
)
bench_options = all_of(
    click.option(
        "--budget", default=10.0, show_default=True, type=click.FloatRange(0.0, 3600.0), help="Seconds to time."
    ),
    threads_option,
    pin_option,
    click.option(
        "--json", "json_path", type=click.Path(path_type=Path, allow_dash=True), help="Write report.json; - prints it."
    ),
    click.option("--junit", "junit_path", type=PATH, help="Write JUnit XML for CI."),
)
kernel_options = all_of(
    click.option("--without", multiple=True, metavar="TEMPLATE", help="Do not use a template; `all`: none of them."),
    click.option("--no-winograd", is_flag=True, help="The same as --without winograd."),
    click.option("--float16", is_flag=True, help="Compute in half precision, on devices that do."),
)
operators_option = click.option(
    "--op", "operators", multiple=True, help="Only these tasks: an operator, a part of a name, or an ID."
)
records_options = all_of(
    click.option(
        "--records",
        type=PATH,
        help="Tuning records to apply; records/BOARD.jsonl by default. `shipped`: only those of the toolchain itself.",
    ),
    click.option("--no-records", is_flag=True, help="Apply no tuning records."),
    click.option("--emulated", is_flag=True, help="Apply the records of an emulator, not those of a real board."),
)
tuning_options = all_of(
    click.option(
        "--tuner",
        type=click.Choice(["evolutionary-xgb", "evolutionary-random", "random", "grid"]),
        default="evolutionary-xgb",
        show_default=True,
        help="How candidates are searched: evolution guided by a learned cost model or by chance, chance, in order.",
    ),
    click.option("--trials", default=500, show_default=True, type=click.IntRange(min=1), help="Trials of the run."),
    click.option("--trials-per-task", default=0, type=click.IntRange(min=0), help="Most trials of one task."),
    click.option(
        "--early-stop", default=0, type=click.IntRange(min=0), help="Leave a task after so many trials without a gain."
    ),
    click.option(
        "--time-budget", default=0.0, type=click.FloatRange(min=0.0), help="Seconds after which no round begins."
    ),
    click.option("--number", default=3, show_default=True, type=click.IntRange(1, 10000), help="Runs of one sample."),
    click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 1000), help="Samples of a trial."),
    click.option(
        "--min-repeat-ms", default=20, show_default=True, type=click.IntRange(0, 10000), help="Least time of a sample."
    ),
    click.option("--cooldown", default=0.0, type=click.FloatRange(0.0, 600.0), help="Seconds of rest after a trial."),
    click.option("--cache-flush", is_flag=True, help="Flush the CPU's caches before each sample."),
    click.option(
        "--timeout",
        default=10.0,
        show_default=True,
        type=click.FloatRange(0.1, 3600.0),
        help="Seconds that running a candidate may take.",
    ),
    click.option(
        "--build-timeout",
        default=30.0,
        show_default=True,
        type=click.FloatRange(1.0, 3600.0),
        help="Seconds that compiling a candidate may take.",
    ),
)


def chosen_board(options: Mapping[str, Any]) -> Board:
    """Load the board type that a command's options name, as they want it."""
    from toolchain import board  # noqa: PLC0415 - the help needs none of this

    kind = board.load(options["board_name"]).resolved()
    return kind.in_float16() if options.get("float16") else kind


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
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
