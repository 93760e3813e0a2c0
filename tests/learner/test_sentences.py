"""A learner of sentences: what it learns, from what it learns, and what it refuses."""

import json
import random

import pytest
import torch

from classgrad import Learner, Split, networks
from classgrad.data.sentences import as_bytes
from classgrad.errors import UserError
from classgrad.learner.export import as_tokens, export
from classgrad.learner.kinds import NETWORK
from classgrad.learner.learner import LookAlikes, SingleImage
from classgrad.networks.minilm import MiniLM

LETTERS = {"transfer": "abc", "freeze": "xyz", "jazz": "mno", "alarm": "ijk"}


class Small(MiniLM):
    units, heads, depth = 24, 3, 2


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("classgrad.networks.minilm.WORDS", 200)
    monkeypatch.setitem(networks.NETWORKS, "minilm", Small)


def sentences(label, count=12, seed=0):
    """Return sentences of words from the letters of a class, all different."""
    draw = random.Random(f"{label} {seed}")
    found = set()
    while len(found) < count:
        words = ["".join(draw.choices(LETTERS[label], k=3)) for _ in range(3)]
        found.add(" ".join(words))
    return sorted(found)


def pairs(*labels, seed=0):
    return [(text, label) for label in labels for text in sentences(label, seed=seed)]


BANKING, MUSIC = ("freeze", "transfer"), ("alarm", "jazz")


def new(**options):
    return Learner(network="minilm", network_options={"weights": "random"}, **options)


@pytest.fixture
def learner():
    made = new()
    made.learn("banking", pairs(*BANKING))
    return made


def answers(learner, texts, **options):
    return [(one.task, one.name) for one in learner.predict(texts, **options)]


def probabilities(learner, texts):
    return [one.ranking[0].probability for one in learner.predict(texts)]


def test_pairs_of_text_and_label_are_learnt_and_told_apart_without_the_task(learner):
    learner.learn("music", pairs(*MUSIC))
    assert (learner.tune, learner.ways) == ("none", ("statistics",))
    for task, labels in (("banking", BANKING), ("music", MUSIC)):
        for label in labels:
            assert set(answers(learner, sentences(label, seed=1))) == {(task, label)}
    assert learner.tasks[0].samples == [12, 12]
    assert learner.predict("abc cab")[0].name == "transfer"  # one sentence is no list
    assert learner.predict("abc cab", unknown=0.5)[0].task == "banking"


def test_files_tuples_and_tensors_are_the_same_sentences(learner, tmp_path):
    given = pairs(*BANKING)
    texts, labels = [list(column) for column in zip(*given, strict=True)]
    table = "text,label\n" + "".join(f"{text},{label}\n" for text, label in given)
    (tmp_path / "some.csv").write_text(table)
    (tmp_path / "some.tsv").write_text(table.replace(",", "\t"))
    rows = [json.dumps({"text": text, "label": label}) for text, label in given]
    (tmp_path / "some.jsonl").write_text("\n".join(rows))
    folder = tmp_path / "folder"
    folder.mkdir()
    for label in BANKING:
        (folder / f"{label}.txt").write_text("\n".join(sentences(label)))
    tensor = Split(as_bytes(texts), torch.tensor([BANKING.index(label) for label in labels]))
    wanted = learner.classifier.statistics
    files = [tmp_path / f"some.{ending}" for ending in ("csv", "tsv", "jsonl")]
    for data in (*files, str(files[0]), folder, (texts, labels), tensor):
        other = new()
        classes = list(BANKING) if data is tensor else None
        other.learn("banking", data, classes=classes)
        assert other.tasks[0].class_names == list(BANKING)
        assert torch.equal(other.classifier.statistics.sums, wanted.sums)
        assert torch.equal(other.classifier.statistics.products, wanted.products)


def test_statistics_do_not_depend_on_the_order_of_tasks():
    states = []
    for tasks in ((BANKING, MUSIC), (MUSIC, BANKING)):
        learner = new()
        for labels in tasks:
            learner.learn(labels[0], pairs(*labels))
        guesses = learner.predict(sentences("jazz", seed=1))
        states.append([sorted((g.name, g.probability) for g in one.ranking) for one in guesses])
    for one, other in zip(*states, strict=True):
        assert [name for name, _ in one] == [name for name, _ in other]
        for (_, first), (_, second) in zip(one, other, strict=True):
            assert abs(first - second) <= 1e-9


