"""The command line: the only place that prints and exits. Commands, and what they need, are imported when they run."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from toolchain import __version__, files, interrupts
from toolchain.cli.commands import SECTIONS
from toolchain.cli.console import SCREEN, Console, Result, print_json, print_result
from toolchain.cli.lazy import LazyGroup
from toolchain.cli.reports import JSON_OPTION, STDOUT, failure_of, value_of, with_json_value
from toolchain.errors import EXIT_INTERNAL, EXIT_INTERRUPTED


@click.group(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toolchain")
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def cli(context: click.Context, *, debug: bool) -> None:  # noqa: ARG001 - see _show, which also runs before parsing
    """Compile a neural network for your board, deploy it over SSH, check it and measure it there.

    `toolchain COMMAND --help` explains a command. `toolchain deploy mobilenet` tries everything on this machine.
    """
    context.obj = Console()


def main() -> None:
    """Run the command line; every failure becomes a message and the exit code of its kind."""
    files.keep_from_others()
    interrupts.listen()
    try:
        outcome = cli.main(prog_name="toolchain", standalone_mode=False)
        if isinstance(outcome, Result):
            print_result(outcome)
            outcome = _show(outcome.fault) if outcome.fault else 0
    except BrokenPipeError:  # `toolchain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001 - any other exception is an internal error
        code = _show(fault)
        if _is_json_requested(sys.argv[1:]):
            print_json(failure_of(fault).document())
        sys.exit(code)
    finally:
        SCREEN.close()
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _is_json_requested(argv: Sequence[str]) -> bool:
    """Return whether a program reads standard output, even if the rest of the command line is wrong."""
    return value_of(with_json_value(argv), JSON_OPTION) == STDOUT


def _show(fault: BaseException) -> int:
    """Print an error for people; return its exit code."""
    SCREEN.close()
    debug = "--debug" in sys.argv or os.environ.get("TOOLCHAIN_DEBUG")
    if debug and not isinstance(fault, click.Abort | click.ClickException | KeyboardInterrupt):
        SCREEN.say("".join(traceback.format_exception(fault)).rstrip())
    failure = failure_of(fault)
    code = EXIT_INTERNAL if failure.exit_code is None else failure.exit_code
    if isinstance(fault, click.exceptions.NoArgsIsHelpError):
        fault.show()
        return code
    if code == EXIT_INTERRUPTED:
        SCREEN.say(failure.message)
    else:  # make ends with 2 for every error, so the message has the code
        prefix = "" if code == EXIT_INTERNAL else "error: "
        SCREEN.say(f"{prefix}{failure.message} (exit code {code})")
    if failure.details:
        SCREEN.say("\n".join(f"  {line}" for line in failure.details.splitlines()))
    if failure.hint:
        SCREEN.say(f"hint: {failure.hint}")
    return code
