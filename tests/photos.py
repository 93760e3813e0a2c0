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


def timeless(learner):
    """Return what tells a learner from others, whenever and however fast it has learnt."""
    state = learner.state_dict()
    for task in state["tasks"]:
        del task["when"], task["seconds"]
    return digest(state)


def kept(folder, trunk=None):
    """Return the same of the learner in a folder."""
    return timeless(Learner.load(folder, trunk=trunk))
