"""A repository in an OCI 1.1 registry with scripted answers: hostile answers, and broken ones."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.registries import Answer
from toolchain import files, inventory
from toolchain.bundle import oci
from toolchain.errors import InputError, RegistryError, VerificationError
from toolchain.registry import Access, parse
from toolchain.registry.client import Client
from toolchain.registry.repository import Repository

CONTENT = bytes(range(256)) * 4096
DIGEST = f"sha256:{files.sha256_bytes(CONTENT)}"
WANTED = oci.Descriptor(DIGEST, len(CONTENT), "text/plain")


@pytest.fixture
def counted():
    return []


@pytest.fixture
def repository(server, counted):
    address = parse(f"oci://{server.host}/x:1")
    with Client(address, Access()) as registry_client:
        yield Repository(registry_client, address, counted.append)


# --- what is there


def test_a_blob_is_saved_and_counted(repository, shelf, tmp_path, counted):
    shelf.blobs[DIGEST] = CONTENT
    repository.save(WANTED, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == CONTENT
    assert sum(counted) == len(CONTENT)


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT[:-1], CONTENT + b"x", b""])
def test_another_blob_is_refused(repository, shelf, tmp_path, content):
    shelf.blobs[DIGEST] = content
    with pytest.raises(VerificationError, match="does not match its digest"):
        repository.save(WANTED, tmp_path / "blob")


def test_no_more_is_written_than_the_manifest_says(repository, shelf, tmp_path):
    shelf.blobs[DIGEST] = CONTENT * 8
    with pytest.raises(VerificationError) as caught:
        repository.save(WANTED, tmp_path / "blob")
    assert "more bytes" in caught.value.details
    assert (tmp_path / "blob").stat().st_size <= len(CONTENT)


def breaking(times):
    """Break off so many downloads of a blob in the middle."""
    failures = iter(range(times))

    def instead(request):
        if request.method == "GET" and "/blobs/" in request.path and next(failures, None) is not None:
            return Answer(200, CONTENT, cut=len(CONTENT) // 2)
        return None

    return instead


def test_a_download_that_breaks_off_is_begun_anew(repository, shelf, tmp_path, counted):
    shelf.blobs[DIGEST], shelf.instead = CONTENT, breaking(2)
    repository.save(WANTED, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == CONTENT
    assert sum(counted) == len(CONTENT)


def test_a_download_that_always_breaks_off_is_told(repository, shelf, tmp_path):
    shelf.blobs[DIGEST], shelf.instead = CONTENT, breaking(100)
    with pytest.raises(RegistryError, match="cannot be reached"):
        repository.save(WANTED, tmp_path / "blob")


def test_a_blob_without_room_is_not_begun(repository, server, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=(16 << 20) + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)
    with pytest.raises(InputError, match=r"needs 1\.0 MB, but only 0\.001 MB are free"):
        repository.save(WANTED, tmp_path / "blob")
    assert not server.asked


def test_a_small_blob_is_checked(repository, shelf):
    shelf.blobs[DIGEST] = CONTENT
    assert repository.read(WANTED) == CONTENT
    shelf.blobs[DIGEST] = CONTENT[::-1]
    with pytest.raises(VerificationError, match="does not match its digest"):
        repository.read(WANTED)


@pytest.mark.parametrize(
    "kind", [oci.INDEX_TYPE, "application/vnd.docker.distribution.manifest.v2+json", "text/html", ""]
)
def test_what_is_no_image_manifest_is_no_package(repository, shelf, kind):
    shelf.instead = lambda _asked: Answer(200, b"{}", {"Content-Type": kind})
    with pytest.raises(InputError, match="is not a package") as caught:
        repository.manifest()
    assert caught.value.hint


def test_a_manifest_of_another_digest_is_refused(server, shelf):
    address = parse(f"oci://{server.host}/x@{DIGEST}")
    shelf.manifests[DIGEST] = b"{}"
    with (
        Client(address, Access()) as registry_client,
        pytest.raises(VerificationError, match="does not match its digest"),
    ):
        Repository(registry_client, address).manifest()


def companions(count):
    for number in range(count):
        subject = {"mediaType": oci.MANIFEST_TYPE, "digest": DIGEST, "size": 2}
        yield oci.encode_manifest(f"kind/{number}", [], subject)


def test_referrers_come_page_by_page(repository, server):
    for data in companions(3):
        answer = repository.put(f"sha256:{files.sha256_bytes(data)}", data)
        assert answer["OCI-Subject"] == DIGEST
    assert [referrer.artifact for referrer in repository.referrers(DIGEST)] == ["kind/0", "kind/1", "kind/2"]
    assert len([path for path in server.paths("GET") if "/referrers/" in path]) == 3


def test_pages_without_end_are_not_followed(repository, shelf):
    def endless(request):
        if "/referrers/" not in request.path:
            return None
        headers = {"Content-Type": oci.INDEX_TYPE, "Link": f'<{request.path}>; rel="next"'}
        return Answer(200, oci.encode_index([]), headers)

    shelf.instead = endless
    assert repository.referrers(DIGEST) == ()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"manifests": 3}', b'{"manifests": [{"digest": "sha256:../x"}]}'])
def test_a_list_of_another_form_is_refused(repository, shelf, body):
    shelf.instead = lambda request: Answer(200, body) if "/referrers/" in request.path else None
    with pytest.raises(VerificationError, match="no valid OCI index"):
        repository.referrers(DIGEST)


# --- what is brought there


def test_only_what_is_missing_is_uploaded(repository, server, tmp_path, counted):
    path = tmp_path / "blob"
    path.write_bytes(CONTENT)
    assert repository.ensure(WANTED.sha256, path)
    assert not repository.ensure(WANTED.sha256, path)
    assert [len(request.body) for request in server.asked if request.method == "PUT"] == [len(CONTENT)]
    assert sum(counted) == 2 * len(CONTENT)


def test_an_empty_file_is_uploaded_too(repository, shelf, tmp_path):
    path = tmp_path / "nothing"
    path.touch()
    repository.ensure(files.sha256_bytes(b""), path)
    assert shelf.blobs == {f"sha256:{files.sha256_bytes(b'')}": b""}


def test_a_half_upload_is_made_again_from_the_start(repository, shelf, server, tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(CONTENT)
    answers = iter([Answer(503), Answer(502)])
    shelf.instead = lambda request: next(answers, None) if request.method == "PUT" else None
    repository.ensure(WANTED.sha256, path)
    assert [upload.body for upload in server.asked if upload.method == "PUT"] == [CONTENT] * 3
    assert shelf.blobs == {DIGEST: CONTENT}


def test_an_upload_whose_token_has_expired_is_made_again(shelf, server, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    path = tmp_path / "blob"
    path.write_bytes(CONTENT)
    realm = f'Bearer realm="http://{server.host}/token"'
    answers = iter([Answer(401, headers={"WWW-Authenticate": realm})])

    def instead(request):
        if request.path.startswith("/token"):
            return Answer(200, b'{"token": "new"}')
        return next(answers, None) if request.method == "PUT" else None

    shelf.instead = instead
    address = parse(f"oci://{server.host}/x:1")
    with Client(address, Access()) as registry_client:
        Repository(registry_client, address).ensure(WANTED.sha256, path)
    assert shelf.blobs == {DIGEST: CONTENT}
    assert server.asked[-1].headers["Authorization"] == "Bearer new"


@pytest.mark.parametrize("location", ["", "http://[::zz/x"])
def test_an_upload_that_leads_nowhere_is_told(repository, shelf, location):
    shelf.instead = lambda request: Answer(202, headers={"Location": location}) if request.method == "POST" else None
    with pytest.raises(RegistryError, match="no upload address"):
        repository.ensure(WANTED.sha256, CONTENT)


def test_an_upload_is_not_led_to_where_nothing_is_encrypted(repository, shelf):
    headers = {"Location": "http://10.0.0.1/x"}
    shelf.instead = lambda request: Answer(202, headers=headers) if request.method == "POST" else None
    with pytest.raises(VerificationError, match="not encrypted"):
        repository.ensure(WANTED.sha256, CONTENT)


def test_a_manifest_that_is_kept_otherwise_is_refused(repository, shelf):
    headers = {"Docker-Content-Digest": f"sha256:{'0' * 64}"}
    shelf.instead = lambda request: Answer(201, headers=headers) if request.method == "PUT" else None
    with pytest.raises(VerificationError, match="under a different digest"):
        repository.put("1", b"{}")


def test_a_tag_that_stands_in_for_a_list_keeps_what_others_put_there(repository, shelf):
    tag = DIGEST.replace(":", "-")
    foreign = {"mediaType": "x", "digest": f"sha256:{'1' * 64}", "size": 1, "artifactType": "theirs", "data": "e30="}
    older = {"mediaType": "x", "digest": f"sha256:{'2' * 64}", "size": 1, "artifactType": f"{oci.VENDOR}.x"}
    scanned = {"mediaType": "x", "digest": f"sha256:{'4' * 64}", "size": 1, "artifactType": inventory.BILL_TYPE}
    shelf.manifests[tag] = oci.encode_index([foreign, older, scanned])
    newer = older | {"digest": f"sha256:{'3' * 64}"}
    current = scanned | {"digest": f"sha256:{'5' * 64}"}
    for descriptor in (newer, current, current):
        repository.refer(DIGEST, descriptor)
    assert json.loads(shelf.manifests[tag])["manifests"] == [foreign, scanned, newer, current]


def test_an_upload_that_is_tried_again_counts_once(repository, shelf, tmp_path, counted):
    (tmp_path / "blob").write_bytes(CONTENT)
    failures = iter([Answer(503)])
    shelf.instead = lambda request: next(failures, None) if request.method == "PUT" else None
    assert repository.ensure(DIGEST.removeprefix("sha256:"), tmp_path / "blob")
    assert shelf.blobs[DIGEST] == CONTENT
    assert sum(counted) == len(CONTENT)


def test_the_next_page_may_be_named_beside_this_one(repository, shelf):
    descriptors = [oci.descriptor(oci.MANIFEST_TYPE, oci.bytes_record(bytes([n]))) for n in range(2)]
    shelf.referrers[DIGEST] = descriptors
    page = shelf._page

    def beside(path, digest, number):
        answer = page(path, digest, number)
        if "Link" in answer.headers:
            answer.headers["Link"] = f'<?page={number + 1}>; rel="next"'
        return answer

    shelf._page = beside
    assert [referrer.digest for referrer in repository.referrers(DIGEST)] == [
        descriptor["digest"] for descriptor in descriptors
    ]
