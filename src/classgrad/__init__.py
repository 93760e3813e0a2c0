"""Continual learning by gradient projection: CGP and the systems it is compared with."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from classgrad import benchmarks, core, methods, networks
    from classgrad.core import register_layer
    from classgrad.errors import UserError
    from classgrad.guard.attach import Guard, attach
    from classgrad.guard.leaks import LeakError, LeakWarning
    from classgrad.learner.drift import leakage
    from classgrad.learner.learner import Learner
    from classgrad.methods import CGP, GPM, SGP, Method
    from classgrad.prediction.calibration import Prediction
    from classgrad.runs import recipes
    from classgrad.runs.kept import Result
    from classgrad.runs.load import load_run
    from classgrad.runs.record import RunRecord
    from classgrad.runs.run import run
    from classgrad.tasks import Split, Task, TaskStream
    from classgrad.training import metrics
    from classgrad.training.config import Training

__version__ = "0.1.0"

__all__ = [
    "CGP",
    "GPM",
    "SGP",
    "Guard",
    "LeakError",
    "LeakWarning",
    "Learner",
    "Method",
    "Prediction",
    "Result",
    "RunRecord",
    "Split",
    "Task",
    "TaskStream",
    "Training",
    "UserError",
    "__version__",
    "attach",
    "benchmarks",
    "core",
    "leakage",
    "load_run",
    "methods",
    "metrics",
    "networks",
    "recipes",
    "register_layer",
    "run",
]

# Where each public name lives. They are imported when first used, so that `import classgrad` and
# the command line's help do not wait for torch. Type checkers read the imports above instead.
_HOMES = {
    "CGP": "methods",
    "GPM": "methods",
    "Guard": "guard.attach",
    "LeakError": "guard.leaks",
    "LeakWarning": "guard.leaks",
    "Learner": "learner.learner",
    "Method": "methods",
    "Prediction": "prediction.calibration",
    "Result": "runs.kept",
    "RunRecord": "runs.record",
    "SGP": "methods",
    "Split": "tasks",
    "Task": "tasks",
    "TaskStream": "tasks",
    "Training": "training.config",
    "UserError": "errors",
    "attach": "guard.attach",
    "leakage": "learner.drift",
    "load_run": "runs.load",
    "register_layer": "core",
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


if not TYPE_CHECKING:  # or type checkers would accept any name, as Any

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"classgrad.{_MODULES[name]}")
        if name in _HOMES:
            return getattr(import_module(f"classgrad.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'classgrad' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
