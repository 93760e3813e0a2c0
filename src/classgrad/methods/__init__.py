"""Methods: each a class whose fields are its hyper-parameters, all in one table."""

from typing import Any

from classgrad.errors import unknown
from classgrad.memory.budget import Held
from classgrad.methods.agem import AGEM
from classgrad.methods.apd import APD
from classgrad.methods.apd2 import APD2
from classgrad.methods.base import LayerRoom, Method, Step
from classgrad.methods.budgeted import Budgeted
from classgrad.methods.cgp import CGP
from classgrad.methods.den import DEN
from classgrad.methods.er import ER
from classgrad.methods.ewc import EWC
from classgrad.methods.finetune import Finetune
from classgrad.methods.gem import GEM
from classgrad.methods.gpm import GPM
from classgrad.methods.hat import HAT
from classgrad.methods.icarl import ICaRL
from classgrad.methods.imm import IMM
from classgrad.methods.lwf import LwF
from classgrad.methods.mas import MAS
from classgrad.methods.multitask import Multitask
from classgrad.methods.ogd import OGD
from classgrad.methods.owm import OWM
from classgrad.methods.pgn import PGN
from classgrad.methods.projected import Projected
from classgrad.methods.rcl import RCL
from classgrad.methods.sgp import SGP
from classgrad.methods.si import SI
from classgrad.methods.stl import STL
from classgrad.methods.trgp import TRGP

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
    "LayerRoom",
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
