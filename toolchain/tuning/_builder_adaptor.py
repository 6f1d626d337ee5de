"""The builder in the shape that MetaSchedule's own search takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm.ir.utils import derived_object

from toolchain.tuning._tvm import meta_schedule
from toolchain.tuning.builder import Builder


def as_builder(builder: Builder) -> Any:
    """Return a `PyBuilder` of MetaSchedule that has its candidates built here, all of one round at once.

    The target is the builder's own. Each library has a folder to itself: the search's callback that removes a measured
    one removes the folder that it is in.
    """
    ms = meta_schedule()

    class Adaptor(ms.builder.PyBuilder):  # type: ignore[misc, name-defined]
        """Passes on modules, and what became of them."""

        def build(self, build_inputs: Sequence[Any]) -> list[Any]:
            built = builder.build([item.mod for item in build_inputs])
            results = [(str(_secluded(one.library)) if one.library else None, one.error or None) for one in built]
            return [ms.builder.BuilderResult(*one) for one in results]

    return derived_object(Adaptor)()


def _secluded(library: Path) -> Path:
    folder = library.with_suffix("")
    folder.mkdir()
    return library.rename(folder / library.name)
