"""What whole quantized networks take on a Pynq-Z1 with VTA, now and before, by models: the array's part and the CPU's.

    python benchmarks/vta_networks.py [resnet-18 mobilenet] [--before COMMIT] [--qemu FOLDER] [--json FILE]

No board is asked. The array's part is cycles of the simulator at 100 MHz, of the kernels for `pynq-z1` as they are
where nothing was tuned. The CPU's part comes of instructions: the network is built for the board with a simulated
array, its runner runs under QEMU, and a plugin counts what each kernel of the CPU executes, without what the simulator
takes; _cortex_a9.py says how long that takes, and what that rests on. Copies to and from the array's memory are as many
bytes as the driver counted. What the runner, its virtual machine and the driver's calls of Linux take is left out.

With --before, a commit is built in a copy of its own, runner included, and counted and modelled by today's benchmark.

Needs Debian's g++-arm-linux-gnueabihf, a `cc`, and qemu-user (not qemu-user-static, which has no plugins).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import _cortex_a9
import _qemu
import _vta_counted

from toolchain.backends.vta.device.devices import Profile
from toolchain.backends.vta.device.simulator import Simulator
from toolchain.backends.vta.isa.stream import Stream

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ("resnet-18", "mobilenet")
CLOCK_HZ = 100e6
Row = dict[str, Any]


def of_commit(commit: str, names: Sequence[str], qemu: Path | None) -> list[Row]:
    """Count the networks of a commit, in a copy of it that has today's benchmarks."""
    with tempfile.TemporaryDirectory(prefix="vta-before-") as folder:
        copy = Path(folder)
        archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", copy], check=True, input=archive.stdout)
        shutil.rmtree(copy / "benchmarks")
        shutil.copytree(ROOT / "benchmarks", copy / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        report = copy / "counted.json"
        argv = [sys.executable, "benchmarks/_vta_counted.py", *names, "--json", str(report)]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        argv += ["--qemu", str(qemu)] if qemu else []
        subprocess.run(argv, cwd=copy, env=environment, check=True, stdout=sys.stderr)
        rows: list[Row] = json.loads(report.read_text())
        return rows


def array_ms(kernels_of: Sequence[Mapping[str, Any]], profile: Profile) -> float:
    """Return what the array takes for a run."""
    total = 0
    for kernel in kernels_of:
        stream = Stream.decode(base64.b64decode(kernel["stream"]))
        total += kernel["calls"] * Simulator(stream.config, stream.revision).cycles(stream, profile).cycles
    return total / CLOCK_HZ * 1e3


def copied(counts: Row) -> int:
    """Return the bytes that a run copies: as counted, or all of a kernel, as the driver did before it counted."""
    if counts["copies"]:
        return int(counts["copies"]["to_device"]) + int(counts["copies"]["from_device"])
    return sum(
        kernel["calls"] * _all_bytes(Stream.decode(base64.b64decode(kernel["stream"]))) for kernel in counts["array"]
    )


def _all_bytes(stream: Stream) -> int:
    sizes = [buffer.elements * stream.config.element_bytes(buffer.memory) for buffer in stream.buffers]
    back = sum(size for size, buffer in zip(sizes, stream.buffers, strict=True) if buffer.written)
    return len(stream.instructions) * 16 + len(stream.uops) * 4 + sum(sizes) + back


def modelled(counts: Row) -> Row:
    """Return a network's times."""
    cpu, bytes_ = sum(call["ms"] for call in counts["cpu"]), copied(counts)
    copies = _cortex_a9.copy_seconds(bytes_) * 1e3
    array = {profile.label: array_ms(counts["array"], profile) for profile in (Profile.PYNQ_Z1, Profile.HLS_PYNQ)}
    times = {"array_ms": array, "cpu_ms": cpu, "copied_bytes": bytes_, "copies_ms": copies}
    total = {label: ms + cpu + copies for label, ms in array.items()}
    counted = {key: counts[key] for key in ("network", "cpu", "difference")}
    return {"method": "modelled", **counted, **times, "total_ms": total}


def show(now: Sequence[Row], before: Sequence[Row]) -> None:
    """Print the tables in Markdown."""
    print("| network | | array, ms | CPU, ms | copies, ms | total, ms | by hls-pynq | of before |")
    print("|---|---|---|---|---|---|---|---|")
    older = {row["network"]: row for row in before}
    for row in now:
        was = older.get(row["network"])
        for label, side in (("before", was), ("now", row)):
            if side is None:
                continue
            array, total = side["array_ms"], side["total_ms"]
            ratio = f"{total['pynq-z1'] / was['total_ms']['pynq-z1']:.2f}" if was and side is row else ""
            cells = (array["pynq-z1"], side["cpu_ms"], side["copies_ms"], total["pynq-z1"], total["hls-pynq"])
            print(f"| {row['network']} | {label} | " + " | ".join(f"{ms:.1f}" for ms in cells) + f" | {ratio} |")
    for row in (*before, *now):
        print(f"\n{row['network']}, {'before' if row in before else 'now'}: calls of the CPU\n")
        print("| function | calls | instructions | ms | of them memory |\n|---|---|---|---|---|")
        for call in row["cpu"]:
            counts = f"{call['calls']} | {call['instructions']:,}"
            print(f"| {call['name']} | {counts} | {call['ms']:.2f} | {call['memory_ms']:.2f} |")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--before", metavar="COMMIT", help="count and model the networks of this commit, too")
    parser.add_argument("--qemu", type=Path, help="folder of qemu-arm, if it is not on PATH")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    options = parser.parse_args()
    _qemu.find("qemu-arm", options.qemu)
    older = of_commit(options.before, options.networks, options.qemu) if options.before else []
    counts = _vta_counted.all_of(options.networks, options.qemu)
    now, before = ([modelled(row) for row in side] for side in (counts, older))
    show(now, before)
    if options.json:
        rows = [*({**row, "commit": options.before} for row in before), *now]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
