"""A bundle goes to a registry of OCI 1.1 and comes back whole, or not at all."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.registries import Answer
from toolchain import bundle, files, inventory
from toolchain.bundle import oci
from toolchain.errors import InputError, RegistryError, VerificationError
from toolchain.progress import Step
from toolchain.registry import Access, parse, pull, push


@pytest.fixture
def pushed(tiny, server):
    return push(tiny, parse(f"oci://{server.host}/lab/tiny:1"), Access(), lambda _line: None)


def pulled(server, folder, name="lab/tiny:1", tell=lambda _line: None):
    return pull(parse(f"oci://{server.host}/{name}"), folder, Access(), tell)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_bundle_comes_back_with_what_accompanies_it(tiny, server, pushed, shelf, tmp_path):
    assert pushed.address.digest == f"sha256:{tiny.digest}"
    assert (pushed.blobs_sent, pushed.blobs_skipped, pushed.companions, pushed.tag) == (9, 0, 3, "1")
    assert not [name for name in shelf.manifests if name.startswith("sha256-")]  # no tag where there is a list
    received = pulled(server, tmp_path / "out")
    assert received.digest == tiny.digest
    assert files_of(received.folder) == files_of(tiny.folder)


def test_the_tag_comes_last(server, pushed):
    assert server.paths("PUT")[-1] == "/v2/lab/tiny/manifests/1"


def test_a_pull_says_how_far_it_is_and_what_a_tag_stands_for(tiny, server, pushed, tmp_path):
    messages = []
    pulled(server, tmp_path / "out", tell=messages.append)
    assert messages[0].endswith(f"/lab/tiny:1 is sha256:{tiny.digest}")
    steps = [line for line in messages if isinstance(line, Step) and line.is_counted]
    assert 0 < steps[0].done <= steps[-1].done


@pytest.mark.parametrize("name", ["x", "x@sha256:" + "0" * 64, "x:1@sha256:" + "0" * 64])
def test_a_push_needs_a_tag(tiny, name):
    with pytest.raises(InputError, match="has no tag for the package"):
        push(tiny, parse(f"oci://127.0.0.1:1/{name}"), Access(), lambda _line: None)


def test_a_pull_guesses_no_tag(tmp_path):
    with pytest.raises(InputError, match="neither a tag nor a digest"):
        pull(parse("oci://127.0.0.1:1/x"), tmp_path / "out", Access(), lambda _line: None)


def blob_of(tiny, name):
    return f"sha256:{tiny.manifest.files[name].sha256}"


@pytest.mark.parametrize("name", list(bundle.LAYERS))
def test_a_tampered_blob_is_refused_and_nothing_is_left(tiny, server, pushed, shelf, tmp_path, name):
    data = bytearray((tiny.folder / name).read_bytes())
    data[-1] ^= 1
    shelf.blobs[blob_of(tiny, name)] = bytes(data)
    with pytest.raises(VerificationError, match=name):
        pulled(server, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_blob_that_is_missing_leaves_nothing(tiny, server, pushed, shelf, tmp_path):
    del shelf.blobs[blob_of(tiny, bundle.PARAMS)]
    with pytest.raises(InputError, match="there is no blob"):
        pulled(server, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_pull_leaves_the_earlier_bundle(tiny, server, pushed, tmp_path):
    pulled(server, tmp_path / "out")
    before = files_of(tmp_path / "out")

    def interrupt(line):
        if isinstance(line, Step) and line.is_counted:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pulled(server, tmp_path / "out", tell=interrupt)
    assert files_of(tmp_path / "out") == before
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


def test_a_push_that_breaks_off_has_set_no_tag_and_goes_on_later(tiny, server, shelf):
    shelf.instead = lambda request: Answer(507) if request.method == "PUT" and "/manifests/" in request.path else None
    address = parse(f"oci://{server.host}/lab/tiny:1")
    with pytest.raises(RegistryError, match="507"):
        push(tiny, address, Access(), lambda _line: None)
    assert not shelf.manifests
    shelf.instead = lambda _asked: None
    result = push(tiny, address, Access(), lambda _line: None)
    assert (result.blobs_sent, result.bytes_sent) == (0, 0)


def test_a_manifest_that_was_changed_under_a_tag_is_another_package(tiny, server, pushed, shelf, tmp_path):
    """What a tag names may change; what it names must still follow from a bundle's manifest."""
    document = json.loads(shelf.manifests["1"])
    document["layers"].reverse()
    shelf.manifests["1"] = files.canonical_json(document)
    with pytest.raises(VerificationError, match="does not match its bundle's manifest"):
        pulled(server, tmp_path / "out")


def test_an_image_is_no_package(server, shelf, tmp_path):
    shelf.manifests["1"] = files.canonical_json({"schemaVersion": 2, "layers": []})
    with pytest.raises(InputError, match="does not contain a bundle") as caught:
        pulled(server, tmp_path / "out", "alpine:1")
    assert "container image" in caught.value.details


