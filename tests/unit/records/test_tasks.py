import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from tests.support.tuning_client import backend, lowered
from toolchain.errors import InputError
from toolchain.records import tasks


@pytest.fixture(scope="module")
def mlp():
    return tasks.extract(lowered("mlp"), backend())


def test_tasks_come_in_the_order_of_the_calls_with_their_work(mlp):
    assert [task.id for task in mlp] == list(range(len(mlp)))
    dense = [task for task in mlp if task.operator == "matmul"]
    assert [round(task.gflop * 1e9) for task in dense] == [2 * 784 * 128 + 256, 2 * 128 * 64 + 128, 2 * 64 * 10 + 10]
    assert mlp[-1].operator == "softmax"


def test_a_shape_names_arguments_and_result(mlp):
    dense = next(task for task in mlp if task.operator == "matmul")
    assert dense.shape.endswith("-> 1x128")
    assert "784x128" in dense.shape


def test_the_weight_is_the_number_of_calls():
    extracted = tasks.extract(lowered("squeezenet_v1.1"), backend())
    assert sum(task.weight for task in extracted) == 40
    assert max(task.weight for task in extracted) == 2


def test_the_same_kernel_has_the_same_hash_every_time(mlp):
    again = tasks.extract(lowered("mlp"), backend())
    assert [task.workload for task in again] == [task.workload for task in mlp]
    assert len({task.workload for task in mlp}) == len(mlp)


def test_a_kernel_that_was_written_as_it_is_to_run_is_no_task(tmp_path):
    weights = {"w": np.ones((1, 32, 4), "float32"), "r": np.ones((1, 32, 8), "float32")}
    nodes = [node("LSTM", ["x", "w", "r"], ["", "h", ""], hidden_size=8), node("Softmax", ["h"], ["y"])]
    proto = nets.model(nodes, [value("x", (5, 1, 4))], [value("y", (1, 1, 8))], weights)
    extracted = tasks.extract(lowered(nets.save(proto, tmp_path)), backend())
    assert extracted[-1].operator == "softmax"
    assert not [task for task in extracted if "lstm" in task.name]


@pytest.mark.parametrize(("selection", "count"), [((), None), (("matmul",), 3), (("0",), 1), (("softmax", "0"), 2)])
def test_tasks_are_selected_by_operator_name_or_id(mlp, selection, count):
    assert len(tasks.select(mlp, selection)) == (len(mlp) if count is None else count)


def test_an_operator_that_is_not_there_is_told(mlp):
    with pytest.raises(InputError, match="'matmull'") as caught:
        tasks.select(mlp, ["matmull"])
    assert "matmul" in caught.value.hint
