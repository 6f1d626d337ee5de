"""VTA on boards: networks over SSH and over RPC, here and on emulated ARM; and what is refused, in which words.

The accelerator is simulated on each of them, by the same programs that run on real boards.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import tirx

from tests.integration.test_board_server import KINDS as MACHINES
from tests.integration.test_board_server import built as board_server_of
from tests.integration.test_board_server import running as serving
from tests.support import bundles, deploys, nets, nightly, sshd, vta_layers, vta_nets, vta_streams
from tests.support.commands import toolchain
from tests.support.rpc_sessions import called, compute_there, computed, visiting
from toolchain import board, bundle
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import RUN, kernel
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.devices import DEVICES
from toolchain.backends.vta.isa.instructions import Load, Memory
from toolchain.backends.vta.isa.stream import Stream
from toolchain.bundle import Bundle
from toolchain.device.store import Store
from toolchain.farm import boards
from toolchain.models import reference
from toolchain.native import programs
from toolchain.records.results import TensorArg
from toolchain.rpc import CallError
from toolchain.rpc.child import Visit
from toolchain.shell import SshOptions, open_shell
from toolchain.tuning.measure.trial import measure_trial
from toolchain.tuning.trials import Options, Trial

HERE = "vta-sim-x86_64"
ARM = {"vta-sim-aarch64": "rpi4", "vta-sim-armv7": "pynq"}
"""Board types, and the virtual boards that stand for them."""

LIMIT = 1e-4  # for what the CPU computes of ResNet-18, in floats; the other limit is 5e-2
ROOT = "/data/vta"  # on virtual boards, which other tests deploy to as well
LAYERS = 20  # of ResNet-18's convolutions, all of them


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sshd.require_sshd()
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def to_it(server: sshd.Server, root: Path, kind: str | Path = HERE) -> list[Any]:
    """Return the words of a command that name a device behind the SSH server."""
    options = ["--board", kind, "--host", server.host, "-i", server.key_file]
    return [*options, "--known-hosts", server.known_hosts, "--root", root]


def made(source: object, kind: str | Path, folder: Path, *more: object) -> Bundle:
    outcome = toolchain("build", source, "--board", kind, "--toolchain", "host", "-o", folder, *more)
    assert outcome.code == 0, outcome.err
    return bundle.load(folder)


def deployed(server: sshd.Server, release: Bundle, root: Path) -> dict[str, np.ndarray]:
    """Return what a device computes for the inputs of a bundle's reference."""
    kind = board.load(HERE).resolved()
    options = SshOptions(known_hosts=(server.known_hosts,), identity=server.key_file, agent=False)
    program = programs.build(programs.RUNNER, kind.triple, kind.machine)
    with open_shell(server.host, config=options) as shell:
        return deploys.deploy(release, program, shell, Store(shell, str(root)), keep=1, threads=0).run.outputs


def expected(release: Bundle) -> dict[str, np.ndarray]:
    """Return what ONNX Runtime computes."""
    return dict(bundle.Reference.read(release.reference).outputs)


# --- ResNet-18, which takes minutes; in CI, the small network below takes the same ways ------------------------------


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """The network in int8, and the report of what that costs."""
    folder = tmp_path_factory.mktemp("quantized")
    path, report = folder / "resnet.onnx", folder / "report.json"
    outcome = toolchain("quantize", "resnet-18", "--calibration", "random", "-o", path, "--report", report)
    assert outcome.code == 0, outcome.err
    return path, json.loads(report.read_text())


@pytest.fixture(scope="module")
def resnet(quantized, tmp_path_factory) -> Bundle:
    """The network as a bundle."""
    return made(quantized[0], HERE, tmp_path_factory.mktemp("resnet") / "bundle")


@pytest.mark.nightly
def test_it_keeps_its_answers(quantized):
    _, report = quantized
    assert (len(report["layers"]), report["left"]) == (LAYERS, [])
    assert all(layer["exact"] for layer in report["layers"])
    assert report["top1_agreement"] == 1.0
    assert report["output_snr_db"] >= 30


