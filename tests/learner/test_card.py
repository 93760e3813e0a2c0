"""The card of a learner: what it says, that it is always the same, and that edits are noticed."""

import json

import pytest
import torch
from torch import nn

from classgrad import GPM, Learner, Training
from classgrad.errors import UserError
from classgrad.learner import card
from oracles.models import built


def trunk():
    return built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU())).float()


def points(shift=0, count=40):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(shift))
    return x, (x[:, 0] > 0).long()


@pytest.fixture
def folder(tmp_path):
    learner = Learner(trunk(), GPM(), training=Training(epochs=3))
    learner.learn("first", points(), classes=["a|b", "ü"], checkpoint_dir=tmp_path / "state")
    learner.learn("second", points(1), classes=["c", "d"], checkpoint_dir=tmp_path / "state")
    return tmp_path / "state"


def loaded(folder):
    return Learner.load(folder, trunk())


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
    assert after["network"]["weights_sha256"] != before["network"]["weights_sha256"]
    assert after["tasks"][1]["classes"][0]["forgotten"]


def test_digests_of_images_depend_on_the_images_and_on_the_key(folder):
    (one, two), (three, _) = (
        [each["images_digest"] for each in task["classes"]] for task in card.make(folder)["tasks"]
    )
    assert len({one, two, three}) == 3
    state = loaded(folder).state_dict()
    number = loaded(folder).tasks[0].numbers[0]
    assert card.samples_digest(state["classifier"], number, state["secret"]) == one
    assert card.samples_digest(state["classifier"], number, "00" * 16) != one


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
    with pytest.raises(UserError, match="not the card of this state: network differ"):
        card.check(folder, file)


@pytest.mark.parametrize("content", ["", "[]", "{}", "1", '{"digest": 1}', "[" * 5000])
def test_what_is_no_card_is_refused_in_one_line(folder, tmp_path, content):
    file = tmp_path / "card.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"no card|was edited") as caught:
        card.check(folder, file)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no card"):
        card.check(folder, tmp_path / "missing.json")


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
