"""A plug-in of pytest: tests that run a release on a board. It loads nothing before a fixture is used.

Fixtures of the session: `board` holds a device, `release` deploys the package to it, `gate` compares it with another
one. docs/ci.md tells how they are used.
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


def _seconds(most: float) -> Callable[[str], float]:
    """Return what reads seconds, up to some."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not 0 <= found <= most:  # which no NaN is
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {most:g}")
        return found

    return read


_WORDS: dict[str, dict[str, Any]] = {
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
_taken = pytest.StashKey["Rig"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options by names that no one else has; `--host` stands for `--edge-host` where it is nobody else's."""
    group = parser.getgroup("edge-toolchain", "boards (edge-toolchain); --host is short for --edge-host, and so on")
    for name, how in _WORDS.items():
        group.addoption(f"--edge-{name}", **how, dest=f"edge_{name}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Read short names as ours, unless a plug-in has them, or a conftest.py, which is known only after it is loaded.

    An option that two have ends every session before it begins, so that ours are no options at all.
    """
    _look_here_too(early_config, parser, args)
    found = yield
    args[:] = _in_full(args, parser)
    return found


def _look_here_too(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Let conftest.py files be looked for here, though the package that a short name of ours names looks like tests."""
    known = config.known_args_namespace
    with contextlib.suppress(pytest.UsageError):  # a name is somebody's flag, and followed by no value
        meant = parser.parse_known_args(_in_full(args, parser), namespace=copy.copy(config.option))
        here = config.invocation_params.dir
        if known.file_or_dir and not any((here / word.partition("::")[0]).exists() for word in meant.file_or_dir):
            known.file_or_dir += [*config.getini("testpaths"), str(here)]


def _in_full(args: Sequence[str], parser: pytest.Parser) -> list[str]:
    """Write the names of our options in full, but for those that somebody else has."""
    groups = [parser._anonymous, *parser._groups]  # noqa: SLF001 - it has no other list of what there is
    others = {name for group in groups for option in group.options for name in option.names()}
    ours = {f"--{name}": f"--edge-{name}" for name in _WORDS if f"--{name}" not in others}
    words = [str(word) for word in args]
    end = words.index("--") if "--" in words else len(words)

    def full(word: str) -> str:
        name, equals, value = word.partition("=")
        return f"{ours.get(name, name)}{equals}{value}"

    return [*map(full, words[:end]), *words[end:]]


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def board(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A device, which nobody else deploys to or measures on before the session ends."""
    from toolchain.device.lock import Owner  # noqa: PLC0415 - see above
    from toolchain.device.waiting import Patience  # noqa: PLC0415
    from toolchain.pipeline import rig  # noqa: PLC0415
    from toolchain.pipeline.report import waited_text  # noqa: PLC0415

    config = request.config
    patience = Patience(_given(config, "wait"), _teller(config))
    with _terminable(), contextlib.ExitStack() as stack:
        kind, found, ssh = _devices(config, stack, patience)
        with rig.held(kind, found, ssh, Owner.here(f"pytest {config.rootpath.name}"), patience) as taken:
            _note(config, board=kind.name, device=taken.shell.name, emulated=str(taken.emulated).lower())
            _note(config, waited=waited_text(taken.waited))
            config.stash[_taken] = taken
            try:
                yield taken
            finally:
                del config.stash[_taken]


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest, board: Rig) -> Iterator[Release]:
    """What --package names, deployed to the board, with its outputs checked, and measured for a moment."""
    from toolchain.device.deploy import Settings  # noqa: PLC0415 - see above
    from toolchain.pipeline import rig  # noqa: PLC0415

    config = request.config
    source = _given(config, "package") or _missing("--package")
    settings = Settings(budget_s=_given(config, "budget"))
    with rig.released(board, source, settings, lambda _line: None) as found:
        _note(config, release=found.digest, median_ms=f"{found.latency.median:.6g}")
        yield found


@pytest.fixture(scope="session")
def gate(release: Release) -> Callable[..., Gate]:
    """Hold the release against a base: `gate(base)` fails the test of a regression, and skips one that nobody can tell.

    What else it takes are fields of `toolchain.pipeline.gate.GateSettings`, such as `allow_emulated=True`.
    """
    from toolchain.errors import InconclusiveError  # noqa: PLC0415 - see above
    from toolchain.pipeline.gate import GateSettings  # noqa: PLC0415

    def gated(base: object, **settings: Any) -> Gate:
        found = release.gated(str(base), GateSettings(**settings))
        fault = found.fault()
        if isinstance(fault, InconclusiveError):
            pytest.skip(f"{fault.message}: {fault.details}")
        if fault:
            raise fault
        return found

    return gated


def _missing(option: str) -> str:
    raise pytest.UsageError(f"fixture 'release' needs {option}")


def _given(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"edge_{name}")


def _devices(
    config: pytest.Config, stack: contextlib.ExitStack, patience: Patience
) -> tuple[Board, Sequence[Device], SshOptions]:
    """Return the board type, its devices that will do, and how they are reached.

    A place is acquired until the stack is closed.
    """
    import os  # noqa: PLC0415 - see above
    from pathlib import Path  # noqa: PLC0415

    from toolchain import board as boards  # noqa: PLC0415
    from toolchain.devices import load_devices  # noqa: PLC0415
    from toolchain.pipeline import rig  # noqa: PLC0415
    from toolchain.places import labgrid  # noqa: PLC0415
    from toolchain.shell import SshOptions  # noqa: PLC0415

    path, name = _given(config, "devices"), _given(config, "board")
    hosts, place = _given(config, "host"), _given(config, "place")
    named = boards.load(name or "local").resolved() if name or not (hosts or place) else None
    if place and (hosts or (named and named.connection == "local")):
        raise pytest.UsageError("--place names a device that is reached over SSH, and --host another one")
    lab = {} if named and named.connection == "local" else load_devices(Path(path) if path else None)
    ssh = SshOptions(password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"))
    if place:
        placed = patience.get(lambda: stack.enter_context(labgrid.acquired(place)))
        ssh = placed.ssh(ssh)
        kind = named or _board_of(place, placed.host, lab, ssh, _teller(config))
        return kind, (placed.device(kind.name, lab.get(place)),), ssh
    kind = named or _board_of(hosts[0], hosts[0], lab, ssh, _teller(config))
    return kind, rig.candidates(kind, hosts, lab), ssh


def _board_of(
    device: str, address: str, lab: Mapping[str, Device], ssh: SshOptions, tell: Callable[[str], None]
) -> Board:
    """Return the board type of a device: that of its entry, or the one that a probe chooses, which is told."""
    from toolchain.adoption import selection  # noqa: PLC0415 - see above
    from toolchain.shell import open_shell  # noqa: PLC0415

    if listed := selection.listed(device, lab):
        return listed.resolved()
    with open_shell(address, config=ssh) as shell:
        found = selection.select(shell)
    tell(found.sentence(address))
    return found.board.resolved()


def _teller(config: pytest.Config) -> Callable[[str], None]:
    """Return what shows a line at once, though output is captured; a worker of pytest-xdist has no terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None or capture is None:
        return lambda _line: None

    from toolchain.tables import printable  # noqa: PLC0415 - see above

    def tell(line: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(printable(line))

    return tell


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which a cancelled job of CI gets."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C for the time of a block: through every fixture's end."""

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


# --- what becomes of it ----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """See before and after each test that uses the board that it is ours: what others do there is in no result."""
    taken = item.config.stash.get(_taken, None) if "board" in getattr(item, "fixturenames", ()) else None
    if taken is None:
        return (yield)
    taken.check()
    try:
        return (yield)
    finally:
        taken.check()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around what makes an xfail of a failure
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make an error of a test whose board was lost, since nothing is known of what it tests.

    And make a failure of one whose release is wrong, though a fixture found that.
    """
    found = yield
    errors = sys.modules.get("toolchain.errors")
    if errors is None or call.excinfo is None or isinstance(call.excinfo.value, pytest.skip.Exception):
        return found
    faults = [fault for fault in _behind(call.excinfo.value) if isinstance(fault, errors.ToolchainError)]
    lost = [fault for fault in faults if isinstance(fault, errors.DeviceError)]
    if found.when == "call" and lost:
        found.when = "setup"  # for all that read reports, what fails there is an error, and what fails in `call` not
        found.outcome = "failed"
        vars(found).pop("wasxfail", None)
    elif found.failed and found.when == "setup" and isinstance(call.excinfo.value, errors.VerificationError):
        found.when = "call"
    told = [*lost, *faults]
    if (
        found.failed
        and call.when == "setup"
        and isinstance(call.excinfo.value, (errors.ToolchainError, pytest.UsageError))
    ):
        found.longrepr = _error_lines(call.excinfo.value)  # a traceback through our fixtures helps nobody
    elif found.failed and told:
        found.sections.append(("toolchain", _shown(told[0])))
    return found


def _shown(fault: ToolchainError) -> str:
    from toolchain.tables import printable  # noqa: PLC0415 - see above

    return printable("\n".join(filter(None, [fault.message, fault.details, fault.hint])))


def _error_lines(fault: ToolchainError | pytest.UsageError) -> str:
    """Write a fault as the command line does."""
    from toolchain.tables import printable  # noqa: PLC0415 - see above

    details, hint = getattr(fault, "details", ""), getattr(fault, "hint", "")
    lines = [f"error: {fault}", *(f"  {line}" for line in details.splitlines()), *([f"hint: {hint}"] if hint else [])]
    return printable("\n".join(lines))


def _behind(fault: BaseException) -> Iterator[BaseException]:
    """Return a fault, what it was raised from, and what groups have within them."""
    left, seen = [fault], set[int]()
    while left:
        one = left.pop(0)
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [*filter(None, [one.__cause__]), *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]


def _note(config: pytest.Config, **properties: str) -> None:
    config.stash.setdefault(_notes, []).extend(properties.items())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand on what was found, to the report, or to the process that writes it."""
    found = session.config.stash.get(_notes, [])
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = found
    else:
        _record(session.config, found)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker of pytest-xdist found, under its name; one that was killed says nothing."""
    found: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
    worker = node.gateway.id
    _record(node.config, [(f"{name}.{worker}", str(value)) for name, value in found.get(_OUTPUT, [])])


def _record(config: pytest.Config, found: Sequence[tuple[str, str]]) -> None:
    """Add properties to the suite of a JUnit report, as `record_testsuite_property` does, if one is written."""
    for plugin in config.pluginmanager.get_plugins():
        add = getattr(plugin, "add_global_property", None)
        if callable(add):
            for name, value in found:
                add(name, value)
