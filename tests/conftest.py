"""What is slow to make and safe to share: it is made once in a test session, and nobody changes it."""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import re
import secrets
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.support import cuts, guard, session, shared, supervisor
from toolchain import board, bundle
from toolchain.native import programs

BEGAN = session.begin()  # before any test module is imported, and before workers start
GUARD = guard.begin()
_LEFT_OUT = pytest.StashKey[str]()
_QUICK = "tests/integration, tests marked `long`, and most of the cases of a kernel"
_KERNELS = ("tests/unit/backends/", *(f"tests/integration/test_vta_{name}.py" for name in ("kernels", "shapes")))
_CASES_OF_A_KERNEL = 5  # of one parametrized test, in a quick run: each of them compiles
_CASES_IN_CI = 12  # of the same; the others are left to `make nightly`
_ARM = {"aarch64-linux-gnu": "aarch64", "arm-linux-gnueabihf": "armv7l"}
_ARM_WORDS = re.compile(r"aarch64|armv7|\barm|android|rpi4|pynq")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help=f"leave out {_QUICK}")
    parser.addoption("--nightly", action="store_true", help="run those marked `nightly` too: see `make nightly`")
    parser.addoption("--prepare", action="store_true", help="only build the device programs and the tests' bytecode")
    parser.addoption("--cuts-json", metavar="FILE", help="write the table of `make cuts` to this file as well")


def pytest_configure(config):
    """Go on in a process whose parent ends what it leaves behind.

    Ctrl-C is what it is at a terminal: a shell that starts a job in its background has children ignore it.
    """
    if config.option.prepare:
        config.option.collectonly = True
    if BEGAN:
        with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            supervisor.supervise(session.folder())
    # A deadline for each example would need a quiet machine.
    examples = 25 if config.option.quick else 200 if config.option.nightly else 50
    hypothesis.settings.register_profile("ours", deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("ours")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path, config):
    """Do not even import the folder that a quick run leaves out: that takes seconds."""
    return True if config.option.quick and collection_path.name == "integration" else None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by `-m nightly`
def pytest_collection_modifyitems(config, items):
    """Leave out what is long; order the rest so that two workers end at the same time."""
    for cases in _functions(items, _KERNELS).values():
        for case in set(cases) - set(_spread(cases, _CASES_IN_CI)):
            case.add_marker(pytest.mark.nightly)
    if not config.option.nightly:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in set(nightly)]
    if config.option.quick:
        chosen = _quick(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    for item in items:
        # Two groups, for two workers: these share two boards, `docker` those that make boards or images of their own.
        if "virtual_boards" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("boards"))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def _quick(items):
    """Return the items of a quick run: of the tests of a backend's kernels a few cases each, from first to last."""
    short = [item for item in items if not item.get_closest_marker("long")]
    chosen = {item for item in short if not item.nodeid.startswith(_KERNELS)}
    for cases in _functions(short, _KERNELS).values():
        chosen |= set(_spread(cases, _CASES_OF_A_KERNEL))
    return chosen


def _functions(items, starts):
    """Return the cases of each test function whose name begins with one of these, by its name."""
    functions = collections.defaultdict(list)
    for item in items:
        if item.nodeid.startswith(starts):
            functions[item.nodeid.partition("[")[0]].append(item)
    return functions


