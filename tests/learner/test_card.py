"""The card of a learner: what it says, that it is always the same, and that edits are noticed."""

import json
import shutil

import pytest
import torch
from torch import nn

from classgrad import GPM, Learner, Training
from classgrad.checkpoints.manager import FOLDER
from classgrad.checkpoints.store import Store
from classgrad.errors import UserError
from classgrad.learner import card
from classgrad.learner.inputs import split_off_validation
from classgrad.learner.learner import keyed
from classgrad.methods import EWC
from classgrad.seeds import generator
from classgrad.tasks import Split, digest
from learner.stored_states import DATA
from oracles.models import built


def trunk():
    return built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU())).float()


def points(shift=0, count=40):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(shift))
    return x, (x[:, 0] > 0).long()


def learnt(method, folder):
    learner = Learner(trunk(), method, training=Training(epochs=3))
    learner.learn("first", points(), classes=["a|b", "ü"], checkpoint_dir=folder)
    learner.learn("second", points(1), classes=["c", "d"], checkpoint_dir=folder)
    return folder


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    return learnt(GPM(), tmp_path_factory.mktemp("once") / "state")


@pytest.fixture
def folder(made_once, tmp_path):
    return shutil.copytree(made_once, tmp_path / "state")


def loaded(folder):
    return Learner.load(folder, trunk())


def loaded_state(folder):
    return Store(folder / FOLDER).load().state


def test_a_card_has_what_the_state_has(folder):
    made, learner = card.make(folder), loaded(folder)
    assert [task["name"] for task in made["tasks"]] == ["first", "second"]
    first = made["tasks"][0]
    assert [one["name"] for one in first["classes"]] == ["a|b", "ü"]
    assert [one["images"] for one in first["classes"]] == learner.tasks[0].samples
    assert first["balanced_accuracy"] == learner.tasks[0].accuracy
    assert first["settings"]["training"]["epochs"] == 3
    assert made["drift"][1]["bound"] == learner.drift()[1].bound
    text = card.markdown(made)
    assert "| a\\|b | " in text
    assert made["digest"] in text
    assert "balanced accuracy" in text


def test_a_state_has_one_card_and_what_changes_it_changes_the_card(folder):
    before = card.make(folder)
    assert card.make(folder) == before
    learner = loaded(folder)
    learner.save(folder)
    assert card.make(folder) == before  # nothing was learnt
    learner.forget_class("second", "c")
    learner.save(folder)
    after = card.make(folder)
    assert after["digest"] != before["digest"]
    assert after["contents"]["weights"] != before["contents"]["weights"]
    assert after["tasks"][1]["classes"][0]["forgotten"]


def test_digests_of_images_depend_on_the_images_and_on_the_key(folder):
    (one, two), (three, _) = (
        [each["images_digest"] for each in task["classes"]] for task in card.make(folder)["tasks"]
    )
    assert len({one, two, three}) == 3
    state = loaded(folder).state_dict()
    number = loaded(folder).tasks[0].numbers[0]
    key = bytes.fromhex(state["secret"])
    assert card.samples_digest(state["classifier"], number, key) == one
    assert card.samples_digest(state["classifier"], number, bytes(16)) != one
    assert all(task["images_digest"] is None for task in card.make(folder)["tasks"])


def test_without_statistics_a_task_has_one_digest_of_its_images(tmp_path):
    made = card.make(learnt(EWC(), tmp_path / "state"))
    digests = [task["images_digest"] for task in made["tasks"]]
    assert all(one["images_digest"] is None for task in made["tasks"] for one in task["classes"])
    assert f"- digest of all its images: {digests[1]}" in card.markdown(made)
    assert made["contents"]["class_statistics"] is None
    # Who has all images, but not the state, cannot make them: the key is random.
    again = card.make(learnt(EWC(), tmp_path / "again"))
    assert len({*digests, *(task["images_digest"] for task in again["tasks"])}) == 4
    state = loaded_state(tmp_path / "state")
    x, labels = points()
    first = Learner.load(tmp_path / "state", trunk()).tasks[0]
    for fraction in (0.0, 0.1):
        chosen = split_off_validation(labels, fraction, generator(1, "valid", 0), torch.arange(40))
        parts = [Split(x[rows], labels[rows]) for rows in (~chosen, chosen)]
        plain = digest(parts)
        assert (keyed(plain, bytes.fromhex(state["secret"])) == first.data) is bool(fraction)
        assert plain not in json.dumps(made)
        assert plain not in json.dumps(state["tasks"])
    state["tasks"][1]["data"] = ""  # as in states from before tasks had a digest
    Store(tmp_path / "none" / FOLDER).save(state)
    assert card.make(tmp_path / "none")["tasks"][1]["images_digest"] is None


