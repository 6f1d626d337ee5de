"""How long a large file of records takes to load, and how much memory: with its index and without.

    python benchmarks/records.py [--records 1000000] [--whole] [--folder FOLDER] [--json FILE]

The records are as a tuning run writes them, with schedules of 2 kB. Each figure is of a process of its own, which loads
what it needs of the toolchain first; the file is in the memory of the operating system by then, as it was just written.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from toolchain.cli import records as commands
from toolchain.cli.console import Console
from toolchain.records import Key, Record, RecordFile, Start, Workload, forgetting, maintenance
from toolchain.records.forgetting import Which
from toolchain.records.lines import USUAL, Line, encoded
from toolchain.tuning.records_view import RecordsView

KERNELS, ROUND, RUN, LOOPS = 200, 16, 20_000, 12
TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "mattr": ["+neon"], "num-cores": 4}
KEY = Key.of(TARGET)
NOW = 1.8e9
APPENDED = 1000


def lines(count: int) -> Iterator[Line]:
    """Yield so many records of several runs, with their kernels and the beginnings of the runs."""
    dice = random.Random(0)  # noqa: S311 - of made-up records
    yield from (Workload.of(f"{number:016x}", f"fused_conv2d_{number}", 1e9, "x" * 20_000) for number in range(KERNELS))
    for number in range(count):
        if number % RUN == 0:
            yield Start(run=run(number), time=NOW)
        yield trial(number, dice)


def run(number: int) -> str:
    """Name the run that a record is of."""
    return f"{number // RUN:012x}"


def trial(number: int, dice: random.Random) -> Record:
    """Return one record: a trial, or now and then a failure or a final."""
    kernel = f"{number // ROUND % KERNELS:016x}"
    candidate = f"{dice.getrandbits(64):016x}"
    seconds = dice.uniform(1e-3, 2e-3)
    failed, final = number % 23 == 0, number % 997 == 1
    return Record(
        workload=kernel,
        target=TARGET,
        tvm=KEY.tvm,
        candidate=candidate,
        trace=trace(dice),
        samples_s=() if failed else (seconds, seconds * 1.01, seconds * 1.02),
        cause="crash" if failed else "",
        board="rpi4-1",
        run=run(number),
        tuner="evolutionary-xgb",
        round=number % RUN // ROUND,
        index=number % ROUND,
        of=ROUND,
        time=NOW + number / 10,
        options=USUAL,
        verdict="faster" if final and not failed else "",
        base_s=(2 * seconds,) if final else (),
        among=(kernel, candidate) if final else (),
    )


def trace(dice: random.Random) -> str:
    """Return a schedule as MetaSchedule writes them."""
    steps: list[Any] = [["GetSBlock", [], ["conv2d", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]]
    steps += [["SamplePerfectTile", [f"l{loop}"], [4, 64], [f"v{loop}", f"w{loop}"]] for loop in range(LOOPS)]
    steps += [["Split", [f"l{loop}", f"v{loop}", f"w{loop}"], [1, 0], [f"l{loop}9"]] for loop in range(LOOPS)]
    decisions = [[loop, [2 ** dice.randrange(6) for _ in range(4)]] for loop in range(LOOPS)]
    return json.dumps([steps, decisions], separators=(",", ":"))


def write(path: Path, count: int) -> None:
    """Make the file."""
    with path.open("wb") as stream:
        for item in lines(count):
            stream.write(encoded(item))


def append(path: Path) -> None:
    """Append what another run found."""
    with path.open("ab") as stream:
        for item in itertools.islice(lines(APPENDED), KERNELS + 1, None):
            stream.write(encoded(item))


# --- what is measured, each in a process of its own -------------------------------------------------------------------


def begin(path: Path) -> None:
    """Do what a run begins with: note that it begins, find its own trials, and what others know."""
    start = Start(run=run(0), time=NOW)
    view = RecordsView(RecordFile(path).begin(start), KEY, start, {f"{number:016x}" for number in range(20)})
    if not view.own() or len(view.records.workloads) != KERNELS:
        raise SystemExit("the run finds nothing of its own")
    view.earlier(1000)
    fresh = Start(run="another", time=NOW)
    if len(RecordsView(view.records.beginning(fresh), KEY, fresh, set()).earlier(1000)) != APPENDED:
        raise SystemExit("another run finds nothing of this one")


def finals(path: Path) -> None:
    """Ask what finals ask: the best candidates of each kernel, and what was decided."""
    start = Start(run=run(0), time=NOW)
    names = [f"{number:016x}" for number in range(20)]
    now = RecordsView(RecordFile(path).read(), KEY, start, names).now()
    if not now.decided(KEY) or not all(next(now.ranked(KEY, name)) for name in names):
        raise SystemExit("nothing is known of a kernel")


def best(path: Path) -> None:
    """Ask what a build asks."""
    records = RecordFile(path).read()
    if KEY not in records.keys or not records.best(KEY):
        raise SystemExit("nothing is known of a kernel")


def show(path: Path) -> None:
    """Print the table of `records show`."""
    with contextlib.redirect_stdout(io.StringIO()):
        commands.records.main(["show", str(path)], standalone_mode=False, obj=Console(lambda _line: None))


def forget(path: Path) -> None:
    """Take one run's records out of a copy, whose index is a copy, too."""
    copy = path.with_name("copy.jsonl")
    for name in ("{}", ".{}.index"):
        os.link(path.with_name(name.format(path.name)), path.with_name(name.format(copy.name)))
    forgotten = forgetting.forget(RecordFile(copy), Which(before=NOW + RUN / 10))
    copy.unlink()
    if not forgotten.trials:
        raise SystemExit("nothing was forgotten")


