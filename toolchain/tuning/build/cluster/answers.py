"""Validates the answers of remote workers, which are not trusted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import files
from toolchain.native.elf import is_object

_MOST_OBJECTS = 16
_MOST_BYTES = 64 << 20
_LONGEST_S = 86400.0
_SHAPE = {"worker": str, "objects": list, "seconds": float}


@dataclass(frozen=True)
class Answer:
    """The result of compiling a candidate on a remote worker.

    Attributes:
        worker: The address of the worker, by its own account.
        objects: The object files; empty if the compilation failed.
        seconds: Its duration.
    """

    worker: str
    objects: tuple[bytes, ...]
    seconds: float

    def put(self, folder: Path) -> dict[str, Any]:
        """Write the objects to a new folder, and return the answer as a worker of this machine gives it.

        Raises:
            InputError: They cannot be written.
        """
        # Names are ours, not those of the worker.
        paths = [folder / f"{number}.o" for number in range(len(self.objects))]
        try:
            folder.mkdir()
            for path, data in zip(paths, self.objects, strict=True):
                path.write_bytes(data)
        except OSError as fault:
            raise files.unwritable(folder, fault) from fault
        return {"objects": list(map(str, paths))}


def read(answer: Any, triple: str) -> Answer | str:
    """Return an answer as an `Answer`, or what is wrong with it as text."""
    # Exact types, since subclasses could redefine what is called below.
    if type(answer) is not dict or {name: type(value) for name, value in answer.items()} != _SHAPE:
        return "it is not a valid answer"
    objects = answer["objects"]
    are_valid = all(type(data) is bytes and is_object(data, triple) for data in objects)
    sizes = [len(data) if type(data) is bytes else 0 for data in objects]
    faults = {
        "its duration is not possible": not 0 <= answer["seconds"] <= _LONGEST_S,  # which NaN fails, too
        "its objects are too many": len(objects) > _MOST_OBJECTS,
        f"its objects are not for {triple}": not are_valid,
        f"its objects have more than {_MOST_BYTES >> 20} MiB": sum(sizes) > _MOST_BYTES,
    }
    fault = next((text for text, is_true in faults.items() if is_true), "")
    return fault or Answer(**{**answer, "objects": tuple(objects)})
