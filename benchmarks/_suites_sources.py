"""The test suites of other projects that `suites.py` tries: where they are, and which models are in them.

Nothing of them is in this repository. A suite is read from a checkout; those that run the cases of ONNX itself list
them by name, and the cases come from the installed onnx.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support import operator_cases
from toolchain import tensors
from toolchain.tensors import DTYPES

_CAPTURE_S = 3600.0
_CAPTURE = Path(__file__).parent / "_suites_capture.py"
_TVM_TESTS = "tests/python/relax/test_frontend_onnx.py"


@dataclass(frozen=True)
class Case:
    """A model of a suite.

    Attributes:
        suite: The suite.
        name: What it is called there.
        model: The .onnx file.
        inputs: A safetensors file with what it is run with; None where the suite gives nothing that can be used.
    """

    suite: str
    name: str
    model: Path
    inputs: Path | None

    @property
    def key(self) -> str:
        """A digest that models have in common which are the same, with the same inputs."""
        digest = hashlib.sha256(self.model.read_bytes())
        digest.update(self.inputs.read_bytes() if self.inputs else b"")
        return digest.hexdigest()


Finder = Callable[[Path, Path], Iterator[Case]]
"""Finds the models in a checkout; files that it makes go to the second folder."""


@dataclass(frozen=True)
class Suite:
    """A public repository at one commit, and how its models are found."""

    name: str
    url: str
    commit: str
    find: Finder

    def checkout(self, folder: Path) -> Path:
        """Clone the commit, and nothing before it, unless that was done before."""
        if not (folder / ".git").is_dir():
            subprocess.run(["git", "init", "-q", folder], check=True)
            subprocess.run(["git", "-C", folder, "remote", "add", "origin", self.url], check=True)
        present = subprocess.run(
            ["git", "-C", folder, "rev-parse", "-q", "HEAD"], capture_output=True, text=True, check=False
        )
        if present.stdout.strip() != self.commit:
            subprocess.run(["git", "-C", folder, "fetch", "-q", "--depth", "1", "origin", self.commit], check=True)
            subprocess.run(["git", "-C", folder, "checkout", "-q", self.commit], check=True)
        return folder


def _tvm(checkout: Path, folder: Path) -> Iterator[Case]:
    """Run TVM's tests of its importer with a stand-in for what compares, which keeps each model instead."""
    complete = folder / "complete"  # it takes minutes, and is the same each time
    if not complete.exists():
        _capture(checkout, folder)
        complete.touch()
    for model in sorted(folder.glob("*.onnx")):
        yield Case("tvm", model.stem, model, _existing(model.with_suffix(".safetensors")))