def test_a_referrer_of_another_bundle_is_refused(tiny, server, pushed, shelf, tmp_path):
    (referrers,) = shelf.referrers.values()
    document = json.loads(shelf.manifests[referrers[0]["digest"]])
    document["subject"]["digest"] = f"sha256:{'0' * 64}"
    data = files.canonical_json(document)
    descriptor = oci.descriptor(oci.MANIFEST_TYPE, oci.bytes_record(data))
    referrers[0] |= descriptor
    shelf.manifests[descriptor["digest"]] = data
    with pytest.raises(VerificationError, match="belongs to another bundle"):
        pulled(server, tmp_path / "out")


def test_referrers_of_others_are_left_where_they_are(tiny, server, pushed, shelf, tmp_path):
    (referrers,) = shelf.referrers.values()
    referrers.insert(0, {"mediaType": "x", "digest": f"sha256:{'1' * 64}", "size": 1, "artifactType": "a/signature"})
    assert pulled(server, tmp_path / "out").reference is not None


def test_the_bill_of_a_scanner_does_not_stand_in_for_ours(tiny, server, pushed, shelf, tmp_path):
    """Its type is the same, it is attached to the same bundle, and it is listed first."""
    layer = oci.descriptor(inventory.BILL_TYPE, oci.bytes_record(b"{}"))
    subject = {"mediaType": oci.MANIFEST_TYPE, "digest": pushed.address.digest}
    subject["size"] = len(shelf.manifests[pushed.address.digest])
    scanner_manifest = oci.encode_manifest(inventory.BILL_TYPE, [layer], subject)
    descriptor = oci.descriptor(oci.MANIFEST_TYPE, oci.bytes_record(scanner_manifest))
    shelf.manifests[descriptor["digest"]] = scanner_manifest
    (referrers,) = shelf.referrers.values()
    referrers.insert(0, {**descriptor, "artifactType": inventory.BILL_TYPE})
    received = pulled(server, tmp_path / "out")
    assert files_of(received.folder) == files_of(tiny.folder)


def strange_bills(count, digest, size, padding=""):
    """Attach so many bills to a bundle, as a scanner does every night; return how they are listed, and their bytes."""
    for number in range(count):
        layer = oci.descriptor(
            inventory.BILL_TYPE, oci.bytes_record(b"%d" % number), {"note": padding} if padding else {}
        )
        manifest = oci.encode_manifest(
            inventory.BILL_TYPE, [layer], {"mediaType": oci.MANIFEST_TYPE, "digest": digest, "size": size}
        )
        descriptor = oci.descriptor(oci.MANIFEST_TYPE, oci.bytes_record(manifest))
        yield {**descriptor, "artifactType": inventory.BILL_TYPE}, manifest


@pytest.mark.parametrize(
    ("count", "times", "padding", "read"), [(500, 1, "", 64), (1, 500, "", 1), (3, 1, "x" * (64 << 10), 0)]
)
def test_what_others_attach_is_read_up_to_a_limit(server, pushed, shelf, tmp_path, count, times, padding, read):
    """And only after what is ours alone, which none of it may hide."""
    digest = pushed.address.digest
    bills = list(strange_bills(count, digest, len(shelf.manifests[digest]), padding))
    shelf.manifests |= {descriptor["digest"]: data for descriptor, data in bills}
    (referrers,) = shelf.referrers.values()
    page = oci.encode_index([*[descriptor for descriptor, _ in bills] * times, *referrers])
    shelf.instead = lambda request: Answer(200, page) if "/referrers/" in request.path else None
    server.asked.clear()
    assert pulled(server, tmp_path / "out").reference is not None
    digests = {descriptor["digest"] for descriptor, _ in bills}
    assert sum(request.path.rpartition("/")[2] in digests for request in server.asked) == read


def test_a_companion_whose_manifest_is_too_large_is_refused(server, pushed, shelf, tmp_path):
    (referrers,) = shelf.referrers.values()
    referrers[0]["size"] = (64 << 10) + 1
    with pytest.raises(VerificationError, match="has 65537 bytes, too many for a manifest"):
        pulled(server, tmp_path / "out")


def test_a_folder_of_somebody_else_is_left_alone(server, pushed, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="something other than a bundle"):
        pulled(server, tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_bundle_alone_is_pushed_alone(tiny, server, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "bare")
    for name in (bundle.REFERENCE, bundle.BILL, bundle.PROVENANCE):
        (tmp_path / "bare" / name).unlink()
    result = push(bundle.load(tmp_path / "bare"), parse(f"oci://{server.host}/x:1"), Access(), lambda _line: None)
    assert (result.companions, result.address.digest) == (0, f"sha256:{tiny.digest}")
    assert pulled(server, tmp_path / "out", "x:1").reference is None
