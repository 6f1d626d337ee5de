from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.support import paths
from toolchain.backends.vta.isa import config
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.instructions import Memory
from toolchain.errors import InputError

SHIPPED = Path(config.__file__).parents[1] / "configs"
DATA = paths.DATA / "vta" / "configs"

# What is said of each file in data/vta/configs: of its fault, and as a hint.
FAULTS = {
    "unknown-key": ("unknown key LOG_UOP_BUF_SIZE", "did you mean LOG_UOP_BUFF_SIZE?"),
    "missing-key": ("lacks LOG_BLOCK", '"LOG_BLOCK": 4'),
    "impossible-value": ("LOG_BLOCK is 40", "LOG_BLOCK may be 1 to 6"),
    "memory-of-one-element": ("LOG_WGT_BUFF_SIZE is 8", "LOG_WGT_BUFF_SIZE may be 9 to 24"),
    "four-bit-inputs": ("LOG_INP_WIDTH is 2", "LOG_INP_WIDTH may be 3 with"),
    "text-value": ('LOG_BATCH is "0", not a whole number', "powers of two"),
    "flag-value": ("LOG_BATCH is false, not a whole number", "powers of two"),
    "wide-results": ("LOG_OUT_WIDTH is 5, but the other values make it 3", "leave LOG_OUT_WIDTH out"),
    "not-json": ("is not JSON", ""),
    "not-utf8": ("is not JSON", ""),
    "list": ("is not a JSON object", "LOG_INP_WIDTH"),
}


def written(path: Path, **keys: object) -> Path:
    table = {key.upper(): value for key, value in dataclasses.asdict(DEFAULT).items()}
    path.write_text(json.dumps(table | keys))
    return path


def test_the_default_machine():
    assert DEFAULT.name == "1x16_i8w8a32_15_15_18_17"
    assert (DEFAULT.batch, DEFAULT.block, DEFAULT.log_out_buff_size) == (1, 16, 15)
    assert {memory.name: (DEFAULT.depth(memory), DEFAULT.element_bytes(memory)) for memory in Memory} == {
        "UOP": (8192, 4),
        "WGT": (1024, 256),
        "INP": (2048, 16),
        "ACC": (2048, 64),
        "OUT": (2048, 16),
    }
    depths = (DEFAULT.uop_depth, DEFAULT.inp_depth, DEFAULT.wgt_depth, DEFAULT.acc_depth, DEFAULT.out_depth)
    assert depths == (8192, 2048, 1024, 2048, 2048)


def test_a_configuration_as_a_file_has_it(tmp_path):
    machine = VtaConfig(log_batch=2, log_inp_buff_size=14)
    path = tmp_path / "vta_config.json"
    path.write_text(json.dumps(machine.document()))
    assert config.load(path) == machine


def test_another_machine():
    machine = VtaConfig(log_batch=1, log_block=5, log_uop_buff_size=14)
    assert machine.name == "2x32_i8w8a32_14_15_18_17"
    assert {memory.name: (machine.depth(memory), machine.element_bytes(memory)) for memory in Memory} == {
        "UOP": (4096, 4),
        "WGT": (256, 1024),
        "INP": (512, 64),
        "ACC": (512, 256),
        "OUT": (512, 64),
    }


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_a_shipped_file_has_the_name_of_its_bitstream(path):
    assert config.load(path).name == path.stem


def test_the_default_is_shipped():
    assert config.load(SHIPPED / f"{DEFAULT.name}.json") == DEFAULT


def test_what_follows_may_be_said(tmp_path):
    path = written(tmp_path / "vta_config.json", LOG_OUT_WIDTH=3, LOG_BLOCK_IN=4, LOG_BLOCK_OUT=4, LOG_OUT_BUFF_SIZE=15)
    assert config.load(path) == DEFAULT


def test_every_value_is_read(tmp_path):
    machine = VtaConfig(3, 3, 5, 1, 3, 12, 13, 14, 16)
    table = {key.upper(): value for key, value in dataclasses.asdict(machine).items()}
    assert config.load(written(tmp_path / "vta_config.json", **table)) == machine


@pytest.mark.parametrize("path", sorted(DATA.iterdir()), ids=lambda path: path.stem)
def test_a_fault_is_explained(path):
    message, hint = FAULTS[path.stem]
    with pytest.raises(InputError) as caught:
        config.load(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message
    assert hint in caught.value.hint


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*: No such file"):
        config.load(tmp_path / "vta_config.json")


@pytest.mark.parametrize("field", dataclasses.fields(VtaConfig), ids=lambda field: field.name)
@pytest.mark.parametrize("value", [-1, 25])
def test_no_machine_is_of_any_size(field, value):
    with pytest.raises(InputError, match=f"{field.name.upper()} is {value}"):
        VtaConfig(**{field.name: value})


@pytest.mark.parametrize(
    ("field", "smallest", "others"),
    [
        ("log_uop_buff_size", 3, {}),
        ("log_inp_buff_size", 5, {}),
        ("log_wgt_buff_size", 9, {}),
        ("log_acc_buff_size", 7, {}),
        ("log_inp_buff_size", 7, {"log_batch": 2}),
        ("log_wgt_buff_size", 13, {"log_block": 6}),
    ],
)
def test_a_memory_has_two_elements(field, smallest, others):
    config_ = VtaConfig(**others | {field: smallest})
    assert min(config_.depth(memory) for memory in Memory) == 2
    with pytest.raises(InputError, match=field.upper()):
        VtaConfig(**others | {field: smallest - 1})
