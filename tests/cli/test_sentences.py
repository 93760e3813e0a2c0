"""The command line of a learner of sentences: learn, predict, forget, diff, card, and misuse."""

import csv
import io
import json
import random

import pytest

from classgrad import Learner, networks
from classgrad.networks.minilm import MiniLM
from commands import one_line
from photos import photos

LETTERS = {"transfer": "abc", "freeze": "xyz", "jazz": "mno", "alarm": "ijk"}
RANDOM = ["--set", "weights=random"]
BANKING = ["learn", "state", "--task", "banking", "--sentences", "banking.csv", *RANDOM]
MUSIC = ["learn", "state", "--task", "music", "--sentences", "music"]


class Small(MiniLM):
    units, heads, depth = 24, 3, 2


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("classgrad.networks.minilm.WORDS", 200)
    monkeypatch.setitem(networks.NETWORKS, "minilm", Small)


def sentences(label, count=12, seed=0):
    draw = random.Random(f"{label} {seed}")
    found = set()
    while len(found) < count:
        found.add(" ".join("".join(draw.choices(LETTERS[label], k=3)) for _ in range(3)))
    return sorted(found)


def table(path, *labels, extra=()):
    rows = [(text, label) for label in labels for text in sentences(label)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows, *extra])


@pytest.fixture
def place(tmp_path):
    """A folder with a table of one task, and a folder with files of another."""
    table(tmp_path / "banking.csv", "freeze", "transfer")
    (tmp_path / "music").mkdir()
    for label in ("alarm", "jazz"):
        (tmp_path / "music" / f"{label}.txt").write_text("\n".join(sentences(label)) + "\n")
    return tmp_path


@pytest.fixture
def learnt(call, place):
    for words in (BANKING, MUSIC):
        code, _, err = call(*words)
        assert (code, err) == (0, "")
    return place


def lines_of(out):
    return {line[:11].strip(): line[11:] for line in out.splitlines()}


def test_learning_says_what_came_of_it(call, place):
    code, out, err = call(*BANKING)
    assert (code, err) == (0, "")
    lines = lines_of(out)
    assert lines["classes"] == "freeze, transfer"
    assert lines["sentences"] == "24"
    assert "sentences left out one at a time" in lines["task-free"]
    learner = Learner.load(place / "state")
    assert (learner.network, learner.size, learner.tune) == ("minilm", 512, "none")
    code, out, _ = call(*BANKING)
    assert lines_of(out)["task"] == "banking, learnt before from the same sentences"
    table(place / "banking.csv", "freeze", "transfer", extra=[("aaa", "transfer")])
    code, out, _ = call(*BANKING)
    assert lines_of(out)["sentences"] == "25, 1 of them new"


def test_predictions_name_the_text(call, learnt):
    code, out, err = call("predict", "state", "--text", "abc cab", "--text", "mno onm", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [one["text"] for one in found] == ["abc cab", "mno onm"]
    assert [one["classes"][0]["class"] for one in found] == ["transfer", "jazz"]
    (learnt / "some.txt").write_text("zyx xyz\n\nkij iii\n")
    code, out, _ = call("predict", "state", "--sentences", "some.txt", "--csv", "--top", "2")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["text"] for row in rows] == ["zyx xyz"] * 2 + ["kij iii"] * 2
    assert [row["class"] for row in rows[::2]] == ["freeze", "alarm"]
    code, out, _ = call("predict", "state", "--sentences", "banking.csv", "--task", "banking")
    assert out.count("transfer") == 12


def test_none_of_these(call, learnt):
    code, out, _ = call("predict", "state", "--text", "9 9 9 !", "--unknown", "0.2")
    assert code == 0
    assert "none of these (nearest: " in out
    code, out, _ = call("predict", "state", "--text", sentences("jazz")[0], "--unknown", "0.2")
    assert "none of these" not in out


