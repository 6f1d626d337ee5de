"""The model of Arm boards held against the times that ncnn publishes of its own networks."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import _arm_model
from benchmarks._arm_model import Board, Cost
from toolchain import files
from toolchain.errors import BuildError

if TYPE_CHECKING:
    from benchmarks._arm_peers import Row

_DATA = Path(__file__).with_name("data")
RECORDED = _DATA / "arm_calibration.json"
"""What ncnn's networks took when the model was calibrated."""

LIMIT = 0.25
GATED = ("rpi4", "rpi5")
_INPUT = re.compile(r"^Input\s.*\b0=(\d+) 1=(\d+) 2=(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Own:
    """A network in ncnn's repository.

    Attributes:
        file: Its name.
        sha256: Its digest.
    """

    file: str
    sha256: str


@dataclass(frozen=True)
class Published:
    """What ncnn's repository says.

    Attributes:
        commit: Its commit.
        date: When that was made.
        networks: Its networks by our names.
        ms: Milliseconds by board and network.
        entries: Of which entry they are, by board.
    """

    commit: str
    date: str
    networks: Mapping[str, Own]
    ms: Mapping[str, Mapping[str, float]]
    entries: Mapping[str, str]


@dataclass(frozen=True)
class Deviation:
    """A network on a board.

    Attributes:
        board: The board's name.
        network: The network's.
        modelled: Milliseconds by the model.
        published: Those that ncnn publishes.
    """

    board: str
    network: str
    modelled: float
    published: float

    @property
    def share(self) -> float:
        """What is too much, over what is published."""
        return self.modelled / self.published - 1


def published() -> Published:
    """Read ncnn's table."""
    table = tomllib.loads((_DATA / "ncnn_published.toml").read_text(encoding="utf-8"))
    rows = table["published"]
    return Published(
        commit=table["commit"],
        date=str(table["date"]),
        networks={name: Own(**row) for name, row in table["networks"].items()},
        ms={name: {key: ms for key, ms in row.items() if key != "entry"} for name, row in rows.items()},
        entries={name: row["entry"] for name, row in rows.items()},
    )


def param(checkout: Path, own: Own) -> Path:
    """Return the file of a network in a checkout of ncnn's repository.

    Raises:
        BuildError: It is not there, or is not the one that was published.
    """
    path = checkout / "benchmark/models" / own.file
    hint = f"check out commit {published().commit} of ncnn's repository"
    if not path.is_file():
        raise BuildError(f"{path} is missing", hint=hint)
    if files.sha256_file(path) != own.sha256:
        raise BuildError(f"{path} is not the network whose times are published", hint=hint)
    return path


def shape(path: Path) -> tuple[int, ...]:
    """Return the shape of a network's input, with a batch of one.

    Raises:
        BuildError: The file does not have it.
    """
    found = _INPUT.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise BuildError(f"{path} has no input of a known shape")
    width, height, channels = map(int, found.groups())
    return 1, channels, height, width


def costs(found: Sequence[Row]) -> dict[tuple[str, str], Cost]:
    """Return what ncnn's networks take, by core and network."""
    return {(row.core, row.network): row.cost for row in found}


def recorded() -> dict[tuple[str, str], Cost]:
    """Return what they took when the model was calibrated."""
    if not RECORDED.exists():
        return {}
    return {(one["core"], one["network"]): _arm_model.cost(one) for one in json.loads(RECORDED.read_text("utf-8"))}


def deviations(known: Mapping[tuple[str, str], Cost], one: Board) -> list[Deviation]:
    """Compare what is modelled for a board with what is published."""
    return [
        Deviation(one.name, network, known[one.core, network].ms(one), ms)
        for network, ms in published().ms.get(one.name, {}).items()
        if (one.core, network) in known
    ]


def error(one: Board) -> str:
    """Say how well the model fits a board."""
    found = deviations(recorded(), one)
    if not found:
        return "Not calibrated: no published time of this board."
    mean = sum(abs(item.share) for item in found) / len(found)
    worst = max(found, key=lambda item: abs(item.share))
    return (
        f"Calibration error against ncnn's published times: {mean:.0%} on average of {len(found)} networks, "
        f"at most {worst.share:+.0%} ({worst.network})."
    )


def table(known: Mapping[tuple[str, str], Cost]) -> list[str]:
    """Return the comparison in Markdown."""
    source = published()
    commit = f"{source.date}, commit {source.commit[:10]}"
    head = f"ncnn's networks, 1 thread, modelled, against benchmark/README.md ({commit})"
    lines = [
        head,
        "",
        "| board | network | core ms | memory ms | modelled ms | published ms | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in _arm_model.boards().values():
        for item in deviations(known, one):
            cost = known[one.core, item.network]
            core = one.ms(cost.core_cycles, _arm_model.Lines())
            memory = one.ms(0, cost.lines[_arm_model.kib(one.last)])
            figures = f"{core:.1f} | {memory:.1f} | {item.modelled:.1f} | {item.published:.1f} | {item.share:+.0%}"
            lines.append(f"| {one.title} | {item.network} | {figures} |")
    return lines


def failures(known: Mapping[tuple[str, str], Cost], cores: Collection[str]) -> list[str]:
    """Return what is wrong with the model of some cores: deviations beyond the limit on boards that must fit."""
    gated = [one for name, one in _arm_model.boards().items() if name in GATED and one.core in cores]
    found = [item for one in gated for item in deviations(known, one)]
    missing = [one.name for one in gated if not deviations(known, one)]
    beyond = [
        f"{item.board}, {item.network}: modelled {item.modelled:.1f} ms ({item.share:+.0%}), not {item.published:.1f}"
        for item in found
        if abs(item.share) > LIMIT
    ]
    return [*(f"{name} was not calibrated" for name in missing), *beyond]
