"""What two models of one process lose to each other: with threads in common, with threads of their own, with a lock.

    python benchmarks/pools.py [mobilenet squeezenet_v1.1] [--threads 2] [--seconds 4]

Builds both networks for this machine, and a program that runs them in turns on one thread, and at the same time on two.
Prints for each way the runs of both in a second, and of each the median and the 99th percentile of a run.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from toolchain import api, board
from toolchain.native import sdk


def compiled(folder: Path, library: Path) -> Path:
    """Build the program."""
    program = folder / "pools"
    linked = [library / "lib" / "libedge_model.so.1", f"-Wl,-rpath,{library / 'lib'}", "-lpthread"]
    source = Path(__file__).with_name("pools.c")
    subprocess.run(["gcc", "-O2", source, f"-I{library / 'include'}", "-o", program, *linked], check=True)
    return program


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["mobilenet", "squeezenet_v1.1"], metavar="NETWORK")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each way")
    options = parser.parse_args()
    if len(options.networks) != 2:
        parser.error("two networks are compared")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        folder = Path(work)
        library = sdk.write(board.load("local").resolved(), folder / "sdk").folder
        releases = [api.build(name, folder=folder / f"release{i}").folder for i, name in enumerate(options.networks)]
        command = [compiled(folder, library), *releases, str(options.threads), str(options.seconds)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print("way            runs/s", *(f"{name:>18} p50, p99" for name in options.networks))
    for mode, rate, *times in map(str.split, text.splitlines()):
        pairs = [
            f"{float(low) / 1e3:15.2f} {float(high) / 1e3:8.2f} ms"
            for low, high in zip(*[iter(times)] * 2, strict=True)
        ]
        print(f"{mode:<13} {float(rate):7.1f}", *pairs)


if __name__ == "__main__":
    main()