def merge(path: Path) -> None:
    """Merge the file with itself, which leaves as many records."""
    maintenance.merge([path, path], path.with_name("merged.jsonl"))
    path.with_name("merged.jsonl").unlink()


WHOLE: dict[str, Callable[[Path], Any]] = {
    "forget one run": forget,
    "merge twice the same": merge,
}
STEPS: dict[str, Callable[[Path], Any]] = {
    "first load": lambda path: RecordFile(path).read(),
    "load with the index": lambda path: RecordFile(path).read(),
    "load after more was appended": lambda path: RecordFile(path).read(),
    "begin a run": begin,
    "hold its finals": finals,
    "build": best,
    "records show": show,
}


def measure(step: str, path: Path) -> None:
    """Do one step in this process and print its seconds, those of CPUs, and the most memory that it took."""
    start, used = time.monotonic(), sum(os.times()[:4])
    (STEPS | WHOLE)[step](path)
    seconds, used = time.monotonic() - start, sum(os.times()[:4]) - used
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps({"step": step, "seconds": seconds, "CPU_s": used, "MB": int(status["VmHWM"].split()[0]) / 1e3}))


def measured(step: str, path: Path) -> dict[str, Any]:
    """Let a process of its own do one step."""
    command = [sys.executable, __file__, "--step", step, "--file", str(path)]
    row: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{step:30} {row['seconds']:8.2f} s {row['CPU_s']:8.2f} s of CPU {row['MB']:8.0f} MB", flush=True)
    return row


def main() -> None:
    """Make the file and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--whole", action="store_true", help="also rewrite the file")
    parser.add_argument("--folder", type=Path, help="where the file is made; a temporary one by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", choices=STEPS | WHOLE, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        measure(options.step, options.file)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "rpi4.jsonl"
        write(path, options.records)
        print(f"{options.records} records, {path.stat().st_size / 1e6:.0f} MB of lines")
        rows = []
        for step in [*STEPS, *(WHOLE if options.whole else ())]:
            if step == "load after more was appended":
                append(path)
            rows.append(measured(step, path))
        print(f"the index has {sum(file.stat().st_size for file in path.parent.glob('.*')) / 1e6:.0f} MB")
    if options.json:
        options.json.write_text(json.dumps({"records": options.records, "steps": rows}, indent=2))


if __name__ == "__main__":
    main()
