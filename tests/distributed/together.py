"""What is compared between one process and several; run as a script it is one of several."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor

from classgrad import distributed, methods
from classgrad.checkpoints import Lock
from classgrad.checkpoints.manager import locking
from classgrad.distributed import world
from classgrad.errors import UserError
from classgrad.methods import OGD
from classgrad.methods.base import Fit
from classgrad.networks import Network
from classgrad.prediction.statistics import LinearDiscriminant, unit
from classgrad.runs.run import Run, refuse_other_processes
from classgrad.runs.spec import make_plan
from classgrad.tasks import Task, TaskStream
from classgrad.training.loop import prepare_fused
from streams import blobs

# Batches of 7 of 33 samples: parts of a batch differ, and the last batch has 5.
SHORT = {"epochs": 1, "batch_size": 7, "learning_rate": 0.1, "momentum": 0.5}
NORMED = {"batch_norm": True, "norm": "batch", "affine": "first"}
MANY = {"per_class": 60, "batch_size": 31}  # three batches to collect from
LENET = {"network": "lenet5", "shape": (3, 16, 16), "per_class": 8, "tasks": 2}

# By name: the method, and what is set.
RUNS = {
    "finetune": {},
    "finetune, dropout": {"dropout": 0.3, **NORMED},
    "finetune, stored statistics": {"batch_norm": True, "norm": "stored", "affine": "task"},
    "finetune, plateau": {
        "schedule": "plateau",
        "patience": 1,
        "epochs": 8,
        "learning_rate": 1.0,
        **NORMED,
        "norm": "stored",
    },
    "finetune, adam": {"optimizer": "adam", "learning_rate": 0.01, "momentum": 0.0},
    "cgp": {"contrast": 0.5, "samples": 25, **NORMED, **MANY},
    "cgp, refined": {"contrast": 0.0, "similarity": 0.2, "samples": 40, **MANY},
    "cgp, lenet": {"contrast": 0.5, **LENET},
    "gpm": {"samples": 100, **NORMED, **MANY},
    "gpm, resnet": {"network": "resnet18", "width": 4, "shape": (3, 9, 9), "tasks": 2},
    "gpm, pretrained": {
        "network": "efficientnet-lite0",
        "weights": "random",
        "size": 16,
        "trainable": 1,
        "shape": (3, 9, 9),
        "tasks": 2,
        "samples": 10,
    },
    "sgp": {"samples": 10},
    "trgp": {"samples": 10, "energy": 0.9},
    "owm": {**NORMED},
    "owm, few": {"mean_of": 5, **LENET},
    "owm, step": {"update": "step"},
    "cgp, released": {"contrast": 0.0, "similarity": 0.2, "reading": "released", "samples": 10},
    "gpm, limited": {"samples": 20, "max_basis_mb": 0.01},
    "ogd": {"samples": 20, **NORMED},
    "ewc": {**NORMED},
    "ewc, sampled": {"fisher": "sampled"},
    "er": {"memory": 24, **NORMED},
    "er, stored statistics": {"memory": 24, "batch_norm": True, "norm": "stored"},
    "er, few": {"memory": 24, "memory_batch": 2},
    "agem": {"memory": 24, **NORMED},
    "hat": {**NORMED},
    "multitask": {**NORMED},
}


def runs(size: int) -> list[str]:
    """Return the runs that so many processes learn: each is learnt by two or by more."""
    slow = [name for name, values in RUNS.items() if "network" in values]
    return [*slow, "cgp"] if size == 2 else [name for name in RUNS if name not in slow]


def made(name: str, **more: object) -> Run:
    """Return a run in double precision."""
    values = {"dropout": 0.0, **SHORT, **RUNS[name], **more}
    shape = values.pop("shape", (1, 6, 6))
    stream = blobs(values.pop("tasks", 2), 3, shape, values.pop("per_class", 11))
    network = values.pop("network", "mlp")
    if network == "mlp":
        values = {"width": 24, **values}
    kept = {n: v for n, v in values.items() if n != "dropout" or network == "mlp"}
    plan = make_plan(stream, name.split(",")[0], network=network, values=kept, seed=3)
    run = Run(plan, stream)
    run.net.double()
    return run


def learnt(name: str) -> dict[str, Tensor]:
    """Return what a run ends with, and what moves the weights in the first step of every task.

    That is the gradient when it is projected: before, some have met the projection in their rows.
    """
    result: dict[str, Tensor] = {}
    run = made(name)

    def noted(optimizer: torch.optim.Optimizer) -> None:
        prepare_fused(optimizer)
        task = f"gradient {len(run.scores)}"
        if task not in result:
            moved = optimizer.param_groups[0]["params"]
            result[task] = torch.cat([p.grad.flatten() for p in moved if p.grad is not None])

    with mock.patch("classgrad.training.loop.prepare_fused", noted):
        record = run.execute()
    result |= {f"net {key}": value for key, value in run.net.state_dict().items()}
    for site, subspace in getattr(run.method, "subspaces", {}).items():
        result[f"basis {site}"] = subspace.basis
    if hasattr(run.method, "matrices"):
        result |= {f"matrix {site}": value for site, value in run.method.matrices.items()}
    if run.statistics is not None:
        statistics = run.statistics
        result["statistics sums"] = statistics.sums
        result["statistics products"] = statistics.products
        means = unit(statistics.means())
        result["statistics scores"] = LinearDiscriminant(statistics).scores(means)
    scores = record.accuracy_matrix[-1] + record.accuracy_matrix_task_free_prototypes[-1]
    result["scores"] = torch.tensor(scores, dtype=torch.float64)
    return {key: value.contiguous() for key, value in result.items()}


def refusals() -> dict[str, str]:
    """Return what is said of runs that cannot be trained together, by what is wrong."""
    other = world().process_index == world().size - 1  # one process is not like the others
    plan = {seed: make_plan(blobs(1), "finetune", network="mlp", seed=seed) for seed in (1, 2)}
    few = TaskStream("few", [blobs(1, 1, per_class=1)[0]], [blobs(1, 1).test(0)])

    def run(stream: TaskStream, method: str = "finetune", **values: object) -> None:
        Run(make_plan(stream, method, network="mlp", values=values), stream)

    def versions() -> None:
        result = {"python": "3", "classgrad": "1", "torch": "2" if other else "1"}
        with mock.patch("classgrad.runs.run.versions", return_value=result):
            refuse_other_processes([], {})

    def not_finite() -> None:
        run = made("gpm", **{**MANY, "samples": 100, "tasks": 1})
        layer = next(iter(run.method.projector.sites.values())).layer
        if other:
            layer.register_forward_pre_hook(lambda _, given: (given[0] * torch.nan,))
        run.method.end_task(run.net, run.stream[0], torch.Generator().manual_seed(0))

    def sight() -> None:
        seen = mock.patch("classgrad.checkpoints.manager.wait_for_file", return_value=not other)
        with seen, mock.patch.object(Lock, "__enter__"), locking(Path("runs")):
            pass

    def missing() -> None:
        try:
            with world().errors_shared():
                if other:
                    raise UserError("MNIST is missing", hint="fetch:mnist")
        except UserError as error:
            raise UserError(f"{error}, hint {error.hint}") from None

    cases = {
        **{
            name: lambda name=name: (
                run(blobs(1), name, memory=9) if name in ("gem",) else run(blobs(1), name)
            )
            for name, kind in methods.METHODS.items()
            if not kind.parallel
        },
        "batch": lambda: run(blobs(1), batch_size=1),
        "few": lambda: run(few),
        "settings": lambda: refuse_other_processes([plan[2 if other else 1]], {}),
        "words": lambda: refuse_other_processes([], {"--fresh": other}),
        "one input": not_finite,
        "sight": sight,
        "versions": versions,
        "missing": missing,
        "data": lambda: run(blobs(1, seed=int(other))),
    }
    result = {}
    for name, case in cases.items():
        try:
            case()
            result[name] = "nothing"
        except UserError as error:
            result[name] = str(error)
    return result


def parted() -> dict[str, list[float]]:
    """Return what processes end with of which one has rounded otherwise than the others."""
    other, result = 1e-6 * (world().process_index == world().size - 1), {}
    gradients = OGD.gradients

    def rounded(*given: Any) -> Tensor:
        return gradients(*given) * (1 + other) + other

    for name in ("gpm", "ogd"):
        run = made(name, tasks=2)
        fit = run.method.fit_task

        def fit_task(net: Network, task: Task, loop: Fit, fit: Any = fit) -> None:
            fit(net, task, loop)
            for parameter in net.parameters():
                parameter.data += other

        with (
            mock.patch.object(type(run.method), "fit_task", side_effect=fit_task),
            mock.patch.object(OGD, "gradients", rounded),
        ):
            run.execute()
        values = [p.detach().flatten() for p in run.net.parameters()]
        bases = [s.basis for s in getattr(run.method, "subspaces", {}).values()]
        bases += [run.method.basis] if name == "ogd" else []
        result[name] = [float(v.double().sum()) for v in [*values, *bases]]
    return result


def traffic() -> dict[str, int]:
    """Return bytes that a process sends, in the steps of a task and in its base update."""
    result = {}
    run = made("finetune")
    before = world().sent.copy()
    loop = run.session.training_loop(run.stream[0], run.observe)
    run.method.fit_task(run.net, run.stream[0], loop)
    parameters = list(run.method.parameters(run.net, [run.stream[0]]))
    result["steps"] = run.steps
    result["gradients"] = sum(p.nbytes for p in parameters)
    result |= {f"training {kind}": n for kind, n in (world().sent - before).items()}
    for samples, per_class in ((4, 11), (11, 11), (16, 90), (90, 90)):
        # Of a network that is not trained, so no class is left out for being told wrong.
        run = made("cgp", samples=samples, per_class=per_class, correct_only=False)
        before = world().sent.copy()
        run.method.end_task(run.net, run.stream[0], torch.Generator().manual_seed(0))
        size = f"{samples} {per_class}"
        result |= {f"{kind} {size}": n for kind, n in (world().sent - before).items()}
        result[f"bases {size}"] = sum(s.memory_bytes for s in run.method.subspaces.values())
    return result


def main(folder: Path) -> None:
    """Write all that is compared, as this process has it."""
    index, size = distributed.join().process_index, world().size
    result = {f"{name}/{key}": value for name in runs(size) for key, value in learnt(name).items()}
    save_file(result, folder / f"{index}.safetensors")
    said = {"refusals": refusals(), "traffic": traffic(), "parted": parted()}
    (folder / f"{index}.json").write_text(json.dumps(said))
    distributed.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
