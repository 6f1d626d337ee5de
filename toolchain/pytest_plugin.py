"""A plug-in of pytest: tests that run a release on a board. It loads nothing before a fixture is used.

Fixtures of the session: `board` holds a device, `release` deploys the package to it, `gate` compares it with another
one. docs/ci.md tells how they are used.
"""

from __future__ import annotations

import contextlib
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
    from toolchain.pipeline.gate import Gate
    from toolchain.pipeline.rig import Release, Rig
    from toolchain.shell import SshOptions

_WORDS: dict[str, dict[str, Any]] = {
    "board": {"default": "local", "help": "Board type, or its .toml; by default this machine."},
    "host": {
        "action": "append",
        "default": [],
        "help": "user@address[:port], or a name in devices.toml; of several the first that is free. By default any"
        " device of devices.toml that is of the board type.",
    },
    "devices": {"help": "The lab's devices.toml; by default the project's and yours."},
    "package": {"help": "The package, the bundle or the model that `release` deploys."},
    "place": {"help": "A place of labgrid, instead of --host."},
    "wait": {"type": float, "default": 0.0, "help": "Seconds to wait while others are at work on all of the devices."},
    "budget": {"type": float, "default": 1.0, "help": "Seconds that `release` measures for."},
}
_OUTPUT = "edge_toolchain"
_notes = pytest.StashKey[list[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options; one that another plug-in has, too, has a longer name here, such as --edge-host."""
    group = parser.getgroup("edge-toolchain", "boards (edge-toolchain)")
    for name, how in _WORDS.items():
        given: dict[str, Any] = {**how, "dest": f"edge_{name}"}
        try:
            group.addoption(f"--{name}", **given)
        except ValueError:
            group.addoption(f"--edge-{name}", **given)


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def board(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A device, which nobody else deploys to or measures on before the session ends."""
    from toolchain import board as boards  # noqa: PLC0415 - see above
    from toolchain.device.lock import Owner  # noqa: PLC0415
    from toolchain.device.waiting import Patience  # noqa: PLC0415
    from toolchain.pipeline import rig  # noqa: PLC0415
    from toolchain.pipeline.report import waited_text  # noqa: PLC0415

    config = request.config
    kind = boards.load(_given(config, "board")).resolved()
    patience = Patience(_given(config, "wait"), _teller(config))
    with _terminable(), contextlib.ExitStack() as stack:
        found, ssh = _devices(config, kind, stack, patience)
        with rig.held(kind, found, ssh, Owner.here(f"pytest {config.rootpath.name}"), patience) as taken:
            _note(config, board=kind.name, device=taken.shell.name, emulated=str(taken.emulated).lower())
            _note(config, waited=waited_text(taken.waited))
            yield taken


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest, board: Rig) -> Iterator[Release]:
    """What --package names, deployed to the board, with its outputs checked, and measured for a moment."""
    from toolchain.pipeline import Settings, rig  # noqa: PLC0415 - see above

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
    config: pytest.Config, kind: Board, stack: contextlib.ExitStack, patience: Patience
) -> tuple[Sequence[Device], SshOptions]:
    """Return the devices that will do, and how they are reached; a place is acquired until the stack is closed."""
    import os  # noqa: PLC0415 - see above
    from pathlib import Path  # noqa: PLC0415

    from toolchain.devices import load_devices  # noqa: PLC0415
    from toolchain.pipeline import rig  # noqa: PLC0415
    from toolchain.places import labgrid  # noqa: PLC0415
    from toolchain.shell import SshOptions  # noqa: PLC0415

    path = _given(config, "devices")
    known = {} if kind.connection == "local" else load_devices(Path(path) if path else None)
    ssh = SshOptions(password=os.environ.get("TOOLCHAIN_SSH_PASSWORD"))
    if place := _given(config, "place"):
        if _given(config, "host") or kind.connection == "local":
            raise pytest.UsageError("--place names a device that is reached over SSH, and --host another one")
        placed = patience.get(lambda: stack.enter_context(labgrid.acquired(place)))
        return (placed.device(kind.name, known.get(place)),), placed.ssh(ssh)
    return rig.candidates(kind, _given(config, "host"), known), ssh


def _teller(config: pytest.Config) -> Callable[[str], None]:
    """Return what shows a line at once, though output is captured; a worker of pytest-xdist has no terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None or capture is None:
        return lambda _line: None

    def tell(line: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)

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
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make an error of a test whose board was lost, since nothing is known of what it tests.

    And make a failure of one whose release is wrong, though a fixture found that.
    """
    found = yield
    errors = sys.modules.get("toolchain.errors")
    if found.failed and errors and call.excinfo and isinstance(fault := call.excinfo.value, errors.ToolchainError):
        if found.when == "call" and isinstance(fault, errors.DeviceError):
            found.when = (
                "setup"  # for all that read reports, what fails there is an error, and what fails in `call` not
            )
        elif found.when == "setup" and isinstance(fault, errors.VerificationError):
            found.when = "call"
        told = "\n".join(filter(None, [fault.message, fault.details, fault.hint]))
        found.sections.append(("toolchain", told))
    return found


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
    """Take what a worker of pytest-xdist found; one that was killed says nothing."""
    found: Mapping[str, Any] = getattr(node, "workeroutput", None) or {}
    _record(node.config, [(str(name), str(value)) for name, value in found.get(_OUTPUT, [])])


def _record(config: pytest.Config, found: Sequence[tuple[str, str]]) -> None:
    """Add properties to the suite of a JUnit report, as `record_testsuite_property` does, if one is written."""
    for plugin in config.pluginmanager.get_plugins():
        add = getattr(plugin, "add_global_property", None)
        if callable(add):
            for name, value in found:
                add(name, value)
