"""The result of a build, with the estimated costs of its kernels if requested: as text, JSON and a page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolchain import states
from toolchain.bundle import Bundle, memory
from toolchain.bundle.manifest import InHalf, Tuned
from toolchain.errors import ToolchainError, VerificationError
from toolchain.progress import size_text
from toolchain.report import EMULATED, MODELLED, Facts, Headline, Notes, Page, Part, Section, Table

if TYPE_CHECKING:
    from toolchain.backends.base import CostModel, NetworkCosts
    from toolchain.board import Board


@dataclass(frozen=True)
class Built:
    """A new bundle, and the estimated costs of its kernels if they were requested."""

    bundle: Bundle
    costs: NetworkCosts | None = None

    def document(self) -> dict[str, Any]:
        bundle = self.bundle
        document = {"folder": str(bundle.folder), "digest": f"sha256:{bundle.digest}", "manifest": bundle.manifest}
        if planned := memory.planned(bundle.manifest):
            document["memory"] = {**asdict(planned), "peak": planned.peak}
        return document if self.costs is None else {**document, "costs": self.costs.document()}

    def render_text(self) -> str | list[str | Table]:
        records = self.bundle.manifest.records
        source = ", by modelled tuning records" if records and records.modelled else ""
        line = f"{self.bundle.folder}: {self._title}, sha256:{self.bundle.digest}{source}"
        half = self.bundle.manifest.half
        planned = memory.planned(self.bundle.manifest)
        lines: list[str | Table] = [line, *([f"memory: {planned}"] if planned else []), *(half.lines() if half else ())]
        lines += [f"state: {states.describe(pairs)}"] if (pairs := self.bundle.manifest.states) else []
        dynamic = self.bundle.manifest.dynamic
        lines += [f"sizes: {dynamic}; these are checked"] if dynamic else []
        lines += ["", self._variants()] if self.bundle.manifest.variants else []
        lines += ["", *self.costs.shown()] if self.costs else []
        return line if len(lines) == 1 else lines

    def _variants(self) -> Table:
        rows = [
            (
                variant.name,
                ", ".join(map(str, variant.inputs)),
                ", ".join(map(str, variant.outputs)),
                "" if variant.activations is None else memory.mib(variant.activations),
            )
            for variant in self.bundle.manifest.variants
        ]
        return Table(rows, ("Variant", "Inputs", "Outputs", "Activations"), (3,), name="sets of shapes")

    def refusal(self) -> ToolchainError | None:
        """Return the error of half precision beyond its limit, or of costs; the bundle is complete nevertheless."""
        half = self.bundle.manifest.half
        if half and not half.ok:
            sums = "--half-sums" in self.bundle.manifest.command.split()
            return VerificationError(
                f"the outputs {half.phrase} are beyond their limit, as this machine computes them",
                details="\n".join(str(output) for output in half.outputs if not output.ok),
                hint="--float16 instead of --half-sums sums up in single precision"
                if sums
                else f"leave {half.option} out",
            )
        return self.costs.refusal() if self.costs else None

    def html(self) -> str:
        manifest, half = self.bundle.manifest, self.bundle.manifest.half
        records = manifest.records or Tuned()
        size = sum(path.stat().st_size for path in self.bundle.folder.rglob("*") if path.is_file())
        facts = [
            ("folder", str(self.bundle.folder)),
            ("digest", f"sha256:{self.bundle.digest}"),
            ("size", size_text(size)),
            ("target", ", ".join(f"{name} {value}" for name, value in manifest.target.items())),
            ("kernels with tuning records", f"{records.tuned} of {records.tasks}" if records.tasks else ""),
            ("their times are modelled", records.modelled and f"{records.modelled}: no board has confirmed them"),
            ("memory, planned", str(memory.planned(manifest) or "")),
            ("sparse", str(manifest.sparse or "")),
            ("state", states.describe(manifest.states)),
            ("made by", manifest.command),
        ]
        sections = [Section("The bundle", [Facts(facts)])]
        sections += [Section("Variants", [self._variants()])] if manifest.variants else []
        sections += [Section(f"{half.title}, emulated", [half_section(half)])] if half else []
        sections += self.costs.sections() if self.costs else []
        marks = [MODELLED] if self.costs or records.modelled else []
        marks += [EMULATED] if half else []
        verdict = Headline("\n".join(half.lines()), "bad") if half and not half.ok else None
        return Page(self._title, "build", verdict, sections, marks).html()

    @property
    def _title(self) -> str:
        return f"{self.bundle.manifest.name} for {self.bundle.manifest.board}"


def half_section(half: InHalf) -> Part:
    """Render the differences of half precision from the reference."""
    if half.obstacle:
        return Notes(half.lines())
    rows = [
        (
            output.name,
            "not finite" if output.max_rel is None else f"{output.max_rel:.1e}",
            output.limit_text,
            "within" if output.ok else "beyond",
        )
        for output in half.outputs
    ]
    head = ("Output", "Largest relative difference", "Limit", "")
    return Table(rows, head, (1, 2), name=f"from {half.reference} with {half.inputs}")


def estimate_costs(bundle: Bundle, board: Board, model: CostModel) -> NetworkCosts:
    """Estimate the kernels of a bundle that was built for a board.

    Raises:
        BuildError: The model's compiler does not work here.
    """
    from toolchain.compile import compiler  # noqa: PLC0415 - TVM takes seconds

    return model.network(bundle.manifest.name, compiler.load_graph(bundle.folder, board))
