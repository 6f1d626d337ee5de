"""What a worker answers, held against what an answer can be: nothing of it is believed before."""

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
    """What became of a candidate at a worker.

    Attributes:
        worker: Which one, as it says.
        objects: The object files; none if it could not be compiled there.
        seconds: What it took.
    """

    worker: str
    objects: tuple[bytes, ...]
    seconds: float

    def put(self, folder: Path) -> dict[str, Any]:
        """Write the objects into a new folder, and return what a worker of this machine would answer.

        Raises:
            InputError: There is no room for them.
        """
        paths = [folder / f"{number}.o" for number in range(len(self.objects))]
        try:
            folder.mkdir()
            for path, data in zip(paths, self.objects, strict=True):
                path.write_bytes(data)
        except OSError as fault:
            raise files.unwritable(folder, fault) from fault
        return {"objects": list(map(str, paths))}


def read(found: Any, triple: str) -> Answer | str:
    """Return an answer, or what is wrong with it.

    Args:
        found: What came.
        triple: What the objects have to be for.
    """
    if type(found) is not dict or {name: type(value) for name, value in found.items()} != _SHAPE:
        return "it is not a valid answer"
    objects = found["objects"]
    faults = {
        "it took no time that there is": not 0 <= found["seconds"] <= _LONGEST_S,  # nor does one that is no number
        "its objects are too many": len(objects) > _MOST_OBJECTS,
        f"its objects are not for {triple}": not all(type(one) is bytes and is_object(one, triple) for one in objects),
        f"its objects have more than {_MOST_BYTES >> 20} MiB": sum(map(_size, objects)) > _MOST_BYTES,
    }
    fault = next((text for text, is_so in faults.items() if is_so), "")
    return fault or Answer(**{**found, "objects": tuple(objects)})


def _size(found: Any) -> int:
    return len(found) if type(found) is bytes else 0
