"""What a build has made, and what its kernels cost where that was asked for: as text, as JSON and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolchain import page
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import InHalf, Tuned
from toolchain.errors import ToolchainError, VerificationError
from toolchain.progress import size_text
from toolchain.tables import Table

if TYPE_CHECKING:
    from toolchain.backends.base.costs import CostModel, NetworkCosts
    from toolchain.board import Board


@dataclass(frozen=True)
class Built:
    """A bundle that was made.

    Attributes:
        bundle: It.
        costs: What its kernels cost, by a model; None if nobody asked.
    """

    bundle: Bundle
    costs: NetworkCosts | None = None

    def document(self) -> dict[str, Any]:
        """Return what --json prints; `costs` is there if they were asked for."""
        made = self.bundle
        found = {"folder": str(made.folder), "digest": f"sha256:{made.digest}", "manifest": made.manifest}
        return found if self.costs is None else {**found, "costs": self.costs.document()}

    def shown(self) -> str | list[str | Table]:
        """Return what a person is shown."""
        records = self.bundle.manifest.records
        by = ", by modelled tuning records" if records and records.modelled else ""
        line = f"{self.bundle.folder}: {self._what}, sha256:{self.bundle.digest}{by}"
        half = self.bundle.manifest.half
        lines: list[str | Table] = [line, *(half.lines() if half else ())]
        lines += ["", *self.costs.shown()] if self.costs else []
        return line if len(lines) == 1 else lines

    def refusal(self) -> ToolchainError | None:
        """Return what the command ends with; the bundle is whole nevertheless.

        That is so where half precision is beyond its limit, and where a kernel could not be costed.
        """
        half = self.bundle.manifest.half
        if half and not half.ok:
            return _beyond(half, self.bundle.manifest.command)
        return self.costs.refusal() if self.costs else None

    def html(self) -> str:
        """Render it as one page that needs no other file."""
        sections = [page.Section("The bundle", [page.Facts(self._facts())])]
        half = self.bundle.manifest.half
        sections += [page.Section("Half precision, emulated", [half_part(half)])] if half else []
        sections += self.costs.sections() if self.costs else []
        records = self.bundle.manifest.records
        marks = [page.MODELLED] if self.costs or (records and records.modelled) else []
        marks += [page.EMULATED] if half else []
        verdict = page.Verdict("\n".join(half.lines()), "bad") if half and not half.ok else None
        return page.Page(f"{self._what}", "build", verdict, sections, marks).html()

    @property
    def _what(self) -> str:
        return f"{self.bundle.manifest.name} for {self.bundle.manifest.board}"

    def _facts(self) -> list[tuple[str, str]]:
        manifest, records = self.bundle.manifest, self.bundle.manifest.records or Tuned()
        sizes = sum(one.stat().st_size for one in self.bundle.folder.rglob("*") if one.is_file())
        tuned = f"{records.tuned} of {records.tasks}" if records.tasks else ""
        return [
            ("folder", str(self.bundle.folder)),
            ("digest", f"sha256:{self.bundle.digest}"),
            ("size", size_text(sizes)),
            ("target", ", ".join(f"{name} {value}" for name, value in manifest.target.items())),
            ("kernels with tuning records", tuned),
            ("their times are modelled", records.modelled and f"{records.modelled}: no board has confirmed them"),
            ("made by", manifest.command),
        ]


def half_part(half: InHalf) -> page.Part:
    """Return what a page has of the differences in half precision."""
    if half.obstacle:
        return page.Notes(half.lines())
    rows = [
        (one.name, "not finite" if one.max_rel is None else f"{one.max_rel:.1e}", f"{one.limit:.0e}", _word(one.ok))
        for one in half.outputs
    ]
    head = ("Output", "Largest relative difference", "Limit", "")
    return page.Table(head, rows, (1, 2), f"from {half.reference} with {half.inputs}")


def _word(ok: bool) -> str:  # noqa: FBT001 - a cell
    return "within" if ok else "beyond"


def _beyond(half: InHalf, command: str) -> VerificationError:
    sums = "--half-sums" in command.split()
    return VerificationError(
        "the outputs in half precision are beyond their limit, as this machine computes them",
        details="\n".join(str(one) for one in half.outputs if not one.ok),
        hint="--float16 instead of --half-sums sums up in single precision" if sums else "leave --float16 out",
    )


def costs(made: Bundle, kind: Board, model: CostModel) -> NetworkCosts:
    """Say what the kernels of a bundle cost.

    Args:
        made: It.
        kind: The board type that it was built for, resolved.
        model: The board's.

    Raises:
        BuildError: The model's compiler does not work here.
    """
    from toolchain.compile import compiler  # noqa: PLC0415 - TVM takes seconds

    return model.network(made.manifest.name, compiler.graph_of(made.folder, kind))
