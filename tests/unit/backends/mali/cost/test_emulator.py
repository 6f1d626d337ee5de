"""What runs the compiler's program: this machine's qemu, an image's, or nothing that is there."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from toolchain.backends.mali.cost import emulator
from toolchain.backends.mali.cost.emulator import Folders, ImageEmulator, LocalEmulator
from toolchain.containers import images
from toolchain.errors import BuildError


@pytest.fixture(autouse=True)
def x86(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of another kind, and an empty folder of programs."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path, text: str = '#!/bin/sh\necho "$@"\n') -> Path:
    path.write_text(text, encoding="ascii")
    path.chmod(0o755)
    return path


def test_this_machines_qemu_comes_first(x86: Path) -> None:
    qemu = program(x86 / "qemu-aarch64-static")
    chosen = emulator.emulator()
    assert chosen == LocalEmulator(str(qemu))
    ran = chosen.run(["/p", "-x"], Path("/tree"), {"A": "1", "B": "2"}, Folders((), ()), 10.0)
    assert ran.stdout == "-L /tree -E A=1 -E B=2 /p -x\n"


def test_a_machine_of_that_kind_needs_none(monkeypatch: pytest.MonkeyPatch, x86: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert emulator.emulator() == LocalEmulator(None)
    printed = LocalEmulator(None).run(
        [str(program(x86 / "p", "#!/bin/sh\necho $A $1\n")), "x"], x86, {"A": "1"}, Folders((), ()), 9.0
    )
    assert printed.stdout == "1 x\n"


def test_an_image_that_has_one_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "labels", lambda name: {emulator.LABEL: "qemu-of-" + name})
    assert emulator.emulator() == ImageEmulator("mali", "qemu-of-mali")


def test_an_image_sees_the_tree_and_writes_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    call: dict[str, object] = {}
    monkeypatch.setattr(images, "run", lambda image, command, **how: call.update(how, image=image, words=command))
    folders = Folders((Path("/sources"),), (Path("/sources/cache"),))
    ImageEmulator("mali", "qemu").run(["/c/program"], Path("/c/root"), {"A": "1"}, folders, 5.0)
    assert call["words"] == ["qemu", "-L", "/c/root", "-E", "A=1", "/c/program"]
    assert (call["readable"], call["writable"]) == ((Path("/c"), Path("/sources")), (Path("/sources/cache"),))
    assert (call["image"], call["check"], call["timeout"]) == ("mali", False, 5.0)


def test_without_either_it_is_said_what_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> dict[str, str]:
        raise BuildError(f"there is no image {name}")

    for labels, cause in ((missing, "no image mali"), (lambda _name: {}, "is too old")):
        monkeypatch.setattr(images, "labels", labels)
        with pytest.raises(BuildError, match="needs qemu") as caught:
            emulator.emulator()
        assert cause in caught.value.details
        assert "qemu-user-static" in caught.value.hint
        assert "toolchain containers build mali" in caught.value.hint
