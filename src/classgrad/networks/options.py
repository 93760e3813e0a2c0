"""Options that all networks share."""

from typing import Literal

from pydantic import Field

from classgrad.settings import Settings


class HeadSettings(Settings):
    """Options of a user's own network."""

    kind = "network option"

    heads: Literal["task", "shared"] = Field(
        default="task", description="one head for each task, or one for all"
    )


class NetworkSettings(HeadSettings):
    """Options all networks of the table share; each network adds its own."""

    norm: Literal["batch", "stored"] = Field(
        default="batch",
        description="statistics of BatchNorm at test time: of the batch, or stored for each task",
    )
    affine: Literal["first", "task"] = Field(
        default="first",
        description="scale and shift of BatchNorm: of the first task, or one per task",
    )
