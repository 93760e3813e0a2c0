"""The table of all files that are read: to add one, add its `Target` to one of these modules."""

from fuzz import (
    archives,
    checkpoints,
    datasets,
    guards,
    kept,
    learners,
    pictures,
    sentences,
    texts,
    weights,
)
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        texts,
        checkpoints,
        learners,
        guards,
        kept,
        datasets,
        archives,
        pictures,
        sentences,
        weights,
    )
    for target in module.TARGETS
}
