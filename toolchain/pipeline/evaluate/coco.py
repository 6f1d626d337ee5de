"""Files of annotations in COCO's form: pictures, and the objects in them as boxes, masks and key points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from toolchain import files, validation
from toolchain.errors import InputError, reason

_LARGEST = 1 << 29  # bytes: that of COCO's own training pictures has 450 MB
_CONFIG = ConfigDict(extra="ignore", strict=True)
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Box = tuple[_Number, _Number, _Size, _Size]
_Side = Annotated[int, Field(ge=1, le=1 << 15)]
_HINT = "a COCO file has the lists images, annotations (with bbox) and categories"


@dataclass(frozen=True)
class Object:
    """An object in a picture; of a crowd, nothing that is found or missed counts."""

    category: int
    box: tuple[float, float, float, float]  # left, top, width and height in pixels of the picture's file
    area: float
    crowd: bool = False
    mask: Any = None  # its pixels as the file has them, unchecked: polygons, or runs; None without them
    points: Any = None  # its key points as the file has them, unchecked: x, y and visibility of each; None without them


@dataclass(frozen=True)
class Picture:
    id: int
    file_name: str
    objects: tuple[Object, ...]
    size: tuple[int, int] | None = None  # height and width; None if the file does not have them


@dataclass(frozen=True)
class Annotations:
    pictures: tuple[Picture, ...]  # by ascending id
    categories: Mapping[int, str]


@checked_dataclass(frozen=True, config=_CONFIG)
class _Image:
    id: int
    file_name: str
    height: _Side | None = None
    width: _Side | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.height, self.width) if self.height and self.width else None


@checked_dataclass(frozen=True, config=_CONFIG)
class _Annotation:
    image_id: int
    category_id: int
    bbox: _Box
    area: _Size | None = None
    iscrowd: Literal[0, 1] = 0
    segmentation: Any = None
    keypoints: Any = None

    def object(self) -> Object:
        area = self.bbox[2] * self.bbox[3] if self.area is None else self.area
        return Object(self.category_id, self.bbox, area, bool(self.iscrowd), self.segmentation or None, self.keypoints)


@checked_dataclass(frozen=True, config=_CONFIG)
class _Category:
    id: int
    name: str


@checked_dataclass(frozen=True, config=_CONFIG)
class _File:
    images: Annotated[list[_Image], validation.FIRST_FAULT]
    annotations: Annotated[list[_Annotation], validation.FIRST_FAULT]
    categories: Annotated[list[_Category], validation.FIRST_FAULT] = field(default_factory=list)


def read(path: Path) -> Annotations:
    """Read a file.

    Raises:
        InputError: It is not in COCO's form, or an annotation is of an unknown picture or category.
    """
    try:
        table = TypeAdapter(_File).validate_json(files.read_limited(path, _LARGEST))
    except ValidationError as fault:
        raise InputError(f"{path} is not a COCO file of boxes", details=validation.words(fault), hint=_HINT) from fault
    except OSError as fault:
        raise InputError(f"cannot read {path}", details=reason(fault)) from fault
    _check_unique(path, "images", (image.id for image in table.images))
    _check_unique(path, "categories", (category.id for category in table.categories))
    categories = {category.id: category.name for category in table.categories}
    objects: dict[int, list[Object]] = {image.id: [] for image in table.images}
    for number, annotation in enumerate(table.annotations):
        for kind, key, known in (
            ("picture", annotation.image_id, objects),
            ("category", annotation.category_id, categories),
        ):
            if key not in known:
                raise InputError(
                    f"annotation {number} of {path} is of {kind} {key}, which the file does not list",
                    details="annotations are counted from 0",
                    hint=_HINT,
                )
        objects[annotation.image_id].append(annotation.object())
    pictures = (Picture(image.id, image.file_name, tuple(objects[image.id]), image.size) for image in table.images)
    return Annotations(tuple(sorted(pictures, key=lambda picture: picture.id)), categories)


def _check_unique(path: Path, name: str, ids: Iterable[int]) -> None:
    key, count = next(iter(Counter(ids).most_common(1)), (0, 0))
    if count > 1:
        raise InputError(f"{count} of the {name} of {path} have the id {key}", hint="give each an id of its own")


def title(objects: Iterable[Object], categories: Mapping[int, str]) -> str:
    """Return how many objects there are of each category, such as `2 cat, 1 dog`."""
    counts = Counter(categories[item.category] for item in objects if not item.crowd)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
