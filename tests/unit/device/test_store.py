"""The store of a device, on this machine's file system, driven through a real /bin/sh."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import time
from pathlib import Path

import pytest

from tests.support.stores import blob, locked, put, release
from toolchain.device.lock import Owner
from toolchain.device.store import BlobState, Store
from toolchain.errors import DeviceError
from toolchain.shell import LocalShell


@pytest.fixture
def locked_store(store):
    """The store, locked and laid out."""
    with locked(store):
        yield store


def numbers(store: Store) -> list[tuple[int, str, bool]]:
    return [(generation.number, generation.name, generation.current) for generation in store.releases.generations()]


# --- what a device may say ---


class Saying(LocalShell):
    """A device whose commands and processes say what they like."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self.output = output

    def _open(self, _script, kind, timeout, size=0):
        return super()._open(f"cat <<'END'\n{self.output}\nEND", kind, timeout, size)


TOKEN = "0123456789abcdef"  # noqa: S105 - it keeps nothing secret
NUMBERS = "machine=arm\nroot=/r\ncpus={0}\nmemory={0}\ndf=a b c {0} e\nlibc=glibc {0}"


@pytest.fixture
def known_token(monkeypatch):
    """An answer that is written before the question has the token."""
    monkeypatch.setattr(secrets, "token_hex", lambda _bytes: TOKEN)


def framed(*lines: str) -> str:
    return "\n".join(["Welcome!", f"begin={TOKEN}", *lines, f"end={TOKEN}"])


@pytest.mark.usefixtures("known_token")
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "a description of itself"),
        ("machine=aarch64\nroot=/r", "a description of itself"),
        ("\x1b[31m", "a description of itself"),
        (framed("machine=aarch64", "root="), "the folder of its store"),
        (framed("root=/r"), "does not report its machine"),
        (framed("root=/r", "machine=a b"), "does not report its machine"),
        (f"begin={TOKEN}\nmachine=aarch64\nroot=/r", "ended the connection while"),
    ],
)
def test_a_device_that_does_not_say_what_it_is(output, message):
    with pytest.raises(DeviceError, match=message) as caught:
        Store(Saying(output), "/r").facts()
    assert caught.value.hint


@pytest.mark.usefixtures("known_token")
def test_the_folder_is_used_as_the_device_writes_it():
    path = "/home/a\u00a0b " + "x" * 1000
    store = Store(Saying(framed("machine=aarch64", f"root={path}")), "~/r")
    assert store.root == path


@pytest.mark.usefixtures("known_token")
@pytest.mark.parametrize("number", ["", "-1", "x", "1e9", "9" * 5000, "\u0663", "0x7"])
def test_facts_that_are_none(number):
    facts = Store(Saying(framed(NUMBERS.format(number))), "/r").facts()
    assert (facts.cpus, facts.memory_kib, facts.free_kib, facts.cpu, facts.glibc) == (1, 0, 0, "", "")


@pytest.mark.parametrize(
    "row",
    [
        "",
        "1",
        "1 a 1 m",
        f"x {'a' * 64} 1 m",
        f"1 {'a' * 63}/ 1 m",
        f"1 {'a' * 64} y m",
        f"{'9' * 5000} {'a' * 64} 1 m",
    ],
)
def test_releases_that_are_none(row):
    with pytest.raises(DeviceError, match="did not return the list of its releases in a valid form") as caught:
        Store(Saying(f"current generations/1\ngeneration {row}"), "/r").releases.generations()
    assert len(caught.value.details) <= 1000


@pytest.mark.parametrize("name", ["a\x0bb", "a\u2028b", "a\x85b"])
def test_a_line_ends_where_the_device_ends_it(name):
    generations = Store(Saying(f"current generations/1\ngeneration 1 {'a' * 64} 5 {name}"), "/r").releases.generations()
    assert [(generation.name, generation.current) for generation in generations] == [(name, True)]


@pytest.mark.parametrize("name", ["back\\nslash", "back\\cslash", "back\\\\slash"])
def test_a_name_is_told_as_it_is_written(locked_store, tmp_path, name):
    """The echo of some shells reads backslashes."""
    release(locked_store, tmp_path, name)
    assert numbers(locked_store) == [(1, json.dumps(name)[1:-1], True)]


# --- facts ---


