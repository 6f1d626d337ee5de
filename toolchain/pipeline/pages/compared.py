"""The page of a comparison of two bundles in turns."""

from __future__ import annotations

from toolchain import page
from toolchain.pipeline.compare import ROUNDS, Comparison
from toolchain.pipeline.pages import common
from toolchain.tensors import Difference


def html(found: Comparison) -> str:
    """Render a comparison."""
    sides = [("untuned", found.first), ("tuned", found.second)]
    sections = [
        page.Section("Latency (ms)", [common.latencies(sides)]),
        page.Section("Turns", [_turns(found)]),
        page.Section("Runs", common.runs(sides)),
        page.Section(
            "Outputs",
            [
                page.Facts(
                    [
                        *_difference("tuned against untuned", found.difference),
                        *_difference("tuned against the reference", found.reference),
                    ]
                )
            ],
        ),
        page.Section("Kernels", [page.Facts(_kernels(found))]),
        page.Section(
            "Conditions",
            [
                common.conditions(found.before, found.after),
                *(page.Text(one, "doubt") for one in found.warnings),
                common.waiting(found.waited),
            ],
        ),
        common.provenance([(name, digest) for (name, _), digest in zip(sides, found.digests, strict=False)]),
    ]
    title = f"{found.model} untuned and tuned on {found.board} at {found.host}"
    return page.Page(title, "compare", _verdict(found), sections, common.marks(emulated=found.emulated)).html()


def _verdict(found: Comparison) -> page.Verdict:
    mark = " (emulated: says nothing about the real board)" if found.emulated else ""
    return page.Verdict(f"{found.outcome}{mark}", _tone(found))


def _tone(found: Comparison) -> page.Tone:
    """Judge it: nothing is claimed by an emulator, or by an interval in which both are equally fast."""
    if found.emulated:
        return "doubt"
    tones: dict[str, page.Tone] = {"faster": "good", "slower": "bad"}
    return tones.get(found.ratio.verdict, "doubt")


def _turns(found: Comparison) -> page.Part:
    dots = [
        page.Dot(place, value, label=f"turn {place}: {value:.4g}") for place, value in enumerate(found.ratio.rounds, 1)
    ]
    interval = found.ratio.ci99 or ()
    names = ("99 % from", "99 % to")
    levels = [
        page.Level("as fast", 1.0),
        *(page.Level(f"{name} {value:.4g}", value) for name, value in zip(names, interval, strict=False)),
    ]
    return page.Dots("How many times as fast the tuned one is", "turn", "times as fast", dots, levels)


def _kernels(found: Comparison) -> list[tuple[str, str]]:
    return [
        ("threads", str(found.threads)),
        ("turns of each", str(ROUNDS)),
        ("kernels with a record", f"{found.tuned} of {found.tasks}, {found.shipped} of them with the toolchain's own"),
    ]


def _difference(name: str, found: Difference | None) -> list[tuple[str, str]]:
    if found is None:
        return [(name, "not compared")]
    verdict = "the same" if found.ok else "DIFFERENT"
    relative = f"largest relative difference {found.max_rel:.4g} (limit {found.tolerance:.4g})"
    return [(name, f"{verdict}: {relative}, absolute {found.max_abs:.4g}")]
