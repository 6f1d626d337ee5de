"""What a backend is, and what it has by default."""

from __future__ import annotations

import pytest

from toolchain import board
from toolchain.backends import BACKENDS, backend_of
from toolchain.backends.base import Backend
from toolchain.errors import InputError


class Plain(Backend):
    """What the least backend has to say for itself."""

    template_names = ("one", "two")
    target = cpu_features = templates = property(lambda _self: None)
    space = staticmethod(lambda _meta_schedule: None)
    open_choices = open_kernel = None

    def lower(self, module):
        return module

    def schedule(self, module):
        return module

    def apply_choices(self, module, choices):  # noqa: ARG002 - it has no kernels to choose
        return module


LOCAL = board.load("local").resolved()


def test_the_defaults_are_those_of_a_processor_without_an_accelerator():
    backend = Plain(LOCAL, ["one"])
    assert (backend.board, backend.without) == (LOCAL, {"one"})
    assert not backend.computes_int8
    assert backend.unsupported_layers(None) == ()
    assert backend.machine_model is None
    assert backend.shipped == ""


def test_tvm_lacks_nothing_to_run_kernels_for_cpus():
    with pytest.raises(InputError, match="TVM runs CPU kernels without an additional library"):
        Plain(LOCAL).python_runtime(print)


def test_an_accelerator_of_int8_is_used_unless_its_template_is_left_out():
    class Accelerated(Plain):
        int8_template = "two"

    assert Accelerated(LOCAL).computes_int8
    assert Accelerated(LOCAL, ["one"]).computes_int8
    assert not Accelerated(LOCAL, ["two"]).computes_int8


def test_a_backend_without_its_own_lowering_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Backend(LOCAL)


@pytest.mark.parametrize("name", board.names())
def test_every_board_has_a_backend(name):
    kind = board.load(name).resolved()
    backend = backend_of(kind, ("winograd",))
    assert type(backend) is BACKENDS[kind.backend]
    assert backend.board is kind
    assert "winograd" in backend.without


def test_the_backends_are_those_that_board_files_can_name():
    assert set(BACKENDS) == set(board.backends())
