"""Files that are not modules: at the top of a checkout, or in `_data` inside an installed package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from toolchain.errors import BuildError

PACKAGE = Path(__file__).resolve().parent  # the package itself, which the image of the toolchain is made of too

DATA = "_data"  # in an installed package: the files that lie beside it in a checkout; see pyproject.toml

PROGRAMS = "programs"  # in `_data`: the device programs that `make wheel` puts there

_INSTALLED = (PACKAGE / DATA).is_dir()

# the folder of `boards`, `docker`, `docs`, the Dockerfile and the files that it copies, except the package
ROOT = PACKAGE / DATA if _INSTALLED else PACKAGE.parent

RUNTIME = PACKAGE / "runtime"  # the C++ sources of what runs on a board

# the hint for a Python package that is missing or of another version
REPAIR = "`pip check` names what to install" if _INSTALLED else "make setup"


def manual(name: str) -> str:
    """Return the path of a page of the documentation, for a hint."""
    page = f"docs/{name}.md"
    return str(ROOT / page) if _INSTALLED else page


def package_folder(name: str) -> Path:
    """Find the folder of an installed Python package without importing it, or raise a BuildError."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(f"the Python package {name} is not installed", hint=REPAIR)
    return Path(spec.origin).parent
