"""Commands that write reports for CI: from their first moment on, no report says more than what is known by then."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from toolchain import interrupts
from toolchain.cli.console import Result
from toolchain.cli.helptext import Command
from toolchain.errors import InputError
from toolchain.failure import NOT_ENDED, Failure

STDOUT = "-"
PRINTED = ("--json", STDOUT)
"""The one report that goes to no file."""
PATIENCE = f"{__name__} patience"
"""Where the context of a command keeps how long it waits, and what it waited for."""
_SUITE = "toolchain "
_HEAD = 1024  # bytes of a file in which its suite is named


@dataclass(frozen=True)
class Run:
    """What is known of a run, whatever becomes of it.

    Attributes:
        command: The command's name.
        about: Board and model, as far as they are known.
        properties: What else is known, for the suite of a JUnit report.
        began: When it did, by the monotonic clock.
    """

    command: str
    about: str
    properties: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self.began


@dataclass(frozen=True)
class Kind:
    """A kind of report.

    Attributes:
        what: Its name in messages.
        foreign: Says why a file is none of an earlier run; empty if it is one.
        failed: Renders a failure of a run.
    """

    what: str
    foreign: Callable[[Path], str]
    failed: Callable[[Failure, Run], bytes]


def json_kind(what: str, *keys: str) -> Kind:
    """Return the kind of JSON reports that have these keys, or an error in place of them."""

    def foreign(path: Path) -> str:
        from toolchain import files

        try:
            document = json.loads(files.read_limited(path))
        except InputError as fault:
            return fault.message
        except (ValueError, RecursionError):
            return "it is not JSON"
        ours = isinstance(document, dict) and (document.keys() >= set(keys) or document.keys() == {"error"})
        return "" if ours else "it is JSON of another kind"

    return Kind(what, foreign, _failed_json)


def _failed_json(failure: Failure, _run: Run) -> bytes:
    from toolchain import files

    return files.canonical_json(failure.document())


def _foreign_junit(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    return "" if f'name="{_SUITE}'.encode() in head else "it is not JUnit XML of this toolchain"


JSON = json_kind("a report", "schema_version", "bundle_digest")
JUNIT = Kind(
    "a JUnit report",
    _foreign_junit,
    lambda failure, run: failure.junit(f"{_SUITE}{run.command}", run.about, run.command, run.seconds, run.properties),
)


def _foreign_page(path: Path) -> str:
    from toolchain import page

    with path.open("rb") as stream:
        head = stream.read(page.HEAD)
    return "" if page.is_ours(head) else "it is not a page of this toolchain"


def _failed_page(failure: Failure, run: Run) -> bytes:
    from toolchain import page

    command, about = run.command, run.about

    code = "" if failure.exit_code is None else f"exit code {failure.exit_code}"
    body: list[page.Part] = [
        page.Text(failure.details),
        page.Facts([("what to do", failure.hint), ("it ended with", code)]),
    ]
    verdict = page.Verdict(failure.message, "doubt" if failure.exit_code is None else "bad")
    return (
        page.Page(f"toolchain {command}: {about}", command, verdict, [page.Section("What is known", body)])
        .html()
        .encode()
    )


PAGE = Kind("a page", _foreign_page, _failed_page)


def _check_alone(path: Path, others: Sequence[Path]) -> None:
    if path.resolve() in {other.resolve() for other in others}:
        raise InputError(f"two reports would be written to {path}", hint="name a file for each of them")


@dataclass(frozen=True)
class Reports:
    """The reports that one run has to write.

    Attributes:
        run: What is known of it.
        targets: The files, with the kind of each.
    """

    run: Run
    targets: tuple[tuple[Path, Kind], ...]

    def check(self) -> tuple[Reports, InputError | None]:
        """Return those that can be written, and why the first of the others cannot; nothing is touched."""
        from toolchain import outputs

        fault, usable = None, []
        for index, (path, kind) in enumerate(self.targets):
            try:
                _check_alone(path, [other for other, _kind in self.targets[:index]])
                outputs.check_file(path, kind.what, kind.foreign)
                usable.append((path, kind))
            except InputError as caught:
                fault = fault or caught
        return replace(self, targets=tuple(usable)), fault

    def write(self, failure: Failure) -> None:
        """Let all of them tell of a failure."""
        from toolchain import files

        for path, kind in self.targets:
            files.write_atomic(path, kind.failed(failure, self.run))

    @contextlib.contextmanager
    def report_failures(self, late: Callable[[], Mapping[str, str]] = dict) -> Iterator[None]:
        """Let all of them tell why the block ended, if it fails.

        Args:
            late: Returns what else is known by then.
        """
        try:
            yield
        except (click.exceptions.Exit, BrokenPipeError):  # a shown help; a reader of our output who has seen enough
            raise
        except BaseException as fault:
            with contextlib.suppress(InputError):  # a full disk is not the cause; what stands there is no success
                run = replace(self.run, properties={**self.run.properties, **late()})
                replace(self, run=run).write(failure_of(fault))
            raise


def write_reports(result: Result, json_path: Path | None, others: Mapping[Path | None, Callable[[], bytes]]) -> Result:
    """Write the reports that are asked for, and make no other; return what is printed.

    Args:
        result: What the command found out; its document is the JSON report.
        json_path: Where that goes: a file, `-` for standard output, or None.
        others: What makes the other reports, by their files; None is for one that nobody asked for.
    """
    from toolchain import files

    printed = json_path == Path(STDOUT)
    if json_path and not printed:
        files.write_atomic(json_path, files.canonical_json(result.document))
    for path, content in others.items():
        if path:
            files.write_atomic(path, content())
    return replace(result, as_json=result.as_json or printed)


class ReportingCommand(Command):
    """A command with options that name reports.

    Args:
        reports: The kind of report by the option that names its file.
        args: What click's own commands take.
        settings: As above.
    """

    def __init__(self, *args: Any, reports: Mapping[str, Kind], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.kinds = reports

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the command line; one that is wrong is a run that failed."""
        command = info_name or ""
        targets = () if {"-h", "--help"} & set(args) else self._wanted(args)
        reports, fault = Reports(Run(command, command), targets).check()
        with reports.report_failures():
            reports.write(NOT_ENDED)  # in place of what an earlier run left there
            if fault:
                raise fault
            context = super().make_context(info_name, args, parent, **extra)
        names = [_board_of(context.params), str(context.params.get("source") or "")]
        about = ".".join(Path(name).stem for name in names if name)
        run = replace(reports.run, about=about or command, properties=_properties(context.params))
        context.meta[__name__] = replace(reports, run=run)
        return context

    def _wanted(self, args: Sequence[str]) -> tuple[tuple[Path, Kind], ...]:
        values = [(option, value_of(args, option), kind) for option, kind in self.kinds.items()]
        return tuple((Path(value), kind) for option, value, kind in values if value and (option, value) != PRINTED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with ctx.meta[__name__].report_failures(lambda: _waited(ctx)):
            return super().invoke(ctx)


def _properties(params: Mapping[str, Any]) -> dict[str, str]:
    """Return what a command line says of the board and the device, as reports name them."""
    board, device = _board_of(params), str(params.get("host") or params.get("place") or "")
    return {name: value for name, value in (("board", board and Path(board).stem), ("device", device)) if value}


def _board_of(params: Mapping[str, Any]) -> str:
    """Return the board type that a command line says; empty if it is the one of the device that it names."""
    board_name = params.get("board_name")
    return str(board_name or ("" if board_name is None or params.get("host") or params.get("place") else "local"))


def _waited(context: click.Context) -> dict[str, str]:
    """Return for whom a command waited, if it is one that waits."""
    from toolchain.pipeline.report import waited_text

    patience = context.meta.get(PATIENCE)
    return {"waited": waited_text(patience.waited)} if patience else {}


def value_of(argv: Sequence[str], option: str) -> str | None:
    """Return what a command line gives an option, without looking at the rest of it, which may be wrong."""
    value = None
    for index, argument in enumerate(own_arguments(argv)):
        if argument == option and index + 1 < len(argv):
            value = argv[index + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def own_arguments(argv: Sequence[str]) -> Sequence[str]:
    """Leave out the words of another command, after `--`."""
    return argv[: argv.index("--")] if "--" in argv else argv


def failure_of(fault: BaseException) -> Failure:
    """Describe what ended a command; click has errors of its own."""
    if isinstance(fault, click.Abort):
        return Failure.of(fault.__cause__ if isinstance(fault.__cause__, KeyboardInterrupt) else KeyboardInterrupt())
    fault = interrupts.request_behind(fault)
    if isinstance(fault, click.UsageError):
        suggests = isinstance(fault, click.NoSuchCommand | click.NoSuchOption)  # which suggest, as hints do
        message = fault.message if suggests else fault.format_message()
        return Failure(_in_our_style(message), hint=_usage_hint(fault), exit_code=fault.exit_code)
    if isinstance(fault, click.ClickException):
        return Failure(_in_our_style(fault.format_message()), exit_code=InputError.exit_code)
    return Failure.of(fault)


def _in_our_style(message: str) -> str:
    """Write one of click's messages as ours are: without a capital and a full stop."""
    return f"{message[:1].lower()}{message[1:].removesuffix('.').removesuffix(' range')}"


def _usage_hint(fault: click.UsageError) -> str:
    """Name what was meant by a wrong command line, or the help that lists what there is."""
    path = fault.ctx.command_path if fault.ctx else "toolchain"
    if isinstance(fault, click.NoSuchCommand | click.NoSuchOption) and fault.possibilities:
        return f"did you mean {fault.possibilities[0]}?"
    if isinstance(fault, click.NoSuchCommand):
        return f"`{path} --help` lists the commands"
    if isinstance(fault, click.BadOptionUsage) and fault.option_name == "--json":
        return "`--json -` prints the report, and `--json FILE` writes it to a file"
    if _is_file_for_json(fault):
        return f"--json of `{path}` takes no file, it prints: write `--json > FILE`"
    return f"`{path} --help` lists the arguments and options"


def _is_file_for_json(fault: click.UsageError) -> bool:
    """Whether one word is too many for a command whose --json is a flag; other commands write to the file of --json."""
    params = fault.ctx.command.params if fault.ctx else []
    is_flag = any(isinstance(param, click.Option) and param.is_flag and "--json" in param.opts for param in params)
    return is_flag and "extra argument" in fault.message and "--json" in own_arguments(sys.argv[1:])
