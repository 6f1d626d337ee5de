"""The page of a comparison of two bundles."""

from __future__ import annotations

from toolchain.pipeline.compare import ROUNDS, Comparison
from toolchain.pipeline.pages import common
from toolchain.report import Dots, Facts, Headline, Level, Page, Part, Plot, Section, Text, Tone, Value
from toolchain.tensors import Difference


def html(comparison: Comparison) -> str:
    sides = [("untuned", comparison.first), ("tuned", comparison.second)]
    outputs = [
        *_difference("tuned against untuned", comparison.difference),
        *_difference("tuned against the reference", comparison.reference),
    ]
    kernels = [
        ("threads", str(comparison.threads)),
        ("turns of each", str(ROUNDS)),
        (
            "kernels with a record",
            f"{comparison.tuned} of {comparison.tasks}, {comparison.shipped} of them with the toolchain's own",
        ),
    ]
    sections = [
        Section("Latency (ms)", [common.latencies(sides)]),
        Section("Turns", [_turns(comparison)]),
        Section("Runs", common.runs(sides)),
        Section("Outputs", [Facts(outputs)]),
        Section("Kernels", [Facts(kernels)]),
        Section(
            "Conditions",
            [
                common.conditions(comparison.before, comparison.after),
                *(Text(text, "doubt") for text in comparison.warnings),
                common.waiting(comparison.waited),
            ],
        ),
        common.provenance([(name, digest) for (name, _), digest in zip(sides, comparison.digests, strict=False)]),
    ]
    title = f"{comparison.model} untuned and tuned on {comparison.board} at {comparison.host}"
    # Nothing is claimed by an emulator, or by an interval in which both may be equally fast.
    tones: dict[str, Tone] = {} if comparison.emulated else {"faster": "good", "slower": "bad"}
    mark = " (emulated: says nothing about the real board)" if comparison.emulated else ""
    verdict = Headline(f"{comparison.outcome}{mark}", tones.get(comparison.ratio.verdict, "doubt"))
    return Page(title, "compare", verdict, sections, common.marks(emulated=comparison.emulated)).html()


def _turns(comparison: Comparison) -> Part:
    dots = [
        Value(number, value, f"turn {number}: {value:.4g}") for number, value in enumerate(comparison.ratio.rounds, 1)
    ]
    interval = comparison.ratio.ci99 or ()
    names = ("99 % from", "99 % to")
    levels = [
        Level("as fast", 1.0),
        *(Level(f"{name} {value:.4g}", value) for name, value in zip(names, interval, strict=False)),
    ]
    return Plot("How many times as fast the tuned one is", "turn", "times as fast", [Dots(dots)], levels)


def _difference(name: str, difference: Difference | None) -> list[tuple[str, str]]:
    if difference is None:
        return [(name, "not compared")]
    verdict = "the same" if difference.ok else "DIFFERENT"
    relative = f"largest relative difference {difference.max_rel:.4g} (limit {difference.tolerance:.4g})"
    return [(name, f"{verdict}: {relative}, absolute {difference.max_abs:.4g}")]
