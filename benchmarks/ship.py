"""Make the tuning records that come with the toolchain: for each network, the best template of each layer.

    python benchmarks/ship.py boards/records/x86-64-v4.jsonl [--board local] [--trials 2000] [NETWORK ...]

Run it on a quiet machine. Layers that the file has already are kept unless a final here is won against them: finals are
held against what the toolchain has of its own at that time. A file holds one record for each layer and nothing else: no
kernels of MetaSchedule's, which depend on the very target.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._peers_networks import DEFAULT, obtain
from toolchain import files
from toolchain.records import Record, RecordFile, Records, encode


def tune(source: str, board: str, trials: int, records: Path) -> None:
    """Tune a network's templates on this machine."""
    program = Path(sys.executable).with_name("toolchain")
    command = [program, "tune", source, "--board", board, "--trials", trials, "--records", records, "--no-compare"]
    subprocess.run([str(argument) for argument in command], check=True, stdout=subprocess.DEVNULL)


def shipped(all_records: Sequence[Records]) -> list[Record]:
    """Keep what won the last final of each layer that a template computes, without who measured it and when."""
    best: dict[str, Record] = {}
    for records in all_records:
        for key in records.keys:
            for name, record in records.best(key).items():
                if record.trace.startswith("{") and record.verdict != "untuned":
                    best[name] = record.canonical()
    return [best[name] for name in sorted(best)]


def main() -> None:
    """Tune and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("networks", nargs="*", default=DEFAULT)
    parser.add_argument("--board", default="local")
    parser.add_argument("--trials", type=int, default=2000)
    options = parser.parse_args()
    earlier = [RecordFile(options.output).read()] if options.output.exists() else []
    with tempfile.TemporaryDirectory() as name:
        records = Path(name) / "records.jsonl"
        for network in options.networks:
            tune(obtain(network, Path(name)).build, options.board, options.trials, records)
            winners = shipped([*earlier, RecordFile(records).read()])
            files.write_atomic(options.output, encode(winners))
            print(f"{network}: {len(winners)} layers in {options.output}", flush=True)


if __name__ == "__main__":
    main()
