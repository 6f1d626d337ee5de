"""Bundles and their packages: what goes in comes out, the same bytes every time, and nothing else is taken."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import tarfile
import time

import numpy as np
import pytest

from tests.support import bundles as made
from tests.support import memory
from toolchain import bundle, files, tensors
from toolchain.bundle import manifest as manifests
from toolchain.bundle import oci
from toolchain.bundle.manifest import Modelled
from toolchain.bundle.memory import planned
from toolchain.errors import InputError, VerificationError
from toolchain.tensors import Bound


@pytest.fixture
def package(tiny, tmp_path):
    path = tmp_path / "tiny.oci.tar"
    bundle.pack(tiny, path)
    return path


def members(package):
    with tarfile.open(package) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def rewritten(package, change):
    """Write a package again with its members as `change` leaves them."""
    content = members(package)
    change(content)
    other = package.with_name("other.oci.tar")
    with tarfile.open(other, "w") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return other


def blob_of(content, name):
    """Name the member that holds a file of the bundle."""
    manifests = json.loads(content["index.json"])["manifests"]
    layers = [
        layer
        for entry in manifests
        for layer in json.loads(content[path(entry["digest"])])["layers"]
        if layer["annotations"]["org.opencontainers.image.title"] == name
    ]
    return path(layers[0]["digest"])


def path(digest):
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def test_unpacking_gives_back_what_was_packed(tiny, package, tmp_path):
    found = bundle.unpack(package, tmp_path / "out")
    assert found.digest == tiny.digest
    assert found.manifest == tiny.manifest
    names = {item.name for item in tiny.folder.iterdir()}
    assert {item.name for item in found.folder.iterdir()} == names
    assert all((found.folder / name).read_bytes() == (tiny.folder / name).read_bytes() for name in names)


def test_a_package_is_the_same_bytes_in_another_folder_at_another_time(tiny, package, tmp_path):
    elsewhere = tmp_path / "deep" / "er"
    shutil.copytree(tiny.folder, elsewhere)
    for item in elsewhere.iterdir():
        os.utime(item, (time.time() - 86400, 0))
        item.chmod(0o600)
    again = tmp_path / "again.tar"
    bundle.pack(bundle.load(elsewhere), again)
    assert again.read_bytes() == package.read_bytes()


def test_the_package_is_an_oci_image_layout(tiny, package):
    content = members(package)
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(content["index.json"])
    described = index["manifests"][0]
    assert described["digest"] == f"sha256:{tiny.digest}"
    assert described["annotations"]["org.opencontainers.image.ref.name"] == tiny.manifest.name
    manifest = json.loads(content[path(described["digest"])])
    assert manifest["artifactType"] == described["artifactType"] == bundle.ARTIFACT
    for entry in [manifest["config"], *manifest["layers"]]:
        data = content[path(entry["digest"])]
        assert (len(data), f"sha256:{files.sha256_bytes(data)}") == (entry["size"], entry["digest"])
    titles = [layer["annotations"]["org.opencontainers.image.title"] for layer in manifest["layers"]]
    assert titles == [bundle.MANIFEST, *bundle.LAYERS]  # whoever pulls the files of the layers has the whole bundle


def test_the_reference_refers_to_the_bundle_and_may_be_left_out(tiny, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(tiny.folder, bare)
    (bare / bundle.REFERENCE).unlink()
    without = bundle.load(bare)
    assert without.digest == tiny.digest
    assert without.reference is None
    target = tmp_path / "with.tar"
    bundle.pack(tiny, target)
    index = json.loads(members(target)["index.json"])
    referrer = json.loads(members(target)[path(index["manifests"][1]["digest"])])
    assert referrer["subject"]["digest"] == f"sha256:{tiny.digest}"


def test_a_changed_parameter_changes_params_and_digest_alone(tiny, tmp_path):
    other = made.reweighted(tiny, tmp_path / "other", seed=3)
    assert other.digest != tiny.digest
    changed = {name for name, record in other.manifest.files.items() if record != tiny.manifest.files[name]}
    assert changed == {bundle.PARAMS}


@pytest.mark.parametrize("name", sorted(bundle.LAYERS))
def test_a_tampered_file_of_a_bundle_is_named(tiny, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.folder, copy)
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(VerificationError, match=name):
        bundle.load(copy)


def test_a_missing_file_of_a_bundle_is_named(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.folder, copy)
    (copy / bundle.PARAMS).unlink()
    with pytest.raises(VerificationError, match=r"params.safetensors is missing"):
        bundle.load(copy)


@pytest.mark.parametrize("name", [*sorted(bundle.LAYERS), bundle.REFERENCE])
def test_a_tampered_blob_is_refused_and_nothing_is_left(package, tmp_path, name):
    def flip(content):
        blob = blob_of(content, name)
        data = bytearray(content[blob])
        data[-1] ^= 1
        content[blob] = bytes(data)

    with pytest.raises(VerificationError):
        bundle.unpack(rewritten(package, flip), tmp_path / "out")
    assert {item.name for item in tmp_path.iterdir()} == {package.name, "other.oci.tar"}


def lose_index(content):
    del content["index.json"]


def lose_blob(content):
    del content[blob_of(content, bundle.PARAMS)]


def break_index(content):
    content["index.json"] = b"{"


def tamper_manifest(content):
    digest = json.loads(content["index.json"])["manifests"][0]["digest"]
    content[path(digest)] = content[path(digest)].replace(b"mediaType", b"mediatype")


def tamper_description(content):
    digest = json.loads(content["index.json"])["manifests"][0]["digest"]
    described = json.loads(content[path(digest)])["layers"][0]["digest"]
    content[path(described)] = content[path(described)].replace(b'"main"', b'"evil"')


@pytest.mark.parametrize("change", [lose_index, lose_blob, break_index, tamper_manifest, tamper_description])
def test_a_corrupt_package_is_refused(package, tmp_path, change):
    with pytest.raises(VerificationError):
        bundle.unpack(rewritten(package, change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_truncated_package_is_refused(package, tmp_path, share):
    data = package.read_bytes()
    package.write_bytes(data[: int(len(data) * share)])
    with pytest.raises((InputError, VerificationError)):
        bundle.unpack(package, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def with_companion(package, change):
    """Write a package again whose first companion says something else."""

    def replace(content):
        index = json.loads(content["index.json"])
        described = index["manifests"][1]
        document = json.loads(content.pop(path(described["digest"])))
        change(document)
        data = files.canonical_json(document)
        described.update(oci.descriptor(oci.MANIFEST_TYPE, oci.bytes_record(data)))
        content[path(described["digest"])] = data
        content["index.json"] = files.canonical_json(index)

    return rewritten(package, replace)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(layers=[]), "is not a valid application"),
        (lambda document: document["layers"].append(document["layers"][0]), "is not a valid application"),
        (lambda document: document.pop("subject"), "is not a valid application"),
        (lambda document: document["subject"].update(digest=f"sha256:{'0' * 64}"), "belongs to another bundle"),
        (lambda document: document.update(layers="none"), "no valid OCI manifest"),
        (lambda document: document["layers"][0].update(digest="../../../etc/passwd"), "no valid OCI manifest"),
        (lambda document: document["layers"][0].update(size=3), "not the one that the bundle was built with"),
        (
            lambda document: document["layers"][0].update(digest=f"sha256:{'0' * 64}"),
            "not the one that the bundle was built with",
        ),
        (lambda document: document["subject"].update(size=1), "belongs to another bundle"),
    ],
)
def test_a_companion_of_another_form_is_refused(package, tmp_path, change, message):
    with pytest.raises(VerificationError, match=message):
        bundle.unpack(with_companion(package, change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_layer_is_called_names_no_file(package, tmp_path):
    found = bundle.unpack(
        with_companion(package, lambda document: document["layers"][0]["annotations"].update({oci.TITLE: "../evil"})),
        tmp_path / "out",
    )
    assert found.reference is not None
    assert not list(tmp_path.rglob("evil"))


def test_another_archive_is_no_package(tmp_path):
    stranger = tmp_path / "other.tar"
    with tarfile.open(stranger, "w") as archive:
        other = {"mediaType": oci.MANIFEST_TYPE, "digest": f"sha256:{'0' * 64}", "size": 2, "artifactType": "other"}
        data = json.dumps({"manifests": [other]}).encode()
        info = tarfile.TarInfo("index.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    with pytest.raises(InputError, match="does not contain a bundle"):
        bundle.unpack(stranger, tmp_path / "out")


def test_a_full_folder_is_not_unpacked_into(package, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    with pytest.raises(InputError, match="something other"):
        bundle.unpack(package, full)
    assert [item.name for item in full.iterdir()] == ["mine"]


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path):
    with pytest.raises(InputError, match="is not a bundle"):
        bundle.load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", "3"),
        ("files", {"model.so": {"sha256": "short", "size": 1}}),
        ("files", {}),
        ("library", "../evil.so"),
        ("inputs", 3),
        ("outputs", []),
        ("board", "../evil"),
        ("board", "evil.toml"),
        ("triple", "x86_64 -o evil"),
        ("glibc", "2.x"),
        ("target", {"kind": float("nan")}),
        ("reference", {"sha256": "0" * 64}),
        ("reference", None),
        ("extra", "unheard of"),
        *(("name", name) for name in ("", "two\nlines", "one\u2028other", "\x1b[31m", "x" * 256)),
    ],
)
def test_a_manifest_of_another_form_is_refused(tiny, field, value):
    document = json.loads(tiny.manifest.encoded())
    document[field] = value
    with pytest.raises(VerificationError, match="not valid"):
        bundle.read_manifest(files.canonical_json(document), "a test")


def test_a_manifest_that_lists_itself_is_refused(tiny):
    document = json.loads(tiny.manifest.encoded())
    document["files"][bundle.MANIFEST] = {"sha256": "0" * 64, "size": 1}
    with pytest.raises(VerificationError, match="not valid") as caught:
        bundle.read_manifest(files.canonical_json(document), "a test")
    assert caught.value.details == "files: it lists manifest.json, itself"


def test_the_same_manifest_in_other_bytes_is_refused(tiny):
    with pytest.raises(VerificationError, match="not valid") as caught:
        bundle.read_manifest(tiny.manifest.encoded() + b" ", "a test")
    assert "does not have the exact form that the toolchain writes" in caught.value.details


BOXES = {"name": "boxes", "shape": [9, 4], "dtype": "float32", "bound": {"axis": 0, "count": "boxes.count"}}
COUNT = {"name": "boxes.count", "shape": [1], "dtype": "int64"}


def manifest_with(tiny, **fields):
    return bundle.read_manifest(files.canonical_json(json.loads(tiny.manifest.encoded()) | fields), "a test")


def test_a_manifest_with_an_output_whose_size_depends_on_the_data(tiny):
    assert manifest_with(tiny, outputs=[BOXES, COUNT]).outputs[0].bound == Bound(0, "boxes.count")


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ([BOXES | {"bound": {"axis": 2, "count": "boxes.count"}}, COUNT], "an axis that it does not have"),
        ([BOXES | {"bound": {"axis": -1, "count": "boxes.count"}}, COUNT], "an axis that it does not have"),
        ([BOXES], "no other output with one int64 value counts it"),
        ([BOXES, COUNT | {"shape": [2]}], "no other output with one int64 value counts it"),
        ([BOXES, COUNT | {"dtype": "int32"}], "no other output with one int64 value counts it"),
        ([COUNT | {"bound": {"axis": 0, "count": "boxes.count"}}], "no other output with one int64 value counts it"),
        ([COUNT, COUNT], "two tensors have the same name"),
    ],
)
def test_a_manifest_with_outputs_that_nobody_can_count_is_refused(tiny, outputs, told):
    with pytest.raises(VerificationError, match="not valid") as caught:
        manifest_with(tiny, outputs=outputs)
    assert told in caught.value.details


X, H = ({"name": name, "shape": [2], "dtype": "float32"} for name in "xh")
Y, HN = X | {"name": "y"}, H | {"name": "hn"}
PAIR = {"input": "h", "output": "hn"}


def test_a_manifest_with_a_state(tiny):
    manifest = manifest_with(tiny, inputs=[X, H], outputs=[Y, HN], states=[PAIR])
    assert [[spec.name for spec in specs] for specs in (manifest.step_inputs, manifest.step_outputs)] == [["x"], ["y"]]
    assert manifest.steps({"x": np.zeros((7, 2))}) == 7
    assert b'"states"' not in tiny.manifest.encoded()
    assert tiny.manifest.steps({"x": np.zeros((7, 2))}) == 0


def test_a_state_in_place_is_no_other_state(tiny):
    """It has no second buffer, and bundles without any are what they were."""
    specs = {"inputs": [X, H], "outputs": [Y, HN]}
    plain = manifest_with(tiny, **specs, states=[PAIR])
    written = manifest_with(tiny, **specs, states=[PAIR | {"in_place": True}])
    assert written.states == plain.states
    assert (written.states[0].in_place, plain.states[0].in_place) == (True, False)
    assert b"in_place" not in plain.encoded()
    two, one = planned(plain), planned(written)
    assert two.activations - one.activations == plain.inputs[1].bytes


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ([PAIR | {"input": "g"}], "states: g=hn: there is no input g"),
        ([PAIR | {"output": "g"}], "states: h=g: there is no output g"),
        ([PAIR, PAIR], "states: input h is in two states"),
        ([PAIR, {"input": "x", "output": "y"}], "states: no input is left beside the state"),
        ([], "it does not have the exact form that the toolchain writes"),
        ([PAIR | {"in_place": False}], "it does not have the exact form that the toolchain writes"),
        ([PAIR | {"in_place": 2}], "states.0.in_place"),
        ([{"input": "h"}], "states.0.output"),
    ],
)
def test_a_manifest_with_a_state_that_cannot_be_is_refused(tiny, states, told):
    with pytest.raises(VerificationError, match="not valid") as caught:
        manifest_with(tiny, inputs=[X, H], outputs=[Y, HN], states=states)
    assert told in caught.value.details


def test_a_manifest_with_an_input_whose_size_depends_on_the_data_is_refused(tiny):
    with pytest.raises(VerificationError, match="not valid") as caught:
        manifest_with(tiny, inputs=[BOXES])
    assert "no input has a bound" in caught.value.details


@pytest.mark.parametrize("shape", [[1] * 33, [1 << 32] * 40_000])
def test_a_manifest_with_a_tensor_of_too_many_axes_is_refused(tiny, shape):
    with pytest.raises(VerificationError, match="not valid") as caught:
        manifest_with(tiny, outputs=[{"name": "y", "shape": shape, "dtype": "float32"}])
    assert caught.value.details.startswith("y 1x1" if shape[0] == 1 else "y 42949")
    assert len(caught.value.details) < 1000


WIDE = {"dtype": "float32", "shape": [1 << 29]}
FAST = {"model": "m", "clock_mhz": 1.0, "kernels": 1, "cycles": 8, "macs": 8, "macs_per_cycle": 1, "calibration": ""}
HALF = {"reference": "r", "inputs": "i", "obstacle": ""}
INT8 = {"against": "a", "method": "file", "snr_db": None, "top1_agreement": None}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"params_order": ["w"] * 60_000}, "params_order: it has a name twice"),
        ({"params_order": [f"w{n}" for n in range(60_000)]}, "params_order: it has more names than params.safetensors"),
        ({"cpu_features": ["avx2", "avx2"]}, "cpu_features: it has a name twice"),
        ({"inputs": [WIDE | {"name": name} for name in "abc"]}, "inputs: together they have more than 4294967296"),
        ({"outputs": [WIDE | {"name": name} for name in "abc"]}, "outputs: together they have more than 4294967296"),
        ({"records": {"sha256": "", "tasks": 1, "tuned": 1, "shipped": 1}}, "more kernels are tuned than there are"),
        ({"records": {"sha256": "", "tasks": 1 << 40, "tuned": 0, "shipped": 0}}, "no room for so many kernels"),
        ({"modelled": FAST | {"kernels": 9}}, "modelled: it has more kernels than cycles"),
        ({"modelled": FAST | {"macs": 9}}, "modelled: it has more multiply-adds than its cycles allow"),
        ({"modelled": FAST | {"cycles": 10**4000}}, "modelled.cycles"),
        ({"half": HALF | {"outputs": [{"name": "y", "max_rel": 0.0, "limit": 1.0, "ok": True}] * 99}}, "half: "),
        ({"int8": INT8 | {"samples": 1, "random": 2}}, "int8: more inputs are random than there are"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_count_that_the_rest_of_a_manifest_contradicts_is_refused(tiny, changes, told):
    with pytest.raises(VerificationError, match="not valid") as caught:
        manifest_with(tiny, **changes)
    assert told in caught.value.details


MANY = 500_000
MEMORY_KIB = 100 << 10


@pytest.mark.parametrize("field", ["params_order", "cpu_features", "inputs", "outputs", "shape", "files", "versions"])
def test_a_manifest_of_nothing_but_faults_takes_little_memory(tiny, field):
    """A fault that is kept has some hundred bytes, and every second byte may be one."""
    document, zeros = json.loads(tiny.manifest.encoded()), [{}] * (MANY // 2)
    values = {"shape": zeros, "files": (table := {f"{number:x}": 0 for number in range(MANY // 8)}), "versions": table}
    (document["inputs"][0] if field == "shape" else document)[field] = values.get(field, zeros)
    data = json.dumps(document, separators=(",", ":")).encode()
    assert len(data) < manifests.LARGEST_MANIFEST
    with memory.at_most(MEMORY_KIB), pytest.raises(VerificationError, match="not valid") as caught:
        bundle.read_manifest(data, "a test")
    assert len(caught.value.details) < 4000


def test_a_manifest_larger_than_any_is_not_looked_at():
    with pytest.raises(VerificationError, match=r"the manifest of a test has \d+ bytes"):
        bundle.read_manifest(b"[" * (manifests.LARGEST_MANIFEST + 1), "a test")


@pytest.mark.parametrize(("kind", "name"), [(oci.Index, "manifests"), (oci.Image, "layers")])
def test_a_list_of_nothing_but_faults_takes_little_memory(kind, name):
    data = f'{{"{name}": [{"{},".join([""] * MANY)}0]}}'.encode()
    with memory.at_most(MEMORY_KIB), pytest.raises(VerificationError, match="no valid OCI") as caught:
        oci.parse(kind, data, "a test")
    assert caught.value.details.startswith(f"{name}.0.")


@pytest.mark.parametrize("change", [{"dtype": "object"}, {"dtype": "float33"}, {"shape": [1, -8]}])
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_manifest_with_tensors_that_cannot_be_is_refused(tiny, side, change):
    document = json.loads(tiny.manifest.encoded())
    document[side][0] |= change
    with pytest.raises(VerificationError, match="the manifest of a test is not valid") as caught:
        bundle.read_manifest(json.dumps(document).encode(), "a test")
    assert document[side][0]["name"] in caught.value.details


def older(tiny, folder, schema=2):
    """Give a bundle the manifest that a toolchain of an older schema version wrote."""
    shutil.copytree(tiny.folder, folder)
    document = json.loads(tiny.manifest.encoded()) | {"schema": schema}
    del document["reference"]
    (folder / bundle.MANIFEST).write_bytes(files.canonical_json(document))
    return folder


@pytest.mark.parametrize("schema", [1, 2, 5])
def test_a_bundle_of_another_schema_is_refused_by_its_version(tiny, tmp_path, schema):
    with pytest.raises(
        VerificationError, match=f"schema version {schema}, but this toolchain reads versions 3 and 4"
    ) as caught:
        bundle.load(older(tiny, tmp_path / "old", schema))
    assert "build it again" in caught.value.hint


def test_a_bundle_of_an_older_schema_gives_way_to_a_newer_one(tiny, package, tmp_path):
    folder = older(tiny, tmp_path / "old")
    assert bundle.unpack(package, folder).digest == tiny.digest


def test_a_package_of_an_older_schema_is_refused_by_its_version(tiny, tmp_path):
    """Its manifest was the config, and so no layer."""
    layers = [oci.descriptor(media, tiny.manifest.files[name], {oci.TITLE: name}) for name, media in oci.LAYERS.items()]
    document = oci.encode_manifest(oci.ARTIFACT, layers)
    described = {**oci.descriptor(oci.MANIFEST_TYPE, oci.bytes_record(document)), "artifactType": oci.ARTIFACT}
    content = {"index.json": oci.encode_index([described]), path(described["digest"]): document}
    with tarfile.open(tmp_path / "old.tar", "w") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(VerificationError, match="schema version 1") as caught:
        bundle.unpack(tmp_path / "old.tar", tmp_path / "out")
    assert "build it again" in caught.value.hint


@pytest.mark.parametrize("tolerance", [None, 0.02])
def test_a_reference_keeps_what_computed_it_and_its_tolerance(tmp_path, tolerance):
    given = bundle.Reference("a runtime 1.2", {"x": np.ones(3)}, {"y.z": np.zeros((2, 2))}, tolerance)
    given.save(tmp_path)
    found = bundle.Reference.read(tmp_path / bundle.REFERENCE)
    assert (found.runtime, found.tolerance) == ("a runtime 1.2", tolerance)
    assert found.inputs["x"].tolist() == [1, 1, 1]
    assert found.outputs["y.z"].shape == (2, 2)


def test_a_reference_with_a_senseless_tolerance_is_refused(tmp_path):
    tensors.save(tmp_path / bundle.REFERENCE, {"input.x": np.ones(1)}, {"tolerance": "much"})
    with pytest.raises(VerificationError, match="not a number"):
        bundle.Reference.read(tmp_path / bundle.REFERENCE)


# --- tuning records --------------------------------------------------------------------------------------------

RECORDS = b"what was applied\n"


@pytest.fixture
def tuned(tiny, tmp_path):
    """A bundle that says that records were applied to it, and holds some."""
    wanted = bundle.Tuned(files.sha256_bytes(RECORDS), tasks=2, tuned=1)
    found = made.variant(tiny, tmp_path / "tuned", {}, records=wanted)
    (found.folder / bundle.RECORDS).write_bytes(RECORDS)
    return found


def test_records_travel_in_the_package_and_to_no_device(tuned, tmp_path):
    target = tmp_path / "tuned.tar"
    bundle.pack(tuned, target)
    content = members(target)
    referrer = json.loads(content[path(json.loads(content["index.json"])["manifests"][2]["digest"])])
    assert referrer["subject"]["digest"] == f"sha256:{tuned.digest}"
    assert content[path(referrer["layers"][0]["digest"])] == RECORDS
    found = bundle.unpack(target, tmp_path / "out")
    assert found.digest == tuned.digest
    assert found.records.read_bytes() == RECORDS
    assert bundle.RECORDS not in found.manifest.files


def test_records_of_a_model_are_told_to_be_such(tuned, tmp_path):
    assert b"modelled" not in tuned.manifest.encoded()  # as it was before there were models
    wanted = dataclasses.replace(tuned.manifest.records, modelled="g610, 4 cores, 1000 MHz; Mesa 1")
    found = made.variant(tuned, tmp_path / "modelled", {}, records=wanted)
    assert bundle.load(found.folder).manifest.records.modelled == wanted.modelled
    assert found.digest != tuned.digest


def test_the_end_of_the_support_is_in_the_manifest_and_in_the_bill(tiny, tmp_path):
    assert b"supported_until" not in tiny.manifest.encoded()  # as it was before there was any
    found = made.variant(tiny, tmp_path / "supported", {}, supported_until="2031-12-31")
    assert bundle.load(found.folder).manifest.supported_until == "2031-12-31"
    assert found.digest != tiny.digest
    properties = json.loads((found.folder / bundle.BILL).read_text())["metadata"]["component"]["properties"]
    assert {"name": "edge-toolchain:supported-until", "value": "2031-12-31"} in properties


@pytest.mark.parametrize("text", ["2031-02-30", "20311231", "soon", "2031-W01-1"])
def test_the_end_of_the_support_is_a_day(text, tiny, tmp_path):
    with pytest.raises(VerificationError, match="not valid") as fault:
        made.variant(tiny, tmp_path / "supported", {}, supported_until=text)
    assert "supported_until" in fault.value.details


def test_a_package_without_records_is_of_the_same_bundle(tuned, tmp_path):
    tuned.records.unlink()
    bundle.pack(tuned, tmp_path / "bare.tar")
    found = bundle.unpack(tmp_path / "bare.tar", tmp_path / "out")
    assert found.digest == tuned.digest
    assert found.records is None


def test_other_records_do_not_pass_for_those_that_were_applied(tuned):
    tuned.records.write_bytes(b"better ones\n")
    with pytest.raises(VerificationError, match="records that were applied"):
        bundle.load(tuned.folder)


def test_records_beside_an_untuned_bundle_are_refused(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.folder, copy)
    (copy / bundle.RECORDS).write_bytes(RECORDS)
    with pytest.raises(VerificationError, match="records that were applied"):
        bundle.load(copy)


def test_records_that_were_changed_in_a_package_are_refused(tuned, tmp_path):
    target = tmp_path / "tuned.tar"
    bundle.pack(tuned, target)

    def change(content):
        content[blob_of(content, bundle.RECORDS)] = b"better ones\n"

    with pytest.raises(VerificationError, match=r"records\.jsonl in other\.oci\.tar does not match its digest"):
        bundle.unpack(rewritten(target, change), tmp_path / "out")


def test_a_manifest_from_before_there_were_records_keeps_its_digest(tiny):
    document = json.loads(tiny.manifest.encoded())
    del document["records"]
    older = files.canonical_json(document)
    found = bundle.read_manifest(older, "here")
    assert found.records is None
    assert found.encoded() == older


@pytest.mark.parametrize("value", [{"sha256": "abc"}, {"tasks": -1}, {"tuned": "many"}, 7])
def test_a_manifest_with_other_words_about_records_is_refused(tiny, value):
    document = json.loads(tiny.manifest.encoded()) | {"records": value}
    with pytest.raises(VerificationError, match="manifest of here is not valid"):
        bundle.read_manifest(files.canonical_json(document), "here")


def test_what_a_model_says_is_part_of_the_manifest(tiny):
    array = Modelled("ideal", 100.0, kernels=2, cycles=1000, macs=128_000, macs_per_cycle=256)
    manifest = dataclasses.replace(tiny.manifest, modelled=array)
    assert bundle.read_manifest(manifest.encoded(), "here") == manifest
    assert (array.milliseconds, array.utilisation, array.gops) == pytest.approx((0.01, 0.5, 25.6))


def test_a_manifest_without_a_model_says_nothing_of_it(tiny):
    assert "modelled" not in json.loads(tiny.manifest.encoded())


def webapp(folder):
    """A folder that holds some manifest.json, and the work of years."""
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (folder / "manifest.json").write_text('{"name": "webapp", "start_url": "/"}')
    (folder / "index.html").write_text("<h1>mine</h1>")


def bundle_and_git(folder, tiny):
    shutil.copytree(tiny.folder, folder)
    (folder / ".git").mkdir()


def other_manifest(folder, tiny):
    shutil.copytree(tiny.folder, folder)
    (folder / "manifest.json").write_text('{"name": "webapp"}')


def bundle_with_link(folder, tiny):
    shutil.copytree(tiny.folder, folder)
    (folder / "model.so").unlink()
    (folder / "model.so").symlink_to("/usr/bin/env")


def tree(folder):
    return {str(item): item.read_bytes() if item.is_file() else None for item in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("make", [webapp, bundle_and_git, other_manifest, bundle_with_link])
def test_a_folder_that_is_no_mere_bundle_is_left_alone(make, tiny, package, tmp_path):
    folder = tmp_path / "folder"
    make(folder) if make is webapp else make(folder, tiny)
    before = tree(tmp_path)
    for attempt in (bundle.check_target, lambda target: bundle.unpack(package, target)):
        with pytest.raises(InputError, match="something other than a bundle") as caught:
            attempt(folder)
        assert caught.value.details
        assert caught.value.hint
        assert tree(tmp_path) == before


def test_an_older_bundle_gives_way_to_a_package(tiny, package, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "out")
    (tmp_path / "out" / "graph.txt").write_text("damaged")
    assert bundle.unpack(package, tmp_path / "out").digest == tiny.digest
    assert {item.name for item in tmp_path.iterdir()} == {"out", package.name}


def test_only_a_package_gives_way_to_a_package(tiny, package, tmp_path):
    bundle.check_package_target(package)
    for name, content in {"thesis.tar": b"mine", "model.onnx": b"\x08\x0a"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="something other than a package"):
            bundle.check_package_target(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
