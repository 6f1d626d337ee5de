"""What `cpu.py` found out, as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _peers import OTHER_PRECISION, PEERS, TITLES

from benchmarks import _ab
from toolchain.report import Table

LIMIT = 1e-3
"""Of the largest absolute difference of float32 outputs over their largest absolute value."""


def grouped(found: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by their condition."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault(one["condition"], []).append(one)
    return groups


def by_condition(found: Sequence[dict[str, Any]]) -> list[str]:
    """Render a table for each condition."""
    return [f"{condition}\n{table(rows)}" for condition, rows in grouped(found).items()]


def table(found: Sequence[dict[str, Any]]) -> str:
    """Render the times of all networks, median and 99th percentile, and ours over the best peer's."""
    names = [name for name in TITLES if any(name in one["engines"] for one in found)]
    ours = ["ours/ORT (95 %)", "ours/best", "p99", "bf16/OpenVINO's", "outputs of ours"]
    rows = [["network", *(f"{TITLES[name]} ms" for name in names), *ours]]
    rows += [[one["name"], *(latency(one, name) for name in names), *against(one)] for one in found]
    if len(found) > 1:
        means = geometric_means(found)
        mean = [f"{means['median']:.3f}", f"{means['p99']:.2f}", bfloat16_mean(found), ""]
        rows.append(["geometric mean", *("" for _ in names), "", *mean])
    return str(Table(rows))


def markdown(found: Sequence[dict[str, Any]]) -> str:
    """Render the tables of a page of documentation, one for each condition: median / 99th percentile in ms."""
    return "\n\n".join(f"{condition}:\n\n{_markdown(rows)}" for condition, rows in grouped(found).items())


def _markdown(found: Sequence[dict[str, Any]]) -> str:
    names = [name for name in TITLES if any(name in one["engines"] for one in found)]
    head = ["network", *(TITLES[name] for name in names), "ours / best peer", "p99", "bf16: ours / OpenVINO"]
    rows = [head, ["---"] * len(head)]
    for one in found:
        peer, ratio = best(one, "value")
        cells = [latency(one, name) for name in names]
        network = Path(one["name"]).name.removesuffix(".onnx")
        rows.append([network, *cells, f"{ratio:.2f} {TITLES[peer]}", f"{best(one, 'p99')[1]:.2f}", bfloat16(one)])
    means = geometric_means(found)
    mean = [f"{means['median']:.2f}", f"{means['p99']:.2f}", bfloat16_mean(found)]
    rows.append(["geometric mean", *("" for _ in names), *mean])
    if not any(one.get("bfloat16") for one in found):
        rows = [row[:-1] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def latency(one: dict[str, Any], name: str) -> str:
    """Render what one engine takes for a network: median, and after a slash the 99th percentile."""
    if name not in one["engines"]:
        return "-"
    outputs, took = one["outputs"].get(name, {}), one["engines"][name]
    off = "" if right(outputs) or name in OTHER_PRECISION else f" ({closeness(outputs)})"
    return f"{took['median_ms']:.3f} / {took['p99_ms']:.3g}{off}"


def against(one: dict[str, Any]) -> list[str]:
    """Say how ours stands to ONNX Runtime and to the quickest peer, and how far its outputs are off."""
    name, ratio = best(one, "value")
    _, p99 = best(one, "p99")
    return [
        _ab.told(one["ratios"]["ort"], 3),
        f"{ratio:.3f} {TITLES[name]}",
        f"{p99:.2f}",
        bfloat16(one),
        closeness(one["outputs"]["ours"]),
    ]


def best(one: dict[str, Any], key: str) -> tuple[str, float]:
    """Return the peer of the same precision that is the quickest by the median or the percentile, and ours over it."""
    peers = [name for name in one["ratios"] if name in PEERS and name not in OTHER_PRECISION]
    name = max(peers, key=lambda peer: one["ratios"][peer][key])
    return name, float(one["ratios"][name][key])


def bfloat16(one: dict[str, Any]) -> str:
    """Render ours in bfloat16 over OpenVINO's default."""
    return f"{one['bfloat16']['value']:.2f}" if one.get("bfloat16") else "-"


def bfloat16_mean(found: Sequence[dict[str, Any]]) -> str:
    """Render the geometric mean of those ratios, over the networks that have one."""
    logarithms = [math.log(one["bfloat16"]["value"]) for one in found if one.get("bfloat16")]
    return f"{math.exp(sum(logarithms) / len(logarithms)):.2f}" if logarithms else "-"


def geometric_means(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the geometric means over all networks of ours over the best peer's."""
    kinds = {"median": "value", "p99": "p99"}
    return {
        title: math.exp(sum(math.log(best(one, key)[1]) for one in found) / max(len(found), 1))
        for title, key in kinds.items()
    }


def closeness(found: dict[str, float]) -> str:
    """Render one comparison of outputs."""
    if "max_rel" in found:
        return f"off by {found['max_rel']:.1e}"
    return f"top-1 {found['top1_agreement']:.0%}, SNR {found['snr_db']:.0f} dB"


def right(found: dict[str, float]) -> bool:
    """Tell whether outputs are near enough; int8 outputs have no limit, they are reported."""
    return found.get("max_rel", 0.0) <= LIMIT


def footprint_table(found: Sequence[dict[str, Any]]) -> str:
    """Render memory and load times of all networks; each is that of a Python process with one engine."""
    rows = [["network", "engine", "peak MiB", "load ms", "import ms"]]
    for one in {one["name"]: one for one in found}.values():
        for name, values in one["footprint"].items():
            figures = (f"{values[key]:.1f}" for key in ("peak_mib", "load_ms", "import_ms"))
            rows.append([one["name"], TITLES[name], *figures])
    return str(Table(rows))
