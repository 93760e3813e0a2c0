"""What a learner takes down when a task was learnt: accuracy, calibration, prototypes, ranks."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from classgrad.learner.learnt import LearntTask
from classgrad.prediction.accuracy import class_means, inputs
from classgrad.prediction.calibration import KINDS, calibrated
from classgrad.tasks import Task, digest

if TYPE_CHECKING:
    from classgrad.learner.learner import Learner


@torch.no_grad()
def judged(learner: "Learner", task: Task, seconds: float) -> LearntTask:
    """Return what is worth knowing of a task that was just learnt; keep its prototypes."""
    if learner.keeps_prototypes:
        learner.prototypes.append(class_means(learner.net, task))
    sharpness, accuracy = {}, None
    for kind in KINDS if learner.keeps_prototypes else ["confidence"]:
        scores = valid_scores(learner, kind, task)
        sharpness[kind] = calibrated(scores, task.valid.labels)
        if kind == "confidence" and len(task.valid):
            right = scores.argmax(1) == task.valid.labels
            accuracy = 100 * float(right.cpu().double().mean())
    return LearntTask(
        name=task.name,
        class_names=list(task.class_names),
        samples=torch.bincount(task.train.labels.cpu(), minlength=task.classes).tolist(),
        sharpness=sharpness,
        accuracy=accuracy,
        ranks={room.name: room.rank for room in learner.method.room()},
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        data=digest([task.train, task.valid]),
    )


def valid_scores(learner: "Learner", kind: str, task: Task) -> Tensor:
    """Return the scores of all validation images of a task, none if it has none."""
    if not len(task.valid):
        return torch.zeros(0, task.classes)
    known = learner.prototypes[task.id] if kind == "prototypes" else None
    net = learner.net.eval()
    batches = inputs(net, task.valid, task.transform)
    return torch.cat([KINDS[kind](net, x, task.id, known) for _, x in batches])
