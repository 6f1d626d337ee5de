"""What our code for Arm is like, on a machine without an Arm core: nothing here is a time.

    python benchmarks/arm.py [NETWORK ...] [--boards rpi4 pynq] [--no-layers] [--qemu FOLDER] [--json FILE]
    python benchmarks/arm.py NETWORK ... --peers [onnxruntime,ncnn,mnn] [--cores cortex-a72 cortex-a76]
                             [--ncnn CHECKOUT] [--work FOLDER] [--json FILE]
    python benchmarks/arm.py --calibrate --ncnn CHECKOUT [--cores ...] [--work FOLDER] [--json FILE]
    python benchmarks/arm.py --markdown FILE ...

`static` figures are counted in the assembly of the kernels of typical layers, as they are where nothing was tuned: how
many of the instructions in their inner loops add a product to a sum in all lanes of a vector, and how often a vector
has to be put aside on the stack. `emulated` figures are instructions that one inference executes under QEMU, in our
build and in what TVM makes of the network without any schedule; the outputs are compared with ONNX Runtime's.

`--markdown` prints the tables of `--peers` again, from what earlier runs wrote by `--json`.

Needs Debian's cross compilers g++-aarch64-linux-gnu and g++-arm-linux-gnueabihf, a `cc`, and qemu-user (not
qemu-user-static, which has no plugins). Networks that are worth naming: squeezenet_v1.1 mobilenet resnet-18.

`--peers` runs each network beside other engines, whose aarch64 wheels are executed in the same way, and models what
that takes on boards (`modelled`, never measured): see _arm_model.py. It needs x86-64 with glibc 2.36 or later; what
else it needs it downloads once, 200 MB, without root. A network's name with `-int8` behind it is its quantized version;
ncnn has networks of its own instead, if --ncnn names a checkout of its repository. `--work` keeps what was counted: a
run that is known is not repeated.

`--calibrate` models ncnn's own networks and compares them with the times that ncnn publishes
(data/ncnn_published.toml). The exit code is 1 where one differs by more than a quarter on a Raspberry Pi 4 or 5. With
`--json benchmarks/data/arm_calibration.json` it records the calibration whose errors stand above the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import _arm_layers
import _arm_networks

from benchmarks import _arm_calibrate, _arm_model, _arm_peers, _arm_sysroot
from toolchain import board
from toolchain.errors import ToolchainError


def aligned(lines: list[tuple[str, ...]]) -> str:
    """Return rows of words in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(row.rstrip() for row in rows)


def simulated(options: argparse.Namespace, work: Path) -> Iterator[_arm_peers.Simulated]:
    """Yield the cores under QEMU."""
    sysroot = _arm_sysroot.obtain()
    # The converters are found there. What this machine has itself comes first: the peers are for another processor.
    sys.path += [str(sysroot.host), str(sysroot.site)]
    cores = _arm_model.cores()
    for name in options.cores:
        yield _arm_peers.Simulated(sysroot, cores[name], work)


def with_peers(options: argparse.Namespace, work: Path) -> list[_arm_peers.Row]:
    """Run networks in all engines, and print a table for each board."""
    from benchmarks import _peers_networks

    rows: list[_arm_peers.Row] = []
    for core in simulated(options, work):
        for name in options.networks:
            network = _peers_networks.obtain(name, work)
            for row in _arm_peers.rows(core, network, options.peers, options.ncnn, tell):
                tell(f"{row.core}, {row.network}: {row.engine} is counted")
                rows.append(row)
    print("\n".join(_arm_peers.table(rows)))
    return rows


def tell(text: str) -> None:
    """Print a line beside the results."""
    print(text, file=sys.stderr, flush=True)


def calibrated(options: argparse.Namespace, work: Path) -> list[_arm_peers.Row]:
    """Run ncnn's own networks, and compare them with its table."""
    rows = [
        row
        for core in simulated(options, work)
        for name in options.networks or _arm_calibrate.published().networks
        for row in _arm_peers.own_network(core, name, options.ncnn)
    ]
    print("\n".join(_arm_calibrate.table(_arm_calibrate.costs(rows))))
    return rows


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="what to run under QEMU; names of the zoo or .onnx files")
    parser.add_argument("--boards", nargs="+", default=["rpi4", "pynq"])
    parser.add_argument("--no-layers", action="store_true", help="leave out the static figures")
    parser.add_argument("--qemu", type=Path, help="folder of qemu-aarch64 and qemu-arm, if they are not on PATH")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--peers", nargs="?", const=",".join(_arm_peers.PEERS), help="compare with these, by commas")
    parser.add_argument("--calibrate", action="store_true", help="compare the model with ncnn's published times")
    cores = [*_arm_model.cores()]
    parser.add_argument("--cores", nargs="+", default=["cortex-a72", "cortex-a76"], choices=cores, metavar="CORE")
    parser.add_argument("--ncnn", type=Path, help="checkout of ncnn's repository")
    parser.add_argument("--work", type=Path, help="folder for what was counted; default: none is kept")
    parser.add_argument(
        "--markdown", type=Path, nargs="+", metavar="FILE", help="print the tables of earlier --json files"
    )
    options = parser.parse_args()
    options.peers = options.peers.split(",") if options.peers else []
    if unknown := set(options.peers) - set(_arm_peers.PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(_arm_peers.PEERS)}")
    if options.calibrate and not options.ncnn:
        parser.error("--calibrate needs --ncnn CHECKOUT: ncnn's networks are in its repository alone")
    if options.peers and not options.networks:
        parser.error("name networks for --peers, such as mobilenet resnet-18 mobilenet-int8")
    return options


def modelled(options: argparse.Namespace) -> int:
    """Do what is modelled, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        rows = calibrated(options, work) if options.calibrate else with_peers(options, work)
    write(options.json, rows)
    failures = _arm_calibrate.failures(_arm_calibrate.costs(rows), options.cores) if options.calibrate else []
    print("".join(f"failed: {failure}\n" for failure in failures), end="", file=sys.stderr)
    return bool(failures)


def write(path: Path | None, found: Sequence[_arm_layers.Row | _arm_networks.Count | _arm_peers.Row]) -> None:
    """Write figures as JSON."""
    if path:
        documents = [one.document() for one in found]
        path.write_text(json.dumps(documents, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Count and print."""
    options = parsed()
    if options.markdown:
        rows = [row for path in options.markdown for row in _arm_peers.read_rows(path)]
        print("\n".join(_arm_peers.table(rows)))
        return 0
    if options.peers or options.calibrate:
        try:
            return modelled(options)
        except ToolchainError as fault:
            tell("\n".join(filter(None, (fault.message, fault.details, fault.hint))))
            return 2
    kinds = [board.load(name).resolved() for name in options.boards]
    emulators = [_arm_networks.find(kind.machine, options.qemu) for kind in kinds if options.networks]
    layers = [] if options.no_layers else [row for kind in kinds for row in _arm_layers.rows(kind)]
    if layers:
        print("static\n" + aligned(_arm_layers.table(layers)), flush=True)
    counts = [
        count
        for kind, emulator in zip(kinds, emulators, strict=False)
        for name in options.networks
        for count in _arm_networks.counts(kind, name, emulator)
    ]
    if counts:
        print("emulated\n" + aligned(_arm_networks.table(counts)))
    write(options.json, [*layers, *counts])
    return 0


if __name__ == "__main__":
    sys.exit(main())
