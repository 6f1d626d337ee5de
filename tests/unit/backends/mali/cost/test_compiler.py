"""Kernels in processes of Mesa's compiler: whom a fault is put down to, and what is kept when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolchain import process
from toolchain.backends.mali.cost import Root, compiler, gpu
from toolchain.backends.mali.cost.compiler import cached_outcomes
from toolchain.backends.mali.cost.shaderdb import Outcome, Statistics
from toolchain.errors import BuildError

LINE = (
    "SHADER-DB: MESA_SHADER_KERNEL shader: 9 inst, 1.0 cycles, 0.5 fma, 0.1 cvt, 0.0 sfu, 0.0 v, 0.0 t, 1.0 ls, "
    "8 quadwords, 2 threads, 0 loops, 0:0 spills:fills"
)
FINE = Statistics(9, 1.0, {"load_store": 1.0}, 2, 0, 0, 0)
KILLED, CRASHED = -9, -11
SLOW = BuildError("qemu did not finish and was ended")


class Machine:
    """Stands in for qemu: what it is told of files by their content."""

    def __init__(self, faults: Mapping[str, BuildError | int], times: int = 99) -> None:
        self._faults, self._left = faults, dict.fromkeys(faults, times)
        self.patience: list[tuple[int, float]] = []

    def run(
        self, command: Sequence[str], _tree: Path, _environment: Mapping[str, str], _folders: object, timeout: float
    ) -> process.Result:
        """Answer for each file until one at which it ends, or hangs."""
        paths = [Path(path) for path in command[command.index("--") + 1 :]]
        self.patience.append((len(paths), timeout))
        lines: list[str] = []
        for path in paths:
            source = path.read_text(encoding="utf-8")
            if self._left.get(source, 0):
                self._left[source] -= 1
                fault = self._faults[source]
                if isinstance(fault, BuildError):
                    raise fault
                return process.Result(fault, "", "\n".join(lines))
            lines += [f"FILE {path}", LINE, "KERNEL k 128 0", "DONE"]
        return process.Result(0, "", "\n".join(lines))


@pytest.fixture(name="ask")
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Outcome]]:
    """Compile texts by a stand-in, as one part."""

    def ask(machine: Machine, texts: Sequence[str], **more: Any) -> list[Outcome]:
        monkeypatch.setattr(compiler, "emulator", lambda: machine)
        monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0})
        return compiler.compile_kernels(Root(tmp_path, "k", "1", is_pinned=True), gpu("g610"), texts, **more)

    return ask


TEXTS = tuple("abcdef")


def faults(outcomes_: Sequence[Outcome]) -> str:
    """Name the kernels without statistics."""
    return "".join(text for text, outcome in zip(TEXTS, outcomes_, strict=True) if outcome.statistics is None)


def test_only_the_kernel_that_hangs_is_blamed(ask: Callable[..., list[Outcome]]) -> None:
    answers = ask(Machine({"d": SLOW}), TEXTS)
    assert faults(answers) == "d"
    assert answers[3] == Outcome(fault=SLOW.message, answered=False)


def test_only_the_kernel_at_which_the_compiler_ends_is_blamed(ask: Callable[..., list[Outcome]]) -> None:
    answers = ask(Machine({"b": KILLED, "e": KILLED}), TEXTS)
    assert faults(answers) == "be"
    assert "ended unexpectedly" in answers[1].fault
    assert [outcome.answered for outcome in answers] == [True, False, True, True, False, True]


@pytest.mark.parametrize(("code", "name"), [(-11, "SIGSEGV"), (139, "SIGSEGV"), (-6, "SIGABRT")])
def test_a_crash_is_an_answer(ask: Callable[..., list[Outcome]], code: int, name: str) -> None:
    """Nobody is asked about such a kernel again; it is no reason to end what asks about many."""
    answers = ask(Machine({"c": code}), TEXTS)
    assert faults(answers) == "c"
    assert answers[2] == Outcome(fault=f"Mesa's compiler crashes on it ({name})")


@pytest.mark.parametrize("fault", [SLOW, KILLED, CRASHED])
def test_what_passes_is_nobodys_fault(ask: Callable[..., list[Outcome]], fault: BuildError | int) -> None:
    assert faults(ask(Machine({"c": fault}, times=1), TEXTS)) == ""


def test_a_start_is_waited_for_only_where_nothing_is_warm(ask: Callable[..., list[Outcome]]) -> None:
    machine = Machine({})
    ask(machine, ["a"])
    ask(machine, ["a"])
    (_, cold), (_, first), (_, second) = machine.patience
    assert first == second < cold / 2


def test_what_was_compiled_before_an_interrupt_is_not_asked_again(
    ask: Callable[..., list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_MOST_AT_ONCE", 2)

    def stopped(line: str) -> None:
        if ": 4 of" in line:
            raise KeyboardInterrupt

    def outcomes(machine: Machine, tell: Callable[[str], None]) -> list[Outcome]:
        texts = [f"kernel {number}" for number in range(8)]
        compile_ = lambda missing, keep: ask(machine, missing, tell=tell, keep=keep)  # noqa: E731 - it is passed on
        return cached_outcomes("k", gpu("g610"), (), texts, compile_)

    with pytest.raises(KeyboardInterrupt):
        outcomes(Machine({}), stopped)
    again = Machine({})
    assert all(outcome.statistics for outcome in outcomes(again, lambda _line: None))
    assert sum(count for count, _ in again.patience) <= 4
