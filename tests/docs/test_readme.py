"""The figures of the README are those of the records it names."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from classgrad.methods import METHODS
from classgrad.runs.record import RunRecord
from pages import record as made

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "permuted-digits"
SMOKE = ROOT / "results" / "smoke"
GROWING = {"pgn", "stl", "den", "rcl", "apd", "apd2"}
FIELDS = (
    "average_accuracy",
    "backward_transfer",
    "average_accuracy_task_free",
    "average_accuracy_task_free_prototypes",
)


def variant(record: RunRecord) -> dict[str, str]:
    """What was set by hand: IMM is there with both ways of merging."""
    return {"merge": "mean"} if record.method.get("merge") == "mean" else {}


def line(name: str) -> str:
    records = [RunRecord.load(path) for path in sorted(RESULTS.glob(f"*-{name}-*/record.json"))]
    assert [record.seed for record in records] == [4, 5, 6]
    assert all(record.complete and record.recipe == "fast" for record in records)
    cells = []
    for field in FIELDS:
        values = [getattr(record, field) for record in records]
        if None in values:
            cells.append("-")
        else:
            cells.append(f"{sum(values) / 3:.1f}")
    return f"| {name} | {' | '.join(cells)} |"


def test_every_figure_of_the_table_comes_from_a_record():
    readme = (ROOT / "README.md").read_text()
    for name in ("multitask", "hat", "trgp", "ewc", "cgp", "gpm", "er", "finetune"):
        assert line(name) in readme


def test_the_tables_of_the_docs_are_those_of_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "fill_tables.py"))
    pages = list((ROOT / "docs").rglob("*.md"))
    assert any("<!-- table:" in page.read_text() for page in pages)
    for page in pages:
        text = page.read_text()
        assert text == script["filled"](text), page


def test_a_line_whose_first_seed_did_not_end_is_filled_from_the_next():
    script = runpy.run_path(str(ROOT / "docs" / "fill_tables.py"))
    runs = [made(seed=seed, complete=seed > 1) for seed in (1, 3, 2)]
    result = {"CGP": runs, "cut": runs[:1], "not run": []}
    experiment = SimpleNamespace(records=lambda *_: result)
    assert {name: one.seed for name, one in script["finished"](experiment).items()} == {"CGP": 2}


def test_every_method_but_finetune_forgets_less_than_finetune():
    forgotten = {}
    for path in RESULTS.glob("*/record.json"):
        record = RunRecord.load(path)
        if not METHODS[record.method_name].joint:
            name = "imm mean" if variant(record) else record.method_name
            forgotten.setdefault(name, {})[record.seed] = record.forgetting
    worst = forgotten.pop("finetune")
    known = {n for n, m in METHODS.items() if not m.joint} - {"finetune"}
    assert set(forgotten) == known | {"imm mean"}
    for name, by_seed in forgotten.items():
        assert by_seed.keys() == worst.keys() == {4, 5, 6}, name
        assert sum(by_seed.values()) < sum(worst.values()), name


def smoke_runs(benchmark: str) -> dict[str, RunRecord]:
    records = [RunRecord.load(path) for path in (SMOKE / benchmark).glob("*/record.json")]
    assert all(record.complete and record.benchmark == benchmark for record in records)
    result = {record.method_name: record for record in records}
    assert len(result) == len(records)
    return result


def test_every_method_has_a_page():
    for name in METHODS:
        page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
        assert f"--method {name}" in page


def test_every_method_has_a_run_on_real_images():
    split, superclass = smoke_runs("split-cifar100"), smoke_runs("cifar100-superclass")
    assert set(split) == set(METHODS) - GROWING
    assert set(superclass) >= GROWING | {"finetune"}
    for record in split.values():
        assert record.network == "alexnet5"
        assert record.benchmark_options["train_per_class"] == 100
        assert record.training["epochs"] == 3
    for record in superclass.values():
        assert record.network == "lenet5"
        assert record.benchmark_options["train_per_class"] == 50


def test_capacity_is_above_that_of_the_network_only_where_tasks_add_something():
    adding = GROWING | {"hat", "trgp"}  # masks and scales count
    for path in [*RESULTS.glob("*/record.json"), *SMOKE.glob("*superclass/*/record.json")]:
        record = RunRecord.load(path)
        assert record.capacity is not None
        assert record.capacity <= 100 or record.method_name in adding, path


def test_on_real_images_the_first_task_is_learnt_as_well_as_by_finetune():
    runs = smoke_runs("split-cifar100")
    for name, record in runs.items():
        if METHODS[name].first_task_is_finetune and not METHODS[name].joint:
            assert record.accuracy_matrix[0][0] > runs["finetune"].accuracy_matrix[0][0] - 5, name


def test_the_records_were_made_with_the_present_settings():
    from classgrad.runs.spec import make_plan

    for path in RESULTS.glob("*/record.json"):
        record = RunRecord.load(path)
        plan = make_plan(
            "permuted-digits", record.method_name, seed=record.seed, values=variant(record)
        )
        assert path.parent.name == plan.folder_name()


def test_runs_on_cifar_were_made_with_the_present_settings():
    from classgrad.runs.spec import make_plan

    values = {"train_per_class": 100, "epochs": 3, "warmup": 8, "affine": "first"}
    for path in (SMOKE / "split-cifar100").glob("*/record.json"):
        name = RunRecord.load(path).method_name
        assert path.parent.name == make_plan("split-cifar100", name, values=values).folder_name()


def test_runs_on_superclasses_were_made_with_the_present_settings_or_are_named():
    from classgrad.runs.spec import make_plan

    values, former = {"train_per_class": 50, "task_free": "end"}, set()
    for name, record in smoke_runs("cifar100-superclass").items():
        plan = make_plan("cifar100-superclass", name, values=values)
        if not plan.has_values(record.settings()):
            former.add(name)
    page = " ".join((ROOT / "docs" / "methods" / "README.md").read_text().split())
    named = re.findall(r"The runs of (\w+) and (\w+) were made before", page)
    assert former == {name for pair in named for name in pair}


def test_every_result_is_a_complete_record():
    paths = list((ROOT / "results").rglob("record.json"))
    assert paths
    assert all(RunRecord.load(path).complete for path in paths)
