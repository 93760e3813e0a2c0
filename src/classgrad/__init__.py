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
    "Learner": "learner.learner",
    "LwF": "methods",
    "MAS": "methods",
    "METHODS": "methods",
    "Method": "methods",
    "Multitask": "methods",
    "OGD": "methods",
    "OWM": "methods",
    "PGN": "methods",
    "RCL": "methods",
    "RunRecord": "runs.record",
    "SGP": "methods",
    "SI": "methods",
    "STL": "methods",
    "Split": "tasks",
    "TRGP": "methods",
    "Task": "tasks",
    "TaskStream": "tasks",
    "Training": "training.config",
    "UserError": "errors",
    "attach": "guard.attach",
    "leakage": "learner.drift",
    "run": "runs.run",
}
_MODULES = {
    "benchmarks": "benchmarks",
    "core": "core",
    "methods": "methods",
    "metrics": "training.metrics",
    "networks": "networks",
    "recipes": "runs.recipes",
}

__all__ = ["__version__", *sorted(_HOMES), *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"classgrad.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(import_module(f"classgrad.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'classgrad' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
