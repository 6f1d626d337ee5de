"""The engines that `cpu.py` compares: one small class for each, which gives it the settings that are best for it.

Libraries are imported where they are used: a process that measures the memory of one engine must not load another.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from toolchain.bundle import Bundle

Arrays = Mapping[str, "NDArray[Any]"]

# The versions that the figures in docs/cpu.md were taken with. OpenVINO asks for an older numpy than this project
# has, and for a telemetry package that it does not need to run a model; it works with neither.
INSTALL = {
    "mnn": "pip install --no-deps MNN==3.6.1",
    "openvino": "pip install --no-deps openvino==2025.3.0",
}


class Engine(Protocol):
    """A loaded model. Feeding and reading are apart from running, so that what is timed is inference alone."""

    def feed(self, inputs: Arrays) -> None:
        """Set the inputs of all later runs, by name."""

    def run(self) -> object:
        """Run once, to the end; the clock is around this call."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Copy the outputs of the last run, by name."""


class Ort:
    """ONNX Runtime with its defaults but for the threads: all graph optimizations, workers that spin between runs."""

    def __init__(self, model: Path, names: Sequence[str], threads: int) -> None:
        from toolchain.models.ort import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._names = names
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        for name in names:
            self._binding.bind_output(name)

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
    """OpenVINO for one request at a time; without the precision hint it would compute in bfloat16 where it can."""

    def __init__(self, model: Path, names: Sequence[str], threads: int) -> None:
        import openvino

        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = openvino.Core()
        self._names = names
        self._tensor = openvino.Tensor
        self._request = core.compile_model(core.read_model(str(model)), "CPU", options).create_infer_request()

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


class Mnn:
    """MNN in float32 with Winograd, which it chooses by itself; other precisions may compute with 16 bits."""

    def __init__(self, model: Path, names: Sequence[str], threads: int) -> None:
        import MNN

        release = 1  # the session mode that may fuse and reuse everything; the default keeps callbacks possible
        self._library = MNN
        self._interpreter = MNN.Interpreter(str(mnn_model(model)))
        self._interpreter.setSessionMode(release)
        self._session = self._interpreter.createSession(
            {"backend": "CPU", "numThread": threads, "precision": "high", "power": "high", "memory": "high"}
        )
        self._names = names

    def feed(self, inputs: Arrays) -> None:
        """See `Engine.feed`."""
        for name, value in inputs.items():
            place = self._interpreter.getSessionInput(self._session, name)
            place.copyFrom(self._host(value, place.getDataType()))

    def run(self) -> object:
        """See `Engine.run`."""
        return self._interpreter.runSession(self._session)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """See `Engine.outputs`."""
        return {name: self._read(name) for name in self._names}

    def _read(self, name: str) -> NDArray[Any]:
        place = self._interpreter.getSessionOutput(self._session, name)
        host = self._host(np.zeros(place.getShape(), np.float32), place.getDataType())
        place.copyToHostTensor(host)
        return np.array(host.getNumpyData()).reshape(place.getShape())

    def _host(self, value: NDArray[Any], kind: Any) -> Any:
        value = value.astype(np.int32) if value.dtype == np.int64 else value  # it has no integers of 64 bits
        return self._library.Tensor(value.shape, kind, value, self._library.Tensor_DimensionType_Caffe)


PEERS = {"ort": Ort, "mnn": Mnn, "openvino": OpenVino}
PACKAGES = {"ort": "onnxruntime", "mnn": "MNN", "openvino": "openvino"}
TITLES = {"ours": "ours", "ort": "ONNX Runtime", "mnn": "MNN", "openvino": "OpenVINO"}

# The converter's function and not its command `mnnconvert`, which installs a package that reports the use to its maker.
_CONVERT = "import _tools, sys; sys.exit(not _tools.mnnconvert(sys.argv))"


def mnn_model(model: Path) -> Path:
    """Convert an ONNX file to MNN's format, once: the result stays beside it, under the digest of the file."""
    with model.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    made = model.with_suffix(f".{version('mnn')}.{digest[:16]}.mnn")
    if not made.exists():
        part = made.with_suffix(".part")
        words = [sys.executable, "-c", _CONVERT, "-f", "ONNX", "--modelFile", model, "--MNNModel", part]
        words += ["--bizCode", "benchmark", "--optimizePrefer", "2"]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode or not part.exists():
            raise RuntimeError(f"MNN cannot convert {model.name}: {(done.stdout + done.stderr).strip()[-500:]}")
        part.rename(made)
    return made


def version(name: str) -> str:
    """Return the installed version of a peer."""
    return importlib.metadata.version(PACKAGES[name])


def missing() -> list[str]:
    """Name the peers that are not installed."""
    return [name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is None]


class Ours:
    """A bundle in TVM's virtual machine, set up as the C++ runner sets it up."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        import tvm
        from tvm import relax

        from toolchain import bundle as bundles
        from toolchain import tensors

        one_core_per_thread = -2  # the runner's choice, see runtime/model/device.cc
        cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:threads]]
        tvm.get_global_func("runtime.config_threadpool")(one_core_per_thread, threads, cpus)
        params = tensors.load(bundle.folder / bundles.PARAMS)
        self._tensor = tvm.runtime.tensor
        self._manifest = bundle.manifest
        self._params = [self._tensor(params[name]) for name in bundle.manifest.params_order]
        self._result: Any = None
        self.machine = relax.VirtualMachine(
            tvm.runtime.load_module(str(bundle.folder / bundle.manifest.library)), tvm.cpu()
        )

    def feed(self, inputs: Arrays) -> None:
        """See `Engine.feed`."""
        given = [self._tensor(inputs[spec.name]) for spec in self._manifest.inputs]
        # Bound once: passing hundreds of weights from Python would cost a small network more than its own time.
        self.machine.save_function(self._manifest.entry, "bound", *given, *self._params)
        self._call = self.machine["bound"]

    def run(self) -> object:
        """See `Engine.run`."""
        self._result = self._call()
        return self._result

    def outputs(self) -> dict[str, NDArray[Any]]:
        """See `Engine.outputs`."""
        values = [self._result] if hasattr(self._result, "numpy") else list(self._result)
        return {spec.name: one.numpy() for spec, one in zip(self._manifest.outputs, values, strict=True)}
