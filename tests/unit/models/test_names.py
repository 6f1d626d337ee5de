"""What a name of a model stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import nets
from toolchain.errors import InputError
from toolchain.models import source, zoo
from toolchain.pipeline.source import is_built


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "network"), [("mlp", "mlp"), ("zoo:mlp", "mlp"), ("./mlp", ""), ("mlp.onnx", "")])
def test_a_name_is_the_zoos_and_a_path_has_a_slash(name, network):
    assert zoo.network(name) == network
    Path("mlp").mkdir()
    assert zoo.network(name) == network


def test_a_file_goes_before_the_zoo_and_not_before_the_explicit_form():
    Path("mlp").write_text("")
    assert (zoo.network("mlp"), zoo.network("zoo:mlp")) == ("", "mlp")


def test_an_unknown_network_of_the_zoo():
    with pytest.raises(InputError, match="the zoo has no network 'mpl'") as caught:
        zoo.network("zoo:mpl")
    assert caught.value.hint == "did you mean mlp?"


def test_both_forms_are_the_same_model(here):
    first, second = source.load("mlp"), source.load("zoo:mlp")
    assert (first.name, first.origin, first.sha256) == (second.name, second.origin, second.sha256)
    Path(nets.save(nets.relu((2, 3)), here)).rename(here / "mlp")
    assert source.load("zoo:mlp").sha256 == first.sha256
    assert source.load("./mlp").sha256 == source.load("mlp").sha256 != first.sha256


def test_the_zoos_network_is_no_bundle(here):
    Path("mlp").mkdir()
    Path("mlp/manifest.json").write_text("{}")
    assert (is_built("mlp"), is_built("./mlp"), is_built("zoo:mlp")) == (True, True, False)


def test_an_ambiguous_name_is_told():
    assert not zoo.ambiguity("mlp", built=True)
    Path("mlp").mkdir()
    assert zoo.ambiguity("mlp", built=True) == "mlp is the folder ./mlp here; zoo:mlp names the zoo's network"
    assert zoo.ambiguity("mlp", built=False) == "mlp is the zoo's network; ./mlp names the folder here"
    assert not zoo.ambiguity("./mlp", built=True)
    assert not zoo.ambiguity("zoo:mlp", built=False)
    Path("mlp").rmdir()
    Path("mlp").write_text("")
    assert zoo.ambiguity("mlp", built=False) == "mlp is the file ./mlp here; zoo:mlp names the zoo's network"
