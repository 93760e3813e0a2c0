"""The worker for Avalanche, in its own environment: python -m benchmarks.peers.avalanche."""

import sys
import time
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.peers import workload
from benchmarks.peers.workload import normalised, random_tasks, serve


def prepare_imports() -> None:
    """Let Avalanche be imported without what no measurement needs.

    It imports wandb, to draw tables. A torchvision for CUDA describes operators that do not exist
    beside a torch for CPUs.
    """
    sys.modules.setdefault("wandb", ModuleType("wandb"))
    with mock.patch.object(torch.library, "register_fake", return_value=lambda f: f):
        import torchvision  # noqa: F401


def plugins(method: str) -> list[Any]:
    """Return the plugins that make Avalanche's plain training a method."""
    from avalanche.training import plugins

    made = {
        "finetune": list,
        "er": lambda: [plugins.ReplayPlugin(workload.ER_MEMORY, batch_size_mem=workload.MEMORY)],
        "agem": lambda: [plugins.AGEMPlugin(workload.MEMORY, workload.MEMORY)],
        "gem": lambda: [plugins.GEMPlugin(workload.MEMORY, workload.MARGIN)],
        "ewc": lambda: [plugins.EWCPlugin(workload.EWC_STRENGTH)],
        "lwf": lambda: [plugins.LwFPlugin(workload.LWF_STRENGTH, workload.LWF_TEMPERATURE)],
        "si": lambda: [plugins.SynapticIntelligencePlugin(workload.SI_STRENGTH)],
    }
    return made[method]()


def network() -> nn.Module:
    """Return AlexNet-5 with a head for each task."""
    from avalanche.models import MultiHeadClassifier, MultiTaskModule

    class MultiHeadAlexNet5(MultiTaskModule):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = workload.alexnet5()
            self.heads = MultiHeadClassifier(2048, workload.CLASSES, masking=False)

        def forward(self, x: Tensor, task_labels: Tensor) -> Any:
            return self.heads(self.trunk(x), task_labels)

    return MultiHeadAlexNet5()


def experiences() -> list[Any]:
    """Return the tasks as Avalanche has them, with images normalised beforehand."""
    from avalanche.benchmarks import (
        benchmark_from_datasets,
        task_incremental_benchmark,
        with_classes_timeline,
    )
    from avalanche.benchmarks.utils import (
        as_classification_dataset,
        as_taskaware_classification_dataset,
    )
    from torch.utils.data import TensorDataset

    datasets = []
    for images, labels in random_tasks():
        dataset = TensorDataset(normalised(images), labels)
        dataset.targets = labels.tolist()  # type: ignore[attr-defined]
        datasets.append(as_taskaware_classification_dataset(as_classification_dataset(dataset)))
    benchmark = task_incremental_benchmark(benchmark_from_datasets(train=datasets))
    return list(with_classes_timeline(benchmark).train_stream)


def measure(method: str) -> dict[str, float]:
    """Learn two tasks; return the seconds of the second."""
    from avalanche.training.supervised import Naive

    torch.manual_seed(0)
    net = network()
    strategy = Naive(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), workload.RATE, workload.MOMENTUM),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=workload.BATCH,
        train_epochs=workload.EPOCHS,
        plugins=plugins(method),
        evaluator=None,
    )
    first, second = experiences()
    strategy.train(first)
    start = time.process_time()
    strategy.train(second)
    return {"seconds": time.process_time() - start}


if __name__ == "__main__":
    prepare_imports()
    import avalanche

    serve({"avalanche": avalanche.__version__, "torch": torch.__version__}, measure)
