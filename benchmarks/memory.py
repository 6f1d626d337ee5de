"""How much memory networks take, planned and measured, beside ONNX Runtime, and what waiting threads cost.

    python benchmarks/memory.py [NETWORK...] [--work DIR] [--max-ram SIZE] [--idle SECONDS] [--json FILE]

Each network is built once into DIR, and run by a small application in C. ONNX Runtime's figure is the peak of a Python
process with one session less that of one without a session.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import onnx

from tests.support.commands import done, parsed
from toolchain.models import zoo

_KIB = 1024
_THREADS = min(2, len(os.sched_getaffinity(0)))
_PEAK = "print(*(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"
_SESSION = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[1])
for path in sys.argv[2:]:
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    given = {x.name: numpy.zeros(x.shape, "float32") for x in session.get_inputs()}
    for _ in range(3):
        session.run(None, given)
"""


def compile_process(work: Path) -> Path:
    """Build the application with the SDK."""
    sdk, program = work / "sdk", work / "memory_process"
    done("sdk", "--board", "local", "-o", sdk)
    source = Path(__file__).with_name("memory_process.c")
    folders = [f"-I{sdk / 'include'}", f"-L{sdk / 'lib'}", f"-Wl,-rpath,{sdk / 'lib'}"]
    subprocess.run(["gcc", "-std=c99", "-O2", source, "-o", program, *folders, "-l:libedge_model.so.1"], check=True)
    return program


def start(program: Path, release: Path, *, spin_us: int = 0, period_us: int = 0, seconds: int = 0) -> Any:
    words = [program, release, _THREADS, spin_us, period_us, seconds]
    return subprocess.Popen([*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def report_of(process: Any) -> dict[str, Any]:
    return dict(json.loads(process.stdout.readline()))


def end(process: Any) -> None:
    process.stdin.close()
    process.wait()


def measure(program: Path, release: Path) -> tuple[int, int]:
    """Return the peak of a process in KiB, and what a second one has for itself while the first is there."""
    first = start(program, release)
    peak = report_of(first)["peak_kib"]
    second = start(program, release)
    private = report_of(second)["private_kib"]
    for process in (first, second):
        end(process)
    return int(peak), int(private)


def onnxruntime_kib(*paths: Path) -> int:
    words = [sys.executable, "-c", _SESSION + _PEAK, str(_THREADS), *map(str, paths)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def network_row(name: str, program: Path, work: Path, max_ram: str) -> dict[str, Any]:
    release, options = work / f"{name}{max_ram}", ["--max-ram", max_ram] if max_ram else []
    record = work / f"{name}{max_ram}.json"
    if not record.exists():
        record.write_text(json.dumps(parsed("build", name, "--board", "local", *options, "-o", release)["memory"]))
    planned = json.loads(record.read_text())
    model = work / f"{name}.onnx"
    if not model.exists():
        onnx.save(zoo.build(name), model)
    peak, private = measure(program, release)
    beside = onnxruntime_kib(model) - onnxruntime_kib()
    return {"name": name, "planned": planned, "peak_kib": peak, "second_kib": private, "onnxruntime_kib": beside}


def idle_rows(program: Path, release: Path, seconds: int) -> list[dict[str, Any]]:
    """Return the CPU seconds in an hour of the threads beside the calling one: idle, and at 30 Hz with their work."""
    rows = []
    for period_us, spin_us in ((0, 0), (33_333, 0), (33_333, -1)):
        process = start(program, release, spin_us=spin_us, period_us=period_us, seconds=seconds)
        found = report_of(process)
        end(process)
        per_hour = found["others_cpu_s"] / found["seconds"] * 3600
        rows.append({"period_us": period_us, "spin_us": spin_us, "cpu_s_per_hour": round(per_hour, 2)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(zoo.NAMES))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "memory-benchmark")
    parser.add_argument("--max-ram", default="")
    parser.add_argument("--idle", type=int, default=0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    program = compile_process(options.work)
    print("network            planned  measured  difference  ONNX Runtime  second process   (MiB)")
    rows = []
    for name in options.networks:
        row = network_row(name, program, options.work, options.max_ram)
        rows.append(row)
        planned, peak = row["planned"]["peak"] / _KIB**2, row["peak_kib"] / _KIB
        others = row["onnxruntime_kib"] / _KIB, row["second_kib"] / _KIB
        print(f"{name:18} {planned:7.1f} {peak:9.1f} {planned / peak - 1:+11.1%} {others[0]:13.1f} {others[1]:15.1f}")
    idle = (
        idle_rows(program, options.work / f"{options.networks[0]}{options.max_ram}", options.idle)
        if options.idle
        else []
    )
    for row in idle:
        print(row)
    if options.json:
        options.json.write_text(json.dumps({"threads": _THREADS, "networks": rows, "idle": idle}, indent=2))


if __name__ == "__main__":
    main()
