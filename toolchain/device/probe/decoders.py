"""The libraries with which a device decodes files of pictures, as `runtime/pictures/decoder.h` opens them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_LIBRARIES = {"JPEG": "libturbojpeg.so.0", "PNG": "libpng16.so.16"}
_PACKAGES = {"JPEG": "libturbojpeg0", "PNG": "libpng16-16"}
_FOLDERS = "/lib /lib/* /lib64 /usr/lib /usr/lib/* /usr/lib64 /usr/local/lib"

SCRIPT = f"""
for i in {_FOLDERS}; do
  for n in {" ".join(_LIBRARIES.values())}; do [ ! -e $i/$n ] || s decoder $i/$n; done
done
"""
"""The part of the probe script that looks for them."""


def of_this_machine() -> list[str]:
    """Return the paths of those that this machine has."""
    patterns = [f"{folder}/{name}" for folder in _FOLDERS.split() for name in _LIBRARIES.values()]
    return [str(path) for pattern in patterns for path in Path("/").glob(pattern[1:])]


def describe(paths: Sequence[str], *, has_packages: bool) -> str:
    """Return which formats a device decodes, and with which packages it would decode the others."""
    formats = {name: next((path for path in paths if path.endswith(f"/{_LIBRARIES[name]}")), "") for name in _LIBRARIES}
    present = [f"{name} by {path}" for name, path in formats.items() if path]
    lacking = [name for name, path in formats.items() if not path]
    packages = " ".join(_PACKAGES[name] for name in lacking)
    remedy = f" (apt-get install {packages})" if has_packages else ""
    absent = [f"no {' or '.join(lacking)}{remedy}"] if lacking else []
    return ", ".join([*present, *absent, "raw pixels"])
