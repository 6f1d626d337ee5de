"""Symbols that become local, in objects of this machine's compiler; whole libraries are in integration/test_sdk.py."""

from __future__ import annotations

import subprocess

import pytest
from elftools.elf.elffile import ELFFile

from toolchain.errors import BuildError
from toolchain.native.relocatable import localize

SOURCE = """
#include <stdexcept>
#include <vector>
int hidden(int x) { return x + 1; }
extern "C" int shown(int x) {
  try {
    std::vector<int> some(static_cast<size_t>(x), hidden(x));
    return some.at(static_cast<size_t>(x) - 1);
  } catch (const std::exception&) {
    return -1;
  }
}
"""
USER = """
extern "C" int shown(int);
int hidden(int x) { return x - 1; }
int main() { return shown(3) + hidden(0) + shown(0); }
"""


@pytest.fixture
def thing(tmp_path):
    path = tmp_path / "thing.o"
    command = ["c++", "-O0", "-c", "-fPIC", "-x", "c++", "-", "-o", path]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return path


def global_names(path) -> set[str]:
    with path.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".symtab")
        symbols = [symbol for symbol in table.iter_symbols() if symbol["st_info"]["bind"] != "STB_LOCAL"]
        return {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}


def test_a_program_has_its_own_function_of_a_hidden_name(thing, tmp_path):
    assert len(global_names(thing)) > 10
    thing.write_bytes(localize(thing.read_bytes(), lambda name: name == "shown"))
    assert global_names(thing) == {"shown"}
    command = ["c++", "-x", "c++", "-", "-x", "none", thing, "-o", tmp_path / "program"]
    subprocess.run(command, input=USER, text=True, check=True)
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 4 - 1 - 1


def test_locals_come_first(thing):
    thing.write_bytes(localize(thing.read_bytes(), lambda name: name == "shown"))
    with thing.open("rb") as stream:
        file = ELFFile(stream)
        table = file.get_section_by_name(".symtab")
        kinds = [symbol["st_info"]["bind"] == "STB_LOCAL" for symbol in table.iter_symbols()]
        assert kinds == sorted(kinds, reverse=True)
        assert table["sh_info"] == sum(kinds)
        assert not [section for section in file.iter_sections() if section["sh_type"] == "SHT_GROUP"]


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"!<arch>\n" + bytes(64), b"\x7fELF\x02\x02\x01" + bytes(64)])
def test_what_is_no_object(data):
    with pytest.raises(BuildError, match="not a relocatable object"):
        localize(data, str.isprintable)


def test_a_program_is_no_object(tmp_path):
    subprocess.run(["c++", "-x", "c++", "-", "-o", tmp_path / "a"], input="int main() {}", text=True, check=True)
    with pytest.raises(BuildError, match="not a relocatable object"):
        localize((tmp_path / "a").read_bytes(), str.isprintable)
