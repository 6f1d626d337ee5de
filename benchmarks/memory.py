"""How much memory networks take, planned and measured, beside ONNX Runtime; and what later runs ask the system for.

    python benchmarks/memory.py [NETWORK...] [--work DIR] [--max-ram SIZE] [--idle SECONDS] [--json FILE]

Each network is built once into DIR, and run by small applications in C. `plan` is the planned memory of activations
divided by the least that any plan for the same order of kernels needs. ONNX Runtime's figure is the peak of a Python
process with one session less that of one without a session. The counts are those of the test of steady runs. `--idle`
adds what waiting threads cost. Names are those of `cpu.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import _peers_networks

from tests.support.commands import done, parsed
from toolchain.compile import activations

_KIB = 1024
_THREADS = min(2, len(os.sched_getaffinity(0)))
_RUNS = 3
_NETWORKS = (
    *("mlp", "shufflenet", "squeezenet_v1.1", "mobilenet", "mobilenet_v2", "resnet-18", "resnet-50", "densenet121"),
    *("inception_v1", "inception_v2", "bvlc_alexnet", "zfnet512", "vgg19", "mobilenet-v3-script"),
    *("efficientnet-script", "nudenet-320n", "ppocr-v4-det", "ppocr-v4-rec", "ppocr-v2-cls", "ddddocr-common"),
)
_STEADY = Path(__file__).parent.parent / "tests" / "data" / "sdk" / "steady.c"
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


def compile_programs(work: Path) -> tuple[Path, Path]:
    """Build the applications with the SDK: one that reports its memory, and one that counts."""
    sdk, programs = work / "sdk", (work / "memory_process", work / "steady")
    done("sdk", "--board", "local", "-o", sdk)
    folders = [f"-I{sdk / 'include'}", f"-L{sdk / 'lib'}", f"-Wl,-rpath,{sdk / 'lib'}"]
    for source, program in zip((Path(__file__).with_name("memory_process.c"), _STEADY), programs, strict=True):
        words = ["-std=c99", "-O2", source, "-o", program, *folders, "-l:libedge_model.so.1", "-lpthread"]
        subprocess.run(["gcc", *words], check=True)
    return programs


def start(program: Path, release: Path, *, spin_us: int = 0, period_us: int = 0, seconds: int = 0) -> Any:
    words = [program, release, _THREADS, spin_us, period_us, seconds]
    return subprocess.Popen([*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def report_of(process: Any) -> dict[str, Any]:
    return dict(json.loads(process.stdout.readline()))


def end(process: Any) -> None:
    process.stdin.close()
    process.wait()


def measure(program: Path, release: Path) -> dict[str, Any]:
    """Return the peak of a process in KiB, what a second one has for itself meanwhile, and that one's time to load."""
    first = start(program, release)
    peak = report_of(first)["peak_kib"]
    second = start(program, release)
    later = report_of(second)
    for process in (first, second):
        end(process)
    return {"peak_kib": peak, "second_kib": later["private_kib"], "load_ms": later["load_ms"]}


def onnxruntime_kib(*paths: Path) -> int:
    words = [sys.executable, "-c", _SESSION + _PEAK, str(_THREADS), *map(str, paths)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@contextlib.contextmanager
def noted_plans() -> Iterator[list[dict[str, int]]]:
    """Note for each compiled function the least bytes of its activations, those of TVM's plan, and those of ours."""
    plans: list[dict[str, int]] = []
    share = activations.share_storages

    def noted(lowered: Any, entry: str) -> Any:
        shared = share(lowered, entry)
        before, after = (activations.planned_bytes(module[entry]) or 0 for module in (lowered, shared))
        plans.append({"bound": activations.lower_bound(shared[entry]), "of_tvm": before, "plan": after})
        return shared

    activations.share_storages = noted
    try:
        yield plans
    finally:
        activations.share_storages = share


def build(name: str, work: Path, max_ram: str) -> dict[str, Any]:
    """Build a network once; return what is planned, and the least that its activations need."""
    release, options = work / f"{name}{max_ram}", ["--max-ram", max_ram] if max_ram else []
    record = work / f"{name}{max_ram}.json"
    if not record.exists():
        network = _peers_networks.obtain(name, work)
        with noted_plans() as plans:
            planned = parsed("build", network.path, "--board", "local", *options, "-o", release)["memory"]
        record.write_text(json.dumps(planned | plans[-1]))
    return dict(json.loads(record.read_text()))


def counts_of(program: Path, release: Path) -> dict[str, Any]:
    """Return what some later runs asked the system for: allocations, page faults, and other calls than of threads."""
    ended = subprocess.run([program, release, str(_THREADS), str(_RUNS)], check=True, capture_output=True, text=True)
    counts = json.loads(ended.stdout)
    return {**counts, "calls": len(counts["calls"]) if counts["watched"] else None}


def network_row(name: str, programs: tuple[Path, Path], work: Path, max_ram: str) -> dict[str, Any]:
    release, model = work / f"{name}{max_ram}", work / f"{name}.onnx"
    planned = build(name, work, max_ram)
    return {
        "name": name,
        "planned": planned,
        **measure(programs[0], release),
        "onnxruntime_kib": onnxruntime_kib(model) - onnxruntime_kib(),
        "steady": counts_of(programs[1], release),
    }


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


def row_text(row: dict[str, Any]) -> str:
    planned, peak, steady = row["planned"], row["peak_kib"] / _KIB, row["steady"]
    ratio = planned["plan"] / planned["bound"]
    sizes = f"{planned['peak'] / _KIB**2:7.1f} {peak:8.1f} {planned['peak'] / _KIB**2 / peak - 1:+6.1%} {ratio:5.2f}"
    beside = f"{row['onnxruntime_kib'] / _KIB:12.1f} {row['second_kib'] / _KIB:7.1f}"
    counts = f"{steady['allocations']}, {steady['faults']}, {steady['calls']}"
    return f"{row['name']:18} {sizes} {beside} {row['load_ms']:9.1f}  {counts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=_NETWORKS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "memory-benchmark")
    parser.add_argument("--max-ram", default="")
    parser.add_argument("--idle", type=int, default=0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    programs = compile_programs(options.work)
    print("network            planned measured       plan  ONNX Runtime  second  load (ms)  allocations, faults, calls")
    rows = []
    for name in options.networks:
        row = network_row(name, programs, options.work, options.max_ram)
        rows.append(row)
        print(row_text(row), flush=True)
    first = options.work / f"{options.networks[0]}{options.max_ram}"
    idle = idle_rows(programs[0], first, options.idle) if options.idle else []
    for row in idle:
        print(row)
    if options.json:
        options.json.write_text(json.dumps({"threads": _THREADS, "networks": rows, "idle": idle}, indent=2))


if __name__ == "__main__":
    main()
