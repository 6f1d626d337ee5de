"""Whatever a file, a registry, a device or a daemon says: what comes out is what was meant, or a documented error.

Each parser gets bytes of any kind, and documents that are near a valid one: there the mistakes are.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.paths import ROOT
from toolchain import board, bundle, devices, errors, files, records, registry, tensors
from toolchain.bundle import contents, oci
from toolchain.device import runner
from toolchain.errors import DeviceError, InputError, ToolchainError, VerificationError
from toolchain.farm import protocol
from toolchain.records import Record, Workload

QUICK = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
DEEP = 5000
REPORT = {"samples_ns": [1], "warmup_ns": [2], "each_ns": [3], "load_ms": 1.5, "threads": 1, "peak_rss_kib": 9}
REPORT |= {"involuntary_switches": 0, "processor": {"name": "a GPU", "driver": "", "version": "1.2", "units": 4}}
WORKLOAD = Workload.of("ab12", "dense", 10.0, '{"root": 1}' * 400)
TRIAL = Record(workload="ab12", target={"kind": "llvm"}, tvm="0.25", candidate="cd", trace="[]", samples_s=(1e-3,))
LAB = """
[devices.shelf]
board = "pi"
host = "me@10.0.0.6:2222"
root = "/opt/models"
emulated = true
[devices.shelf.run]
unit = "a.service"
within = "30s"
"""

numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308])
texts = st.text(max_size=8) | st.sampled_from(["", "\x00", "\x1b[2J", "../..", "inf", "sha256:" + "0" * 64, "x" * 5000])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
TOKENS = (b"[", b"]", b"{", b'"', b"\n", b"=", b"1e400", b"nan", b"\xff", b"\0", b"[" * DEEP, b"a." * DEEP, b"9" * DEEP)


def places(value):
    """List where something stands in a document: its holder and its key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [position for key, inner in list(pairs) for position in ((value, key), *places(inner))]


@st.composite
def near(draw, document):
    """Draw a document with some values exchanged, left out or added, as bytes."""
    edited = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 3))):
        if positions := places(edited):
            holder, key = positions[draw(st.integers(0, len(positions) - 1))]
            if draw(st.booleans()):
                holder[key] = draw(values)
            elif isinstance(holder, dict):
                holder[draw(texts)] = holder.pop(key)
            else:
                del holder[key]
    return files.canonical_json(edited) if draw(st.booleans()) else json.dumps(edited).encode()


@st.composite
def edited(draw, data):
    """Draw bytes with some runs of them exchanged."""
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        data = data[:start] + draw(st.binary(max_size=9) | st.sampled_from(TOKENS)) + data[end:]
    return data


def around(document):
    """Bytes around a JSON document: any, edited, and near it in meaning."""
    return st.binary(max_size=200) | edited(files.canonical_json(document)) | near(document)


@dataclass(frozen=True)
class Parser:
    """What reads something, what it is fed, and the errors that it documents."""

    read: Callable[[bytes], Any]
    fed: Any
    errors: tuple[type[ToolchainError], ...]


def fed(data, parser):
    """Feed a parser; an error must be one that it documents, with a message that people can read."""
    try:
        return parser.read(data)
    except parser.errors as fault:
        report = f"{fault.message}\n{fault.details}\n{fault.hint}"
    assert report.encode(errors="backslashreplace").strip()
    return None


# --- packages and bundles --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tiny, tmp_path_factory):
    """A small package: its library and its graph are a few bytes."""
    from tests.support import bundles  # TVM takes two seconds

    small = {bundle.LIBRARY: b"\x7fELF", bundle.GRAPH: b"{}", bundle.GRAPH_TEXT: b"a graph"}
    folder = tmp_path_factory.mktemp("package")
    variant = bundles.variant(tiny, folder / "bundle", small)
    bundle.pack(variant, folder / "package.tar")
    return (folder / "package.tar").read_bytes()


@QUICK
@given(data=st.data())
def test_packages(package, tmp_path, data):
    path, out = tmp_path / "package.tar", tmp_path / "out"

    def read(content):
        path.write_bytes(content)
        return bundle.unpack(path, out)

    content = data.draw(st.binary(max_size=2000) | edited(package))
    fed(content, Parser(read, None, (InputError, VerificationError)))
    assert {item.name for item in tmp_path.iterdir()} <= {"package.tar", "out"}


@QUICK
@given(data=st.data())
def test_manifests(tiny, data):
    content = data.draw(around(json.loads(tiny.manifest.encoded())))
    manifest = fed(content, Parser(lambda text: bundle.read_manifest(text, "here"), None, (VerificationError,)))
    assert manifest is None or manifest.encoded() == content