def _spread(cases, count):
    """Return at most `count` of the cases, from first to last."""
    step = max(1, (len(cases) - 1) / max(1, count - 1))
    return [cases[round(index * step)] for index in range(min(count, len(cases)))]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Fail a test that touched something of the user, or connected to somebody else's machine; see `guard`."""
    yield
    violations, GUARD.violations[:] = list(GUARD.violations), []
    if violations:
        pytest.fail("touched what is not the test's:\n" + "\n".join(violations), pytrace=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give one worker all tests of a module, which share fixtures, and all of a group, which share a thing."""
    from xdist.scheduler import LoadGroupScheduling

    class Modules(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).partition("::")[0]

    return Modules(config, log)


def pytest_collection_finish(session):
    """Build the device programs before the first test: on a slow machine they take longer than one test may."""
    if session.config.option.collectonly and not session.config.option.prepare:
        return
    # Tests are there until the end: Python need not look at all of them whenever it looks for garbage.
    gc.collect()
    gc.freeze()
    kind = board.load("local").resolved()
    wanted = {kind.triple: kind.machine} if any(map(_runs_programs, session.items)) else {}
    if any(map(_runs_arm_programs, session.items)):
        wanted |= _ARM
    said = set()

    def tell(line):
        if line not in said:
            said.add(line)
            sys.stderr.write(f"{line}\n")  # a worker has no terminal of its own

    # The library first, while there are objects that the programs are linked of too.
    names = (programs.LIBRARY, *programs.PROGRAMS) if any(map(_is_integration, session.items)) else programs.PROGRAMS
    with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for name in names:
            with contextlib.ExitStack() as others:
                for triple in [*wanted][1:]:
                    others.enter_context(programs.building(name, triple, wanted[triple]))
                for triple, machine in wanted.items():
                    programs.build(name, triple, machine, tell)


def _runs_programs(item):
    return "program" in item.fixturenames or hasattr(item.module, "toolchain") or _is_integration(item)


def _runs_arm_programs(item):
    named = "virtual_boards" in item.fixturenames or _ARM_WORDS.search(item.nodeid)
    return _is_integration(item) and bool(named)


def _is_integration(item):
    return item.path.parent.name == "integration"


@pytest.fixture(scope="session")
def native():
    """The board type of this machine."""
    return board.load("local").resolved()


@pytest.fixture(autouse=True)
def _records_of_nobody(monkeypatch, tmp_path_factory):
    """Give each test tuning records of its own; their folder exists once something is written to it."""
    monkeypatch.setenv("TOOLCHAIN_RECORDS", str(tmp_path_factory.getbasetemp() / f"records-{secrets.token_hex(8)}"))


@pytest.fixture(scope="session")
def program(native):
    """The runner for this machine; it comes from the shared part of the cache if it was built before."""
    return programs.build(programs.RUNNER, native.triple, native.machine)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A bundle of a few hundred bytes of weights."""
    from tests.support import bundles  # TVM takes two seconds that most tests need not spend

    made = shared.once(tmp_path_factory, "tiny", lambda folder: bundles.build(folder, rows=8, columns=4))
    return bundle.load(made / "bundle")


@pytest.fixture(scope="session")
def tiny_for_ssh(tiny, tmp_path_factory):
    """The same for the board type of a PC that is reached over SSH, which this machine plays in tests."""
    from tests.support import bundles

    return bundles.variant(tiny, tmp_path_factory.mktemp("for-ssh") / "bundle", {}, board="x86_64")


@pytest.fixture(scope="session")
def bulky(tmp_path_factory):
    """Two bundles that differ in 4 MiB of weights, so that their uploads take a moment."""
    from tests.support import bundles

    def make(folder):
        first = bundles.build(folder, rows=512, columns=2048)
        bundles.reweighted(first, folder / "other", seed=7)

    made = shared.once(tmp_path_factory, "bulky", make)
    return bundle.load(made / "bundle"), bundle.load(made / "other")


@pytest.fixture(scope="session")
def alice(tmp_path_factory):
    """A key of somebody who is trusted, mostly."""
    from tests.support import signers

    return signers.pair(tmp_path_factory.mktemp("keys"), "alice")


@pytest.fixture(scope="session")
def bob(tmp_path_factory):
    """Another one."""
    from tests.support import signers

    return signers.pair(tmp_path_factory.mktemp("keys"), "bob")


@pytest.fixture(scope="session")
def virtual_boards(tmp_path_factory):
    """One rpi4 and one pynq, emulated; they answer over SSH."""
    from tests.support import boards

    with boards.running(tmp_path_factory.mktemp("farm")) as farm:
        yield farm


def pytest_terminal_summary(terminalreporter, config):
    """Print the table of a campaign of power cuts, and in one line what was left out; strict runs leave nothing out."""
    for line in cuts.lines():
        terminalreporter.write_line(line)
    if path := config.option.cuts_json:
        Path(path).write_text(json.dumps(cuts.document(), indent=2) + "\n")
    skipped = [report.longrepr[2] for report in terminalreporter.getreports("skipped")]
    parts = sorted({text.partition("left out: ")[2] for text in skipped if "left out: " in text})
    if config.option.quick:
        parts.append(f"{_QUICK} (make test-all)")
    config.stash[_LEFT_OUT] = "; ".join(parts)


def pytest_unconfigure(config):
    """Put that line at the very end, under pytest's own totals, where it is seen."""
    parts = config.stash.get(_LEFT_OUT, "")
    if parts:
        config.get_terminal_writer().line(f"left out: {parts}")
