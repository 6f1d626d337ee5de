"""Commands that write reports for CI; a report never shows the success of an earlier run.

Each file is first overwritten with "not ended", then with the result or the failure.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from toolchain import interrupts
from toolchain.cli.console import Result, json_text
from toolchain.cli.helptext import Command
from toolchain.errors import InputError
from toolchain.failure import NOT_ENDED, Failure

STDOUT = "-"
JSON_OPTION = "--json"
JSON_SETTINGS: Mapping[str, Any] = {
    "type": click.Path(path_type=Path, allow_dash=True),
    "metavar": "[FILE.json]",
    "help": "Print the result as JSON, or write it to FILE.json.",
}
"""The settings of that option, which means the same for every command."""
PRINTED = (JSON_OPTION, STDOUT)
"""The option and the value of a report that is printed instead of written to a file."""
JSON_FILE = f"{__name__} file"
"""Key in the context of a command: the file for its document."""
PATIENCE = f"{__name__} patience"
"""Key in the context of a command: how long it waits for devices, and what it waited for."""
# Results of most commands have no keys in common, and JSON no comments: this end, which is valid, tells them from the
# user's own files, which are never replaced.
_RESULT_END = b"\n \n"
_SUITE = "toolchain "
_HEAD = 1024  # the name of the suite is within the first bytes of a JUnit file


@dataclass(frozen=True)
class Run:
    """A run of a command, for the reports of its failure.

    Attributes:
        command: The command's name.
        about: Board and model, as far as they are known.
        properties: Other facts, for the suite of a JUnit report.
        began: Its start, by the monotonic clock.
    """

    command: str
    about: str
    properties: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The duration so far."""
        return time.monotonic() - self.began


@dataclass(frozen=True)
class Kind:
    """A kind of report.

    Attributes:
        what: Its name in messages.
        foreign: Returns why a file is not such a report, and so must not be replaced; empty if it is one.
        failed: Renders a failure of a run.
    """

    what: str
    foreign: Callable[[Path], str]
    failed: Callable[[Failure, Run], bytes]


def json_kind(what: str, *keys: str) -> Kind:
    """Return the kind of JSON reports that have these keys, or only the key `error`."""

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


def _foreign_result(path: Path) -> str:
    from toolchain import files

    ours = files.read_limited(path).endswith(_RESULT_END)
    return "" if ours else "it is not a result that --json has written"


def _failed_result(failure: Failure, run: Run) -> bytes:
    return _failed_json(failure, run).rstrip() + _RESULT_END