def test_what_is_learnt_more_often_counts_once(learner):
    before = learner.classifier.statistics.sums.clone()
    given = pairs(*BANKING)
    # Capitals and spaces make no difference to the network, so not here, either.
    again = [(f"  {text.upper()} ", label) for text, label in given]
    learner.learn("banking", [*given, *again])
    assert learner.tasks[0].samples == [12, 12]
    assert torch.equal(learner.classifier.statistics.sums, before)
    learner.learn("banking", [("aaa", "transfer"), *given])
    assert learner.tasks[0].samples == [12, 13]


def test_twice_in_a_class_is_one_sentence_in_all_figures():
    learner = new()
    learner.learn("banking", [*pairs(*BANKING), *pairs(*BANKING)])
    assert learner.tasks[0].samples == [12, 12]
    assert learner.tasks[0].scenes == [12, 12]


def test_none_of_these_is_said_of_sentences_that_resemble_no_class():
    learner = new()
    learner.learn("banking", pairs(*BANKING))
    learner.learn("music", pairs(*MUSIC))
    known = [one.p_value for one in learner.predict(sentences("jazz", seed=2))]
    strange = [one.p_value for one in learner.predict(["5 7 ! ? 3", "## ;; ((", "9 9 9"])]
    assert max(strange) < min(known)
    assert not any(one.known for one in learner.predict(["5 7 ! ? 3"], unknown=max(strange)))


def test_saved_and_loaded_it_says_the_same_and_learns_on(learner, tmp_path):
    learner.save(tmp_path / "state")
    loaded = Learner.load(tmp_path / "state")
    assert loaded.kind.several == "sentences"
    texts = sentences("freeze", seed=3)
    assert probabilities(loaded, texts) == probabilities(learner, texts)
    for one in (learner, loaded):
        one.learn("music", pairs(*MUSIC))
    assert probabilities(loaded, texts) == probabilities(learner, texts)


def test_a_forgotten_class_whose_sentences_are_given_leaves_nothing():
    both = new()
    both.learn("banking", pairs(*BANKING))
    without = new()
    without.learn("banking", pairs("transfer"))
    both.forget_class("banking", "freeze", [text for text, _ in pairs(*BANKING)])
    left, wanted = both.classifier.statistics, without.classifier.statistics
    assert torch.equal(left.products, wanted.products)
    assert torch.equal(left.sums[left.counts > 0], wanted.sums)
    with pytest.raises(UserError, match="12 of the 12 sentences of the class are not among"):
        both.forget_class("banking", "transfer", ["something else"])


def test_layers_that_learn_keep_old_sentences_where_they_were(tmp_path):
    texts, moved = sentences("freeze"), {}
    for method in ("gpm", "cgp", "finetune"):
        learner = new(method=method, tune="last")
        assert learner.training.optimizer == "adamw"
        learner.learn("banking", pairs(*BANKING), checkpoint_dir=tmp_path / method)
        then = learner.net.eval().embed(learner.inputs(texts), 0).detach()
        learner.learn("music", pairs(*MUSIC), checkpoint_dir=tmp_path / method)
        loaded = Learner.load(tmp_path / method)
        now = loaded.net.eval().embed(loaded.inputs(texts), 0).detach()
        moved[method] = float((now - then).norm() / then.norm())
        assert answers(learner, sentences("jazz", seed=1))[0] == ("music", "jazz")
        if method != "finetune":
            assert learner.ways[0] == "statistics"
            assert learner.capacity().layers
            assert learner.drift()[0].reason == "layer block0 (Block) cannot be followed"
    assert 0 < moved["gpm"] < moved["finetune"] / 3
    assert 0 < moved["cgp"] < moved["finetune"] / 3


def test_a_task_that_was_cut_short_resumes_to_the_same_bits(tmp_path):
    class Cut(Exception):
        pass

    def cut(progress):
        if progress.epoch == 1:
            raise Cut

    states = {}
    for name in ("once", "cut"):
        learner = new(method="gpm", tune="last")
        learner.secret = b"s" * 32
        if name == "cut":
            from classgrad.checkpoints import CheckpointManager

            manager = CheckpointManager(tmp_path / name / "learning", steps=1)
            with pytest.raises(Cut):
                learner.learn(
                    "banking",
                    pairs(*BANKING),
                    checkpoint_dir=tmp_path / name,
                    checkpoints=manager,
                    observer=cut,
                )
            learner = new(method="gpm", tune="last")
        learner.learn("banking", pairs(*BANKING), checkpoint_dir=tmp_path / name)
        states[name] = learner.net.state_dict()
    for one, other in zip(states["once"].values(), states["cut"].values(), strict=True):
        assert torch.equal(one, other)


