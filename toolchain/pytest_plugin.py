"""A plug-in of pytest: tests that run a release on a board. It imports little before a fixture is used.

Fixtures of the session: `board` reserves a device, `release` deploys the package to it, `gate` compares it with another
one. docs/ci.md describes their use.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import FrameType

    from toolchain.board import Board
    from toolchain.device.waiting import Patience
    from toolchain.devices import Device
    from toolchain.errors import ToolchainError
    from toolchain.pipeline.gate import Gate
    from toolchain.pipeline.rig import Release, Rig
    from toolchain.shell import SshOptions

_LONGEST_WAIT_S, _LONGEST_BUDGET_S = 7 * 86400.0, 3600.0


def _seconds(limit: float) -> Callable[[str], float]:
    """Return a parser of seconds, up to a limit."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= limit:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {limit:g}")
        return value

    return read


_OPTIONS: dict[str, dict[str, Any]] = {
    "board": {"default": "", "help": "Board type, or its .toml; by default that of --host, or this machine."},
    "host": {
        "action": "append",
        "default": [],
        "help": "user@address[:port], adb:SERIAL, or a name in devices.toml; of several the first that is free. By"
        " default any device of devices.toml that is of the board type.",
    },
    "devices": {"help": "The lab's devices.toml; by default the project's and yours."},
    "package": {"help": "The package, the bundle or the model that `release` deploys."},
    "place": {"help": "labgrid place to use instead of --host."},
    "wait": {
        "type": _seconds(_LONGEST_WAIT_S),
        "default": 0.0,
        "help": "Seconds to wait while all devices are in use.",
    },
    "budget": {
        "type": _seconds(_LONGEST_BUDGET_S),
        "default": 1.0,
        "help": "Seconds for which `release` measures.",
    },
}
_OUTPUT = "edge_toolchain"
_notes = pytest.StashKey[list[tuple[str, str]]]()
_RIG = pytest.StashKey["Rig"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options by names that no one else has; `--host` is short for `--edge-host` unless it is taken."""
    group = parser.getgroup("edge-toolchain", "boards (edge-toolchain); --host is short for --edge-host, and so on")
    for name, settings in _OPTIONS.items():
        group.addoption(f"--edge-{name}", **settings, dest=f"edge_{name}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Read short names as ours, unless a plug-in has them, or a conftest.py, which is loaded by this hook.

    An option that is defined twice would end every session, so the short names are not defined as options.
    """
    _collect_here(early_config, parser, args)
    result = yield
    args[:] = _expand(args, parser)
    return result


def _collect_here(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Search conftest.py files here, although the package that a short name of ours names looks like tests."""
    namespace = config.known_args_namespace
    with contextlib.suppress(pytest.UsageError):  # a name may be another plug-in's flag, without a value
        expanded = parser.parse_known_args(_expand(args, parser), namespace=copy.copy(config.option))
        here = config.invocation_params.dir
        if namespace.file_or_dir and not any(
            (here / path.partition("::")[0]).exists() for path in expanded.file_or_dir
        ):
            namespace.file_or_dir += [*config.getini("testpaths"), str(here)]


def _expand(args: Sequence[str], parser: pytest.Parser) -> list[str]:
    """Write the names of our options in full, except those that another plug-in has."""
    groups = [parser._anonymous, *parser._groups]  # noqa: SLF001 - the only list of options
    others = {name for group in groups for option in group.options for name in option.names()}
    ours = {f"--{name}": f"--edge-{name}" for name in _OPTIONS if f"--{name}" not in others}
    arguments = [str(argument) for argument in args]
    end = arguments.index("--") if "--" in arguments else len(arguments)

    def full(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return f"{ours.get(name, name)}{equals}{value}"

    return [*map(full, arguments[:end]), *arguments[end:]]


@pytest.fixture(scope="session")
def board(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A device that nobody else deploys to or measures on until the session ends."""
    from toolchain.device.lock import Owner  # noqa: PLC0415 - see above
    from toolchain.device.waiting import Patience  # noqa: PLC0415
    from toolchain.pipeline import rig  # noqa: PLC0415
    from toolchain.pipeline.report import waited_text  # noqa: PLC0415

    config = request.config
    patience = Patience(_option(config, "wait"), _progress_writer(config))
    with _terminable(), contextlib.ExitStack() as stack:
        board_type, devices, ssh = _devices(config, stack, patience)
        with rig.hold_free(board_type, devices, ssh, Owner.here(f"pytest {config.rootpath.name}"), patience) as device:
            _note(config, board=board_type.name, device=device.shell.name, emulated=str(device.emulated).lower())
            _note(config, waited=waited_text(device.waited))
            config.stash[_RIG] = device
            try:
                yield device
            finally:
                del config.stash[_RIG]


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest, board: Rig) -> Iterator[Release]:
    """What --package names, deployed to the board, with its outputs checked, and measured for a moment."""
    from toolchain import api  # noqa: PLC0415 - see above

    config = request.config
    source = _option(config, "package")
    if not source:
        raise pytest.UsageError("fixture 'release' needs --package")
    settings = api.Settings(budget_s=_option(config, "budget"))
    with api.deploy(board, source, settings) as deployed:
        _note(config, release=deployed.digest, median_ms=f"{deployed.latency.median:.6g}")
        yield deployed


@pytest.fixture(scope="session")
def gate(release: Release) -> Callable[..., Gate]:
    """Compare the release with a base: `gate(base)` fails the test for a regression, and skips it if inconclusive.

    Its other arguments are fields of `toolchain.pipeline.gate.GateSettings`, such as `allow_emulated=True`.
    """
    from toolchain.errors import InconclusiveError  # noqa: PLC0415 - see above
    from toolchain.pipeline.gate import GateSettings  # noqa: PLC0415

    def gated(base: object, **settings: Any) -> Gate:
        result = release.gate(str(base), GateSettings(**settings))
        fault = result.fault()
        if isinstance(fault, InconclusiveError):
            pytest.skip(f"{fault.message}: {fault.details}")
        if fault:
            raise fault
        return result

    return gated


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"edge_{name}")


