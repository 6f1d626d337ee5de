"""Records for MetaSchedule's own tools: a database that they open, whose schedules TVM applies."""

from __future__ import annotations

import onnx
import pytest
import tvm
from tvm import relax

from tests.support import bundles, tunings
from toolchain.backends.cpu.backend import Cpu
from toolchain.errors import InputError
from toolchain.models import importer, source
from toolchain.records import Records, Workload, export
from toolchain.records.metaschedule import meta_schedule
from toolchain.records.tasks import extract


@pytest.fixture(scope="module")
def backend(native):
    return Cpu(native, Cpu.template_names)


@pytest.fixture(scope="module")
def lowered(backend, tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "dense.onnx"
    onnx.save(bundles.dense(16, 8), path)
    return backend.lower(importer.import_model(source.load(str(path))).module)


@pytest.fixture(scope="module")
def records(lowered, backend):
    trials = Records.collect(tunings.of_kernels(lowered, backend)).trials
    kernels = [
        Workload.of(task.workload, task.name, task.gflop * 1e9, tvm.ir.save_json(task.module))
        for task in extract(lowered, backend)
    ]
    return Records.collect([*kernels, *trials])


def test_the_database_opens_and_is_applied(records, lowered, backend, tmp_path):
    key = records.keys[0]
    assert export.export(records, key, tmp_path / "database") == len(records.trials)
    database = meta_schedule().database.JSONDatabase(work_dir=str(tmp_path / "database"), allow_missing=False)
    seconds = [value.value for record in database.get_all_tuning_records() for value in record.run_secs]
    assert seconds == [pytest.approx(1e-3)] * len(records.trials)
    with backend.target, database:
        scheduled = relax.transform.MetaScheduleApplyDatabase()(lowered)
    kernels = [function for _, function in scheduled.functions_items() if isinstance(function, tvm.tirx.PrimFunc)]
    assert [bool(kernel.attrs.get("tirx.is_scheduled")) for kernel in kernels] == [True] * len(records.workloads)


def test_failures_are_left_out(records, tmp_path):
    failed = tunings.record(9, None, workload=records.trials[0].workload, target=records.trials[0].target)
    with_failure = Records.collect([*records.lines(), failed])
    assert export.export(with_failure, records.keys[0], tmp_path / "out") == len(records.trials)


def test_a_database_that_exists_is_left_alone(records, tmp_path):
    (tmp_path / export.FILES[0]).write_text("mine")
    with pytest.raises(InputError, match="already contains a database"):
        export.export(records, records.keys[0], tmp_path)
    assert (tmp_path / export.FILES[0]).read_text() == "mine"


@pytest.mark.parametrize(
    ("workloads", "message"),
    [([], "do not contain the module"), ([Workload.of("{}", "conv", 1.0, "{}")], "cannot be read")],
    ids=["missing", "damaged"],
)
def test_modules_must_be_there(records, tmp_path, workloads, message):
    trial = records.trials[0]
    kernels = [Workload.of(trial.workload, kernel.name, kernel.flops, kernel.module) for kernel in workloads]
    with pytest.raises(InputError, match=message):
        export.export(Records.collect([*kernels, trial]), trial.key, tmp_path / "out")
    assert not (tmp_path / "out").exists()