# What is refused, and what is left out.

TEN_THOUSAND = "word " * 10_000


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["fine", ""], "1 of 2 sentences cannot be read: sentence 2 (it is empty)"),
        (["fine", " \t\n"], "sentence 2 (it is empty)"),
        (["\x00\x07\u200b", "fine"], "sentence 1 (it is empty)"),
        (["fine", TEN_THOUSAND], "sentence 2 (it has 50,000 characters, and 10,000 are the most)"),
        ([], "no sentence is given"),
        (["fine", 3], "a int is no sentence: give text"),
    ],
)
def test_sentences_that_cannot_be_read_are_named(learner, texts, message):
    before = learner.classifier.statistics.sums.clone()
    with pytest.raises(UserError) as error:
        learner.predict(texts)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    if texts:
        with pytest.raises(UserError) as error:
            learner.learn("other", [(text, "class") for text in texts])
        assert message in str(error.value)
    assert torch.equal(learner.classifier.statistics.sums, before)
    assert [task.name for task in learner.tasks] == ["banking"]


def test_bad_sentences_have_an_error_in_their_place(learner):
    given = ["abc cab", "", TEN_THOUSAND, "zyx"]
    found = learner.predict(given, report_bad=True)
    assert [one.error for one in found] == [
        None,
        "it is empty",
        "it has 50,000 characters, and 10,000 are the most",
        None,
    ]
    assert (found[0].name, found[3].name) == ("transfer", "freeze")


def test_any_script_and_control_characters_can_be_in_a_sentence(learner):
    given = [
        "Как перевести деньги?",
        "我怎么转账",
        "كيف أحول المال",
        "🤑🤑",
        "abc\x00\x1bcab\u202e",
    ]
    assert len(learner.predict(given)) == 5
    assert answers(learner, ["a\x07bc\x00 c\u200bab"]) == answers(learner, ["abc cab"])
    assert probabilities(learner, ["a\x07bc"]) == probabilities(learner, ["abc"])