def test_a_sentence_that_cannot_be_read_has_a_row_that_says_why(call, learnt):
    words = ["predict", "state", "--text", "abc", "--text", " ", "--json"]
    code, out, err = call(*words)
    assert (code, err) == (0, "1 of 2 sentences cannot be read\n")
    assert [one["error"] for one in json.loads(out)] == [None, "it is empty"]
    code, out, err = call(*words, "--skip-bad")
    assert (code, err) == (0, "skipped sentence 2: it is empty\n")
    assert len(json.loads(out)) == 1
    code, out, err = call("predict", "state", "--text", "", "--json")
    assert (code, out) == (2, "")
    one_line(err, "no sentence is left: 1 of 1 sentence cannot be read: sentence 1 (it is empty)")
    long = "word " * 10_000
    (learnt / "long.txt").write_text(f"abc\n{long}\n")
    code, out, err = call("predict", "state", "--sentences", "long.txt", "--skip-bad")
    assert code == 0
    assert err == "skipped sentence 2: it has 50,000 characters, and 10,000 are the most\n"
    code, _, err = call("predict", "state", "--text", "abc " * 200)
    assert err == "1 sentence: only the first 512 bytes are read\n"


def test_control_characters_reach_no_terminal(call, learnt):
    code, out, _ = call("predict", "state", "--text", "abc\x1b[31m cab")
    assert code == 0
    assert "\x1b" not in out


def test_bad_rows_are_left_out_when_that_is_asked_for(call, place):
    table(place / "banking.csv", "freeze", "transfer", extra=[("", "freeze")])
    code, _, err = call(*BANKING)
    assert code == 2
    one_line(err, "1 of 25 sentences cannot be read: 'banking.csv', line 26 (it is empty)")
    one_line(err, "(--skip-bad)")
    assert not (place / "state").exists()
    code, out, _ = call(*BANKING, "--skip-bad")
    assert code == 0
    assert out.startswith("skipped 'banking.csv', line 26: it is empty\n")
    assert lines_of(out)["sentences"] == "24"


def test_info_and_card_speak_of_sentences(call, learnt):
    code, out, _ = call("info", "state")
    assert code == 0
    assert "sentences" in out
    assert "images" not in out
    assert "minilm, 512 bytes of a sentence, tune none" in out
    code, out, _ = call("card", "state")
    assert "- network: minilm, 512 bytes of a sentence\n" in out
    assert "| class | sentences | recognised | digest of the sentences |" in out
    assert " images" not in out.replace(" held_images", "")


def test_forgetting_with_the_file_of_the_task_leaves_nothing(call, learnt):
    code, out, _ = call(
        "forget", "state", "--task", "banking", "--class", "freeze", "--sentences", "banking.csv"
    )
    assert code == 0
    assert "its share of the covariance" in out
    (learnt / "only.csv").write_text("")
    table(learnt / "only.csv", "transfer")
    call("learn", "other", "--task", "banking", "--sentences", "only.csv", *RANDOM)
    call("learn", "other", "--task", "music", "--sentences", "music")
    one, other = (Learner.load(learnt / name).classifier.statistics for name in ("state", "other"))
    assert one.products.equal(other.products)
    code, out, _ = call("forget", "state", "--task", "music", "--class", "jazz")
    assert "give its sentences with --sentences to remove that, too" in out


def test_diff_undo_and_reference(call, learnt):
    (learnt / "some.txt").write_text("\n".join(sentences("jazz", 4) + sentences("alarm", 4)))
    Learner.load(learnt / "state").save(learnt / "copy")
    call("forget", "copy", "--task", "music", "--class", "jazz")
    code, out, _ = call("diff", "state", "copy", "--sentences", "some.txt")
    assert code == 0
    assert "sentences  4 of 8 predictions differ" in out
    assert f"{sentences('jazz', 4)[0]}: music/jazz, " in out
    code, out, _ = call("diff", "state", "copy", "--sentences", "some.txt", "--json")
    assert json.loads(out)["predictions"][0]["text"] == sentences("jazz", 4)[0]
    # The same words under other names of classes change what is predicted.
    rows = [(text + " aaa", "other") for text in sentences("jazz", 12)]
    table(learnt / "new.csv", extra=rows + [(f"{one} {one}", "far") for one in "123456789"])
    words = ["learn", "state", "--task", "new", "--sentences", "new.csv"]
    reference = ["--reference", "some.txt", "--may-change", "0"]
    (learnt / "some.txt").write_text("\n".join(text + " aaa" for text in sentences("jazz", 12)))
    code, _, err = call(*words, *reference)
    assert code == 3
    one_line(err, "of 12 predictions for the reference sentences change")
    code, _, err = call(*words, "--require", "100.1")
    assert code == 2
    code, _, _ = call(*words)
    assert code == 0
    code, out, _ = call("undo", "state")
    assert "has 2 tasks" in out


