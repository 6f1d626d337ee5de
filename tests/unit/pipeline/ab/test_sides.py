"""The sides: which names open which release, which pairs are refused, and the kernels of a release."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import deploys, gates
from toolchain import bundle
from toolchain.device.lock import Owner
from toolchain.errors import InputError, ToolchainError, VerificationError
from toolchain.pipeline.ab import Side, SideOpener, check_pair, on_device, sides
from toolchain.registry import Access

ADDRESS = "oci://registry.lab/nets/dense"


@pytest.fixture
def opener(tmp_path):
    (tmp_path / "packages").mkdir()
    return SideOpener(tmp_path / "packages", Access())


@pytest.fixture
def pulled(monkeypatch, tiny):
    """A registry that has everything."""
    pulled_addresses = []
    monkeypatch.setattr(sides.registry, "pull", lambda address, *_: pulled_addresses.append(str(address)) or tiny)
    return pulled_addresses


def test_folders_and_packages_are_opened(opener, tiny, tmp_path):
    bundle.pack(tiny, tmp_path / "dense.tar")
    for path in (tiny.folder, tmp_path / "dense.tar", tmp_path / "dense.tar"):
        side = opener.open_local(str(path))
        assert (side.label, side.digest, side.bundle.digest) == (str(path), tiny.digest, tiny.digest)
    assert side.size == sum(record.size for record in tiny.manifest.files.values())


def test_addresses_are_pulled(opener, pulled, tiny, tmp_path):
    assert opener.open_local(f"{ADDRESS}:v3").digest == tiny.digest
    (tmp_path / "base.txt").write_text(f"{ADDRESS}@sha256:{'a' * 64}\n")
    assert opener.open_local(str(tmp_path / "base.txt")).digest == tiny.digest
    assert pulled == [f"{ADDRESS}:v3", f"{ADDRESS}@sha256:{'a' * 64}"]


def test_addresses_are_refused_without_access_to_a_registry(tmp_path):
    with pytest.raises(InputError, match="is in a registry") as caught:
        SideOpener(tmp_path, None).open_local(f"{ADDRESS}:v3")
    assert "toolchain pull" in caught.value.hint


def test_a_digest_in_a_file_is_a_release_on_the_device_or_one_of_the_same_repository(opener, pulled, tmp_path):
    path = tmp_path / "base.txt"
    path.write_text(f"sha256:{'a' * 64}\n")
    assert opener.open_local(str(path)) is None
    assert opener.open_local(str(path), "dense.tar") is None
    assert opener.open_local(str(path), f"{ADDRESS}:v3").label == str(path)
    assert pulled == [f"{ADDRESS}@sha256:{'a' * 64}"]


@pytest.mark.parametrize("name", ["current", "7", "12345678", "sha256:0123abcd", "a" * 64])
def test_words_for_releases_on_the_device(opener, name):
    assert opener.open_local(name) is None


@pytest.mark.parametrize("name", ["nothing.tar", "a" * 65, "ABCDEF01", "0123abc", "sha256:", "-1", ""])
def test_what_names_nothing(opener, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolchainError) as caught:
        opener.open_local(name)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "neither a package nor a file with a package's digest"),
        ("a b", "neither a package nor a file with a package's digest"),
        (f"sha256:{'a' * 64}\nsha256:{'b' * 64}\n", "neither a package nor a file with a package's digest"),
        ("x" * 5000, "neither a package nor a file with a package's digest"),
        ("sha256:12", "does not contain a package's digest"),
        (f"sha256:{'A' * 64}", "does not contain a package's digest"),
        (f"{ADDRESS}:v3", "names a tag"),
        ("oci://", "is not a valid address of a package in a registry"),
        ("\x00\xff", "does not contain a package's digest"),
    ],
)
def test_a_file_that_pins_nothing(opener, tmp_path, content, message):
    path = tmp_path / "base.txt"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        opener.open_local(str(path))


def test_releases_on_a_device_by_all_their_names(program, tiny, tmp_path):

    bench = gates.bench(tmp_path / "device", program)
    bench.says(tiny)
    store = bench.device.store
    with pytest.raises(InputError, match="no such release") as caught:
        on_device("current", bench.device)
    assert caught.value.details == "the device has no releases"
    deploys.deploy(tiny, bench.program, bench.device.shell, store)
    (tmp_path / "base.txt").write_text(f"sha256:{tiny.digest}")
    for name in ("current", "1", tiny.digest, f"sha256:{tiny.digest[:8]}", str(tmp_path / "base.txt")):
        assert on_device(name, bench.device) == Side(name, tiny.manifest, tiny.digest)
    for name in ("2", "f" * 64):
        with pytest.raises(InputError, match="no such release") as caught:
            on_device(name, bench.device)
        assert tiny.digest[:16] in caught.value.details
    manifest = bench.folder / "store" / "releases" / tiny.digest / "manifest.json"
    with store.lock(Owner.here("test")):
        text = manifest.read_text().replace('"name": "dense"', '"name": "other"')
        manifest.unlink()
        manifest.write_text(text)
    with pytest.raises(VerificationError, match="does not match its digest"):
        on_device("current", bench.device)


def test_pairs_that_are_none(tiny, native):
    side = Side.of(tiny)
    other = dataclasses.replace(side, digest="0" * 64, label="other")
    check_pair(side, other, native)
    with pytest.raises(InputError, match="dense and dense are the same release"):
        check_pair(side, side, native)
    moved = dataclasses.replace(other, manifest=dataclasses.replace(tiny.manifest, board="rpi4"))
    for pair in ((side, moved), (moved, side)):
        with pytest.raises(VerificationError, match="was built for board rpi4"):
            check_pair(*pair, native)
    for tensors in ("inputs", "outputs"):
        specs = tuple(dataclasses.replace(spec, shape=(7, 7)) for spec in getattr(tiny.manifest, tensors))
        model = dataclasses.replace(other, manifest=dataclasses.replace(tiny.manifest, **{tensors: specs}))
        with pytest.raises(InputError, match=f"are different models: their {tensors} differ"):
            check_pair(side, model, native)
    check_pair(side, model, native, ("inputs",))


@pytest.mark.parametrize("name", ["", "x" * 5000, "x" * 300, "a\x00b", "current\n", "/dev/null", "-1", "1" * 9 + "z"])
def test_words_that_name_nothing(tmp_path, name):
    with pytest.raises(InputError, match="there is no") as caught:
        SideOpener(tmp_path, Access()).open_local(name)
    assert len(caught.value.message) < 300


def test_a_release_has_the_kernels_of_the_bundle_that_it_was(program, tiny, tmp_path):
    bench = gates.bench(tmp_path / "device", program)
    bench.says(tiny)
    deploys.deploy(tiny, bench.program, bench.device.shell, bench.device.store)
    kernels = Side.of(tiny).kernels
    for name in ("current", "1", tiny.digest[:8]):
        side = on_device(name, bench.device)
        assert (side.digest, side.kernels, side.bundle) == (tiny.digest, kernels, None)
    graph = bench.folder / "store" / "releases" / tiny.digest / "graph.txt"
    with bench.device.store.lock(Owner.here("test")):
        text = graph.read_bytes()
        graph.unlink()
        graph.write_bytes(text[:-1] + b"x")
    assert side.kernels == kernels, "they are read once"
    with pytest.raises(VerificationError, match="does not match its digest"):
        _ = on_device("current", bench.device).kernels