@QUICK
@given(data=st.data(), kind=st.sampled_from([oci.Image, oci.Index]))
def test_oci_documents(tiny, data, kind):
    travelling = contents.contents(tiny)
    index = {"manifests": list(travelling.manifests)}
    image = json.loads(contents.data_of(travelling.blobs[travelling.manifests[1]["digest"].removeprefix("sha256:")]))
    content = data.draw(around(index) | around(image))
    fed(content, Parser(lambda text: oci.parse(kind, text, "here"), None, (VerificationError,)))


@QUICK
@given(data=st.data())
def test_references(tiny, tmp_path, data):
    path = tmp_path / bundle.REFERENCE
    original = tiny.reference.read_bytes()
    length = int.from_bytes(original[:8], "little")
    header = json.loads(original[8 : 8 + length])

    def read(content):
        path.write_bytes(content)
        bundle.Reference.read(path).check(tiny.manifest)

    def headed(text):
        return len(text).to_bytes(8, "little") + text + original[8 + length :]

    notes = around({"runtime": "numpy", "tolerance": "0.1", "samples": '{"seed": 1, "samples": []}'})
    noted = notes.map(lambda text: tensors.encode({"input.x": np.zeros(1)}, {"samples": text.decode("latin-1")}))
    content = data.draw(st.binary(max_size=99) | edited(original) | near(header).map(headed) | noted)
    fed(content, Parser(read, None, (VerificationError,)))


# --- what people write -----------------------------------------------------------------------------------------------


@QUICK
@given(content=st.binary(max_size=99) | edited(LAB.encode()))
@example(b"x = " + b"[" * DEEP)
@example(b"a." * DEEP + b"a = 1")
@example(b"x = " + b"{a = " * DEEP)
@example(b"x = 0x" + b"f" * DEEP)
@example(b"x = " + b"9" * DEEP)
@example(b"[[devices]]\n[[devices.devices]]\n")
@example(b'[devices.devices]\nboard = "pi"\n[devices.devices.devices]\nhost = "h"\n')
def test_lists_of_devices(tmp_path, content):
    def read(text):
        (tmp_path / "lab.toml").write_bytes(text)
        return devices.load_devices(tmp_path / "lab.toml")

    fed(content, Parser(read, None, (InputError,)))


@QUICK
@given(content=st.binary(max_size=99) | edited((ROOT / "boards" / "rk3399.toml").read_bytes()))
@example(b"target = " + b"[" * DEEP)
@example(b"target." * DEEP + b"a = 1")
@example(b"cores = 0x" + b"f" * DEEP)
@example(b"[[target]]\n")
def test_board_files(tmp_path, content):
    def read(text):
        (tmp_path / "mine.toml").write_bytes(text)
        return board.load(str(tmp_path / "mine.toml")).resolved()

    fed(content, Parser(read, None, (InputError,)))


@QUICK
@given(text=texts | st.builds("oci://{}/{}:{}@{}".format, texts, texts, texts, texts))
def test_addresses_of_registries(text):
    fed(text, Parser(registry.parse, None, (InputError,)))


# --- what was measured -----------------------------------------------------------------------------------------------


@QUICK
@given(data=st.data())
def test_records(data):
    lines = [json.loads(records.encode([record])) for record in (WORKLOAD, TRIAL)]
    lines_drawn = data.draw(st.lists(st.one_of(*(near(line).map(_one_line) for line in lines)), max_size=3))
    content = data.draw(st.just(b"\n".join(lines_drawn)) | edited(records.encode([WORKLOAD, TRIAL])))

    def read(text):
        lines = list(records.parse(text, "here"))
        for line in lines:
            if isinstance(line, records.Workload):
                line.text()
        collected = records.Records.collect(lines)
        return [collected.best(key) for key in collected.keys]

    fed(content, Parser(read, None, (InputError,)))


def _one_line(data):
    return data.replace(b"\n", b" ")


# --- what devices and daemons answer ---------------------------------------------------------------------------------


@QUICK
@given(content=around(REPORT))
@example(files.canonical_json(REPORT | {"load_ms": 10**400}))
@example(b"[" * 10 * DEEP)
def test_reports_of_the_runner(content):
    text = content.decode(errors="replace")
    fed(text, Parser(lambda report: runner.read(report, {}, "a board", runner.SMOKE), None, (DeviceError,)))


@QUICK
@given(content=around({"kind": "DeviceError", "message": "m", "details": "d", "hint": "h"}))
def test_errors_of_the_daemon(content):
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        return
    if isinstance(message, dict):
        parsed = protocol.parse_fault(message)
        assert isinstance(parsed, errors.ToolchainError)
        assert all(isinstance(text, str) for text in (parsed.message, parsed.details, parsed.hint))


@QUICK
@given(content=around({"errors": [{"code": "DENIED", "message": "no"}]}))
def test_errors_of_registries(content):
    from toolchain.registry import client  # slow to import

    response = SimpleNamespace(iter_content=lambda _size: iter([content]), url="https://here/v2/")
    assert client._error_text(response).isprintable()
