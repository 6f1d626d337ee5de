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
def found(lowered, backend):
    trials = Records.collect(tunings.of_kernels(lowered, backend)).trials
    kernels = [
        Workload.of(task.workload, task.name, task.gflop * 1e9, tvm.ir.save_json(task.module))
        for task in extract(lowered, backend)
    ]
    return Records.collect([*kernels, *trials])


def test_the_database_opens_and_is_applied(found, lowered, backend, tmp_path):
    key = found.keys[0]
    assert export.export(found, key, tmp_path / "database") == len(found.trials)
    database = meta_schedule().database.JSONDatabase(work_dir=str(tmp_path / "database"), allow_missing=False)
    seconds = [one.value for record in database.get_all_tuning_records() for one in record.run_secs]
    assert seconds == [pytest.approx(1e-3)] * len(found.trials)
    with backend.target, database:
        done = relax.transform.MetaScheduleApplyDatabase()(lowered)
    kernels = [one for _, one in done.functions_items() if isinstance(one, tvm.tirx.PrimFunc)]
    assert [bool(one.attrs.get("tirx.is_scheduled")) for one in kernels] == [True] * len(found.workloads)


def test_failures_are_left_out(found, tmp_path):
    failed = tunings.record(9, None, workload=found.trials[0].workload, target=found.trials[0].target)
    both = Records.collect([*found.lines(), failed])
    assert export.export(both, found.keys[0], tmp_path / "out") == len(found.trials)


def test_a_database_that_exists_is_left_alone(found, tmp_path):
    (tmp_path / export.FILES[0]).write_text("mine")
    with pytest.raises(InputError, match="already contains a database"):
        export.export(found, found.keys[0], tmp_path)
    assert (tmp_path / export.FILES[0]).read_text() == "mine"


@pytest.mark.parametrize(
    ("workloads", "message"),
    [([], "do not contain the module"), ([Workload.of("{}", "conv", 1.0, "{}")], "cannot be read")],
    ids=["missing", "damaged"],
)
def test_modules_must_be_there(found, tmp_path, workloads, message):
    trial = found.trials[0]
    known = [Workload.of(trial.workload, one.name, one.flops, one.module) for one in workloads]
    with pytest.raises(InputError, match=message):
        export.export(Records.collect([*known, trial]), trial.key, tmp_path / "out")
    assert not (tmp_path / "out").exists()
