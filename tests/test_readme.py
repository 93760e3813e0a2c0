"""The figures of the README are those of the records it names."""

from pathlib import Path

from classgrad.records import RunRecord

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "permuted-digits"
FIELDS = (
    "average_accuracy",
    "backward_transfer",
    "average_accuracy_task_free",
    "average_accuracy_task_free_prototypes",
)


def line(name: str) -> str:
    records = [RunRecord.load(path) for path in sorted(RESULTS.glob(f"*-{name}-*/record.json"))]
    assert [record.seed for record in records] == [1, 2, 3]
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
    for name in ("cgp", "gpm", "finetune", "multitask"):
        assert line(name) in readme


def test_the_records_were_made_with_the_present_settings():
    from classgrad.plan import make_plan

    for path in RESULTS.glob("*/record.json"):
        record = RunRecord.load(path)
        plan = make_plan("permuted-digits", record.method_name, seed=record.seed)
        assert path.parent.name == plan.folder_name()


def test_every_result_is_a_complete_record():
    paths = list((ROOT / "results").glob("*/*/record.json"))
    assert paths
    assert all(RunRecord.load(path).complete for path in paths)
