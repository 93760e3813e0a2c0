"""What a learner knows of its tasks."""

from dataclasses import dataclass, field


@dataclass
class LearntTask:
    """What is known of a task that was learnt, beside weights and prototypes."""

    name: str
    class_names: list[str]
    samples: list[int]  # of each class
    sharpness: dict[str, float]  # 1 / temperature, by kind of prediction
    accuracy: float | None  # in per cent, on validation data when it was learnt; None without any
    ranks: dict[str, int]  # directions in use in each layer after it
    when: str  # date and time, UTC
    seconds: float
    data: str = ""  # digest of its training and validation data
    forgotten: list[str] = field(default_factory=list)  # classes no longer predicted