def test_facts(store, root):
    facts = store.facts()
    assert root.is_dir()
    assert facts.machine == os.uname().machine
    assert facts.kernel == f"{os.uname().sysname} {os.uname().release}"
    assert facts.glibc == os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
    assert facts.cpus == len(os.sched_getaffinity(0))
    assert facts.memory_kib == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    assert facts.cpu_features
    assert facts.lacks == ()
    space = os.statvfs(root)
    assert facts.free_kib == pytest.approx(space.f_bavail * space.f_frsize / 1024, rel=0.05)


def test_facts_name_missing_programs(store, tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "mkdir", "uname", "head", "sed", "nproc", "df", "tail", "getconf", "ln", "mv", "rm", "cp"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    assert {"flock", "sha256sum", "base64"} <= set(store.facts().lacks)
    assert not {"mv", "df"} & set(store.facts().lacks)


def test_root_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DeviceError, match="no usable store") as caught:
        Store(LocalShell(), str(tmp_path / "file" / "root")).facts()
    assert "Not a directory" in caught.value.details
    assert caught.value.hint


@pytest.mark.parametrize(
    "name", ["with space", "quote's", 'double"', "dollar$HOME", "back`date`", "glob*?[a]", "ümläut;"]
)
def test_odd_roots(tmp_path, name):
    store = Store(LocalShell(), str(tmp_path / name))
    with locked(store):
        release(store, tmp_path, "odd")
        store.releases.prune(1)
    assert numbers(store) == [(1, "odd", True)]
    assert store.root == str(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {name}


def test_root_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "my home"))
    store = Store(LocalShell(), "~/on device")
    with locked(store):
        release(store, tmp_path, "home")
    assert store.root == str(tmp_path / "my home" / "on device")
    assert numbers(store) == [(1, "home", True)]


def test_relative_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(LocalShell(), "some/where")
    with locked(store):
        release(store, tmp_path, "relative")
    assert (tmp_path / "some" / "where" / "current" / "data").read_bytes() == b"data of relative"


def test_changes_need_the_lock(store):
    store.facts()
    with pytest.raises(RuntimeError, match="without its lock"):
        store.blobs.sweep()


def test_failing_change_tells_why(locked_store):
    with pytest.raises(DeviceError, match="changing the store on") as caught:
        locked_store.change("echo because >&2; exit 9")
    assert "because" in caught.value.details


# --- blobs ---


def test_new_blob(locked_store, root, tmp_path):
    path, digest = blob(tmp_path, b"some bytes")
    assert locked_store.blobs.examine([digest]) == {digest: BlobState("missing", 0)}
    locked_store.blobs.push(path, digest, 0, None)
    assert locked_store.blobs.publish([digest]) == ()
    assert locked_store.blobs.examine([digest]) == {digest: BlobState("have", 0)}
    stored = root / "blobs" / "sha256" / digest
    assert stored.read_bytes() == b"some bytes"
    assert stored.stat().st_mode & 0o777 == 0o444


def test_program_is_executable(locked_store, root, tmp_path):
    path, digest = blob(tmp_path, b"#!/bin/sh\n")
    other, second = blob(tmp_path, b"no program")
    locked_store.blobs.examine([digest, second])
    locked_store.blobs.push(path, digest, 0, None)
    locked_store.blobs.push(other, second, 0, None)
    locked_store.blobs.publish([digest, second], executable=[digest])
    modes = {name: (root / "blobs/sha256" / name).stat().st_mode & 0o777 for name in (digest, second)}
    assert modes == {digest: 0o555, second: 0o444}


def test_upload_is_resumed_by_the_next_deploy(store, root, tmp_path):
    data = os.urandom(100_000)
    path, digest = blob(tmp_path, data)
    (tmp_path / "part").write_bytes(data[:30_000])
    with locked(store):
        store.blobs.examine([digest])
        store.blobs.push(tmp_path / "part", digest, 0, None)
    with locked(store):
        assert store.blobs.examine([digest]) == {digest: BlobState("partial", 30_000)}
        assert store.blobs.examine([digest]) == {digest: BlobState("partial", 30_000)}
        store.blobs.push(path, digest, 30_000, None)
        assert store.blobs.publish([digest]) == ()
        store.releases.prune(1)
    assert list((root / "blobs" / "partial").iterdir()) == []


