import json

import pytest

from classgrad import run
from classgrad.errors import UserError
from classgrad.runs.record import RunRecord
from streams import blobs

KEYS = {
    "schema_version",
    "benchmark",
    "method",
    "network",
    "recipe",
    "seed",
    "accuracy_matrix",
    "accuracy_matrix_task_free",
    "average_accuracy",
    "backward_transfer",
    "layers",
    "seconds",
    "memory_bytes",
    "versions",
    "complete",
}


@pytest.fixture(scope="module")
def record():
    return run(blobs(), "gpm", values={"epochs": 2, "batch_size": 12})


def test_has_every_promised_key(record, tmp_path):
    data = json.loads(record.save(tmp_path).read_text())
    assert data.keys() >= KEYS
    assert data["schema_version"] == 2
    assert data["method"]["name"] == "gpm"
    assert data["method"]["energy"] == 0.97
    assert data["seconds"].keys() == {"train", "memory", "evaluate"}
    assert data["versions"].keys() >= {"classgrad", "torch", "python", "numpy"}
    assert data["complete"] is True
    matrix = data["accuracy_matrix"]
    assert [[value is None for value in row] for row in matrix] == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]
    for layer in data["layers"]:
        assert len(layer["ranks"]) == 3
        assert 0 < layer["ranks"][0] <= layer["ranks"][-1] <= layer["dimension"]


def test_says_which_classes_base_refining_merged():
    values = {"epochs": 2, "batch_size": 12, "lambda": 0}
    merged = run(blobs(), "cgp", values={**values, "eta": -1})
    count = sum(len(task.classes) for task in merged.classes)
    for layer in merged.layers:
        assert layer.groups == [0] * count
        assert layer.cosines[0] == 1
        assert all(-1 <= cosine <= 1 for cosine in layer.cosines)
        assert min(layer.cosines) < 1
    plain = run(blobs(), "cgp", values={**values, "eta": 1})
    assert [(layer.groups, layer.cosines) for layer in plain.layers] == [([], [])] * len(
        plain.layers
    )


def test_survives_a_round_trip(record, tmp_path):
    record.save(tmp_path)
    assert RunRecord.load(tmp_path) == record
    assert RunRecord.load(tmp_path / "record.json") == record
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a record"),
        ("[]", "is not a record"),
        ("{}", "is not a record: benchmark"),
        ('{"schema_version": 99}', "newer than 2: update classgrad"),
        ("\x00\xff", "is not a record"),
        ("[" * 100_000, "recursion"),
        ('{"schema_version": ' + "9" * 1000 + "}", "newer than 2"),
    ],
)
def test_broken_records_are_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "record.json").write_bytes(text.encode("latin1"))
    with pytest.raises(UserError, match=message) as caught:
        RunRecord.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"energy": 1}}, "the method has no name"),
        ({"method": {"name": None}}, "the method has no name"),
        ({"tasks": []}, "more rows than there are tasks"),
        ({"layers": [{"name": "fc", "dimension": 3}]}, "a layer has no ranks"),
        ({"layers": [{"name": "fc", "dimension": 0, "ranks": [1]}]}, "layers.0.dimension"),
        ({"memory_bytes": 10**400}, "memory_bytes"),
        ({"average_accuracy": "nan"}, "average_accuracy"),
        ({"training": {"rate": "INFINITY"}}, "Out of range"),
        ({"method": {"name": "a", "b": "\ud800"}}, "hex escape"),
        ({"two\nlines": 1}, "two.nlines: Extra inputs"),
    ],
)
def test_records_that_could_not_be_shown_are_refused(record, tmp_path, changes, message):
    data = json.loads(record.to_json()) | changes
    text = json.dumps(data).replace('"INFINITY"', "1e999")
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        RunRecord.load(tmp_path)
    assert str(caught.value).isprintable()


def test_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run at"):
        RunRecord.load(tmp_path / "none")


def test_records_from_before_capacity_was_counted_load(record, tmp_path):
    data = json.loads(record.save(tmp_path).read_text())
    assert data.pop("capacity") == 100
    (tmp_path / "record.json").write_text(json.dumps(data))
    assert RunRecord.load(tmp_path).capacity is None
