"""The samples of an evaluation: pictures or arrays with their labels, as they are in files."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from toolchain import files
from toolchain.errors import InputError, reason
from toolchain.models import inputs
from toolchain.models.inputs import Convert
from toolchain.pipeline.evaluate import coco
from toolchain.pipeline.evaluate.coco import Object
from toolchain.pipeline.evaluate.functions import UserFunction
from toolchain.tensors import Tensors, TensorSpec, check_signature

LABEL, TRANSCRIPT = "label", "transcript"
_SOUND = ".wav"
_FORMS = (
    "a folder with a folder of pictures, .wav or .npz files for each class, a folder of .npz files, a .csv file with"
    " the columns file and label or transcript, a .json file of COCO's form, or an .npz file with many samples"
)
Kind = Literal["pictures", "sounds", "arrays", "rows", "files"]  # files of other kinds are for the user's own function


@dataclass(frozen=True)
class Sample:
    """A sample; `label` is the name of its class, or its transcript, as written, empty without one."""

    name: str
    path: Path
    label: str = ""
    row: int | None = None  # its index in a file of many samples
    objects: tuple[Object, ...] = ()  # in a picture of a COCO file, whose `label` counts them
    size: tuple[int, int] | None = None  # height and width of a picture, as a COCO file has them


@dataclass(frozen=True)
class Dataset:
    """Samples of one kind."""

    path: Path  # as the user named it
    kind: Kind
    samples: tuple[Sample, ...]
    classes: tuple[str, ...] = ()  # the names of the class folders, in order
    categories: Mapping[int, str] = field(default_factory=dict)  # names of a COCO file's categories, by id

    @cached_property
    def digest(self) -> str:
        """Digest of the names, labels and contents of all samples."""
        contents: dict[Path, str] = {}
        total = hashlib.sha256()
        for sample in self.samples:
            if sample.path not in contents:
                contents[sample.path] = files.sha256_file(sample.path)
            objects = [
                [item.category, item.box, item.area, item.crowd, item.mask, item.points] for item in sample.objects
            ]
            key = [sample.name, sample.label, sample.row, contents[sample.path], *objects]
            total.update(files.canonical_json(key))
        return total.hexdigest()

    def limited(self, limit: int | None) -> Dataset:
        """Keep at most `limit` samples, which are spread evenly, since folders of classes are in order."""
        count = len(self.samples)
        if limit is None or limit >= count:
            return self
        return replace(self, samples=tuple(self.samples[index * count // limit] for index in range(limit)))


def read(path: Path, pictures: Path | None = None) -> Dataset:
    """List the samples of a folder or a file.

    Args:
        path: The folder or file.
        pictures: The folder of the pictures of a COCO file; by default, that of the file.

    Raises:
        InputError: There are none, a file is missing, or pictures cannot be read.
    """
    suffix = path.suffix.lower()
    if pictures and (path.is_dir() or suffix != ".json"):
        raise InputError(f"--pictures is for a COCO file, not for {path}", hint="leave --pictures out")
    if path.is_dir():
        dataset = _of_folder(path)
    elif not path.is_file():
        raise InputError(f"there are no data {path}", hint=f"pass {_FORMS}")
    elif suffix == ".csv":
        dataset = _of_table(path)
    elif suffix == ".npz":
        dataset = _of_rows(path)
    elif suffix == ".json":
        dataset = _of_coco(path, pictures or path.parent)
    else:
        raise InputError(f"{path} is not a data set", hint=f"pass {_FORMS}")
    if dataset.kind == "pictures":
        # All headers are read first, so that a damaged file among a thousand stops the run before it begins.
        for sample in dataset.samples:
            try:
                Image.open(sample.path).close()
            except Exception as fault:  # its decoders raise exceptions of any class
                raise InputError(f"cannot read the image {sample.path}", details=reason(fault)) from fault
    return dataset


def _of_folder(path: Path) -> Dataset:
    arrays = sorted(file for file in path.iterdir() if file.suffix.lower() == ".npz")
    if arrays:
        return Dataset(path, "arrays", tuple(Sample(file.name, file) for file in arrays))
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    suffixes = {*Image.registered_extensions(), ".npz", _SOUND}
    samples = [
        Sample(f"{folder.name}/{file.name}", file, folder.name)
        for folder in folders
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in suffixes and file.is_file()
    ]
    if not samples:
        raise InputError(f"there are no samples in {path}", hint=f"pass {_FORMS}")
    used = {sample.label for sample in samples}
    if empty := [folder.name for folder in folders if folder.name not in used]:
        raise InputError(
            f"{len(empty)} folder(s) of {path} have no samples, such as {empty[0]}", hint="fill or remove them"
        )
    return Dataset(path, _kind(path, samples), tuple(samples), tuple(folder.name for folder in folders))


def _of_table(path: Path) -> Dataset:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
            columns = [*(reader.fieldnames or ())]
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise InputError(f"cannot read {path}", details=reason(fault)) from fault
    kinds = [column for column in (LABEL, TRANSCRIPT) if column in columns]
    if "file" not in columns or len(kinds) != 1:
        raise InputError(
            f"{path} does not have the columns file and label, or file and transcript",
            details=f"its first line: {', '.join(columns)[:200]}",
            hint="write `file,label` as its first line",
        )
    samples = []
    for number, row in enumerate(rows, 2):
        name, label = (row["file"] or "").strip(), (row[kinds[0]] or "").strip()
        file = path.parent / name
        if not name or not file.is_file():
            raise InputError(
                f"line {number} of {path} names a file that does not exist: {name!r}",
                hint=f"paths begin in {path.parent}",
            )
        samples.append(Sample(name, file, label))
    if not samples:
        raise InputError(f"there are no samples in {path}", hint="write a line for each file below `file,label`")
    return Dataset(path, _kind(path, samples), tuple(samples))


def _of_coco(path: Path, folder: Path) -> Dataset:
    annotations = coco.read(path)
    samples = []
    for picture in annotations.pictures:
        file = folder / picture.file_name
        if not picture.file_name or not file.is_file():
            raise InputError(
                f"picture {picture.id} of {path} is not in {folder}: {picture.file_name!r}",
                hint="--pictures FOLDER names the folder of the pictures",
            )
        label = coco.title(picture.objects, annotations.categories)
        samples.append(Sample(picture.file_name, file, label, objects=picture.objects, size=picture.size))
    if not samples:
        raise InputError(f"there are no pictures in {path}", hint="its list `images` is empty")
    return Dataset(path, _kind(path, samples), tuple(samples), categories=annotations.categories)


def _of_rows(path: Path) -> Dataset:
    lengths = {name: shape[0] if shape else 0 for name, shape in inputs.shapes(path).items()}
    if len({*lengths.values()}) != 1 or 0 in lengths.values():
        raise InputError(
            f"the arrays of {path} do not have the same number of samples",
            details=", ".join(f"{name}: {count}" for name, count in lengths.items()),
            hint="each array has a leading axis of N samples",
        )
    count = next(iter(lengths.values()))
    return Dataset(path, "rows", tuple(Sample(f"{path.name}[{row}]", path, row=row) for row in range(count)))


def _kind(path: Path, samples: Sequence[Sample]) -> Kind:
    pictures = {*Image.registered_extensions(), ""}
    suffixes = {sample.path.suffix.lower() for sample in samples}
    known: dict[str, Kind] = {".npz": "arrays", _SOUND: "sounds"}
    kinds: set[Kind] = {known.get(suffix, "pictures" if suffix in pictures else "files") for suffix in suffixes}
    if kinds == {"sounds", "files"}:  # sounds in other formats, too, which only the user's own function reads
        return "files"
    if len(kinds) > 1:
        raise InputError(
            f"{path} has samples of several kinds: {', '.join(sorted(suffixes))}",
            details="pictures, sounds, .npz files and others",
            hint="evaluate each kind by itself",
        )
    return kinds.pop()


@dataclass(frozen=True)
class Target:
    """What a metric compares outputs with; `arrays` are those of an .npz file that are not inputs."""

    name: str  # of the sample
    label: str
    arrays: Tensors
    path: Path = Path()  # of the sample's file
    objects: tuple[Object, ...] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Reader:
    """Reads samples as inputs of a model."""

    dataset: Dataset
    specs: tuple[TensorSpec, ...]
    preprocess: UserFunction | None = None  # takes a file's path; returns the only input, or all by name
    convert: Convert | None = None  # what pictures and sounds become; None for the usual ImageNet preprocessing
    _rows: dict[str, NDArray[Any]] = field(default_factory=dict, compare=False, repr=False)

    def check(self) -> None:
        """Check that the first picture, or all arrays, fit the model.

        Raises:
            InputError: They do not.
        """
        has_steps = self.dataset.kind == "sounds" and self.convert
        if self.dataset.kind in {"files", "sounds"} and not (self.preprocess or has_steps):
            raise InputError(
                f"{self.dataset.samples[0].name} is neither a picture nor an .npz file",
                hint="--preprocess module:function names a function of your project that reads it",
            )
        if (
            self.dataset.kind == "pictures"
            and not self.preprocess
            and any(spec.shape[:1] != (1,) for spec in self.specs)
        ):
            raise InputError(
                "the model takes several pictures at once, or none",
                details="its inputs: " + ", ".join(map(str, self.specs)),
                hint="build it with a batch of one: --shape NAME:1,3,224,224; or pass --preprocess module:function",
            )
        samples = self.dataset.samples
        for sample in samples if self.dataset.kind == "arrays" and not self.preprocess else samples[:1]:
            self.inputs(sample)

    def inputs(self, sample: Sample) -> dict[str, NDArray[Any]]:
        """Read the inputs of a sample.

        Raises:
            InputError: They cannot be read, or do not fit the model.
        """
        if self.preprocess:
            result = self.preprocess(sample.name, sample.path)
            arrays = result if isinstance(result, dict) else {self.specs[0].name: result}
            arrays = {name: np.asarray(value) for name, value in arrays.items()}
        elif self.dataset.kind == "pictures":
            return inputs.from_image(sample.path, self.specs, self.convert)
        elif self.dataset.kind == "sounds":
            return inputs.from_sound(sample.path, self.specs, self.convert)
        else:
            names = {spec.name for spec in self.specs}
            arrays = {name: value for name, value in self._arrays(sample).items() if name in names}
        if faults := check_signature(arrays, self.specs):
            source = f"the result of {self.preprocess.name} for" if self.preprocess else "the arrays of"
            raise InputError(f"{source} {sample.name} do not fit the model", details="\n".join(faults))
        return arrays

    def target(self, sample: Sample) -> Target:
        if self.dataset.kind in {"pictures", "sounds", "files"}:
            return Target(sample.name, sample.label, {}, sample.path, sample.objects, sample.size)
        names = {spec.name for spec in self.specs}
        others = {name: value for name, value in self._arrays(sample).items() if name not in names}
        label = others.pop(LABEL, None)
        if label is not None and label.size != 1:
            raise InputError(
                f"the label of {sample.name} has the shape {label.shape}", hint="a label is one number or one text"
            )
        text = sample.label or ("" if label is None else str(label.reshape(-1)[0]))
        return Target(sample.name, text, others, sample.path, sample.objects)

    def _arrays(self, sample: Sample) -> dict[str, NDArray[Any]]:
        if sample.row is None:
            return inputs.arrays(sample.path, ())
        if not self._rows:
            self._rows.update(inputs.arrays(sample.path, ()))
        return {name: np.asarray(value[sample.row]) for name, value in self._rows.items()}