def test_layers_learn_when_that_is_asked_for(call, place):
    words = [*BANKING, "--tune", "last", "--set", "epochs=2"]
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert lines_of(out)["free rank"].startswith("about ")
    learner = Learner.load(place / "state")
    assert (learner.method.name, learner.method.contrast) == ("cgp", 0)
    assert (learner.training.optimizer, learner.training.epochs) == ("adamw", 2)
    code, out, _ = call(*MUSIC, "--json")
    assert code == 0
    assert json.loads(out)["name"] == "music"
    code, _, err = call(
        *[*BANKING[:1], "more", *BANKING[2:]], "--tune", "last", "--set", "contrast=0.3"
    )
    assert code == 2
    one_line(err, "sentences have none: give it contrast=0")


WRONG = {
    "learn x --task t --images banking --network minilm": "network 'minilm' reads sentences: give "
    "--sentences, not --images",
    "learn x --task t --sentences banking.csv --network mlp": "network 'mlp' reads images: give "
    "--images, not --sentences",
    "learn x --task t": "give one of --images, --sentences",
    "learn x --task t --images birds --sentences music": "give one of --images, --sentences",
    "learn state --task t --images birds": "'state' reads sentences: give --sentences, not "
    "--images",
    "learn photos --task t --sentences music": "'photos' reads images: give --images, not "
    "--sentences",
    "predict state photo.jpg": "'state' reads sentences: give --text or --sentences",
    "predict state": "'state' reads sentences: give --text or --sentences",
    "predict photos --text hello": "'photos' reads images: give files of images",
    "predict photos": "'photos' reads images: give files of images",
    "predict state --sentences none.txt": "'none.txt' cannot be read: No such file or directory",
    "forget state --task music --class jazz --images birds": "'state' reads sentences: give "
    "--sentences, not --images",
    "diff state photos --sentences some.txt": "'photos' reads images: give --images, not "
    "--sentences",
    "learn state --task t --sentences none.csv": "'none.csv' cannot be read: No such file or "
    "directory",
    "learn state --task t --sentences column.csv": "has no column 'label', but 'text', 'intent'",
    "learn state --task t --sentences latin.csv": "'latin.csv' is not UTF-8",
    "learn state --task t --sentences birds": "'birds' has no .txt: give a file for each class",
    "learn state --task t --sentences twice.csv": "the sentence 'same' is in class 'a' and in "
    "class 'b': remove it from one",
}


@pytest.fixture
def both(learnt, call):
    """A learner of sentences, one of photos, and files that cannot be learnt."""
    photos(learnt / "birds", "crow", "wren", seed=1)
    words = ["--network", "mlp", "--size", "8", "--set", "contrast=0", "--set", "epochs=1"]
    code, _, _ = call("learn", "photos", "--task", "birds", "--images", "birds", *words)
    assert code == 0
    (learnt / "some.txt").write_text("abc\n")
    (learnt / "column.csv").write_text("text,intent\na,b\n")
    (learnt / "latin.csv").write_bytes("text,label\ngrün,b\n".encode("latin-1"))
    (learnt / "twice.csv").write_text("text,label\nsame,a\nsame,b\n")
    return learnt


def test_what_is_wrong_is_one_line_and_nothing_is_lost(call, both):
    before = {path: path.read_bytes() for path in both.rglob("*") if path.is_file()}
    for words, message in WRONG.items():
        code, out, err = call(*words.split())
        assert (code, out) == (2, ""), words
        one_line(err, message)
    after = {path: path.read_bytes() for path in both.rglob("*") if path.is_file()}
    assert after == before
