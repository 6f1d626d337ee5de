from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile

import pytest

from toolchain.containers import archive as archives

CREATED = 1_700_000_000
TAG = "edge-toolchain/some:latest"


def entry(name, data=b"", kind=tarfile.REGTYPE, **more):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data) if kind == tarfile.REGTYPE else 0
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def pyc(flags):
    return b"\xa7\r\r\n" + flags.to_bytes(4, "little") + bytes(8)


def exported(path, entries, mtime=1.5):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in entries:
            info.mtime = mtime
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


FILES = [
    entry("etc", kind=tarfile.DIRTYPE, mode=0o755),
    entry("etc/passwd", b"root", uname="somebody", uid=3),
    entry("etc-more", b"x"),
    entry("usr", kind=tarfile.DIRTYPE, mode=0o755),
    entry("usr/" + "long" * 60, b"long"),
    entry("usr/link", kind=tarfile.SYMTYPE, linkname="../etc/passwd"),
]


def made(folder, entries, config=None, name="image.tar", mtime=1.5):
    source = exported(folder / f"source-of-{name}", entries, mtime)
    image = archives.write(source, folder / name, TAG, config or archives.ImageConfig(CREATED, "amd64"))
    return image, folder / name


def opened(path):
    """Read an archive as an engine does: configuration, and the layer's members by name."""
    with tarfile.open(path) as archive:
        [manifest] = json.load(archive.extractfile("manifest.json"))
        config = archive.extractfile(manifest["Config"]).read()
        layer = archive.extractfile(manifest["Layers"][0]).read()
    described = json.loads(config)
    assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    assert described["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    return described, tarfile.open(fileobj=io.BytesIO(layer))


def test_the_same_files_are_the_same_bytes(tmp_path):
    first, path = made(tmp_path, FILES)
    second, other_path = made(tmp_path, FILES[::-1], name="other.tar", mtime=99999.25)
    assert first == second
    assert path.read_bytes() == other_path.read_bytes()


def test_another_byte_is_another_image(tmp_path):
    images = {made(tmp_path, [*FILES, entry("usr/x", data)])[0] for data in (b"1", b"2")}
    assert len(images) == 2


@pytest.mark.parametrize("change", [{"uid": 4}, {"mode": 0o600}, {"gid": 9}])
def test_owner_and_mode_are_content(tmp_path, change):
    images = {made(tmp_path, [entry("etc", kind=tarfile.DIRTYPE, **more)])[0] for more in ({}, change)}
    assert len(images) == 2


def test_members(tmp_path):
    _image, path = made(tmp_path, FILES)
    _config, layer = opened(path)
    assert layer.getnames() == ["etc", "etc/passwd", "etc-more", "usr", "usr/link", FILES[4][0].name]
    assert {(member.mtime, member.uname, member.gname) for member in layer} == {(CREATED, "", "")}
    assert layer.extractfile("etc/passwd").read() == b"root"
    assert layer.getmember("etc/passwd").uid == 3
    assert layer.getmember("usr/link").linkname == "../etc/passwd"


@pytest.mark.parametrize(
    "name",
    [
        ".dockerenv",
        "dev/null",
        "etc/group-",
        "etc/hosts",
        "etc/machine-id",
        "proc/1/x",
        "run/x",
        "tmp/a/b",
        "var/cache/apt/pkgcache.bin",
        "var/cache/debconf/config.dat-old",
        "var/cache/ldconfig/aux-cache",
        "var/lib/apt/lists/a_b",
        "var/lib/dpkg/status-old",
        "var/log/dpkg.log",
    ],
)
def test_volatile_files_go(tmp_path, name):
    _config, layer = opened(made(tmp_path, [*FILES, entry(f"./{name}", b"x")])[1])
    assert name not in layer.getnames()
    assert len(layer.getnames()) == len(FILES)


@pytest.mark.parametrize(
    "name", ["dev", "tmp", "etc/hostnames", "var/lib/dpkg/status", "usr/tmp/x", "usr/etc/hosts", "home/proc/x"]
)
def test_other_files_stay(tmp_path, name):
    assert name in opened(made(tmp_path, [entry(name, b"x")])[1])[1].getnames()


def test_compiled_modules_that_hold_a_time_go(tmp_path):
    files = [entry("a/timed.pyc", pyc(0)), entry("a/checked.pyc", pyc(3)), entry("a/unchecked.pyc", pyc(1))]
    assert opened(made(tmp_path, files)[1])[1].getnames() == ["a/checked.pyc", "a/unchecked.pyc"]


@pytest.mark.parametrize("target", ["a/one", "b/two"])
def test_hard_links_point_back(tmp_path, target):
    other = ({"a/one", "b/two"} - {target}).pop()
    files = [entry(target, b"shared", mode=0o755), entry(other, kind=tarfile.LNKTYPE, linkname=target, mode=0o755)]
    image, path = made(tmp_path, files)
    _config, layer = opened(path)
    assert layer.getmember("b/two").islnk()
    assert layer.extractfile("b/two").read() == layer.extractfile("a/one").read() == b"shared"
    assert (
        image
        == made(
            tmp_path,
            [entry("a/one", b"shared", mode=0o755), entry("b/two", kind=tarfile.LNKTYPE, linkname="a/one", mode=0o755)],
        )[0]
    )


def test_a_hard_link_to_a_volatile_file_is_a_file(tmp_path):
    files = [entry("tmp/one", b"shared"), entry("usr/two", kind=tarfile.LNKTYPE, linkname="tmp/one")]
    _config, layer = opened(made(tmp_path, files)[1])
    assert layer.getmember("usr/two").isreg()
    assert layer.extractfile("usr/two").read() == b"shared"


def test_large_files_are_whole(tmp_path):
    data = os.urandom((3 << 20) + 17)
    _config, layer = opened(made(tmp_path, [entry("large", data), entry("next", b"x")])[1])
    assert layer.extractfile("large").read() == data
    assert layer.extractfile("next").read() == b"x"


def test_names_that_are_no_utf8(tmp_path):
    name = b"caf\xe9".decode(errors="surrogateescape")
    assert opened(made(tmp_path, [entry(name, b"x")])[1])[1].getnames() == [name]


def test_configuration(tmp_path):
    config = archives.ImageConfig(
        CREATED,
        labels={"a": "b"},
        environment={"PATH": "/bin", "A": "1"},
        entrypoint=("run",),
        command=("x", "y"),
        architecture="arm",
        variant="v7",
        settings={"ExposedPorts": {"22/tcp": {}}},
    )
    described = opened(made(tmp_path, FILES, config)[1])[0]
    assert (described["architecture"], described["variant"], described["os"]) == ("arm", "v7", "linux")
    assert described["created"] == "2023-11-14T22:13:20Z"
    assert described["config"] == {
        "Cmd": ["x", "y"],
        "Entrypoint": ["run"],
        "Env": ["A=1", "PATH=/bin"],
        "ExposedPorts": {"22/tcp": {}},
        "Labels": {"a": "b"},
    }
