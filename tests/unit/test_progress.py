"""Steps: lines about progress that say how far something is."""

from __future__ import annotations

from toolchain import progress
from toolchain.progress import Step


def test_a_step_is_a_line_like_any_other():
    step = Step("compiling", 3, 40, "objects")
    assert step == "compiling"
    assert step.amount == "3 of 40 objects"


def test_bytes_are_told_in_mb():
    assert Step("sending", 1_500_000, 21_000_000, progress.MEGABYTES).amount == "1.5 of 21.0 MB"
    assert [progress.size_text(size) for size in (2048, 150_000, 21_242_880)] == ["0.002 MB", "0.1 MB", "21.2 MB"]
    assert progress.size_text(69_956_400_000) == "70.0 GB"
