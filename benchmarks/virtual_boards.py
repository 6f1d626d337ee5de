"""How far networks on emulated boards are from ONNX Runtime: each one is built, deployed and run there.

    python benchmarks/virtual_boards.py [NETWORK ...] [--boards rpi5 musl riscv64] [--json FILE]
    python benchmarks/virtual_boards.py --json FILE --markdown

`rpi5` and `musl` are virtual boards, reached by SSH: 64-bit Arm with glibc, and with musl and busybox as in Alpine.
`riscv64` is the board type spacemit-k1, with vectors of 256 bits, whose programs QEMU runs on this machine. The figures
are those of a deploy's report, the largest relative differences: nothing here is a time of a board. What FILE already
has is not run again, so that a long run can be taken in parts.

Needs what docs/virtual-boards.md says, as root, and libc6-riscv64-cross for `riscv64`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support import commands, riscv
from tests.support.networks import NINE
from toolchain.device.deploy import Deployment
from toolchain.virtual import fleet

_VIRTUAL = {"rpi5": "rpi5", "musl": "rpi4"}
_BOARDS = (*_VIRTUAL, "riscv64")
_HEADS = {"rpi5": "rpi5 (glibc)", "musl": "rpi4 (musl)", "riscv64": "spacemit-k1 (RISC-V)"}

Deploy = Callable[[str], dict[str, Any]]
"""Deploys a network; returns the largest difference and the limit."""


@contextlib.contextmanager
def device(name: str, folder: Path) -> Iterator[Deploy]:
    """Start an emulated board, and yield what deploys a network to it."""
    if name == "riscv64":
        with riscv.emulated() as patch:
            yield lambda network: on_riscv(riscv.deploy(patch, "spacemit-k1", network, folder / network))
        return
    kind, there = _VIRTUAL[name], {board.name for board in fleet.status()}
    [board, *_] = fleet.up({kind: 1}, lambda line: print(line, file=sys.stderr), musl=name == "musl")
    words = ["--host", board.name, "--budget", 0, "--threads", 1, "--toolchain", "host", "--json", "-"]
    try:
        yield lambda network: figures(json.loads(commands.done("deploy", network, *words).out)["outputs"])
    finally:
        if board.name not in there:
            fleet.down([board.name])


def figures(outputs: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a report's outputs."""
    return {name: outputs[name] for name in ("max_rel_diff", "tolerance", "ok")}


def on_riscv(deployment: Deployment) -> dict[str, Any]:
    """Return the same of a deployment."""
    difference = deployment.difference
    return {"max_rel_diff": difference.max_rel, "tolerance": difference.tolerance, "ok": difference.ok}


def measure(networks: list[str], names: list[str], rows: dict[str, Any], path: Path | None) -> None:
    """Run what is missing in `rows`, and write them after each network."""
    for name in names:
        missing = [network for network in networks if name not in rows.get(network, {})]
        if not missing:
            continue
        with tempfile.TemporaryDirectory(prefix="toolchain-") as folder, device(name, Path(folder)) as deploy:
            for network in missing:
                began = time.monotonic()
                outputs = deploy(network)
                rows.setdefault(network, {})[name] = outputs
                print(f"{name} {network}: {outputs} after {time.monotonic() - began:.0f} s", flush=True)
                if path:
                    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def table(rows: dict[str, Any]) -> list[str]:
    """Return the differences as Markdown."""
    names = [name for name in _BOARDS if any(name in row for row in rows.values())]
    lines = ["| network | " + " | ".join(_HEADS[name] for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    for network, row in rows.items():
        cells = [f"{row[name]['max_rel_diff']:.1e}" if name in row else "-" for name in names]
        lines.append(f"| {network} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Measure and print; fail if an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NINE))
    parser.add_argument("--boards", nargs="+", default=list(_BOARDS), choices=_BOARDS)
    parser.add_argument("--json", type=Path, help="read what is there, and write the figures after each network")
    parser.add_argument("--markdown", action="store_true", help="only print the table of FILE")
    options = parser.parse_args()
    known = options.json and options.json.exists()
    rows = json.loads(options.json.read_text(encoding="utf-8")) if known else {}
    if not options.markdown:
        measure(options.networks, options.boards, rows, options.json)
    print("\n".join(table(rows)))
    return any(not cell["ok"] for row in rows.values() for cell in row.values())


if __name__ == "__main__":
    sys.exit(main())
