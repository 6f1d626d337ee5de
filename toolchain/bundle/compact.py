"""Manifests without the fields of steps that they do not have: as they were before there were such steps."""

from __future__ import annotations

from typing import Any


def drop_from_steps(pictures: dict[str, Any] | None, sounds: dict[str, Any] | None) -> None:
    """Remove the fields of steps that stand for nothing there, as before there were such steps."""
    if pictures and pictures["plan"]["head"] != "labels":
        for name in ("blank", "space"):
            del pictures["plan"][name]
    if pictures and not pictures["plan"]["prototypes"]:
        del pictures["plan"]["mask_output"]
    if pictures and pictures["plan"]["coding"] == "none":
        for name in ("coding", "storage", "variances", "offset", "levels"):
            del pictures["plan"][name]
    if pictures and pictures["plan"]["head"] not in {"detr", "boxes", "grid"}:
        for name in ("form", "shares", "sigmoid", "background", "box_output"):
            del pictures["plan"][name]
    _drop_zeros(pictures, "beam", "points", "point_numbers", "prototypes", "mask_width", "mask_height")
    _drop_zeros(pictures, "level_outputs", "table")
    _drop_zeros(sounds, "beam", "context")


def _drop_zeros(steps: dict[str, Any] | None, *names: str) -> None:
    """Drop numbers of steps that are 0, and lists that are empty, as before there were any."""
    for name in names:
        if steps and not steps["plan"][name]:
            del steps["plan"][name]