def _devices(
    config: pytest.Config, stack: contextlib.ExitStack, patience: Patience
) -> tuple[Board, Sequence[Device], SshOptions]:
    """Return the board type, its suitable devices, and how they are reached.

    A labgrid place is acquired until the stack is closed.
    """
    from pathlib import Path  # noqa: PLC0415 - see above

    from toolchain import api  # noqa: PLC0415
    from toolchain.devices import load_devices  # noqa: PLC0415
    from toolchain.places import labgrid  # noqa: PLC0415

    name, hosts, place = _option(config, "board"), _option(config, "host"), _option(config, "place")
    devices = Path(_option(config, "devices")) if _option(config, "devices") else None
    board_type = api.load_board(name) if name else None
    ssh, progress = api.ssh_options(), _progress_writer(config)
    if not place:
        return *api.find_devices(hosts, board_type, devices, ssh, progress), ssh
    if hosts or (board_type and board_type.connection == "local"):
        raise pytest.UsageError("--place names a device that is reached over SSH, and --host another one")
    lab = load_devices(devices)
    acquired = patience.get(lambda: stack.enter_context(labgrid.acquire(place)))
    ssh = acquired.ssh(ssh)
    resolved = board_type or api.board_of(place, acquired.host, lab, ssh, progress)
    return resolved, (acquired.device(resolved.name, lab.get(place)),), ssh


def _progress_writer(config: pytest.Config) -> Callable[[str], None]:
    """Return a function that shows a line although output is captured; nothing in a worker of pytest-xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None or capture is None:
        return lambda _line: None

    from toolchain.printable import printable  # noqa: PLC0415 - see above

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(printable(line))

    return report


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which a cancelled CI job gets."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C for the time of a block: with every fixture's cleanup."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise _Terminated(signal.Signals(number).name)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # this is not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check before and after each test on the board that it is still ours: others would change results."""
    device = item.config.stash.get(_RIG, None) if "board" in getattr(item, "fixturenames", ()) else None
    if device is None:
        return (yield)
    device.check()
    try:
        return (yield)
    finally:
        device.check()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around what makes an xfail of a failure
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a lost board as an error of the test, and a wrong release as its failure, even if a fixture found it."""
    report = yield
    errors = sys.modules.get("toolchain.errors")
    if errors is None or call.excinfo is None or isinstance(call.excinfo.value, pytest.skip.Exception):
        return report
    faults = [fault for fault in _causes(call.excinfo.value) if isinstance(fault, errors.ToolchainError)]
    lost = [fault for fault in faults if isinstance(fault, errors.DeviceError)]
    if report.when == "call" and lost:
        report.when = "setup"  # readers of reports treat failures there as errors, and those in `call` as failures
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)
    elif report.failed and report.when == "setup" and isinstance(call.excinfo.value, errors.VerificationError):
        report.when = "call"
    relevant = [*lost, *faults]
    if (
        report.failed
        and call.when == "setup"
        and isinstance(call.excinfo.value, (errors.ToolchainError, pytest.UsageError))
    ):
        report.longrepr = _error_lines(call.excinfo.value)  # instead of a traceback through our fixtures
    elif report.failed and relevant:
        from toolchain.printable import printable  # noqa: PLC0415 - see above

        first = relevant[0]
        text = printable("\n".join(filter(None, [first.message, first.details, first.hint])))
        report.sections.append(("toolchain", text))
    return report


def _error_lines(fault: ToolchainError | pytest.UsageError) -> str:
    """Format a fault as the command line does."""
    from toolchain.printable import printable  # noqa: PLC0415 - see above

    details, hint = getattr(fault, "details", ""), getattr(fault, "hint", "")
    lines = [f"error: {fault}", *(f"  {line}" for line in details.splitlines()), *([f"hint: {hint}"] if hint else [])]
    return printable("\n".join(lines))


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """Return a fault, its causes, and the members of groups."""
    pending, visited = [fault], set[int]()
    while pending:
        current = pending.pop(0)
        if id(current) not in visited:
            visited.add(id(current))
            yield current
            pending += [
                *filter(None, [current.__cause__]),
                *(current.exceptions if isinstance(current, BaseExceptionGroup) else ()),
            ]


def _note(config: pytest.Config, **properties: str) -> None:
    config.stash.setdefault(_notes, []).extend(properties.items())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the notes on, to the report, or to the process that writes it."""
    notes = session.config.stash.get(_notes, [])
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = notes
    else:
        _record(session.config, notes)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the notes of a worker of pytest-xdist, under its name; a killed one has none."""
    results: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
    worker = node.gateway.id
    _record(node.config, [(f"{name}.{worker}", str(value)) for name, value in results.get(_OUTPUT, [])])


def _record(config: pytest.Config, properties: Sequence[tuple[str, str]]) -> None:
    """Add properties to the suite of a JUnit report, as `record_testsuite_property` does, if one is written."""
    for plugin in config.pluginmanager.get_plugins():
        add = getattr(plugin, "add_global_property", None)
        if callable(add):
            for name, value in properties:
                add(name, value)
