"""Tries the models in the test suites of five other projects: right, refused by name, wrong, or an error of the build.

    python benchmarks/suites.py [SUITE ...] [--from SUITE=FOLDER] [--only REGEX] [--again FILE] [--json FILE]

Each model is built for this machine, run by the runner and compared with ONNX Runtime, or with the standard's own
evaluator where ONNX Runtime lacks a kernel. A suite is cloned at its commit, unless --from names a folder with it.
Models that several suites have are tried once. With --again, only those are tried that an earlier --json FILE has as
not right.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from _suites_sources import SUITES, Case

from tests.support.judged import FAILED, KINDS, RIGHT, Verdict
from toolchain.report import Table

ROOT = Path(__file__).resolve().parent.parent
LONGEST_S = 180.0
"""Seconds for one model."""
START_S = 900.0
"""Seconds for the first one of a process, which may have to build the runner."""
Row = dict[str, str]


class Worker:
    """A process that judges models, one after the other; a new one takes its place when it ends."""

    def __init__(self) -> None:
        self._process: Process | None = None

    def judge(self, case: Case) -> Verdict:
        """Have a model judged; one that ends the process or takes too long is an error of the build."""
        limit = LONGEST_S if self._process else START_S
        process = self._process = self._process or Process()
        line = process.ask(case, limit)
        if line:
            return Verdict(**json.loads(line))
        code = process.popen.poll()
        self.end()
        return Verdict(FAILED, f"longer than {limit:g} s" if code is None else f"the process ended with {code}")

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.popen.kill()
            self._process.popen.wait()
            self._process = None


class Process:
    """A process of `tests.support.judged`, whose lines a thread reads, so that nobody waits for them without limit."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.judged"]
        self.popen = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, case: Case, limit: float) -> str:
        """Return the answer for a model; empty if there is none in time."""
        inputs = str(case.inputs.resolve()) if case.inputs else ""
        try:
            print(json.dumps({"model": str(case.model.resolve()), "inputs": inputs}), file=self.popen.stdin, flush=True)
            return self._lines.get(timeout=limit)
        except (queue.Empty, BrokenPipeError):
            return ""

    def _read(self) -> None:
        for line in self.popen.stdout or ():
            self._lines.put(line)
        self._lines.put("")  # it ended


def judged(models: Sequence[Case], jobs: int) -> list[Row]:
    """Judge models, each set of equal ones once; tell about the progress."""
    groups: dict[str, list[Case]] = collections.defaultdict(list)
    for case in models:
        groups[case.key].append(case)
    idle: queue.Queue[Worker] = queue.Queue()
    for _ in range(jobs):
        idle.put(Worker())
    counter = itertools.count(1)

    def take(group: list[Case]) -> list[Row]:
        worker = idle.get()
        verdict = worker.judge(group[0])
        idle.put(worker)
        say(f"{next(counter)}/{len(groups)} {group[0].suite} {group[0].name}: {verdict.kind} {verdict.reason}")
        return [
            {"suite": case.suite, "name": case.name, "model": key, "kind": verdict.kind, "reason": verdict.reason}
            for case, key in zip(group, itertools.repeat(group[0].key))
        ]

    with ThreadPoolExecutor(jobs) as pool:
        rows = [row for answers in pool.map(take, groups.values()) for row in answers]
    while not idle.empty():
        idle.get().end()
    return rows


def say(line: str) -> None:
    """Tell about the progress."""
    print(line, file=sys.stderr, flush=True)


def counts(rows: Sequence[Row]) -> Table:
    """Return how many models of each suite became what, and of all of them, each counted once."""
    lines = []
    for name in dict.fromkeys(row["suite"] for row in rows):
        of_suite = collections.Counter(row["kind"] for row in rows if row["suite"] == name)
        commit = SUITES[name].commit[:7]
        lines.append((name, commit, str(of_suite.total()), *(str(of_suite[kind]) for kind in KINDS)))
    overall = collections.Counter({row["model"]: row["kind"] for row in rows}.values())
    lines.append(("all, each once", "", str(overall.total()), *(str(overall[kind]) for kind in KINDS)))
    head = ("suite", "commit", "models", *KINDS)
    return Table(lines, head, numbers=range(2, len(head)))


def find(names: Sequence[str], folders: Mapping[str, Path], work: Path) -> list[Case]:
    """Find the models of suites.

    Args:
        names: The suites.
        folders: Checkouts by suite; others are cloned.
        work: Folder for clones, and for files that are made.
    """
    models = []
    for name in names:
        suite = SUITES[name]
        folder = (work / f"{name}-models").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        say(f"{name}: looking for models")
        checkout = folders.get(name) or suite.checkout(work / name)
        models += list(suite.find(checkout, folder))
    return models


def main() -> None:
    """Try the suites and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help=", ".join(SUITES))
    parser.add_argument("--from", action="append", default=[], dest="checkouts", metavar="SUITE=FOLDER")
    parser.add_argument("--work", type=Path, default=Path("build/suites"), help="folder for clones and models")
    parser.add_argument("--only", default="", metavar="REGEX", help="models whose `suite/name` it fits")
    parser.add_argument("--again", type=Path, metavar="FILE", help="models that are not right in a file of --json")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"no suite is called {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    folders = {name: Path(folder) for name, _, folder in (text.partition("=") for text in options.checkouts)}
    models = find(options.suites or list(SUITES), folders, options.work)
    models = [case for case in models if re.search(options.only, f"{case.suite}/{case.name}")]
    if options.again:
        before: list[dict[str, Any]] = json.loads(options.again.read_text())
        selected = {(row["suite"], row["name"]) for row in before if row["kind"] != RIGHT}
        models = [case for case in models if (case.suite, case.name) in selected]
    rows = judged(models, options.jobs)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    for kind in KINDS[1:]:
        for row in rows:
            if row["kind"] == kind:
                print(f"{kind:20} {row['suite']}/{row['name']}: {row['reason']}")
    print(counts(rows))
    sys.exit(any(row["kind"] in KINDS[3:] for row in rows))


if __name__ == "__main__":
    main()
