"""Small pictures to learn from, and states to compare."""

import numpy as np
from PIL import Image

from classgrad import Learner
from faults.kills import digest

EDGE = 8


def photos(folder, *names, count=10, seed=1):
    """Make a folder of pictures for each class, around a picture of its own."""
    rng = np.random.default_rng(seed)
    for name in names:
        centre = rng.integers(0, 256, (EDGE, EDGE, 3))
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(centre + rng.normal(0, 20, centre.shape), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number:02}.png")
    return folder


def unkeyed(learner):
    """Return a state without times, and without its random key and the digests made with that."""
    state = learner.state_dict()
    del state["secret"]
    if state["classifier"] is not None:
        del state["classifier"]["digests"]
    for task in state["tasks"]:
        del task["when"], task["seconds"], task["data"]
    return state


def timeless(learner):
    """Return what tells a learner from others, whenever and however fast it has learnt."""
    return digest(unkeyed(learner))


def kept(folder, trunk=None):
    """Return the same of the learner in a folder."""
    return timeless(Learner.load(folder, trunk=trunk))
