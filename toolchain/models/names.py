"""What the name of a model stands for: a network of the zoo, or a file or folder.

`zoo:NAME` is always the zoo's network, and a name with a slash, such as `./NAME`, always a path. A bare name may be
both.
"""

from __future__ import annotations

from pathlib import Path

from toolchain.errors import InputError, did_you_mean
from toolchain.models import zoo

PREFIX = "zoo:"


def network(model: str) -> str:
    """Return the zoo's network that a model's name stands for; empty if it is a path.

    A file has precedence over the zoo's network of the same name; a folder has not, since it is not a model.
    """
    if not model.startswith(PREFIX):
        return model if model in zoo.NAMES and not Path(model).is_file() else ""
    name = model.removeprefix(PREFIX)
    if name not in zoo.NAMES:
        raise InputError(
            f"the zoo has no network {name!r}",
            details="networks of the zoo: " + ", ".join(zoo.NAMES),
            hint=did_you_mean(name, zoo.NAMES) or "`toolchain models` shows them",
        )
    return name


def ambiguity(model: str, *, built: bool) -> str:
    """Say which is used if the zoo's network and a path have the same name; empty otherwise.

    `built` says whether the path is a package or bundle, and the command takes those.
    """
    path = Path(model)
    if model not in zoo.NAMES or not path.exists():
        return ""
    kind = "folder" if path.is_dir() else "file"
    if built or path.is_file():
        return f"{model} is the {kind} ./{model} here; zoo:{model} names the zoo's network"
    return f"{model} is the zoo's network; ./{model} names the {kind} here"
