"""Gates without a wait: runners that say what a test wants to be measured, and reports made of numbers."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolchain import board, devices, files, tensors
from toolchain import bundle as bundles
from toolchain.board import Board
from toolchain.bundle import Bundle, FileRecord, Manifest
from toolchain.bundle.reference import Reference
from toolchain.device.bench import Conditions
from toolchain.device.connected import ConnectedDevice
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.rounds import State, Turn
from toolchain.device.runner import Run
from toolchain.device.store import Store
from toolchain.native.programs import Program
from toolchain.pipeline.ab import Side
from toolchain.pipeline.gate.result import LATENCY, PACKAGE_SIZE, PEAK_MEMORY, Gate, Outputs, Quantity, Round
from toolchain.shell import LocalShell
from toolchain.stats import Judgement, Rule, Verdict
from toolchain.tensors import Difference, TensorSpec

FACTS = DeviceFacts("x86_64", "Linux 6.1", "2.36", "a <CPU>", (), 4, 1 << 20, 1 << 20, ())
CALM = Conditions(0.1, 0.02, ("performance",), 2000.0, 50.0)
ALIKE = Difference(1e-7, 1e-6, 1e-4, ok=True)


def turn(ms: float, *, kib: int = 1000, load_ms: float = 5.0, switches: int = 0, **after: object) -> Turn:
    """Return a run of three samples around a median."""
    ns = [round(ms * 1e6 * factor) for factor in (0.99, 1, 1.02)]
    ran = Run({}, tuple(ns), (ns[0],), load_ms, 2, kib, (ns[0],), involuntary_switches=switches)
    return Turn(ran, State(mhz=2000.0, throttles=0), State(**{"mhz": 2000.0, "throttles": 0, **after}))


def one_round(new: Turn, base: Turn, *, number: int = 1) -> Round:
    """Return a round of these two runs."""
    return Round(number, fresh=False, new_first=True, new=new, base=base)


def rounds_of(changes: Sequence[float], *, fresh: Sequence[float] = (), base_ms: float = 10.0) -> list[Round]:
    """Return rounds in which the new release is slower by these shares."""
    pairs = [(change, False) for change in changes] + [(change, True) for change in fresh]
    return [
        Round(number, last, number % 2 == 1, turn(base_ms * (1 + change)), turn(base_ms))
        for number, (change, last) in enumerate(pairs, 1)
    ]


def judged(rounds: Sequence[Round], name: str = LATENCY, rule: Rule | None = None) -> Quantity:
    """Judge rounds as a gate does."""
    rule = rule or Rule()
    counted = [sample_round for sample_round in rounds if not sample_round.throttled]
    logs, fresh = (
        [sample_round.ratio(name) for sample_round in counted if sample_round.fresh is which] for which in (False, True)
    )
    judgement = rule.follow(logs, fresh)
    if not judgement.final:
        judgement = Judgement(Verdict.INCONCLUSIVE, 0, judgement.estimate)
    values = (10.0, 10.0) if counted else (math.nan, math.nan)
    return Quantity(name, *values, rule.worst, rule, judgement)


def manifest() -> Manifest:
    """Return the manifest of no bundle."""
    names = {name: FileRecord("0" * 64, 1234) for name in (bundles.LIBRARY, bundles.GRAPH, bundles.PARAMS)}
    specs = (TensorSpec("x", (1, 3), "float32"),), (TensorSpec("y", (1, 2), "float32"),)
    target = {"kind": "llvm"}
    return Manifest(
        *(3, "mobilenet", "rpi4", "aarch64", "aarch64-linux-gnu", target, "2.28", (), "main", "model.so"),
        *("params.safetensors", (), *specs, {}, {}, {}, "toolchain build", names),
    )


def gate(tiny: Bundle | None, rounds: Sequence[Round], *more: Quantity, **values: Any) -> Gate:
    """Return a finished gate of these rounds."""
    side = Side("new.tar", tiny.manifest if tiny else manifest(), "1" * 64, tiny)
    return Gate(
        new=side,
        base=dataclasses.replace(side, label="old.tar", digest="2" * 64),
        board="rpi4",
        host="lab <1>",
        **{"emulated": False, "hot": "", **values},
        facts=FACTS,
        threads=2,
        outputs=Outputs(ALIKE, ALIKE, ALIKE, "onnxruntime 1.2"),
        quantities=(judged(rounds), *more),
        rounds=tuple(rounds),
        before=CALM,
        after=CALM,
        seconds=12.5,
    )


def memory(rounds: Sequence[Round]) -> Quantity:
    """Gate the peak memory of rounds."""
    return judged(rounds, PEAK_MEMORY, Rule(0.05, 0.05))


def size(new: int, base: int, limit: float) -> Quantity:
    """Gate a size."""
    verdict = Verdict.REGRESSION if new > base * (1 + limit) else Verdict.PASS
    return Quantity(PACKAGE_SIZE, new, base, limit, None, Judgement(verdict))


# --- devices whose runner says what is wanted --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Bench:
    """A device on this machine whose runner is a script, and says what is prepared for it."""

    folder: Path
    device: ConnectedDevice
    program: Program

    def says(self, release: Bundle, *reports: dict[str, object], scale: float = 1.0) -> None:
        """Have a release's runs report these in turn, the last of them again and again.

        Args:
            made: The release.
            reports: What differs from a usual report.
            scale: What its outputs are multiplied with.
        """
        reference = Reference.read(release.reference)
        folder = self.folder / release.digest
        folder.mkdir()
        tensors.save(folder / "outputs", {name: np.float32(scale) * value for name, value in reference.outputs.items()})
        for number, one in enumerate(reports or ({},)):
            (folder / f"report{number}").write_text(json.dumps(report(**one)))


def report(ms: float = 1.0, **more: object) -> dict[str, object]:
    """Return what a runner reports of runs that take so long."""
    ns = round(ms * 1e6)
    usual = {"samples_ns": [ns] * 5, "warmup_ns": [ns], "each_ns": [ns], "load_ms": 5.0, "threads": 2}
    return {**usual, "peak_rss_kib": 5000, "involuntary_switches": 0, "processor": None, **more}


_RUNNER = """#!/bin/sh
for word; do
  case $last in --report) report=$word ;; --outputs) outputs=$word ;; --release) release=$word ;; esac
  case $last in --max-runs) runs=$word ;; esac
  last=$word
