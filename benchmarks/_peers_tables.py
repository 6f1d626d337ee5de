"""What `cpu.py` found out, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _peers import TITLES

from benchmarks import _ab
from toolchain.tables import Table

LIMIT = 1e-3
"""Of the largest absolute difference of float32 outputs over their largest absolute value."""


def table(found: Sequence[dict[str, Any]]) -> str:
    """Render the times of all networks: medians, marked where the outputs are off, and ours over the others'."""
    names = [name for name in TITLES if any(name in one["engines"] for one in found)]
    rows = [["network", *(f"{TITLES[name]} ms" for name in names)]]
    rows += [[one["name"], *(latency(one, name) for name in names)] for one in found]
    if "ours" in names:
        rows[0] += ["ours/ORT (95 %)", "ours/best", "outputs of ours"]
        rows[1:] = [row + against(one) for row, one in zip(rows[1:], found, strict=True)]
    return str(Table(rows))


def latency(one: dict[str, Any], name: str) -> str:
    """Render what one engine takes for a network."""
    if name not in one["engines"]:
        return "-"
    outputs = one["outputs"].get(name, {})
    return f"{one['engines'][name]['median_ms']:.3f}" + ("" if right(outputs) else f" ({closeness(outputs)})")


def against(one: dict[str, Any]) -> list[str]:
    """Say how ours stands to ONNX Runtime and to the quickest peer, and how far its outputs are off."""
    ratio, best = one["ratios"]["ort"], max(one["ratios"], key=lambda name: one["ratios"][name]["value"])
    return [
        _ab.told(ratio, 3),
        f"{one['ratios'][best]['value']:.3f} {TITLES[best]}",
        closeness(one["outputs"]["ours"]),
    ]


def closeness(found: dict[str, float]) -> str:
    """Render one comparison of outputs."""
    if "max_rel" in found:
        return f"off by {found['max_rel']:.1e}"
    return f"top-1 {found['top1_agreement']:.0%}, SNR {found['snr_db']:.0f} dB"


def right(found: dict[str, float]) -> bool:
    """Tell whether outputs are near enough; int8 outputs have no limit, they are reported."""
    return found.get("max_rel", 0.0) <= LIMIT


def layers_table(found: dict[str, Any]) -> str:
    """Render the kernels of one network."""
    peak, kernels = found["peak_gflops"], found["kernels"]
    total = sum(one["ms"] for one in kernels)
    rows = [["kernel", "from -> to", "calls", "ms", "share", "GFLOP", "GFLOPS", "of peak"]]
    for one in kernels:
        row = [one["name"], one["shapes"], str(one["calls"]), f"{one['ms']:.4f}", f"{one['ms'] / total:.1%}"]
        known = one["gflops"] is not None
        work = (f"{one['gflop']:.5f}", f"{one['gflops']:.1f}", f"{one['gflops'] / peak:.1%}") if known else ("-",) * 3
        rows.append([*row, *work])
    core = found["peak_core_gflops"]
    return f"{Table(rows)}\nsum of kernels {total:.3f} ms, peak {peak:.0f} GFLOPS, of one core {core:.0f}"


def footprint_table(found: Sequence[dict[str, Any]]) -> str:
    """Render memory and load times of all networks."""
    rows = [["network", "engine", "peak MiB", "load ms", "first run ms", "import ms"]]
    for one in found:
        for name, values in one.get("footprint", {}).items():
            figures = (f"{values[key]:.1f}" for key in ("peak_mib", "load_ms", "first_run_ms", "import_ms"))
            rows.append([one["name"], TITLES[name], *figures])
    return str(Table(rows))
