"""The engines that `cpu.py` compares: one small class for each, with the settings that are best for it.

Each engine is loaded in a process of its own (`_engine.py`), so its library is imported where it is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks import _product

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]


class Engine(Protocol):
    """A loaded model. Feeding and reading are apart from running, so that what is timed is inference alone."""

    def feed(self, inputs: Arrays) -> None:
        """Set the inputs of all later runs, by name."""

    def run(self) -> object:
        """Run once, to the end; the clock is around this call."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Copy the outputs of the last run, by name."""


class Ours:
    """A bundle in libedge_model, as an application that uses the SDK's Python opens it."""

    def __init__(self, folder: Path, _names: Sequence[str], threads: int) -> None:
        """`folder` is a folder that `_product.build` has written."""
        sys.path.insert(0, str(folder / _product.SDK / "python"))
        import edge_model

        self._model = edge_model.Model(folder / _product.BUNDLE, threads=threads)
        # `Model.run` checks and copies arrays, which the peers' calls here leave out as well.
        self._run = self._model._functions.edge_run  # noqa: SLF001
        self._handle = self._model._model  # noqa: SLF001
        self._tensors = self._model._tensors  # noqa: SLF001

    def feed(self, inputs: Arrays) -> None:
        """See `Engine.feed`."""
        for name, array in self._model.inputs.items():
            array[...] = inputs[name]

    def run(self) -> None:
        """See `Engine.run`."""
        if self._run(self._handle):
            raise RuntimeError(self._model._functions.edge_error().decode())  # noqa: SLF001

    def outputs(self) -> dict[str, NDArray[Any]]:
        """See `Engine.outputs`."""
        return {name: tensor.array().copy() for name, tensor in self._tensors("output")}


class Ort:
    """ONNX Runtime with its defaults but for the threads: all graph optimizations, workers that spin between runs."""

    def __init__(self, model: Path, names: Sequence[str], threads: int) -> None:
        onnxruntime = self.library()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._names = names
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        for name in names:
            self._binding.bind_output(name)

    @staticmethod
    def library() -> Any:
        """Import it."""
        from toolchain.models.ort import onnxruntime

        return onnxruntime

    def feed(self, inputs: Arrays) -> None:
        """See `Engine.feed`."""
        for name, value in inputs.items():
            self._binding.bind_cpu_input(name, value)

    def run(self) -> None:
        """See `Engine.run`."""
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """See `Engine.outputs`."""
        return dict(zip(self._names, self._binding.copy_outputs_to_cpu(), strict=True))


class OpenVino:
    """OpenVINO for one request at a time, in float32."""

    precision: Mapping[str, str] = {"INFERENCE_PRECISION_HINT": "f32"}

    def __init__(self, model: Path, names: Sequence[str], threads: int) -> None:
        import openvino

        options = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
        core = openvino.Core()
        self._names = names
        self._tensor = openvino.Tensor
        compiled = core.compile_model(core.read_model(str(model)), "CPU", options | dict(self.precision))
        self._request = compiled.create_infer_request()

    def feed(self, inputs: Arrays) -> None:
        """See `Engine.feed`."""
        for name, value in inputs.items():
            self._request.set_tensor(name, self._tensor(value))

    def run(self) -> object:
        """See `Engine.run`."""
        return self._request.infer(share_outputs=True)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """See `Engine.outputs`."""
        return {name: self._request.get_output_tensor(i).data.copy() for i, name in enumerate(self._names)}


class OpenVinoAsIs(OpenVino):
    """OpenVINO in the precision that it chooses: bfloat16 where the CPU has it."""

    precision: Mapping[str, str] = {}


class Mnn:
    """MNN in float32 with Winograd, which it chooses by itself; other precisions may compute with 16 bits."""

    precision = "high"

    def __init__(self, model: Path, names: Sequence[str], threads: int) -> None:
        import MNN

        release = 1  # the session mode that may fuse and reuse everything; the default keeps callbacks possible
        self._library = MNN
        self._interpreter = MNN.Interpreter(str(self.converted(model)))
        self._interpreter.setSessionMode(release)
        self._session = self._interpreter.createSession(
            {"backend": "CPU", "numThread": threads, "precision": self.precision, "power": "high", "memory": "high"}
        )
        self._names = names

    @staticmethod
    def converted(model: Path) -> Path:
        """Return the file in MNN's format."""
        return mnn_model(model)

    def feed(self, inputs: Arrays) -> None:
        """See `Engine.feed`."""
        for name, value in inputs.items():
            tensor = self._interpreter.getSessionInput(self._session, name)
            tensor.copyFrom(self._host(value, tensor.getDataType()))

    def run(self) -> object:
        """See `Engine.run`."""
        return self._interpreter.runSession(self._session)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """See `Engine.outputs`."""
        return {name: self._read(name) for name in self._names}

    def _read(self, name: str) -> NDArray[Any]:
        tensor = self._interpreter.getSessionOutput(self._session, name)
        host = self._host(np.zeros(tensor.getShape(), np.float32), tensor.getDataType())
        tensor.copyToHostTensor(host)
        return np.array(host.getNumpyData()).reshape(tensor.getShape())

    def _host(self, value: NDArray[Any], kind: Any) -> Any:
        value = value.astype(np.int32) if value.dtype == np.int64 else value  # it has no integers of 64 bits
        return self._library.Tensor(value.shape, kind, value, self._library.Tensor_DimensionType_Caffe)


