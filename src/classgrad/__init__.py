"""Continual learning by gradient projection: CGP and the systems it is compared with."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Where each public name lives. They are imported when first used, so that `import classgrad` and
# the command line's help do not wait for torch.
_HOMES = {
    "AGEM": "methods",
    "APD": "methods",
    "APD2": "methods",
    "CGP": "methods",
    "DEN": "methods",
    "ER": "methods",
    "EWC": "methods",
    "Finetune": "methods",
    "GEM": "methods",
    "GPM": "methods",
    "HAT": "methods",
    "ICaRL": "methods",
    "IMM": "methods",
    "Learner": "learning.learner",
    "LwF": "methods",
    "MAS": "methods",
    "METHODS": "methods",
    "Method": "methods",
    "Multitask": "methods",
    "OGD": "methods",
    "OWM": "methods",
    "PGN": "methods",
    "RCL": "methods",
    "RunRecord": "records",
    "SGP": "methods",
    "SI": "methods",
    "STL": "methods",
    "Split": "tasks",
    "TRGP": "methods",
    "Task": "tasks",
    "TaskStream": "tasks",
    "Training": "training",
    "UserError": "errors",
    "attach": "attached",
    "leakage": "learning.leakage",
    "run": "runs",
}
_MODULES = ("benchmarks", "metrics", "networks", "recipes")

__all__ = ["__version__", *sorted(_HOMES), *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"classgrad.{name}")
    if name in _HOMES:
        return getattr(import_module(f"classgrad.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'classgrad' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