def test_what_comes_after_the_bytes_that_are_read_makes_no_difference(learner):
    long = "abc " * 300
    assert probabilities(learner, [long]) == probabilities(learner, [long + "xyz"])
    inputs = learner.kind.read([long, "short"])
    assert learner.kind.remark(inputs) == "1 sentence: only the first 512 bytes are read"
    assert learner.kind.remark(inputs[1:]) == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,intent\nx,y\n", "has no column 'label', but 'text', 'intent'"),
        ("a.csv", b"sentence,label\nx,y\n", "has no column 'text', but 'sentence', 'label'"),
        ("a.csv", "text,label\ngrün,y\n".encode("latin-1"), "is not UTF-8 (byte 13)"),
        ("a.csv", b"text,label\n", "holds no sentence"),
        ("a.csv", b"", "has no column 'text', but nothing"),
        ("a.csv", b"text,label\nx\n", "line 2: there are fewer columns"),
        ("a.csv", b"text,label\nx,\n", "line 2: the label is empty"),
        ("a.csv", b"text,label\n ,y\nb,y\n", "line 2 (it is empty)"),
        ("a.jsonl", b'{"text": "x", "label": "y"}\n[]\n', "line 2 is not a table in JSON"),
        ("a.jsonl", b'{"text": 3, "label": "y"}\n', "text and label have to be text"),
        ("a.txt", b"x\n", "is none of .csv, .tsv, .jsonl, nor a folder"),
        ("a.jpg", b"x", "is a picture, but this learner reads sentences"),
        ("a.csv", b"text,label\nsame,y\nSAME,z\n", "'same' is in class 'y' and in class 'z'"),
    ],
)
def test_files_that_cannot_be_learnt_are_refused_in_one_line(
    learner, tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    before = learner.state_dict()["tasks"]
    with pytest.raises(UserError) as error:
        learner.learn("other", tmp_path / name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert learner.state_dict()["tasks"] == before


def test_bad_rows_are_left_out_when_that_is_asked_for(learner, tmp_path):
    rows = [*pairs(*MUSIC), ("", "jazz"), (TEN_THOUSAND, "alarm")]
    table = "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    (tmp_path / "a.csv").write_text(table)
    with pytest.raises(UserError, match="2 of 26 sentences cannot be read") as error:
        learner.learn("music", tmp_path / "a.csv")
    assert error.value.hint == "skip_bad"
    assert learner.learn("music", tmp_path / "a.csv", skip_bad=True).samples == [12, 12]
    (tmp_path / "b.csv").write_text("text,label\nx,y\n,z\n")
    with pytest.raises(UserError, match="no sentence of class 'z' is left"):
        learner.learn("other", tmp_path / "b.csv", skip_bad=True)


def test_the_same_sentence_in_classes_of_two_tasks_is_refused_unless_they_are_separate(learner):
    taken = sentences("freeze")[0]
    with pytest.raises(UserError, match="is in class 'freeze' and in class 'jazz'"):
        learner.learn("music", [(taken, "jazz"), *pairs(*MUSIC)], same_classes="refuse")
    learner.learn("music", [(taken, "jazz"), *pairs(*MUSIC)])
    assert learner.tasks[1].samples == [12, 13]


@pytest.mark.filterwarnings("error::classgrad.learner.learner.LookAlikes")
def test_a_single_sentence_is_warned_of(learner):
    with pytest.warns(SingleImage, match="has one training sentence"):
        learner.learn("music", [("mno", "jazz"), *pairs("alarm")])
    assert issubclass(LookAlikes, UserWarning)


def test_images_are_refused_by_a_learner_of_sentences_and_sentences_by_one_of_images(learner):
    images, labels = torch.linspace(0, 1, 768).view(4, 3, 8, 8), torch.tensor([0, 0, 1, 1])
    for attempt in (
        lambda: learner.learn("photos", (images, labels)),
        lambda: learner.learn("photos", Split(images, labels)),
        lambda: learner.predict(images),
    ):
        with pytest.raises(UserError, match="this learner reads sentences, not inputs of shape"):
            attempt()
    with pytest.raises(UserError, match="sentences are rows of uint8"):
        learner.predict(torch.zeros(2, 512))
    photos = Learner(network="mlp", size=8)
    with pytest.raises(UserError, match="training data of this type cannot be used"):
        photos.learn("banking", pairs(*BANKING))
    photos.learn("photos", (images, labels))
    with pytest.raises(UserError, match=r"'move my money' \(No such file or directory\)"):
        photos.predict("move my money")


def test_what_needs_altered_copies_is_refused(learner):
    from classgrad import CGP

    with pytest.raises(UserError, match="give it contrast=0"):
        new(method=CGP(contrast=0.3), tune="last")
    assert new(method="cgp", tune="last").method.contrast == 0
    assert NETWORK["sentences"] == "minilm"


# As one file.


def opened(path):
    """Return what runs an exported file, and its metadata."""
    if path.suffix == ".pt2":
        extra = {"classgrad.json": ""}
        module = torch.export.load(path, extra_files=extra).module()
        return module, json.loads(extra["classgrad.json"])
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options)
    names = [one.name for one in session.get_outputs()]

    def run(tokens):
        found = session.run(names, {"tokens": tokens.numpy()})
        return dict(zip(names, map(torch.from_numpy, found), strict=True))

    return run, json.loads(session.get_modelmeta().custom_metadata_map["classgrad.json"])


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_an_exported_file_takes_tokens_and_says_the_same(learner, tmp_path, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    learner.learn("music", pairs(*MUSIC))
    learner.forget_class("music", "alarm")
    path = tmp_path / f"all{suffix}"
    export(learner, path)
    run, about = opened(path)
    assert about["classes"] == ["freeze", "transfer", "jazz"]
    assert (about["dtype"], about["input_shape"]) == ("int64", [64])
    texts = ["Abc, cab!", "zyx 5", "ça", "m" * 90, "mno " * 70]
    tokens = as_tokens(texts, about)
    assert tokens.shape == (5, 64)
    for count in (5, 2):  # any number of them, of any length
        given = as_tokens(texts[:count], about)
        found = run(given)
        for place, wanted in enumerate(learner.predict(texts[:count])):
            expected = {guess.name: guess.probability for guess in wanted.ranking}
            row = dict(zip(about["classes"], found["probabilities"][place].tolist(), strict=True))
            assert row == pytest.approx(expected, abs=1e-5)
            assert float(found["p_values"][place]) == pytest.approx(wanted.p_value)
    wrong = [
        tokens.float(),
        tokens.int(),
        tokens[0],
        torch.cat([tokens, tokens], 1),
        tokens.index_fill(0, torch.tensor([1]), 0),
        tokens + 30_000,
    ]
    for one in wrong:
        with pytest.raises(Exception, match=r"(?i)dtype|type|dim|guard|rank|range|ind|shape|token"):
            run(one)
    with pytest.raises(UserError, match="takes the numbers of tokens: leave out floats"):
        export(learner, path, floats=True, force=True)