class Ncnn:
    """ncnn in float32, of what pnnx converts; its blobs have no batch."""

    float16 = False

    def __init__(self, model: Path, names: Sequence[str], threads: int) -> None:
        import ncnn

        self._library, self._names = ncnn, names
        self._net = ncnn.Net()
        self._net.opt.num_threads = threads
        self._net.opt.use_bf16_storage = False
        for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
            setattr(self._net.opt, option, self.float16)
        if self.load(model):
            raise RuntimeError("ncnn cannot load the model")
        self._read: list[Any] = []

    def load(self, model: Path) -> bool:
        """Load the network; returns whether that fails."""
        param, weights = ncnn_model(model)
        return bool(self._net.load_param(str(param)) or self._net.load_model(str(weights)))

    def feed(self, inputs: Arrays) -> None:
        """See `Engine.feed`."""
        self._shapes = [value.shape for value in inputs.values()]
        if any(shape[:1] != (1,) for shape in self._shapes):
            raise ValueError("an input has no batch of one")
        self._inputs = [self._library.Mat(np.ascontiguousarray(value[0])) for value in inputs.values()]

    def run(self) -> None:
        """See `Engine.run`."""
        extractor = self._net.create_extractor()
        for name, value in zip(self._net.input_names(), self._inputs, strict=True):
            extractor.input(name, value)
        results = [extractor.extract(name) for name in self._net.output_names()]
        if any(code for code, _ in results):
            raise RuntimeError("ncnn cannot compute an output")
        self._read = [value for _, value in results]

    def outputs(self) -> dict[str, NDArray[Any]]:
        """See `Engine.outputs`."""
        return {name: np.array(value)[None] for name, value in zip(self._names, self._read, strict=True)}


PEERS: Mapping[str, type[Any]] = {
    "ort": Ort,
    "openvino": OpenVino,
    "openvino-as-is": OpenVinoAsIs,
    "mnn": Mnn,
    "ncnn": Ncnn,
}
BFLOAT16 = "ours-bf16"
OURS = ("ours", "before", BFLOAT16)
ENGINES = {**dict.fromkeys(OURS, Ours), **PEERS}
PACKAGES = {"ort": "onnxruntime", "openvino": "openvino", "openvino-as-is": "openvino", "mnn": "MNN", "ncnn": "ncnn"}
TITLES = {
    "ours": "ours",
    "before": "ours before",
    BFLOAT16: "ours bf16",
    "ort": "ONNX Runtime",
    "openvino": "OpenVINO",
    "openvino-as-is": "OpenVINO bf16",
    "mnn": "MNN",
    "ncnn": "ncnn",
}
FLOAT_ONLY = frozenset({"mnn", "ncnn"})
"""Peers that would compute a QDQ model in float32."""
OTHER_PRECISION = frozenset({"openvino-as-is", BFLOAT16})
"""Rows that are shown, and never the best peer."""


def versions() -> dict[str, str]:
    """Return the versions of the peers that are installed, by engine."""
    present = {name: package for name, package in PACKAGES.items() if importlib.util.find_spec(package)}
    return {name: importlib.metadata.version(package) for name, package in present.items()}


# The converter's function and not its command `mnnconvert`, which installs a package that reports the use to its maker.
_CONVERT = "import _tools, sys; sys.exit(not _tools.mnnconvert(sys.argv))"


def mnn_model(model: Path, python: Sequence[str | Path] = (sys.executable,)) -> Path:
    """Convert an ONNX file to MNN's format, once: the result stays beside it, under the digest of the file.

    Args:
        model: The file.
        python: The command of a Python that has MNN.
    """
    converted = _converted(model, "mnn")
    if not converted.exists():
        unfinished = converted.with_suffix(".part")
        command = [*python, "-c", _CONVERT, "-f", "ONNX", "--modelFile", model, "--MNNModel", unfinished]
        command += ["--bizCode", "benchmark", "--optimizePrefer", "2"]
        completed = subprocess.run(command, check=False, capture_output=True, text=True)
        if completed.returncode or not unfinished.exists():
            raise RuntimeError(
                f"MNN cannot convert {model.name}: {(completed.stdout + completed.stderr).strip()[-500:]}"
            )
        unfinished.rename(converted)
    return converted


def ncnn_model(model: Path) -> tuple[Path, Path]:
    """Convert an ONNX file to ncnn's two files by pnnx, once."""
    folder = _converted(model, "ncnn")
    if not folder.exists():
        unfinished = folder.with_suffix(".part")
        unfinished.mkdir(exist_ok=True)
        copy = unfinished / "model.onnx"
        copy.write_bytes(model.read_bytes())
        command = [_pnnx(), copy, "fp16=0", "optlevel=2"]
        completed = subprocess.run(command, check=False, capture_output=True, text=True, cwd=unfinished)
        if completed.returncode or not (unfinished / "model.ncnn.bin").exists():
            raise RuntimeError(
                f"pnnx cannot convert {model.name}: {(completed.stdout + completed.stderr).strip()[-300:]}"
            )
        unfinished.rename(folder)
    return folder / "model.ncnn.param", folder / "model.ncnn.bin"


def _pnnx() -> Path:
    """Return the converter in its wheel, whose own command imports PyTorch first."""
    spec = importlib.util.find_spec("pnnx")
    if spec is None or spec.origin is None:
        raise RuntimeError("pnnx, which converts for ncnn, is not installed")
    program = Path(spec.origin).with_name("pnnx")
    program.chmod(0o755)
    return program


def _converted(model: Path, peer: str) -> Path:
    with model.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return model.with_suffix(f".{versions()[peer]}.{digest[:16]}.{peer}")