def _capture(checkout: Path, folder: Path) -> None:
    environment = {"SUITES_FOLDER": str(folder), "PYTHONPATH": str(_CAPTURE.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", _CAPTURE.stem, "-p", "no:cacheprovider"]
    command += ["--rootdir", str(checkout), "-c", os.devnull, str(checkout / _TVM_TESTS)]
    with (folder / "log").open("w") as log:
        subprocess.run(
            command, env=os.environ | environment, cwd=folder, stdout=log, stderr=log, timeout=_CAPTURE_S, check=False
        )


def _burn(checkout: Path, _folder: Path) -> Iterator[Case]:
    for folder in ("onnx-tests/tests", "onnx-ir/tests/fixtures"):
        root = checkout / "crates" / folder
        for model in sorted(root.rglob("*.onnx")):
            yield Case("burn", str(model.relative_to(root).with_suffix("")), model, None)


def _tract(checkout: Path, folder: Path) -> Iterator[Case]:
    root = checkout / "onnx" / "test_cases"
    for model in sorted(root.rglob("*.onnx")):
        name = str(model.parent.relative_to(root))
        archive = model.parent / "io.npz"
        yield Case("tract", name, model, _matching(model, _read_npz(archive), folder / name.replace("/", "-")))
    lists = sorted((checkout / "test-rt" / "suite-onnx").glob("*.txt"))
    yield from _of_onnx("tract", folder, [pattern for file in lists for pattern in _listed(file)])


def _listed(file: Path) -> Iterator[str]:
    """Yield the regular expressions of a list of ONNX's cases; what follows a name are notes."""
    prefix = "" if file.stem == "node" else f"{file.stem}__"
    for line in file.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield prefix + line.split()[0]


def _onnx2c(checkout: Path, folder: Path) -> Iterator[Case]:
    root = checkout / "test"
    for model in sorted(root.rglob("*.onnx")):
        name = str(model.parent.relative_to(root) if model.stem == "model" else model.relative_to(root).with_suffix(""))
        yield Case("onnx2c", name, model, _of_data_set(model, folder / name.replace("/", "-")))
    text = (root / "CMakeLists.txt").read_text()
    names = [f"test_{name}" for name in re.findall(r"^ONNX_backend_node_test\w*\(\s*(\w+)", text, re.MULTILINE)]
    names += [
        f"pytorch-converted__test_{name}"
        for name in re.findall(r"^ONNX_backend_pytorch_converted_test\(\s*(\w+)", text, re.MULTILINE)
    ]
    yield from _of_onnx("onnx2c", folder, names)


def _wonnx(checkout: Path, folder: Path) -> Iterator[Case]:
    for model in sorted((checkout / "data" / "models").glob("*.onnx")):
        yield Case("wonnx", model.stem, model, None)
    text = (checkout / "wonnx-py" / "tests" / "test_onnx_backend.py").read_text()
    patterns = re.findall(r'^backend_test\.include\(\s*f?"([^"]+)"', text, re.MULTILINE)
    yield from _of_onnx("wonnx", folder, [f"(\\w+__)?{pattern}.*" for pattern in patterns])


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("tvm", "https://github.com/apache/tvm", "5d4dc8721307cf9677becacf0395c19be130e206", _tvm),
        Suite("burn", "https://github.com/tracel-ai/burn-onnx", "7db1e206c9f3c8842dd5430010c172fa53457164", _burn),
        Suite("tract", "https://github.com/sonos/tract", "38b383fbd8ee33873fd0b58fcc23480011554c0c", _tract),
        Suite("onnx2c", "https://github.com/kraiskil/onnx2c", "ea045cc169e9338bc8fe5b54d5109d2f2828db44", _onnx2c),
        Suite("wonnx", "https://github.com/webonnx/wonnx", "c62f5d336c152102882a163ebc1eb18e63550de8", _wonnx),
    )
}


def _of_onnx(suite: str, folder: Path, patterns: Iterable[str]) -> Iterator[Case]:
    """Write the cases of the installed onnx whose names fit one of some regular expressions."""
    expression = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for case in operator_cases.cases().values():
        if expression.fullmatch(case.name):
            model = folder / f"{case.name}.onnx"
            onnx.save(case.proto, model)
            names = [value.name for value in case.proto.graph.input]
            inputs = dict(zip(names, case.inputs, strict=False)) if len(names) == len(case.inputs) else {}
            yield Case(suite, f"onnx/{case.name}", model, _saved(inputs, folder / case.name))


def _of_data_set(model: Path, target: Path) -> Path | None:
    """Read inputs in the form of ONNX's own cases, which lie beside a model."""
    folder = model.parent / "test_data_set_0"
    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    inputs = {}
    for number, name in enumerate(names):
        path = folder / f"input_{number}.pb"
        if path.is_file():
            inputs[name] = numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
    return _saved(inputs, target) if len(inputs) == len(names) else None


def _read_npz(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with np.load(path) as archive:
        return dict(archive)


def _matching(model: Path, arrays: Mapping[str, Any], target: Path) -> Path | None:
    """Keep what an archive has for a model's inputs, which it may hold beside outputs and under longer names."""
    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    inputs = {name: arrays[name] for name in names if name in arrays}
    return _saved(inputs, target) if len(inputs) == len(names) else None


def _saved(inputs: Mapping[str, Any], target: Path) -> Path | None:
    arrays = {name: np.asarray(value) for name, value in inputs.items() if isinstance(value, (np.ndarray, np.generic))}
    if not inputs or len(arrays) != len(inputs) or any(str(value.dtype) not in DTYPES for value in arrays.values()):
        return None
    path = target.parent / f"{target.name}.safetensors"
    tensors.save(path, arrays)
    return path


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None
