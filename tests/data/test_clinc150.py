"""Sentences of CLINC150: what is read, and what is refused."""

import json

import pytest

from classgrad import data
from classgrad.data import DATASETS, clinc150
from classgrad.data.datasets import read
from classgrad.data.sentences import as_text
from classgrad.errors import UserError

CLINC = DATASETS["clinc150"]
TABLE = {
    "train": [["move my money", "transfer"], ["is it mine?", "balance"], ["play jazz", "music"]],
    "val": [["Überweisung", "transfer"]],
    "test": [["how much have i", "balance"]],
    "oos_train": [["who won", "oos"]],
    "oos_val": [["a b c", "oos"]],
    "oos_test": [["what is love", "oos"], ["hm", "oos"]],
}
DOMAINS = {"banking": ["transfer", "balance"], "fun": ["music"]}


def write(root, table=TABLE, domains=DOMAINS):
    folder = root / "clinc150"
    folder.mkdir(exist_ok=True)
    for name, content in zip(clinc150.FILES, (table, domains), strict=True):
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)


def test_sentences_intents_and_domains(tmp_path):
    write(tmp_path)
    train = data.load("clinc150", tmp_path, "train")
    assert as_text(train.images) == ["move my money", "is it mine?", "play jazz", "Überweisung"]
    assert train.class_names == ("transfer", "balance", "music")
    assert train.labels.tolist() == [0, 1, 2, 0]
    assert train.coarse.tolist() == [0, 0, 1, 0]
    assert train.coarse_names == ("banking", "fun")
    assert train.note == "4 of 18,000 training sentences"
    path = tmp_path / "clinc150" / "data_full.json"
    without = clinc150.without_intent(path, CLINC, read(CLINC, path), "test")
    assert without == ["what is love", "hm"]


@pytest.mark.parametrize(
    ("table", "domains", "message"),
    [
        ("{", DOMAINS, "not a table in JSON"),
        ("[" * 100_000, DOMAINS, "not a table in JSON"),
        ([], DOMAINS, "not a table in JSON"),
        ({**TABLE, "train": []}, DOMAINS, "no sentences of 'train'"),
        ({**TABLE, "val": "x"}, DOMAINS, "no sentences of 'val'"),
        ({**TABLE, "val": [["x"]]}, DOMAINS, "not a sentence and its intent"),
        ({**TABLE, "val": [["x", 1]]}, DOMAINS, "not a sentence and its intent"),
        ({**TABLE, "val": [[" ", "music"]]}, DOMAINS, "not a sentence and its intent"),
        ({**TABLE, "val": [["x", "other"]]}, DOMAINS, "intent 'other' is in none of the domains"),
        (TABLE, {"a": ["transfer"], "b": ["transfer"]}, "in two domains"),
        (TABLE, {"a": []}, "not a list of intents"),
        (TABLE, {"a": [1]}, "not text"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, table, domains, message):
    write(tmp_path, table, domains)
    with pytest.raises(UserError, match=message) as caught:
        data.load("clinc150", tmp_path, "train")
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"CLINC150 is missing: no .*data_full\.json"):
        data.load("clinc150", tmp_path, "train")
