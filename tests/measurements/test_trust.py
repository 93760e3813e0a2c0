"""What `make trust` measures, on small pictures and a network that is not trained."""

import json

import pytest
import torch
from torch import nn

from benchmarks import remains, trust
from classgrad import Learner
from classgrad.tasks import Split
from oracles.models import built

EDGE = 8


def tiny(**options):
    def make():
        return nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    return Learner(built(make).float(), tune="none", size=EDGE, **options)


def split(seed, per_class):
    centres = torch.rand(100, 3, 1, 1, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(100).repeat_interleave(per_class)
    noise = torch.rand(len(labels), 3, EDGE, EDGE, generator=torch.Generator().manual_seed(seed))
    return Split((0.7 * centres[labels] + 0.3 * noise).mul(255).to(torch.uint8), labels)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {
        "default_learner": tiny,
        "LEARNERS": {"default": tiny},
        "RESULTS": None,
        "PER_CLASS": 5,
        "ASKED": 3,
        "DRAWS": 1,
        "SIZES": (9, 9, 5, 5),
        "TEST_PHOTOS": 3,
        "EXPORTED": 4,
        "FORMATS": (".pt2",),
        "LARGE": {1: (400, 300)},
        "FILES": 4,
    }.items():
        monkeypatch.setattr(trust, name, value)
    for name, value in {
        "default_learner": tiny,
        "SETTINGS": ((8, 1, 1), (8, 3, 1)),
        "MEMBERS": 3,
        "OTHERS": 8,
        "MORE": 4,
        "TARGETS": 2,
        "CANDIDATES": 3,
    }.items():
        monkeypatch.setattr(remains, name, value)


@pytest.fixture(scope="module")
def train():
    return split(2, 15)


@pytest.fixture(scope="module")
def test():
    return split(3, 3)


def test_threads_and_a_frozen_copy_answer_as_one_thread_alone(train, test):
    found = trust.threads(train, test)["default"]
    assert found["with_task"] == found["without_task"] == {"answers": 9, "differing": 0}
    assert found["while_learning"]["differing"] == 0


def test_answers_that_differ_are_counted(train, test, monkeypatch):
    learner = trust.learnt(tiny, train)
    images, asked = test.images[:3], []

    def predict(image, task=None):
        asked.append(task)  # alone first, then in three threads
        return [len(asked) == 5]

    monkeypatch.setattr(learner, "predict", predict)
    assert trust.together(learner, images, [None] * 3) == {"answers": 9, "differing": 1}


def test_printed_accuracies_are_beside_those_of_new_photos(train, test):
    found = trust.printed(train, test)
    for one in (*found["sizes"], *found["scenes"]):
        assert 0 <= one["accuracy"] <= 100
        assert len(one["recalls"]) == 4
        said = one["printed"]
        assert said is None or said["low"] <= said["accuracy"] <= said["high"]


def test_shots_of_a_scene_differ_a_little(train):
    scene = train.images[0]
    taken = trust.shots(scene, 32, seed=0)
    assert taken.shape == (trust.SHOTS, 3, 32, 32)
    assert len({shot.numpy().tobytes() for shot in taken}) == trust.SHOTS
    colours = taken.float().mean((2, 3))
    assert (colours - scene.float().mean((1, 2))).abs().max() < 60


def test_photos_that_an_exported_file_calls_otherwise_are_counted(train, test, monkeypatch):
    exported = []
    monkeypatch.setattr(trust, "export", lambda learner, path: exported.append(learner))

    def run(path, images):
        answers = exported[0].predict(images)
        names = [(guess.name, guess.task) for guess in answers[0].ranking]
        rows = [
            [{(g.name, g.task): g.probability for g in one.ranking}[name] for name in names]
            for one in answers
        ]
        rows[1] = [1 - value for value in rows[1]]
        return names, torch.tensor(rows)

    monkeypatch.setattr(trust, "run", run)
    found = trust.exported(train, test)[".pt2"]
    assert found["photos"] == 4
    assert found["differing"] == 1
    assert 0 < found["probabilities_differ_by"] <= 1


def test_one_damaged_file_costs_one_row(train, test, monkeypatch):
    def large_photo(folder, name):
        assert (folder / name).exists()
        return {"milliseconds": 1.0}

    monkeypatch.setattr(trust, "in_new_process", lambda _, *given: large_photo(*given))
    found = trust.files(train, test)
    counts = {"files": 4, "damaged": 1, "rows": 4, "answers": 3, "differing": 0, "reasons": 1}
    assert found["batch"] == counts
    assert found["large"]["1"]["milliseconds"] == 1.0


def test_attacks_find_what_a_state_has_and_nothing_that_was_removed(train, test):
    one, several = remains.forgetting(train, test)
    assert one["before"]["nearest"] == one["before"]["mean"] == 1  # the mean is the photo
    assert several["before"]["digests"] == 1
    assert several["before"]["digests_of_others"] == 0
    for name in ("forgotten", "forgotten with images"):
        found = several[name]
        assert found["mean"] == found["kept"] == 0.5
        assert found["digests"] == 0
        assert found["task_digest"] == 1 / remains.CANDIDATES  # no better than a guess
        assert found["said_to_stay"] == 0  # all photos were kept, so all were removed
    assert several["before"]["task_digest"] == 1


def test_the_covariance_shows_pairs_of_photos_until_they_are_removed(train, monkeypatch):
    # Fewer photos than features.
    monkeypatch.setattr(remains, "SETTINGS", ((4, 3, 1),))
    monkeypatch.setattr(remains, "default_learner", lambda: tiny(kept_features=0))
    (found,) = remains.forgetting(train, train)
    assert found["forgotten"]["covariance_of_pairs"] > 0.95
    assert found["forgotten"]["said_to_stay"] == 1
    assert found["forgotten with images"]["covariance_of_pairs"] < 0.9
    assert found["forgotten with images"]["said_to_stay"] == 0


def test_figures_are_written_part_by_part(train, test, tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "RESULTS", tmp_path / "trust.json")
    monkeypatch.setattr(trust, "photos", lambda part: train if part == "train" else test)
    monkeypatch.setattr(trust, "PARTS", {"a": lambda *_: {"x": 1}, "b": lambda *_: {"y": 2}})
    trust.main(["a"])
    trust.main(["b"])
    content = json.loads((tmp_path / "trust.json").read_text())
    assert content["a"]["figures"] == {"x": 1}
    assert content["b"]["figures"] == {"y": 2}
    assert content["b"]["command"] == "python -m benchmarks.trust"
