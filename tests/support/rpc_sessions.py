"""Sessions for tests that compute on a board with all that TVM offers, in the process that holds its client."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.support.paths import ROOT
from toolchain import bundle, tensors
from toolchain.bundle import Bundle
from toolchain.rpc import Client, Session
from toolchain.rpc.child import Visit
from toolchain.tuning.measure import ServerPlace


@contextlib.contextmanager
def visiting(place: ServerPlace, timeout_s: float = 60.0, session_s: float = 60.0) -> Iterator[Session]:
    """Open a session at a place for the time of a block."""
    client = Client({**os.environ, "PYTHONPATH": str(ROOT)})
    client.load()
    try:
        session_place = dataclasses.replace(place, _client=client)
        with session_place.open(timeout_s, session_s, threading.Event()) as session:
            yield session
    finally:
        client.kill()


def computed(session: Session, release: Bundle, device: str, folder: Path) -> dict[str, np.ndarray]:
    """Return the outputs of a bundle's network for its reference's inputs; a folder takes them on their way."""
    out = folder / "outputs.npz"
    session.run(compute_there, str(release.folder), device, str(out))
    with np.load(out) as arrays:
        return {spec.name: arrays[f"arr_{index}"] for index, spec in enumerate(release.manifest.outputs)}


def compute_there(visit: Visit, folder: str, device: str, out: str) -> None:
    """Run a network by TVM's virtual machine."""
    import tvm
    from tvm import relax

    release = bundle.load(Path(folder))
    inputs, params = tensors.load(release.reference), tensors.load(release.folder / bundle.PARAMS)
    arrays = [inputs[f"input.{spec.name}"] for spec in release.manifest.inputs]
    arrays += [params[name] for name in release.manifest.params_order]
    where = visit.rpc.device(device, 0)
    visit.rpc.upload(str(release.folder / bundle.LIBRARY))
    machine = visit.keep(relax.VirtualMachine(visit.keep(visit.rpc.load_module(bundle.LIBRARY)), where))
    arguments = [visit.keep(tvm.runtime.tensor(array, where)) for array in arrays]
    result = visit.keep(visit.keep(machine["main"])(*arguments))
    outputs = [result] if isinstance(result, tvm.runtime.Tensor) else [visit.keep(item) for item in result]
    np.savez(out, *[item.numpy() for item in outputs])


def called(session: Session, library: Path, arguments: Sequence[np.ndarray], folder: Path) -> np.ndarray:
    """Call a kernel of a library, each of which needs a name of its own in a session; returns its last argument."""
    arguments_file, out = folder / "arguments.npz", folder / "result.npz"
    np.savez(arguments_file, *arguments)
    session.run(call_there, str(library), str(arguments_file), str(out))
    with np.load(out) as arrays:
        return arrays["arr_0"]


def call_there(visit: Visit, library: str, arguments_file: str, out: str) -> None:
    """Call the entry function of a library."""
    import tvm

    with np.load(arguments_file) as found:
        arrays = [found[f"arr_{index}"] for index in range(len(found.files))]
    visit.rpc.upload(library)
    there = [visit.keep(tvm.runtime.tensor(array, visit.rpc.cpu(0))) for array in arrays]
    visit.keep(visit.keep(visit.rpc.load_module(Path(library).name))["main"])(*there)
    np.savez(out, there[-1].numpy())