def test_digests_that_were_stored_without_a_key_get_one_made_from_the_first(tmp_path):
    learnt(EWC(), tmp_path / "state")
    state = loaded_state(tmp_path / "state")
    plain = ["0" * 32, "1" * 32]
    for task, data in zip(state["tasks"], plain, strict=True):
        task["data"] = data
    del state["secret"]
    digests = []
    for first in ("0" * 32, "2" * 32):
        state["tasks"][0]["data"] = first
        Store(tmp_path / first / FOLDER).save(state)
        digests += [task["images_digest"] for task in card.make(tmp_path / first)["tasks"]]
    assert len({*digests, *plain}) == 6


def test_a_card_is_checked(folder, tmp_path):
    file = tmp_path / "card.json"
    made = card.make(folder)
    file.write_text(json.dumps(made))
    card.check(folder, file)
    edited = json.loads(file.read_text())
    edited["tasks"][0]["balanced_accuracy"] = 100.0
    file.write_text(json.dumps(edited))
    with pytest.raises(UserError, match="was edited"):
        card.check(folder, file)
    file.write_text(json.dumps(made))
    learner = loaded(folder)
    learner.learn("third", points(2), classes=["e", "f"], checkpoint_dir=folder)
    with pytest.raises(UserError, match="not the card of this state: tasks, drift"):
        card.check(folder, file)


def nudge(tensor):
    """Change the last bit of a number."""
    first = tensor.view(-1)[:1]
    first.copy_(first.nextafter(first + 1) if tensor.is_floating_point() else first + 1)