@pytest.mark.nightly
def test_it_runs_over_ssh(server, resnet, tmp_path):
    command = [*to_it(server, tmp_path / "device"), "--budget", 0.5, "--json", tmp_path / "report.json"]
    outcome = toolchain("deploy", resnet.folder, *command)
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["outputs"]["ok"] is True
    assert report["outputs"]["reference"] == reference.name(unoptimized=True)
    assert report["outputs"]["max_rel_diff"] <= LIMIT
    assert report["emulated"] is True
    assert any("emulated" in text for text in report["warnings"])
    assert report["modelled"]["kernels"] == LAYERS
    assert report["modelled"]["cycles"] > report["modelled"]["macs"] / report["modelled"]["macs_per_cycle"]
    figures = {line.split()[0]: line for line in outcome.out.splitlines() if line.strip()}
    assert "emulated" in figures["latency"]
    assert "not measured" in figures["modelled"]


@pytest.fixture(scope="module")
def session(server, tmp_path_factory):
    """The board's server, as tuning reaches it: pushed and started over SSH, used through the same connection."""
    keys = SshOptions(known_hosts=(server.known_hosts,), identity=server.key_file, agent=False)
    root = str(tmp_path_factory.mktemp("served"))
    board_request = boards.BoardRequest(board.load(HERE).resolved(), server.host, ssh=keys, root=root)
    with boards.open_boards(board_request, print) as opened:
        (opened_place,) = opened.places
        assert opened_place.emulated
        yield lambda: visiting(opened_place, session_s=120.0)


@pytest.mark.nightly
def test_it_runs_over_rpc_as_over_ssh(server, session, resnet, tmp_path):
    over_ssh = deployed(server, resnet, tmp_path / "device")
    with session() as opened:
        over_rpc = computed(opened, resnet, "cpu", tmp_path)
    assert over_ssh.keys() == over_rpc.keys()
    for name, output in over_rpc.items():
        np.testing.assert_array_equal(output, over_ssh[name])


@pytest.mark.nightly
def test_every_int8_tensor_is_that_of_onnxruntime(quantized, tmp_path):
    """From where the network is rounded for the first time: before, floats are added up in another order."""
    proto = onnx.shape_inference.infer_shapes(onnx.load(quantized[0]))
    edges = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    activations = [node.output[0] for node in edges]
    assert len(activations) >= LAYERS
    region = onnx.utils.Extractor(proto).extract_model([edges[0].input[0]], activations)
    release = made(nets.save(region, tmp_path), "vta-sim", tmp_path / "bundle")
    options = ["--board", "vta-sim", "--root", tmp_path / "device", "--budget", 0, "--tolerance", 0, "--json", "-"]
    outcome = toolchain("deploy", release.folder, *options)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["outputs"]["max_abs_diff"] == 0
    expected_outputs = expected(release)
    assert len(expected_outputs) == len(activations)
    assert all(array.dtype == np.int8 and len(np.unique(array)) > 16 for array in expected_outputs.values())


# --- a small network, all of it in integers --------------------------------------------------------------------------