done
said={folder}/${{release##*/}}
cp "$said/outputs" "$outputs"
number=0
[ "$runs" = 0 ] || {{ read -r number <"$said/count"; }} 2>/dev/null || number=0
[ -e "$said/report$number" ] || number=$((number - 1))
cp "$said/report$number" "$report"
[ "$runs" = 0 ] || echo $((number + 1)) >"$said/count"
{more}
"""


def bench(
    folder: Path, program: Program, kind: Board | None = None, *, emulated: bool = False, more: str = ""
) -> Bench:
    """Make such a device.

    Args:
        folder: Where everything of it lies.
        program: A real runner, whose versions it claims to have.
        kind: The board type.
        emulated: Whether it says that it is an emulator.
        more: What the runner does at the end of each run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "runner"
    path.write_text(_RUNNER.format(folder=folder, more=more))
    path.chmod(0o755)
    kind = kind or board.load("local").resolved()
    entry = dataclasses.replace(devices.find_device(kind, None, {}), emulated=emulated)
    shell = LocalShell()
    device = ConnectedDevice(kind, entry, shell, Store(shell, str(folder / "store")))
    return Bench(folder, device, dataclasses.replace(program, path=path, sha256=files.sha256_file(path)))


def alike(release: Bundle, folder: Path, text: bytes = b"\n") -> Bundle:
    """Copy a bundle with another digest, which computes the same in the same time."""
    content = (release.folder / bundles.GRAPH_TEXT).read_bytes() + text
    manifest_of = _described(release, folder, content)
    return bundles.load(manifest_of)


def _described(release: Bundle, folder: Path, content: bytes) -> Path:
    from tests.support.bundles import variant  # TVM takes two seconds that a test of texts need not spend

    if folder.exists():
        shutil.rmtree(folder)
    return variant(release, folder, {bundles.GRAPH_TEXT: content}).folder