PARTS = {  # what of a state is changed, and what of the card then differs
    "a class sum": ("class statistics", lambda s: nudge(s["classifier"]["sums"])),
    "a count": ("class statistics", lambda s: nudge(s["classifier"]["counts"])),
    "a product": ("class statistics", lambda s: nudge(s["classifier"]["products"])),
    "removed": ("class statistics", lambda s: s["classifier"].update(removed=1)),
    "a kept feature": ("class statistics", lambda s: nudge(s["classifier"]["kept_features"])),
    "a kept class": ("class statistics", lambda s: s["classifier"]["kept_classes"].neg_()),
    "a digest": ("tasks, class statistics", lambda s: nudge(s["classifier"]["digests"])),
    "a prototype": ("prototypes", lambda s: nudge(s["prototypes"][1])),
    "a basis": ("memory", lambda s: nudge(s["memory"]["bases"]["0"])),
    "tasks learnt": ("memory", lambda s: s["memory"].update(learnt=1)),
    "a product of inputs": ("movement", lambda s: nudge(s["movement"]["products"]["0"])),
    "a weight": ("weights", lambda s: nudge(s["net"]["heads.0.weight"])),
    "a temperature": ("description", lambda s: s["tasks"][0]["sharpness"].update(confidence=9.0)),
    "a number": ("tasks, description", lambda s: s["tasks"][0]["numbers"].reverse()),
    "the key": ("tasks, description", lambda s: s.update(secret="00" * 32)),
    "the shape": ("description", lambda s: s.update(input_shape=[2, 2])),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_change_of_whatever_decides_answers_fails_the_check(part, folder, tmp_path):
    words, change = PARTS[part]
    (tmp_path / "card.json").write_text(json.dumps(card.make(folder)))
    state = loaded_state(folder)
    change(state)
    Store(folder / FOLDER).save(state)
    with pytest.raises(UserError, match=f"not the card of this state: {words} differ"):
        card.check(folder, tmp_path / "card.json")


def test_nothing_new_in_a_state_is_left_out_of_its_card_unnoticed(folder):
    made, state = card.make(folder), loaded_state(folder)
    settings = {*made["settings"], "network", "network_options", "size"}
    about = {"tasks", "kind", "defaults", "probe"}  # the probe is measured anew at each save
    assert state.keys() == {*card.PARTS.values(), *card.DESCRIPTION, *settings, *about}
    figures = {"accuracy", "interval", "task_free", "recalls", "scenes", "when", "version"}
    others = figures | {"settings", "seconds"}
    assert state["tasks"][0].keys() - others == set(card.OF_TASK)


def test_strides_and_the_order_of_keys_are_no_other_state(folder):
    before, state = card.make(folder), loaded_state(folder)
    state["classifier"]["sums"] = state["classifier"]["sums"].T.contiguous().T
    state["memory"] = dict(reversed(state["memory"].items()))
    Store(folder / FOLDER).save(state)
    assert card.make(folder) == before


def test_values_that_are_close_have_other_digests():
    x = torch.zeros(2, 3)
    values = [0, 0.0, False, None, "0", "", [], {}, [[]], {"0": 0}, {0: "0"}, [0], [0, 0], x, x.T]
    values += [x.double(), x.reshape(-1), x[:0], -x, x.bfloat16(), x.int(), torch.tensor(0.0)]
    assert len({card.tree_digest(value) for value in values}) == len(values)


def test_a_card_of_an_older_schema_is_checked_and_says_what_it_does_not_cover(
    folder, tmp_path, call
):
    older = DATA / "0.1.0" / "gpm"
    assert card.check(older, older / "card_1.json") == card.NOT_COVERED[1]
    made = card.make(folder, 1)
    assert "contents" not in made
    (tmp_path / "card.json").write_text(json.dumps(made))
    code, text, _ = call("card", str(folder), "--check", str(tmp_path / "card.json"))
    assert code == 0
    assert "older form that does not cover class statistics, prototypes" in text
    state = loaded_state(folder)
    nudge(state["net"]["heads.0.weight"])
    Store(folder / FOLDER).save(state)
    with pytest.raises(UserError, match="not the card of this state: network differ"):
        card.check(folder, tmp_path / "card.json")


def with_digest(content):
    return json.dumps({**content, "digest": card.digest_of(content)})


def test_cards_of_newer_schemas_and_other_forms_are_refused_in_one_line(folder, tmp_path):
    made = card.make(folder)
    del made["digest"]
    contents = {**made["contents"], "x\n": 1}
    for change, words in [
        ({"card": card.SCHEMA + 1}, f"schema {card.SCHEMA + 1}, newer than {card.SCHEMA}: update"),
        ({"card": "2"}, "is no card"),
        ({"card": 0}, "is no card"),
        ({"card": True}, "is no card"),
        ({"x_y": 1}, "state: x y differ"),
        ({"x": None}, "state: contents differ"),
        ({"contents": []}, "state: contents differ"),
        ({"contents": contents}, r"state: 'x\\n' differ"),
    ]:
        (tmp_path / "card.json").write_text(with_digest({**made, **change}))
        with pytest.raises(UserError, match=words) as caught:
            card.check(folder, tmp_path / "card.json")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", "1", '{"digest": 1}', "[" * 5000])
def test_what_is_no_card_is_refused_in_one_line(folder, tmp_path, content):
    file = tmp_path / "card.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"no card|was edited") as caught:
        card.check(folder, file)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no card"):
        card.check(folder, tmp_path / "missing.json")


def test_the_command_says_that_the_newest_state_is_damaged(folder, call):
    assert call("card", str(folder))[2] == ""
    newest = max((folder / FOLDER).glob("0*"))
    (newest / "tensors.safetensors").write_bytes(b"")
    code, page, err = call("card", str(folder), "--json")
    assert (code, [task["name"] for task in json.loads(page)["tasks"]]) == (0, ["first"])
    assert f"checkpoint '{newest}' is damaged: " in err
    assert err.endswith("; this is the card of the previous one\n")


def test_the_command_prints_both_forms_and_checks(folder, tmp_path, call):
    code, page, _ = call("card", str(folder))
    assert code == 0
    assert page.startswith("# Card of a classgrad learner")
    code, text, _ = call("card", str(folder), "--json")
    made = json.loads(text)
    assert made == card.make(folder)
    assert made["digest"] in page
    (tmp_path / "card.json").write_text(text)
    assert call("card", str(folder), "--check", str(tmp_path / "card.json"))[0] == 0
    (tmp_path / "card.json").write_text(text.replace("second", "third"))
    code, _, err = call("card", str(folder), "--check", str(tmp_path / "card.json"))
    assert code == 2
    assert "was edited" in err
