"""What the name of a model stands for: a network of the zoo, or a file or folder here.

`zoo:NAME` always is the zoo's network, and a word with a slash, such as `./NAME`, always a path. A bare name may be
both.
"""

from __future__ import annotations

from pathlib import Path

from toolchain.errors import InputError, did_you_mean
from toolchain.models import zoo

PREFIX = "zoo:"


def network(word: str) -> str:
    """Return the zoo's network that a name stands for where a model is wanted; empty if it is a path.

    A file goes before the zoo's network of the same name, and a folder does not: a model is no folder.

    Raises:
        InputError: The zoo has no such network.
    """
    if not word.startswith(PREFIX):
        return word if word in zoo.NAMES and not Path(word).is_file() else ""
    name = word.removeprefix(PREFIX)
    if name not in zoo.NAMES:
        raise InputError(
            f"the zoo has no network {name!r}",
            details="networks of the zoo: " + ", ".join(zoo.NAMES),
            hint=did_you_mean(name, zoo.NAMES) or "`toolchain model list` shows them",
        )
    return name


def ambiguity(word: str, *, built: bool) -> str:
    """Say which one is used of a network of the zoo and a path here of the same name; empty if there are not both.

    Args:
        word: What the user wrote.
        built: Whether the path is used, as a command does that takes packages and bundles, and it is one.
    """
    path = Path(word)
    if word not in zoo.NAMES or not path.exists():
        return ""
    kind = "folder" if path.is_dir() else "file"
    if built or path.is_file():
        return f"{word} is the {kind} ./{word} here; zoo:{word} names the zoo's network"
    return f"{word} is the zoo's network; ./{word} names the {kind} here"
