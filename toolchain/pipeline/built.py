"""What a build has made, and what its kernels cost where that was asked for: as text, as JSON and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolchain import page
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import Tuned
from toolchain.errors import BuildError
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
        return line if self.costs is None else [line, "", *self.costs.shown()]

    def refusal(self) -> BuildError | None:
        """Return what the command ends with where a kernel could not be costed; the bundle is whole nevertheless."""
        return self.costs.refusal() if self.costs else None

    def html(self) -> str:
        """Render it as one page that needs no other file."""
        sections = [page.Section("The bundle", [page.Facts(self._facts())])]
        sections += self.costs.sections() if self.costs else []
        records = self.bundle.manifest.records
        marks = [page.MODELLED] if self.costs or (records and records.modelled) else []
        return page.Page(f"{self._what}", "build", None, sections, marks).html()

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
