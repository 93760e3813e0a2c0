"""Training settings, and the optimiser and schedule that follow from them."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from classgrad.data.augment import AugmentName
from classgrad.settings import Migration, Settings
from classgrad.training.schedules import Constant, Cosine, Plateau, Schedule
from classgrad.training.sgd import SGD


class Training(Settings):
    """How a task is trained, with any method."""

    kind = "training setting"
    # `compile` never paid on a CPU, and changed results by rounding only.
    removed: ClassVar[dict[str, Migration]] = {"compile": lambda value: {}}

    epochs: int = Field(default=10, ge=1, description="epochs per task, at most")
    batch_size: int = Field(default=64, ge=1, description="samples per step")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        default="sgd", description="optimiser, a new one for every task"
    )
    learning_rate: float = Field(
        default=0.05, gt=0, description="learning rate at the start of every task"
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum of sgd")
    nesterov: bool = Field(default=False, description="Nesterov's form of momentum")
    weight_decay: float = Field(default=0.0, ge=0, description="weight decay")
    schedule: Literal["plateau", "cosine", "constant"] = Field(
        default="cosine", description="plateau divides the rate when the loss stops falling"
    )
    monitor: Literal["valid", "train"] = Field(
        default="valid",
        description="plateau: the loss it looks at, of validation data or of the epoch's training",
    )
    warmup: int = Field(default=0, ge=0, description="cosine: steps of linear warm-up")
    lr_min: float = Field(default=1e-5, ge=0, description="plateau: stop below this rate")
    factor: float = Field(default=2.0, gt=1, description="plateau: divisor of the rate")
    patience: int = Field(
        default=6,
        ge=1,
        description="plateau: epochs without improvement before the rate is divided",
    )
    augment: AugmentName = Field(
        default="none",
        description="what every step does to its images: a flip left to right at random, also a "
        "crop at random, padded by 4 pixels, or AugMix",
    )
    task_free: Literal["every", "end", "never"] = Field(
        default="every",
        description="when to measure without task identity: after every task, at the end, or never",
    )

    held_images: int = Field(
        default=50,
        ge=0,
        description="images of each class, of training and test data, on which the energy that "
        "layers hold is measured; 0: none",
    )
    stability: int = Field(
        default=0,
        ge=0,
        description="how often earlier tasks are tested within a task, on some images; 0: never",
    )

    precision: Literal["float32", "bfloat16", "auto"] = Field(
        default="float32",
        description="type in which the trunk multiplies; auto: bfloat16 on processors that have it",
    )

    @property
    def looks_at_validation(self) -> bool:
        """Whether training depends on validation data."""
        return self.schedule == "plateau" and self.monitor == "valid"

    def schedule_for(self, steps: int) -> Schedule:
        """Return the schedule of a task of at most `steps` steps."""
        if self.schedule == "plateau":
            return Plateau(
                self.learning_rate, lowest=self.lr_min, factor=self.factor, patience=self.patience
            )
        if self.schedule == "cosine":
            return Cosine(self.learning_rate, steps=steps, warmup=self.warmup)
        return Constant(self.learning_rate)

    def optimizer_for(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimiser of these parameters."""
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
        nesterov = self.nesterov and self.momentum > 0
        return SGD(
            parameters,
            lr=rate,
            momentum=self.momentum,
            weight_decay=decay,
            nesterov=nesterov,
            fused=True,  # one pass over memory instead of three
        )
