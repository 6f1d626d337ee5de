"""What our code for Arm is like, on a machine without an Arm core: nothing here is a time.

    python benchmarks/arm.py [NETWORK ...] [--boards rpi4 pynq] [--no-layers] [--qemu FOLDER] [--json FILE]

`static` figures are counted in the assembly of the kernels of typical layers, as they are where nothing was tuned: how
many of the instructions in their inner loops add a product to a sum in all lanes of a vector, and how often a vector
has to be put aside on the stack. `emulated` figures are instructions that one inference executes under QEMU, in our
build and in what TVM makes of the network without any schedule; the outputs are compared with ONNX Runtime's.

Needs Debian's cross compilers g++-aarch64-linux-gnu and g++-arm-linux-gnueabihf, a `cc`, and qemu-user (not
qemu-user-static, which has no plugins). Networks that are worth naming: squeezenet_v1.1 mobilenet resnet-18.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import _arm_layers
import _arm_networks

from toolchain import board


def aligned(lines: list[tuple[str, ...]]) -> str:
    """Return rows of words in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(row.rstrip() for row in rows)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="what to run under QEMU; names of the zoo or .onnx files")
    parser.add_argument("--boards", nargs="+", default=["rpi4", "pynq"])
    parser.add_argument("--no-layers", action="store_true", help="leave out the static figures")
    parser.add_argument("--qemu", type=Path, help="folder of qemu-aarch64 and qemu-arm, if they are not on PATH")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    options = parser.parse_args()
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
    if options.json:
        found = [one.document() for one in (*layers, *counts)]
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
