"""Methods: classes whose fields are their hyper-parameters, and the table of all of them."""

from typing import Any

from classgrad.errors import unknown
from classgrad.methods.base import Held, LayerRank, Method, Step
from classgrad.methods.finetune import Finetune
from classgrad.methods.lwf import LwF
from classgrad.methods.multitask import Multitask
from classgrad.methods.penalty.ewc import EWC
from classgrad.methods.penalty.imm import IMM
from classgrad.methods.penalty.mas import MAS
from classgrad.methods.penalty.si import SI
from classgrad.methods.projection.base import Projected
from classgrad.methods.projection.budget import Budgeted
from classgrad.methods.projection.cgp import CGP
from classgrad.methods.projection.gpm import GPM
from classgrad.methods.projection.ogd import OGD
from classgrad.methods.projection.owm import OWM
from classgrad.methods.projection.sgp import SGP
from classgrad.methods.projection.trgp import TRGP
from classgrad.methods.replay.agem import AGEM
from classgrad.methods.replay.er import ER
from classgrad.methods.replay.gem import GEM
from classgrad.methods.replay.icarl import ICaRL
from classgrad.methods.structure.apd import APD
from classgrad.methods.structure.apd2 import APD2
from classgrad.methods.structure.den import DEN
from classgrad.methods.structure.hat import HAT
from classgrad.methods.structure.pgn import PGN
from classgrad.methods.structure.rcl import RCL
from classgrad.methods.structure.stl import STL

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        CGP,
        GPM,
        SGP,
        TRGP,
        OWM,
        OGD,
        HAT,
        EWC,
        SI,
        MAS,
        IMM,
        LwF,
        ER,
        AGEM,
        GEM,
        ICaRL,
        PGN,
        DEN,
        RCL,
        APD,
        APD2,
        STL,
        Finetune,
        Multitask,
    )
}

__all__ = [
    "AGEM",
    "APD",
    "APD2",
    "CGP",
    "DEN",
    "ER",
    "EWC",
    "GEM",
    "GPM",
    "HAT",
    "IMM",
    "MAS",
    "METHODS",
    "OGD",
    "OWM",
    "PGN",
    "RCL",
    "SGP",
    "SI",
    "STL",
    "TRGP",
    "Budgeted",
    "Finetune",
    "Held",
    "ICaRL",
    "LayerRank",
    "LwF",
    "Method",
    "Multitask",
    "Projected",
    "Step",
]


def kind(name: str) -> type[Method]:
    """Return the class of a method in the table."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def make(name: str, **values: Any) -> Method:
    """Return a method from the table with these hyper-parameters.

    >>> make("cgp", eta=0.8).similarity
    0.8
    """
    return kind(name)(**values)