def _foreign_junit(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    return "" if f'name="{_SUITE}'.encode() in head else "it is not JUnit XML of this toolchain"


JSON = json_kind("a report", "schema_version", "bundle_digest")
_DOCUMENT = Kind("a result as JSON", _foreign_result, _failed_result)
JUNIT = Kind(
    "a JUnit report",
    _foreign_junit,
    lambda failure, run: failure.junit(f"{_SUITE}{run.command}", run.about, run.command, run.seconds, run.properties),
)


def _foreign_page(path: Path) -> str:
    from toolchain.report import HEAD, is_ours

    with path.open("rb") as stream:
        head = stream.read(HEAD)
    return "" if is_ours(head) else "it is not a page of this toolchain"


def _failed_page(failure: Failure, run: Run) -> bytes:
    from toolchain.report import Facts, Headline, Page, Part, Section, Text

    code = "" if failure.exit_code is None else f"exit code {failure.exit_code}"
    body: list[Part] = [
        Text(failure.details),
        Facts([("what to do", failure.hint), ("it ended with", code)]),
    ]
    verdict = Headline(failure.message, "doubt" if failure.exit_code is None else "bad")
    sections = [Section("What is known", body)]
    return Page(f"toolchain {run.command}: {run.about}", run.command, verdict, sections).html().encode()


PAGE = Kind("a page", _foreign_page, _failed_page)


@dataclass(frozen=True)
class Reports:
    """The reports of a run.

    Attributes:
        run: The run.
        targets: The files, each with its kind.
    """

    run: Run
    targets: tuple[tuple[Path, Kind], ...]

    def check(self) -> tuple[Reports, InputError | None]:
        """Return the reports that can be written, and the first error of the others; nothing is written."""
        from toolchain import outputs

        fault, usable = None, []
        for index, (path, kind) in enumerate(self.targets):
            if path.resolve() in {other.resolve() for other, _kind in self.targets[:index]}:
                twice = InputError(f"two reports would be written to {path}", hint="name a file for each of them")
                fault = fault or twice
                continue
            try:
                outputs.check_file(path, kind.what, kind.foreign)
                usable.append((path, kind))
            except InputError as caught:
                fault = fault or caught
        return replace(self, targets=tuple(usable)), fault

    def write(self, failure: Failure) -> None:
        """Write a failure to all reports."""
        from toolchain import files

        for path, kind in self.targets:
            files.write_atomic(path, kind.failed(failure, self.run))

    @contextlib.contextmanager
    def report_failures(self, late: Callable[[], Mapping[str, str]] = dict) -> Iterator[None]:
        """Write the error of the block to all reports, if it fails.

        Args:
            late: Returns properties of the run that are known only at its end.
        """
        try:
            yield
        except (click.exceptions.Exit, BrokenPipeError):  # --help, or a closed pipe such as that of `| head`
            raise
        except BaseException as fault:
            with contextlib.suppress(InputError):  # if the disk is full, the file still says "not ended"
                run = replace(self.run, properties={**self.run.properties, **late()})
                replace(self, run=run).write(failure_of(fault))
            raise


def write_reports(result: Result, json_path: Path | None, others: Mapping[Path | None, Callable[[], bytes]]) -> Result:
    """Render and write the requested reports; return what to print.

    Args:
        result: The result of the command; its document is the JSON report.
        json_path: The file of the JSON report, `-` for standard output, or None.
        others: Functions that render the other reports, by file; None as the file skips one.
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
    """A command that writes its result, or its failure, to the files that its options name.

    Args:
        args: As for click's own commands.
        reports: The kind of each report, by the option that names its file; that of --json is any JSON by default.
        settings: As for click's own commands.
    """

    def __init__(self, *args: Any, reports: Mapping[str, Kind] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        has_json = any(JSON_OPTION in param.opts for param in self.params)
        self.kinds = {**({JSON_OPTION: _DOCUMENT} if has_json else {}), **(reports or {})}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the command line; an error in it is reported as a failed run."""
        command = " ".join([*(parent.command_path.split()[1:] if parent else []), info_name or ""])
        args = with_json_value(args)
        values = [(option, value_of(args, option), kind) for option, kind in self.kinds.items()]
        if {"-h", "--help"} & set(args) or extra.get("resilient_parsing"):
            values = []
        targets = tuple((Path(value), kind) for option, value, kind in values if value and (option, value) != PRINTED)
        reports, fault = Reports(Run(command, command), targets).check()
        with reports.report_failures():
            reports.write(NOT_ENDED)  # replaces the result of an earlier run
            if fault:
                raise fault
            context = super().make_context(info_name, args, parent, **extra)
        params = context.params
        device = str(params.get("host") or params.get("place") or "")
        # A board that the device decides is not known yet.
        default = "" if params.get("board_name") is None or device else "local"
        board = Path(str(params.get("board_name") or default)).stem
        about = ".".join(filter(None, [board, Path(str(params.get("source") or "")).stem]))
        properties = {name: value for name, value in (("board", board), ("device", device)) if value}
        run = replace(reports.run, about=about or command, properties=properties)
        context.meta[__name__] = replace(reports, run=run)
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error is written to its reports, with the devices that it waited for."""

        def late() -> dict[str, str]:
            from toolchain.pipeline.report import waited_text

            patience = ctx.meta.get(PATIENCE)
            return {"waited": waited_text(patience.waited)} if patience else {}

        from toolchain import files

        with ctx.meta[__name__].report_failures(late):
            result = super().invoke(ctx)
            if path := ctx.meta.get(JSON_FILE):  # a command that runs another one returns the exit code
                document = result.document if isinstance(result, Result) else {"exit_code": result}
                files.write_atomic(path, json_text(document).encode() + _RESULT_END)
            return result


def with_json_value(argv: Sequence[str]) -> list[str]:
    """Return a command line in which --json has a value: the next word if that is a file for it, otherwise `-`.

    Only `-` and names that end with .json are such files: other words are arguments of the command.
    """
    own, result = list(own_arguments(argv)), []
    others = argv[len(own) :]
    while own:
        argument = own.pop(0)
        if argument == JSON_OPTION:
            is_file = own and (own[0] == STDOUT or own[0].endswith(".json"))
            argument = f"{JSON_OPTION}={own.pop(0) if is_file else STDOUT}"
        result.append(argument)
    return [*result, *others]


def value_of(argv: Sequence[str], option: str) -> str | None:
    """Return the value of an option, even if the rest of the command line is wrong."""
    value = None
    for index, argument in enumerate(own_arguments(argv)):
        if argument == option and index + 1 < len(argv):
            value = argv[index + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def own_arguments(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--`, after which those of another command begin."""
    return argv[: argv.index("--")] if "--" in argv else argv


def failure_of(fault: BaseException) -> Failure:
    """Describe the exception that ended a command, which may be one of click's."""
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
    """Rewrite a message of click in the style of ours: without a capital and a full stop."""
    return f"{message[:1].lower()}{message[1:].removesuffix('.').removesuffix(' range')}"


def _usage_hint(fault: click.UsageError) -> str:
    """Suggest the intended command or option, or the help that lists them."""
    path = fault.ctx.command_path if fault.ctx else "toolchain"
    if isinstance(fault, click.NoSuchCommand | click.NoSuchOption) and fault.possibilities:
        return f"did you mean {fault.possibilities[0]}?"
    if isinstance(fault, click.NoSuchCommand):
        return f"`{path} --help` lists the commands"
    for before, word in itertools.pairwise(own_arguments(sys.argv[1:])):
        if before == JSON_OPTION and "extra argument" in fault.message and word in fault.message:
            return f"write `--json={word}` if that is the file for the JSON"
    return f"`{path} --help` lists the arguments and options"
