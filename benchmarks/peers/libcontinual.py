"""The worker for LibContinual's GPM: python -m benchmarks.peers.libcontinual CHECKOUT.

Its trainer needs CUDA and a dozen packages; its GPM and its AlexNet-5 need neither. So only these
two modules of the checkout are imported, and called in the order in which its trainer calls them.
"""

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.peers import workload
from benchmarks.peers.workload import normalised, random_tasks, serve


def modules(checkout: Path) -> tuple[Any, Any]:
    """Return its module of GPM and that of AlexNet, without the packages' own imports."""
    for name in ("core", "core.model", "core.model.backbone"):
        package = ModuleType(name)
        package.__path__ = [str(checkout.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return import_module("core.model.gpm"), import_module("core.model.backbone.alexnet")


def loaders() -> list[DataLoader[dict[str, Any]]]:
    """Return the batches of both tasks; labels count on from task to task, as it expects."""
    made = []
    for task, (images, labels) in enumerate(random_tasks()):
        pairs = zip(normalised(images), (labels + task * workload.CLASSES).tolist(), strict=True)
        samples: Any = [{"image": image, "label": label} for image, label in pairs]
        made.append(DataLoader(samples, workload.BATCH, shuffle=True))
    return made


def commit(checkout: Path) -> str:
    """Return the commit of a checkout; empty if it is not one of git."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


class Learner:
    """Its GPM with its AlexNet-5."""

    def __init__(self, checkout: Path) -> None:
        gpm, alexnet = modules(checkout)
        self.method = gpm.GPM(
            alexnet.AlexNet_TRGP(),
            torch.device("cpu"),
            task_num=len(workload.IMAGES),
            init_cls_num=workload.CLASSES,
            inc_cls_num=workload.CLASSES,
        )

    def learn(self, task: int, loader: DataLoader[dict[str, Any]]) -> None:
        """Learn a task: prepare, train, extend the bases."""
        self.method.before_task(task, None, loader, None)
        weights = [p for p in self.method.network.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(weights, workload.RATE, workload.MOMENTUM)
        self.method.train()
        for _ in range(workload.EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                _, _, loss = self.method.observe(batch)
                optimizer.step()
                loss.item()
        self.method.after_task(task, None, loader, None)


def measure(checkout: Path) -> dict[str, float]:
    """Learn two tasks; return the seconds of the second."""
    torch.manual_seed(0)
    learner = Learner(checkout)
    first, second = loaders()
    learner.learn(0, first)
    start = time.process_time()
    learner.learn(1, second)
    return {"seconds": time.process_time() - start}


if __name__ == "__main__":
    checkout = Path(sys.argv[1])
    versions = {"commit": commit(checkout), "torch": torch.__version__, "numpy": np.__version__}
    serve(versions, lambda method: measure(checkout))