def test_upload_that_was_about_to_be_published_is_resumed(store, root, tmp_path):
    """A power cut came between the chmod and the rename; who is not root could not write to that file any more."""
    path, digest = blob(tmp_path, b"whole")
    with locked(store):
        store.blobs.examine([digest])
        store.blobs.push(path, digest, 0, None)
        next((root / "blobs" / "partial").glob(f"*/{digest}")).chmod(0o444)
    with locked(store):
        assert store.blobs.examine([digest]) == {digest: BlobState("partial", 5)}
        (copy,) = (root / "blobs" / "partial").glob(f"*/{digest}")
        assert copy.stat().st_mode & 0o777 == 0o644
        store.blobs.push(path, digest, 5, None)
        assert store.blobs.publish([digest]) == ()


def test_damaged_upload_is_refused_and_nothing_is_published(locked_store, root, tmp_path):
    good, digest = blob(tmp_path, b"good")
    bad, other = blob(tmp_path, b"bad")
    bad.write_bytes(b"worse")
    locked_store.blobs.examine([digest, other])
    locked_store.blobs.push(good, digest, 0, None)
    locked_store.blobs.push(bad, other, 0, None)
    assert locked_store.blobs.publish([digest, other]) == (other,)
    assert list((root / "blobs" / "sha256").iterdir()) == []
    assert locked_store.blobs.examine([digest, other]) == {
        digest: BlobState("partial", 4),
        other: BlobState("missing", 0),
    }


def test_damaged_blob_is_removed(locked_store, root, tmp_path):
    digest = put(locked_store, tmp_path, b"whole")
    stored = root / "blobs" / "sha256" / digest
    stored.chmod(0o644)
    stored.write_bytes(b"torn")
    assert locked_store.blobs.examine([digest, digest]) == {digest: BlobState("damaged", 0)}
    assert locked_store.blobs.examine([digest]) == {digest: BlobState("missing", 0)}


# --- folders ---


def test_install_links_blobs(locked_store, root, tmp_path):
    digest = put(locked_store, tmp_path, b"content")
    path = locked_store.blobs.install("runners", "r1", {"it's a file": digest})
    assert path == str(root / "runners" / "r1")
    assert (Path(path) / "it's a file").samefile(root / "blobs" / "sha256" / digest)


def test_install_mends_a_folder(locked_store, root, tmp_path):
    files = {"a": put(locked_store, tmp_path, b"content of a"), "b": put(locked_store, tmp_path, b"content of b")}
    folder = Path(locked_store.blobs.install("releases", "r1", files))
    inode = (folder / "b").stat().st_ino
    (folder / "a").unlink()
    (folder / "a").write_bytes(b"tampered")
    locked_store.blobs.install("releases", "r1", files)
    assert (folder / "a").read_bytes() == b"content of a"
    assert (folder / "b").stat().st_ino == inode
    (folder / "a").unlink()
    locked_store.blobs.install("releases", "r1", files)
    assert (folder / "a").read_bytes() == b"content of a"
    assert [path.name for path in (root / "releases").iterdir()] == ["r1"]


def test_tampering_through_a_link_is_mended_by_another_upload(locked_store, tmp_path):
    digest = put(locked_store, tmp_path, b"content")
    folder = Path(locked_store.blobs.install("releases", "r1", {"a": digest}))
    (folder / "a").chmod(0o644)
    (folder / "a").write_bytes(b"tampered")
    assert put(locked_store, tmp_path, b"content") == digest
    locked_store.blobs.install("releases", "r1", {"a": digest})
    assert (folder / "a").read_bytes() == b"content"


