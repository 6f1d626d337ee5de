from __future__ import annotations

import json

import pytest

from tests.support.paths import ROOT
from toolchain.errors import InputError
from toolchain.pipeline.rollout import ansible

REAL = ROOT / "tests" / "data" / "rollout" / "inventory.json"
"""What `ansible-inventory -i hosts.ini --list` of ansible-core 2.19 printed."""


@pytest.fixture
def read(tmp_path):
    def read(variables, **groups):
        path = tmp_path / "inventory.json"
        path.write_text(json.dumps({"_meta": {"hostvars": {"cam": variables}}, **groups}))
        return ansible.read(path)

    return read


def test_what_ansible_itself_prints():
    inventory = ansible.read(REAL)
    assert {name: device.host for name, device in inventory.devices.items()} == {
        "cam-1": "me@10.0.0.8",
        "cam-2": "me@10.0.0.9:2222",
        "gate.example.org": "gate.example.org",
        "v6": "me@[fe80::1]:2200",
    }
    assert {device.board for device in inventory.devices.values()} == {"rpi4"}
    assert inventory.devices["cam-1"].tags == ("cameras", "kitchen")
    assert inventory.devices["v6"].tags == ("cameras", "yard")
    assert inventory.unnamed == 0


def test_another_variable_says_the_board(tmp_path):
    path = tmp_path / "inventory.json"
    path.write_text(REAL.read_text().replace("edge_board", "board_type"))
    assert len(ansible.read(path, "board_type").devices) == 4
    with pytest.raises(InputError, match="has the variable edge_board") as caught:
        ansible.read(path)
    assert "--board-var" in caught.value.hint


def test_a_port_may_be_a_text_and_a_root_is_ours(read):
    inventory = read({"edge_board": "rpi4", "ansible_port": "2222", "edge_root": "/srv/models"}).devices["cam"]
    assert (inventory.host, inventory.root) == ("cam:2222", "/srv/models")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ansible_connection": "local"}, "has ansible_connection"),
        ({"ansible_ssh_common_args": "-J jump"}, "has ansible_ssh_common_args"),
        ({"ansible_password": "secret"}, "has ansible_password"),
        ({"ansible_user": "{{ login }}"}, "has a template in ansible_user"),
        ({"ansible_port": "ssh"}, "has an invalid port"),
        ({"ansible_port": 70000}, "has an invalid port"),
        ({"edge_rot": "/srv"}, "unknown variable of this toolchain: edge_rot"),
        ({"edge_root": "srv"}, "fault"),
        ({"edge_board": 4}, "fault"),
        ({"edge_board": {"__ansible_vault": "x"}}, "fault"),
    ],
)
def test_what_cannot_be_taken_is_refused(read, variables, message):
    with pytest.raises(InputError, match=message) as caught:
        read({"edge_board": "rpi4", **variables})
    assert "secret" not in f"{caught.value.message} {caught.value.details} {caught.value.hint}"


@pytest.mark.parametrize("text", ["[]", "{}", '{"_meta": {}}', '{"_meta": {"hostvars": []}}', "x", '{"_meta": []}'])
def test_what_is_no_inventory_is_refused(tmp_path, text):
    path = tmp_path / "inventory.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"not an inventory|not JSON"):
        ansible.read(path)


def test_groups_that_contain_each_other_end(read):
    groups = {"a": {"children": ["b"], "hosts": ["cam"]}, "b": {"children": ["a"]}}
    assert read({"edge_board": "rpi4"}, **groups).devices["cam"].tags == ("a", "b")