def residual() -> onnx.ModelProto:
    """Layers with strides, a residual and a branch; floats hold all of its sums, in whichever order."""
    net = vta_nets.Net(16, (9, 12))
    x = net.rounded("x", 4)
    inner = net.conv(net.layer(x, 16, 32, 3), 32, 16, 3, pads=[1] * 4)
    summed = net.rounded(net.add("Relu", [net.add("Add", [inner, x])]), 4)
    narrow = net.layer(summed, 16, 48, 3, stride=2)
    beside = net.conv(summed, 16, 48, 1, strides=[2, 2])
    return net.proto(net.rounded(net.add("Add", [beside, narrow]), 4))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    return nets.save(residual(), tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def small(source, tmp_path_factory) -> Bundle:
    return made(source, HERE, tmp_path_factory.mktemp("small") / "bundle")


@pytest.fixture(scope="module")
def expected_outputs(small, server, tmp_path_factory) -> dict[str, np.ndarray]:
    """What x86-64 computes."""
    outputs = deployed(server, small, tmp_path_factory.mktemp("wanted") / "device")
    for name, array in expected(small).items():
        np.testing.assert_array_equal(outputs[name], array)
        assert len(np.unique(array)) > 16
    return outputs


@pytest.fixture(scope="module", params=[nightly.left("vta-sim-aarch64"), "vta-sim-armv7"])
def arm(request, source, tmp_path_factory) -> Bundle:
    MACHINES[board.load(request.param).machine].require()
    return made(source, request.param, tmp_path_factory.mktemp("arm") / "bundle")


def test_arm_computes_the_same_over_rpc(arm, expected_outputs, tmp_path):
    """Under qemu-user."""
    machine = MACHINES[arm.manifest.machine]
    with serving(board_server_of(machine), tmp_path, emulator=machine.emulator) as server:
        visit = Visit(server.connect())
        compute_there(visit, str(arm.folder), "cpu", str(tmp_path / "outputs.npz"))
        visit.close()
    with np.load(tmp_path / "outputs.npz") as arrays:
        outputs = {spec.name: arrays[f"arr_{number}"] for number, spec in enumerate(arm.manifest.outputs)}
    for name, array in expected_outputs.items():
        np.testing.assert_array_equal(outputs[name], array)


def test_arm_computes_the_same_over_ssh(arm, expected_outputs, virtual_boards):
    where = ["--host", virtual_boards.name(ARM[arm.manifest.board]), "--ssh-config", virtual_boards.config]
    options = ["--board", arm.manifest.board, *where, "--root", ROOT]
    outcome = toolchain("deploy", arm.folder, *options, "--budget", 0, "--tolerance", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert (report["outputs"]["max_abs_diff"], report["emulated"]) == (0, True)
    for name, array in expected(arm).items():
        np.testing.assert_array_equal(array, expected_outputs[name])


def test_a_pynq_without_a_bitstream_keeps_what_it_runs(source, virtual_boards, tmp_path):
    """On a virtual board, which has no FPGA either."""
    MACHINES["armv7l"].require()
    where = ["--host", virtual_boards.name("pynq"), "--ssh-config", virtual_boards.config, "--root", ROOT + "-pynq"]
    simulated = made(source, "vta-sim-armv7", tmp_path / "simulated")
    outcome = toolchain("deploy", simulated.folder, "--board", "vta-sim-armv7", *where, "--budget", 0)
    assert outcome.code == 0, outcome.err
    outcome = toolchain("deploy", made(source, "pynq-z1", tmp_path / "real").folder, "--board", "pynq-z1", *where)
    assert (outcome.code, "Traceback" in outcome.err) == (4, False), outcome.err
    assert re.search(r"lacks the (library|device) of ", outcome.err), outcome.err
    assert simulated.digest[:16] in toolchain("status", "--board", "pynq-z1", *where).out


# --- one kernel, as tuning runs it -----------------------------------------------------------------------------------

LAYER = vta_layers.task(14, 32, 64, 3, 1, 1)
DEVICE = DEVICES["vta-sim"]


def library(path: Path, function: Any) -> Path:
    """Compile a kernel for this machine."""
    entry = function.with_attr("global_symbol", "main")
    tvm.compile(tvm.IRModule({"main": entry}), target="llvm").export_library(str(path))
    return path


def test_a_kernel_is_timed_over_rpc(session, tmp_path):
    function = kernel(LAYER, kernels.candidates(LAYER)[0], DEVICE)
    arguments = vta_layers.tensors(LAYER)
    trial = Trial(
        library(tmp_path / "kernel.so", function), tuple(TensorArg(kind, shape) for shape, kind in LAYER.arguments())
    )
    with session() as opened:
        timing = measure_trial(opened, trial, Options(number=1, repeat=3, min_repeat_ms=0), 2.0, 10.0)
        (samples,) = timing.samples_s
        assert len(samples) == 3
        assert all(0 < sample < 1 for sample in samples)
        result = called(opened, trial.library.rename(tmp_path / "again.so"), arguments, tmp_path)
    np.testing.assert_array_equal(result, vta_layers.reference(LAYER, arguments))


# --- streams that were tampered with ---------------------------------------------------------------------------------

TEXT = re.compile(rb"VlRBU1RS[A-Za-z0-9+/]+=*")  # Base64 of what each stream begins with
LOG_ACC = 20  # place in its header of the logarithm of that memory's size


def flipped(data: bytes) -> bytes:
    """Change one bit in the middle."""
    position = len(data) // 2
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def reaching(data: bytes) -> bytes:
    """Load from behind the weights, with a checksum that is right."""
    stream = Stream.decode(data)
    index = next(
        index
        for index, instruction in enumerate(stream.instructions)
        if isinstance(instruction, Load) and instruction.memory is Memory.WGT
    )
    moved = dataclasses.replace(stream.instructions[index], dram_base=1 << 20)
    instructions = (*stream.instructions[:index], moved, *stream.instructions[index + 1 :])
    return dataclasses.replace(stream, instructions=instructions).encoded()


def for_less(data: bytes) -> bytes:
    """Say that it is for an array with half as much memory for sums."""
    return vta_streams.mended(data[:LOG_ACC] + bytes([data[LOG_ACC] - 1]) + data[LOG_ACC + 1 :])


TAMPERED = {
    "one bit": (flipped, r"VTA: .*checksum"),
    "beyond a tensor": (reaching, r"VTA: instruction \d+.*LOAD.*WGT"),
    "another configuration": (for_less, r"VTA: instruction \d+"),
}


def tampered(library: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change the first stream in a library."""
    match = TEXT.search(library)
    text = base64.b64encode(change(base64.b64decode(match[0])))
    assert len(text) == len(match[0])
    return library[: match.start()] + text + library[match.end() :]


@pytest.fixture(scope="module")
def running(server, small, tmp_path_factory) -> tuple[list[Any], Path, str]:
    """The words that name a device, its store, and what it runs."""
    root = tmp_path_factory.mktemp("running") / "device"
    login = to_it(server, root)
    outcome = toolchain("deploy", small.folder, *login, "--budget", 0)
    assert outcome.code == 0, outcome.err
    return login, root, small.digest


@pytest.mark.parametrize("name", TAMPERED)
def test_a_stream_with_mended_digests_is_refused_by_what_it_does(running, small, tmp_path, name):
    login, root, before = running
    change, cause = TAMPERED[name]
    content = tampered((small.folder / bundle.LIBRARY).read_bytes(), change)
    bad = bundles.variant(small, tmp_path / "bundle", {bundle.LIBRARY: content})
    outcome = toolchain("deploy", bad.folder, *login, "--budget", 0)
    assert (outcome.code, "Traceback" in outcome.err) == (4, False), outcome.err
    assert re.search(cause, outcome.err), outcome.err
    assert "keeps its previous release" in outcome.err
    assert bundles.whole_release(root) == before


def test_a_package_with_another_stream_is_refused_by_its_digest(running, small, tmp_path):
    login, root, before = running
    package = tmp_path / "package.tar"
    bundle.pack(small, package)
    data, library = package.read_bytes(), (small.folder / bundle.LIBRARY).read_bytes()
    assert data.count(library) == 1
    package.write_bytes(data.replace(library, tampered(library, flipped)))
    outcome = toolchain("deploy", package, *login, "--budget", 0)
    assert outcome.code == 5
    assert re.search(r"model.so in package.tar does not match", outcome.err), outcome.err
    assert bundles.whole_release(root) == before


def test_a_server_refuses_a_stream_and_lives_on(session, tmp_path):
    layer = vta_layers.task(4, 16, 16, 1, 0, 1)
    choice = kernels.candidates(layer)[0]
    good = library(tmp_path / "good.so", kernel(layer, choice, DEVICE))
    data = reaching(kernels.stream(layer, choice).encoded())
    bad = library(tmp_path / "bad.so", calling(base64.b64encode(data).decode(), layer))
    arguments = vta_layers.tensors(layer)
    expected_output = vta_layers.reference(layer, arguments)
    with session() as opened:
        with pytest.raises(CallError, match=r"VTA: instruction \d+.*LOAD.*WGT"):
            called(opened, bad, arguments, tmp_path)
        np.testing.assert_array_equal(called(opened, good, arguments, tmp_path), expected_output)
    with session() as opened:
        np.testing.assert_array_equal(called(opened, good, arguments, tmp_path), expected_output)


def calling(text: str, layer: Conv2d) -> tirx.PrimFunc:
    """Return a function that runs any text as a stream."""
    buffers = [tirx.decl_buffer(shape, kind, name=f"b{index}") for index, (shape, kind) in enumerate(layer.arguments())]
    body = tirx.Evaluate(tirx.call_packed(RUN, DEVICE.name, text, *buffers))
    return tirx.PrimFunc(buffers, body).with_attrs({"s_tir": True, "tirx.noalias": True})


# --- boards and networks that do not fit -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def for_a_pynq(source, tmp_path_factory) -> tuple[Path, Bundle]:
    """A board file of a Pynq with this machine's CPU, and a bundle for it."""
    folder = tmp_path_factory.mktemp("pynq")
    text = (board.boards_folder() / f"{HERE}.toml").read_text()
    (folder / "zynq.toml").write_text(text.replace("vta-sim", "vta-pynq-z1"))
    return folder / "zynq.toml", made(source, folder / "zynq.toml", folder / "bundle")


@pytest.mark.parametrize("variable", ["EDGE_VTA_BITSTREAM=/nowhere/vta.bit", "NOTHING="])
def test_a_board_without_its_fpga(small, for_a_pynq, tmp_path, variable):
    kind, release = for_a_pynq
    with sshd.running(tmp_path / "sshd", options=f"SetEnv HOME={tmp_path} {variable}") as server:
        assert toolchain("deploy", small.folder, *to_it(server, tmp_path / "device"), "--budget", 0).code == 0
        outcome = toolchain("deploy", release.folder, *to_it(server, tmp_path / "device", kind), "--budget", 0)
    assert (outcome.code, "Traceback" in outcome.err) == (4, False), outcome.err
    assert "this machine has no FPGA for VTA" in outcome.err, outcome.err
    assert bundles.whole_release(tmp_path / "device") == small.digest


def test_what_the_array_cannot_run_the_cpu_does(server, tmp_path):
    net = vta_nets.Net(16, 8)
    x = net.layer(net.rounded("x", 4), 16, 32, 3)
    dilated = net.rounded(net.conv(x, 32, 32, 3, dilations=[2, 2], pads=[2] * 4), 4)
    path = nets.save(net.proto(net.layer(dilated, 32, 16)), tmp_path)
    outcome = toolchain(
        "deploy", path, *to_it(server, tmp_path / "device"), "--budget", 0, "--json", tmp_path / "r.json"
    )
    assert outcome.code == 0, outcome.err
    assert re.search(r"the CPU computes convolution 2: 1x32x8x8.* dilated", outcome.err), outcome.err
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["modelled"]["kernels"], report["outputs"]["max_abs_diff"]) == (2, 0)


def test_other_scales_are_fitted_anew(server, tmp_path):
    net = vta_nets.Net(16, 8)
    x = net.rounded("x", 0, scale=net.hold(np.float32(0.03)))
    inner = net.rounded(net.layer(x, 16, 16, 3), 0, scale=net.hold(np.float32(0.05)))
    path = nets.save(net.proto(net.layer(inner, 16, 16, 3)), tmp_path)
    outcome = toolchain(
        "deploy", path, *to_it(server, tmp_path / "device"), "--budget", 0, "--json", tmp_path / "r.json"
    )
    assert outcome.code == 0, outcome.err
    assert "within its ranges" in outcome.err
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["int8"]["method"], report["int8"]["against"]) == ("file", "its own results")
    assert (report["modelled"]["kernels"], report["outputs"]["ok"]) == (2, True)


def test_the_self_test_of_a_simulated_array():
    outcome = toolchain("vta", "self-test", "--board", "vta-sim", "--json")
    assert outcome.code == 0, outcome.err
    (self_test,) = json.loads(outcome.out).values()
    assert (self_test["device"], self_test["revision"]) == ("sim", 2)
    assert self_test["passed"] == ["revision", "gemm", "alu", "load and store"]


def test_the_self_test_without_a_bitstream(for_a_pynq, tmp_path):
    kind, _ = for_a_pynq
    with sshd.running(tmp_path / "sshd", options=f"SetEnv HOME={tmp_path}") as server:
        outcome = toolchain("vta", "self-test", *to_it(server, tmp_path / "device", kind))
    assert outcome.code == 4, outcome.err
    assert "this machine has no FPGA for VTA" in outcome.err
