"""What can be set on every network."""

from typing import Literal

from pydantic import Field

from classgrad.settings import Settings


class NetworkSettings(Settings):
    """Options all networks share; each network adds its own."""

    kind = "network option"

    norm: Literal["batch", "stored"] = Field(
        default="batch",
        description="statistics of BatchNorm at test time: of the batch, or stored for each task",
    )
    affine: Literal["first", "task"] = Field(
        default="first",
        description="scale and shift of BatchNorm: of the first task, or one per task",
    )
    heads: Literal["task", "shared"] = Field(
        default="task", description="one head for each task, or one for all"
    )