def test_copies_where_hard_links_are_impossible(store, tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ln").write_text('#!/bin/sh\ncase $1 in -s*) exec /bin/ln "$@" ;; esac\nexit 1\n')
    (tools / "ln").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with locked(store):
        release(store, tmp_path, "copied")
        store.releases.prune(1)
        data = Path(store.root, "current", "data")
        assert (data.read_bytes(), data.stat().st_nlink) == (b"data of copied", 1)
        data.unlink()
        release(store, tmp_path, "copied")
        assert data.read_bytes() == b"data of copied"


# --- generations ---


def test_list_on_an_empty_device(store, root):
    assert store.releases.generations() == ()
    assert store.releases.current() is None
    assert not root.exists()


def test_activate_is_idempotent(locked_store, tmp_path):
    digest = release(locked_store, tmp_path, "one")
    assert locked_store.releases.activate(digest) is False
    assert numbers(locked_store) == [(1, "one", True)]


def test_generations(locked_store, tmp_path):
    before = int(time.time())
    for name in ("one", "two", "one"):
        release(locked_store, tmp_path, name)
    assert numbers(locked_store) == [(1, "one", False), (2, "two", False), (3, "one", True)]
    assert all(before <= generation.time <= time.time() for generation in locked_store.releases.generations())
    assert locked_store.releases.current().digest == locked_store.releases.generations()[0].digest
    assert locked_store.read("current/data") == b"data of one"


def test_ten_generations_are_sorted_by_number(locked_store, tmp_path):
    for index in range(11):
        release(locked_store, tmp_path, f"model {index}")
    assert [generation.number for generation in locked_store.releases.generations()] == list(range(1, 12))


def test_roll_back_and_deploy_again(locked_store, tmp_path):
    for name in ("one", "two", "three"):
        release(locked_store, tmp_path, name)
    assert locked_store.releases.roll_back().name == "two"
    assert numbers(locked_store) == [(1, "one", False), (2, "two", True), (3, "three", False)]
    locked_store.blobs.sweep()
    release(locked_store, tmp_path, "four")
    assert numbers(locked_store) == [(1, "one", False), (2, "two", False), (3, "four", True)]
    assert locked_store.releases.roll_back().name == "two"
    assert locked_store.releases.roll_back().name == "one"


def test_roll_back_with_nothing_before(locked_store, tmp_path):
    for _ in range(2):
        with pytest.raises(DeviceError, match="no earlier release") as caught:
            locked_store.releases.roll_back()
        assert "toolchain status --releases" in caught.value.hint
        release(locked_store, tmp_path, "one")
    assert numbers(locked_store) == [(1, "one", True)]


def test_a_library_is_offered_at_one_path(locked_store, root, tmp_path):
    for content in (b"first", b"second", b"first"):
        digest = put(locked_store, tmp_path, content)
        locked_store.blobs.install("libraries", digest, {"libedge_model.so.1": digest})
        locked_store.blobs.offer(digest)
        assert (root / "lib").readlink() == Path("libraries") / digest
        assert (root / "lib" / "libedge_model.so.1").read_bytes() == content
        locked_store.releases.prune(1)


def test_prune_keeps_some_and_frees_the_rest(locked_store, root, tmp_path):
    for index in range(4):
        release(locked_store, tmp_path, f"model {index}")
    locked_store.releases.prune(2)
    assert numbers(locked_store) == [(3, "model 2", False), (4, "model 3", True)]
    assert len(list((root / "releases").iterdir())) == 2
    assert len(list((root / "blobs" / "sha256").iterdir())) == 4
    assert (root / "current" / "data").read_bytes() == b"data of model 3"


def test_prune_keeps_a_release_that_an_older_and_a_kept_activation_share(locked_store, tmp_path):
    for name in ("one", "two", "one"):
        release(locked_store, tmp_path, name)
    locked_store.releases.prune(1)
    assert numbers(locked_store) == [(3, "one", True)]
    assert locked_store.read("current/data") == b"data of one"


def test_prune_keeps_the_last_programs_and_inputs(locked_store, root, tmp_path):
    for index in range(5):
        digest = put(locked_store, tmp_path, b"%d" % index)
        for kind in ("runners", "servers", "libraries", "inputs"):
            folder = root / kind / locked_store.blobs.install(kind, f"{kind}{index}", {"file": digest})
            os.utime(folder, (index, index))
    locked_store.releases.prune(1)
    assert {path.name for path in (root / "runners").iterdir()} == {"runners3", "runners4"}
    assert {path.name for path in (root / "servers").iterdir()} == {"servers3", "servers4"}
    assert {path.name for path in (root / "libraries").iterdir()} == {"libraries3", "libraries4"}
    assert {path.name for path in (root / "inputs").iterdir()} == {"inputs2", "inputs3", "inputs4"}


def test_a_folder_of_somebody_is_not_swept(store, root):
    """A list of devices may name any folder."""
    precious = root / "run" / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    with store.lock(Owner.here("tests")), pytest.raises(DeviceError) as caught:
        store.blobs.sweep()
    assert "is not a store: it contains run" in caught.value.details
    assert precious.read_text() == "mine"
    assert {path.name for path in root.iterdir()} <= {"run", "lock"}


def test_a_store_may_be_made_beside_tuning_records(store, root):
    """The default store of this machine is in their folder, and whoever tunes first has records and no store."""
    records = root / "records" / "local.jsonl"
    records.parent.mkdir(parents=True)
    records.write_text("{}\n")
    with store.lock(Owner.here("tests")):
        store.blobs.sweep()
    assert records.read_text() == "{}\n"
    assert (root / "blobs" / "partial").is_dir()


@pytest.mark.parametrize("others", [["index.json", "oci-layout"], ["blobs/sha256/" + "a" * 64], ["blobs/mine"]])
def test_a_folder_with_blobs_of_somebody_is_not_swept(store, root, others):
    """As an OCI layout has them."""
    for name in ("blobs/sha256/" + "a" * 64, "run/mine", *others) if "index.json" in others else others:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("theirs")
    before = {path for path in root.rglob("*") if path.is_file()}
    with store.lock(Owner.here("tests")), pytest.raises(DeviceError) as caught:
        store.blobs.sweep()
    assert "is not a store: it contains" in caught.value.details
    assert before <= {path for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folders", [[], ["blobs"], ["blobs/partial"], ["blobs/sha256"], ["blobs/partial", "releases"]])
def test_a_store_that_was_being_made_is_made(store, root, folders):
    """A deploy may be killed at any time, and an earlier toolchain made the folders in another order."""
    for name in folders:
        (root / name).mkdir(parents=True)
    with store.lock(Owner.here("tests")):
        store.blobs.sweep()
    assert (root / "blobs" / "partial").is_dir()
    assert (root / "generations").is_dir()


def test_sweep_removes_leftovers(locked_store, root, tmp_path):
    release(locked_store, tmp_path, "one")
    for name in ("releases/.new-x", "runners/.new-y", "inputs/.new-z", ".trash-release", "run/abc"):
        (root / name).mkdir()
        (root / name / "file").touch()
    (root / ".current-new").symlink_to("generations/2")
    (root / "generations" / "2").symlink_to("../releases/never-current")
    locked_store.blobs.sweep()
    assert not [path for path in root.rglob(".*") if path.name != "."]
    assert list((root / "run").iterdir()) == []
    assert [path.name for path in (root / "generations").iterdir()] == ["1"]
    assert (root / "current" / "data").read_bytes() == b"data of one"


def test_activation_that_was_killed_before_its_rename(locked_store, root, tmp_path):
    """The number of a generation that never became current is used again."""
    release(locked_store, tmp_path, "one")
    two = release(locked_store, tmp_path, "two")
    (root / ".current-old").symlink_to("generations/1")
    (root / ".current-old").replace(root / "current")
    locked_store.blobs.sweep()
    assert numbers(locked_store) == [(1, "one", True)]
    assert locked_store.releases.activate(two) is True
    assert numbers(locked_store) == [(1, "one", False), (2, "two", True)]


def test_read_of_a_missing_file(store):
    store.facts()
    with pytest.raises(DeviceError) as caught:
        store.read("current/manifest.json")
    assert "No such file" in caught.value.details


def test_scripts_are_quoted(locked_store, root, tmp_path):
    digest = put(locked_store, tmp_path, b"content")
    name = "$(touch pwned); 'x' \"y\""
    assert (Path(locked_store.blobs.install("inputs", "i", {name: digest})) / name).is_file()
    assert shlex.quote(name) != name
    assert not (root / "pwned").exists()


@pytest.mark.parametrize(
    ("first", "machine"), [(b"\x7fELF\x01", "armv7l"), (b"\x7fELF\x02", "aarch64"), (b"#!/bi", "aarch64")]
)
def test_a_machine_is_what_its_programs_are_made_for(store, tmp_path, monkeypatch, first, machine):
    """A kernel of 64 bits, and a shell of 32."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").write_bytes(first)
    (tools / "uname").write_text("#!/bin/sh\necho aarch64\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert store.facts().machine == machine
