"""What a state costs that stays on the device: edge_step against edge_run of the same release, in turns.

    python benchmarks/state.py [gru lstm decoder silero-vad] [--rounds 1000] [--calls 41] [--caches 512 2048 8192]

Builds each network for this machine, and a program that opens it by the library. A round times three ways, the first
of which changes: `edge_run` without any care of the state, `edge_step`, and `edge_run` with the state copied from the
outputs to the inputs by the application. Prints the ratios to the first with their 99 % intervals, and ends with 1 if
`edge_step` is slower by more than 2 %. Of a network whose caches are written in place, `edge_run` copies them.

With --caches, the step of a decoder with two caches of that many rows of 256 is timed: with the caches in place, with
two buffers each, and without writes, where the caches are inputs that attention reads.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from tests.support import nets, state_nets, third_party
from toolchain import api, board, stats
from toolchain.compile import in_place
from toolchain.models.request import Model
from toolchain.native import sdk

MOST = 0.02
NETWORKS = ("gru", "lstm", "decoder", "silero-vad")


def network(name: str, folder: Path) -> Model:
    """Return a network with its state, of sizes that are common in practice."""
    if name == "silero-vad":
        entry = third_party.MODELS["silero-vad-op15"]
        return Model(str(third_party.obtain(entry)), entry.shapes, fixed=entry.fixed, states={"state": "stateN"})
    protos = {
        "gru": lambda: state_nets.gru(256, 80),
        "lstm": lambda: state_nets.lstm(256, 80),
        "decoder": lambda: state_nets.decoder(512, 256),
    }
    return Model(nets.save(protos[name](), folder, f"{name}.onnx"), detection="use")


def of_cache(length: int, folder: Path, program: Path, options: argparse.Namespace) -> list[float]:
    """Return the median microseconds of a step: of attention alone, with caches in place, and with two buffers."""
    decoder, attention = state_nets.decoder(length, 256), state_nets.attention(length, 256)
    releases = [api.build(nets.save(attention, folder, "attention.onnx"), folder=folder / f"attention{length}")]
    path = nets.save(decoder, folder, "decoder.onnx")
    releases.append(api.build(Model(path, detection="use"), folder=folder / f"in_place{length}"))
    with mock.patch.object(in_place, "write_in_place", lambda _, module: in_place.InPlace(module)):
        releases.append(api.build(Model(path, detection="use"), folder=folder / f"copied{length}"))
    medians = []
    for release, mode in zip(releases, (0, 1, 1), strict=True):
        times = sorted(rounds(program, release.folder, options.rounds, options.calls)[mode])
        medians.append(times[len(times) // 2] / 1e3)
    return medians


def rounds(program: Path, release: Path, count: int, calls: int) -> list[list[float]]:
    """Return the median nanoseconds of a call for each way, one of each round."""
    command = [program, release, str(count), str(calls)]
    if hasattr(os, "sched_setaffinity"):
        command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [list(map(float, line.split())) for line in text.splitlines()]
    return [list(column) for column in zip(*rows, strict=True)]


def change(new: list[float], base: list[float]) -> stats.Estimate:
    """Return the relative change of the time of a call, with its interval."""
    return stats.estimate(stats.log_ratios([[value] for value in new], [[value] for value in base])).change()


def main() -> int:
    """Measure the networks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=41)
    parser.add_argument("--caches", nargs="*", type=int, default=[], metavar="ROWS")
    options = parser.parse_args()
    slow = False
    with tempfile.TemporaryDirectory(prefix="benchmark-") as work:
        folder = Path(work)
        library = sdk.write(board.load("local").resolved(), folder / "sdk").folder
        program = folder / "state_steps"
        source = Path(__file__).with_name("state_steps.c")
        linked = [library / "lib" / "libedge_model.so.1", f"-Wl,-rpath,{library / 'lib'}"]
        subprocess.run(["gcc", "-O2", source, f"-I{library / 'include'}", "-o", program, *linked], check=True)
        if options.caches:
            print("rows   attention us  in place us  two buffers us")
        for length in options.caches:
            attention, in_place_us, copied = of_cache(length, folder, program, options)
            print(f"{length:<6} {attention:12.2f} {in_place_us:12.2f} {copied:15.2f}", flush=True)
        if options.caches:
            return 0
        print("network     edge_run us  edge_step             edge_run and copies")
        for name in options.networks:
            release = api.build(network(name, folder), folder=folder / name).folder
            run, step, copy = rounds(program, release, options.rounds, options.calls)
            stepped, copied = change(step, run), change(copy, run)
            texts = [
                f"{estimate.value:+.2%} ({estimate.low:+.2%} to {estimate.high:+.2%})" for estimate in (stepped, copied)
            ]
            print(f"{name:<11} {sorted(run)[len(run) // 2] / 1e3:11.2f}  {texts[0]:<28}  {texts[1]}", flush=True)
            slow |= stepped.low > MOST
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
