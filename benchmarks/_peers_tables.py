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


def grouped(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by their condition."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(result["condition"], []).append(result)
    return groups


def by_condition(results: Sequence[dict[str, Any]]) -> list[str]:
    """Render a table for each condition."""
    return [f"{condition}\n{table(rows)}" for condition, rows in grouped(results).items()]


def table(results: Sequence[dict[str, Any]]) -> str:
    """Render the times of all networks, median and 99th percentile, and ours over the best peer's."""
    names = [name for name in TITLES if any(name in result["engines"] for result in results)]
    ours = ["ours/ORT (95 %)", "ours/best", "p99", "bf16/OpenVINO's", "outputs of ours"]
    rows = [["network", *(f"{TITLES[name]} ms" for name in names), *ours]]
    rows += [[result["name"], *(latency(result, name) for name in names), *against(result)] for result in results]
    if len(results) > 1:
        means = geometric_means(results)
        mean = [f"{means['median']:.3f}", f"{means['p99']:.2f}", bfloat16_mean(results), ""]
        rows.append(["geometric mean", *("" for _ in names), "", *mean])
    return str(Table(rows))


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Render the tables of a page of documentation, one for each condition: median / 99th percentile in ms."""
    return "\n\n".join(f"{condition}:\n\n{_markdown(rows)}" for condition, rows in grouped(results).items())


def _markdown(results: Sequence[dict[str, Any]]) -> str:
    names = [name for name in TITLES if any(name in result["engines"] for result in results)]
    head = ["network", *(TITLES[name] for name in names), "ours / best peer", "p99", "bf16: ours / OpenVINO"]
    rows = [head, ["---"] * len(head)]
    for result in results:
        peer, ratio = best(result, "value")
        cells = [latency(result, name) for name in names]
        network = Path(result["name"]).name.removesuffix(".onnx")
        rows.append([network, *cells, f"{ratio:.2f} {TITLES[peer]}", f"{best(result, 'p99')[1]:.2f}", bfloat16(result)])
    means = geometric_means(results)
    mean = [f"{means['median']:.2f}", f"{means['p99']:.2f}", bfloat16_mean(results)]
    rows.append(["geometric mean", *("" for _ in names), *mean])
    if not any(result.get("bfloat16") for result in results):
        rows = [row[:-1] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def latency(result: dict[str, Any], name: str) -> str:
    """Render what one engine takes for a network: median, and after a slash the 99th percentile."""
    if name not in result["engines"]:
        return "-"
    outputs, took = result["outputs"].get(name, {}), result["engines"][name]
    off = "" if right(outputs) or name in OTHER_PRECISION else f" ({closeness(outputs)})"
    return f"{took['median_ms']:.3f} / {took['p99_ms']:.3g}{off}"


def against(result: dict[str, Any]) -> list[str]:
    """Say how ours stands to ONNX Runtime and to the quickest peer, and how far its outputs are off."""
    name, ratio = best(result, "value")
    _, p99 = best(result, "p99")
    return [
        _ab.rendered(result["ratios"]["ort"], 3),
        f"{ratio:.3f} {TITLES[name]}",
        f"{p99:.2f}",
        bfloat16(result),
        closeness(result["outputs"]["ours"]),
    ]


def best(result: dict[str, Any], key: str) -> tuple[str, float]:
    """Return the peer of the same precision that is the quickest by the median or the percentile, and ours over it."""
    peers = [name for name in result["ratios"] if name in PEERS and name not in OTHER_PRECISION]
    name = max(peers, key=lambda peer: result["ratios"][peer][key])
    return name, float(result["ratios"][name][key])


def bfloat16(result: dict[str, Any]) -> str:
    """Render ours in bfloat16 over OpenVINO's default."""
    return f"{result['bfloat16']['value']:.2f}" if result.get("bfloat16") else "-"


def bfloat16_mean(results: Sequence[dict[str, Any]]) -> str:
    """Render the geometric mean of those ratios, over the networks that have one."""
    logarithms = [math.log(result["bfloat16"]["value"]) for result in results if result.get("bfloat16")]
    return f"{math.exp(sum(logarithms) / len(logarithms)):.2f}" if logarithms else "-"


def geometric_means(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the geometric means over all networks of ours over the best peer's."""
    kinds = {"median": "value", "p99": "p99"}
    return {
        title: math.exp(sum(math.log(best(result, key)[1]) for result in results) / max(len(results), 1))
        for title, key in kinds.items()
    }


def closeness(comparison: dict[str, float]) -> str:
    """Render one comparison of outputs."""
    if "max_rel" in comparison:
        return f"off by {comparison['max_rel']:.1e}"
    return f"top-1 {comparison['top1_agreement']:.0%}, SNR {comparison['snr_db']:.0f} dB"


def right(comparison: dict[str, float]) -> bool:
    """Tell whether outputs are near enough; int8 outputs have no limit, they are reported."""
    return comparison.get("max_rel", 0.0) <= LIMIT


def footprint_table(results: Sequence[dict[str, Any]]) -> str:
    """Render memory and load times of all networks; each is that of a Python process with one engine."""
    rows = [["network", "engine", "peak MiB", "load ms", "import ms"]]
    for result in {result["name"]: result for result in results}.values():
        for name, values in result["footprint"].items():
            figures = (f"{values[key]:.1f}" for key in ("peak_mib", "load_ms", "import_ms"))
            rows.append([result["name"], TITLES[name], *figures])
    return str(Table(rows))
