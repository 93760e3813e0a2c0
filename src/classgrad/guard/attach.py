"""Gradient projection in your own training loop: attach once, end_task after every task, save."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from classgrad import defaults
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.core.collect import Batch
from classgrad.core.layers import dotted, layer_kind
from classgrad.core.projector import has_running_statistics
from classgrad.errors import UserError, shown, unknown
from classgrad.guard.before_use import BeforeUse, Hook
from classgrad.guard.leaks import LeakMonitor, OnLeak, tensors
from classgrad.guard.report import Report, frozen_parameters
from classgrad.guard.saved import (
    ProtectedTask,
    history_as_state,
    history_from_state,
    read_file,
    task_from_state,
    write_file,
)
from classgrad.methods.base import Held, LayerRank, checked_method
from classgrad.methods.projection.base import Projected
from classgrad.methods.projection.forecast import Capacity, forecast
from classgrad.methods.saved_state import restore_method
from classgrad.networks.adapted import NORMS, task_norm
from classgrad.networks.layers import TaskBatchNorm

Norms = Literal["freeze", "task"]
KIND = "guard"  # marks the states of guards


class Guard:
    """Keeps a model's outputs for the tasks it has learnt, by a projection method; see `attach`."""

    def __init__(
        self,
        model: nn.Module,
        method: Projected,
        *,
        pretrained: bool = False,
        norms: Norms = "freeze",
        on_leak: OnLeak = "raise",
        project_every: int = 1,
    ) -> None:
        refuse_deferring(method, project_every)
        self.model = unwrapped(model)
        refuse_second_guard(self.model)
        self.method: Projected = method.replace()
        self.pretrained, self.norms, self.project_every = pretrained, norms, project_every
        # Those that are watched, with their hooks. Weak, because a loop may make a new one for each
        # task: the guard must not keep the old ones and their state.
        self._optimizers: WeakKeyDictionary[torch.optim.Optimizer, list[RemovableHandle]] = (
            WeakKeyDictionary()
        )
        self._hooks: list[RemovableHandle] = []  # of weights
        self._frozen_norms: dict[str, RemovableHandle] = {}
        self._in_step = self._detached = False
        self._monitor = LeakMonitor(on_leak, project_every)
        self._history: list[ProtectedTask] = []
        self._before_use: BeforeUse | None = None
        try:
            with norms_put_back_on_error(self.model):
                self._attach(model)
        except BaseException:
            self._remove_hooks()
            raise

    def _attach(self, model: nn.Module) -> None:
        """Put everything on the model, as it was given."""
        if self.norms == "task":
            convert_norms(self.model)
        self.method.attach(self.model, freezes_rest=True)
        if self.project_every > 1:
            self.method.projector.defer = self._monitor.defer
            owners = layers_with(self.method.projector.weights, self.model)
            self._before_use = BeforeUse(owners, [model, self.model], self.project)
        sites = self.method.projector.sites
        self._weights = {name: site.weight for name, site in sites.items()}
        for weight in self.method.projector.weights:
            hook = AfterBackward(self)
            self._hooks.append(weight.register_post_accumulate_grad_hook(hook))
        if self.pretrained:
            self._freeze_norms(self._running_norms())
            self.method.freeze(self._others())
        self._protect()

    # Steps.

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Guard every step of an optimiser from now on; one made later has to be watched, too."""
        self._refuse_detached()
        optimizer = inner_optimizer(optimizer)
        self._refuse_changed_layers()
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = self._hooks_of(optimizer)

    def _hooks_of(self, optimizer: torch.optim.Optimizer) -> list[RemovableHandle]:
        return [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @contextmanager
    def step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Guard one step: wrap `loss.backward()` and `optimizer.step()`.

        For an optimiser that is not watched. For SGP, steps of any optimiser are faster this way.
        """
        optimizer = inner_optimizer(optimizer)
        hooks = [] if optimizer in self._optimizers else self._hooks_of(optimizer)
        self._in_step = True
        try:
            with self.method.projector.backward_of(optimizer):
                yield
        finally:
            self._in_step = False
            for hook in hooks:
                hook.remove()

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._monitor.before_step()
        return self.method.projector.enter_step(optimizer, args, kwargs)

    def _after_step(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        self.method.projector.after_step()
        self._monitor.after_step()

    def after_backward(self, weight: Tensor) -> None:
        """Refuse a step that would not be guarded, as soon as there are gradients for it."""
        if not self._monitor:
            return
        if not self._optimizers and not self._in_step:
            raise UserError(
                "the guard watches no optimizer, so the next step would not be guarded: give it to "
                "attach, or call guard.watch(optimizer)"
            )
        self._monitor.look_at_changed(weight)

    def project(self) -> None:
        """With `project_every`: remove what steps have moved along protected directions, now.

        Only needed before a parameter itself is read, as by a moving average of weights.
        """
        self._monitor.project()

    def accept_weights(self) -> None:
        """Keep the weights as they are now, after a change that was meant.

        What the earlier tasks have lost by the change stays lost.
        """
        self._monitor.accept()

    # Tasks.

    def end_task(
        self,
        loader: Iterable[Any],
        *,
        classes: Iterable[int] | None = None,
        forward: Callable[[Any], Any] | None = None,
    ) -> None:
        """Protect the task just learnt.

        `loader` yields batches of its training data, (inputs, labels) or a mapping with the key
        "labels", and must be iterable twice. Each of `classes`, if given, must have a sample.
        `forward` maps inputs to the logits that tell which samples are classified correctly, for a
        model that needs more than the inputs.
        """
        self._refuse_detached()
        if torch.is_inference_mode_enabled():
            raise UserError(
                "in torch.inference_mode it is not known which weights are used without a call of "
                "their layer: call end_task outside"
            )
        try:
            iterated = iter(loader)
        except TypeError:
            name = shown(type(loader).__name__)
            raise UserError(f"{name} is no loader: give a list or a DataLoader") from None
        if iterated is loader:
            raise UserError("the loader can be iterated only once: give a list or a DataLoader")
        self._refuse_changed_layers()
        self._monitor.look()
        if not self.method.projector.sites:  # every layer is frozen; statistics may not be yet
            self._freeze_norms(self._running_norms())
            self._protect()
            return
        chosen = None if classes is None else set(classes)
        labels: set[int] = set() if chosen is None else chosen

        def batches() -> Iterator[Batch]:
            for batch in map(as_batch, loader):
                if chosen is None:
                    labels.update(batch[1].unique().tolist())
                yield batch

        with self._put_back_on_error():
            self.method.projector.remove()
            with called_norms(self._running_norms()) as used:
                held = self.method.learn(
                    self.model,
                    lambda inputs: logits_of((forward or self.model_forward)(inputs)),
                    batches,
                    chosen,
                )
            self._freeze_norms(used)
            noted = self.method.share_memory(
                {"classes": len(labels), "held": [asdict(each) for each in held]}
            )
            ranks = {layer.name: layer.rank for layer in self.method.layer_ranks()}
            learnt = task_from_state({**noted, "ranks": ranks})
            self._protect()
            for norm in self._task_norms().values():
                norm.add_task()
            self._history.append(learnt)

    def model_forward(self, inputs: Any) -> Any:
        """Call the model with inputs, or with a mapping as keyword arguments."""
        return self.model(**inputs) if isinstance(inputs, Mapping) else self.model(inputs)

    def use_task(self, task: int) -> None:
        """Select a task, from 0, in every `TaskBatchNorm` of the model.

        `end_task` selects the next one. A model without such layers needs no call.
        """
        norms = self._task_norms().values()
        known = min((norm.tasks for norm in norms), default=None)
        if known is not None and not 0 <= task < known:
            raise UserError(f"there is no task {task}: give a number from 0 to {known - 1}")
        for norm in norms:
            norm.task = task

    def _task_norms(self) -> dict[str, TaskBatchNorm]:
        return {n: m for n, m in self.model.named_modules() if isinstance(m, TaskBatchNorm)}

    def _running_norms(self) -> dict[str, nn.Module]:
        return {n: m for n, m in self.model.named_modules() if has_running_statistics(m)}

    def _others(self) -> list[str]:
        """Name the parameters of layers that are neither known by their matrices nor norms."""
        projector = self.method.projector
        known = {site.layer for site in projector.sites.values()}
        return projector.non_matrix_parameters(m for m in self.model.modules() if m not in known)

    def _freeze_norms(self, norms: Mapping[str, nn.Module]) -> None:
        """Let norms use their running statistics and keep them, also in training."""
        for name, norm in norms.items():
            if name not in self._frozen_norms:
                hook = norm.register_forward_pre_hook(UseRunningStatistics())
                self._frozen_norms[name] = hook
                parameters = [label for label, _ in norm.named_parameters(recurse=False)]
                self.method.freeze(dotted(name, label) for label in parameters)

    def _protect(self) -> None:
        """Protect what the method knows, and compare the weights with the present ones."""
        self.method.protect()
        self.method.projector.install()
        buffers = [
            dotted(name, label)
            for name in self._frozen_norms
            for label, _ in self.model.get_submodule(name).named_buffers(recurse=False)
        ]
        self._monitor.protect(
            self.method.projector,
            self.method.subspaces,
            tensors(self.method.frozen, self.model.get_parameter)
            | tensors(buffers, self.model.get_buffer),
        )

    # What is protected.

    def layer_ranks(self) -> list[LayerRank]:
        """Return how much of each layer is protected."""
        return self.method.layer_ranks()

    def held(self) -> list[Held]:
        """Return the share of each class's energy that each layer holds, at least.

        It is known from when the class was learnt. With a budget, it is what is left of that.
        """
        return self.method.held() or [held for task in self._history for held in task.held]

    def capacity(self) -> Capacity:
        """Return how many more classes like the last fit, and which layer will be full next."""
        dimensions = {layer.name: layer.dimension for layer in self.method.layer_ranks()}
        ranks, classes = [t.ranks for t in self._history], [t.classes for t in self._history]
        return forecast(dimensions, ranks, classes, self.method)

    def report(self) -> Report:
        """Return what is protected, frozen and watched, to print or as a dict."""
        self.project()
        frozen = frozen_parameters(
            self.model, self.method.projector, self.method.frozen, list(self._frozen_norms)
        )
        return Report(
            method=self.method.name,
            tasks=len(self._history),
            classes=sum(task.classes for task in self._history),
            layers=self.layer_ranks(),
            held=self.held(),
            frozen=list(frozen),
            optimizers=[type(optimizer).__name__ for optimizer in self._optimizers],
            capacity=self.capacity(),
        )

    def detach(self) -> None:
        """Restore the model's layers and protect nothing any more."""
        self._monitor.project(looks=False)
        self._detached = True
        self._remove_hooks()
        self.method.projector.protect({})
        self._monitor.protect(self.method.projector, {}, {})

    def _refuse_detached(self) -> None:
        if self._detached:
            raise UserError("this guard was detached: save it before, and attach it again after")

    def _remove_hooks(self) -> None:
        """Remove all that was put on the model and its optimisers."""
        if self._before_use is not None:
            self._before_use.remove()
        self.method.close()
        for hooks in self._optimizers.values():
            for hook in hooks:
                hook.remove()
        for hook in (*self._hooks, *self._frozen_norms.values()):
            hook.remove()
        self._optimizers.clear()
        self._hooks, self._frozen_norms = [], {}

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that the guard knows; the model's weights are not among it."""
        self._refuse_detached()
        self._monitor.look()
        sites = self.method.projector.sites
        return {
            "kind": KIND,
            "defaults": defaults.newest_version(),
            "method": {"name": self.method.name, **self.method.model_dump()},
            "pretrained": self.pretrained,
            "norms": self.norms,
            "on_leak": self._monitor.on_leak,
            "project_every": self.project_every,
            "layers": {name: list(site.matrix(site.weight).shape) for name, site in sites.items()},
            "frozen_norms": list(self._frozen_norms),
            "task_norms": {
                name: {key: value.cpu().clone() for key, value in norm.state_dict().items()}
                for name, norm in self._task_norms().items()
            },
            "history": history_as_state(self._history),
            "memory": copy.deepcopy(self.method.state_dict()),
            "references": self._monitor.state_dict(),
            "kept": self._monitor.kept_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a guard of the same model, method and settings."""
        self._refuse_detached()
        with raising_bad_checkpoint("the state of the guard"):
            if state["kind"] != KIND:
                raise UserError("this is the state of a run or a learner, not of a guard")
            self._refuse_changed_layers()
            self._refuse_other_layers(state["layers"])
            norms = self._running_norms()
            missing = [name for name in state["frozen_norms"] if name not in norms]
            if missing:
                name = shown(missing[0])
                raise UserError(f"the model has no norm '{name}', which this guard froze")
            memory = copy.deepcopy(dict(state["memory"]))
            history = history_from_state(state["history"], list(self.method.projector.sites))
            self._monitor.project(looks=False)
            with self._put_back_on_error():
                self._load_task_norms(state["task_norms"], len(history))
                absent = set(memory["frozen"]) - dict(self.model.named_parameters()).keys()
                if absent:
                    name = shown(min(absent))
                    raise UserError(f"the model has no parameter '{name}', which was frozen")
                self.method.load_memory(memory)
                self._freeze_norms({name: norms[name] for name in state["frozen_norms"]})
                self._protect()
                self._monitor.refuse_other_weights(state["references"])
                self._monitor.load_kept(state.get("kept", {}))
            self._history = history

    @contextmanager
    def _put_back_on_error(self) -> Iterator[None]:
        """If the block raises, leave norms, method and what weights are compared with as before."""
        before = copy.deepcopy(self.method.state_dict())
        monitored, frozen = dict(vars(self._monitor)), list(self._frozen_norms)
        with self.method.projector.put_back_on_error():
            try:
                with norms_put_back_on_error(self.model):
                    yield
            except BaseException:
                for name in self._frozen_norms.keys() - frozen:
                    self._frozen_norms.pop(name).remove()
                self.method.load_memory(before)
                # Not with the present weights, or a leak from before would never be noticed.
                vars(self._monitor).update(monitored)
                raise

    def _load_task_norms(self, states: Mapping[str, Mapping[str, Tensor]], ended: int) -> None:
        """Give the norms of each task their statistics, scales and shifts; some tasks have ended.

        The weights of a model whose norms were not converted yet cannot have them.
        """
        norms = self._task_norms()
        if norms.keys() != states.keys():
            raise UserError("the model has other norms with statistics for each task")
        for name, norm in norms.items():
            while norm.task_dependent and norm.state_dict().keys() < states[name].keys():
                norm.add_task()
            while norm.statistics == "first" and norm.tasks <= ended:  # from then on it is fixed
                norm.add_task()
            norm.load_state_dict(states[name])

    def _refuse_changed_layers(self) -> None:
        projector = self.method.projector
        projector.refuse_changed_layers()
        for name, site in projector.sites.items():
            known = self._weights[name]  # one on another device is refused by the monitor
            if site.weight is not known and site.weight.device == known.device:
                raise UserError(
                    f"the weight of layer '{name}' is another parameter than when the guard was "
                    "attached: load weights without assign=True, or detach and attach again"
                )

    def _refuse_other_layers(self, layers: Mapping[str, list[int]]) -> None:
        sites = self.method.projector.sites
        for name in [*layers, *sites]:
            own = list(sites[name].matrix(sites[name].weight).shape) if name in sites else None
            saved = layers.get(name)
            if own != saved:
                raise UserError(
                    f"layer '{shown(name)}' is {_shape(saved)} in the guard and {_shape(own)} in "
                    "the model: attach the guard to the model it was saved with"
                )

    def save(self, path: Path | str) -> None:
        """Save the guard in one file, whole or not at all; save the model's weights beside it."""
        write_file(Path(path), self.state_dict())


def _shape(shape: list[int] | None) -> str:
    return "missing" if shape is None else shown(" x ".join(map(str, shape)))


class AfterBackward:
    """The hook of a guarded weight, called when it has got a gradient."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def __call__(self, weight: Tensor) -> None:
        """Tell the guard."""
        self.guard.after_backward(weight)


def refuse_second_guard(model: nn.Module) -> None:
    """Refuse a model that has a guard."""
    for name, parameter in model.named_parameters():
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        if any(isinstance(hook, AfterBackward) for hook in hooks.values()):
            raise UserError(f"layer of '{name}' has a guard already: detach that one first")


def refuse_deferring(method: Projected, project_every: object) -> None:
    """Refuse a `project_every` that is no number of steps, or not possible with a method."""
    if type(project_every) is not int or project_every < 1:
        raise UserError(f"project_every is {project_every!r}: give a number of steps, 1 or more")
    if project_every > 1 and not method.removes_directions:
        raise UserError(
            f"project_every={project_every} needs a method that removes steps along protected "
            f"directions; {type(method).__name__} with these settings scales them: use 1"
        )


def layers_with(weights: set[Tensor], model: nn.Module) -> list[nn.Module]:
    """Return the layers that have one of these weights, themselves or in a part of them."""
    return [
        module
        for module in model.modules()
        if any(parameter in weights for parameter in module.parameters(recurse=False))
        or (layer_kind(module) and any(p in weights for p in module.parameters()))
    ]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile's, DataParallel's or DistributedDataParallel's."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def inner_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimiser inside accelerate's: only that one takes steps and has hooks."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"{shown(type(optimizer).__name__)} is no torch.optim.Optimizer: give one to attach, "
            "and each further one to guard.watch"
        )
    return optimizer


class UseRunningStatistics(Hook):
    """Lets a norm behave as in evaluation; a hook before its forward pass."""

    def __call__(self, norm: nn.Module, *_args: Any) -> None:
        """Switch the norm to evaluation."""
        norm.training = False

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        """Return how to make one, for a copy of the model, that does nothing."""
        return Hook, ()


@contextmanager
def called_norms(norms: Mapping[str, nn.Module]) -> Iterator[dict[str, nn.Module]]:
    """Yield a dict that fills with those of the norms that are called in the block."""
    called: dict[str, nn.Module] = {}

    def note(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda norm, _args: called.update({name: norm})

    hooks = [norm.register_forward_pre_hook(note(name)) for name, norm in norms.items()]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def convert_norms(model: nn.Module) -> None:
    """Replace BatchNorm with running statistics by one with statistics for each task."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, NORMS) and layer.track_running_stats:
                setattr(module, name, task_norm(layer))


@contextmanager
def norms_put_back_on_error(model: nn.Module) -> Iterator[None]:
    """If the block raises, put the norms that were replaced back, and what norms know of tasks."""
    children = {module: dict(module._modules) for module in model.modules()}
    known = {
        norm: (
            dict(norm._parameters),
            dict(norm._buffers),
            {name: value.clone() for name, value in norm.state_dict().items()},
            (norm.tasks, norm.task),
        )
        for norm in model.modules()
        if isinstance(norm, TaskBatchNorm)
    }
    try:
        yield
    except BaseException:
        for module, before in children.items():
            module._modules.update(before)
        for norm, (parameters, buffers, values, (tasks, task)) in known.items():
            norm._parameters, norm._buffers = parameters, buffers
            norm.load_state_dict(values)
            norm.tasks, norm.task = tasks, task
        raise


def as_batch(batch: Any) -> Batch:
    """Return the inputs and labels of a batch that a loader yields."""
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
        inputs: Any = {name: value for name, value in batch.items() if name != "labels"}
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, labels = batch
    else:
        labels = None
    if labels is not None and not isinstance(labels, Tensor):
        raise UserError(
            f"the labels of a batch of the loader are {shown(type(labels).__name__)}: give a tensor"
        )
    if labels is None:
        raise UserError(
            "a batch of the loader is neither (inputs, labels) nor a mapping with a tensor "
            f"'labels': it is {shown(type(batch).__name__)}"
        )
    if not labels.numel():
        raise UserError("a batch of the loader has no sample")
    return inputs, labels


def logits_of(output: Any) -> Tensor:
    """Return the logits in what a model returns: a tensor, or the `logits` of an object."""
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    output = getattr(output, "logits", output)
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise UserError(
            f"the model returns {shown(type(output).__name__)}, not a tensor or an object with "
            "logits: give a forward that maps inputs to logits"
        )
    return output


def attach(
    model: nn.Module,
    method: Projected | Path | str,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    pretrained: bool = False,
    norms: Norms = "freeze",
    on_leak: OnLeak = "raise",
    project_every: int = 1,
) -> Guard:
    """Put a guard on a model, for use in any training loop; its steps are guarded from then on.

    `method` is CGP, GPM or SGP, or the file that a guard was saved in, with all its settings.
    Every step of the optimiser is guarded; `Guard.watch` adds one that is made later.

    What is no weight matrix of a known layer is learnt with the first task that uses it, and frozen
    when that ends: biases, scales, embeddings, tokens. Norms keep the running statistics they have
    then (`norms="task"` converts them to one set for each task). Of a `pretrained` model, running
    statistics, embeddings, tokens and the scales of norms are frozen from the start.

    If anything else than a guarded step moves protected weights, the guard raises a `LeakError`, or
    warns, or moves the weights back, as `on_leak` says.

    Adam and other optimisers whose updates do not follow the gradient have each update projected.
    With `project_every=16` sixteen are projected at once, which is cheaper for wide layers, and
    always before weights are evaluated, saved or copied; see docs/own-models.md.

    >>> import torch, classgrad
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> guard = classgrad.attach(model, classgrad.CGP(epsilon=0.99), optimizer)
    >>> x, y = torch.randn(16, 4), torch.arange(16) % 2
    >>> for task in range(2):
    ...     optimizer.zero_grad()
    ...     nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    ...     guard.end_task([(x, y)])
    >>> [layer.name for layer in guard.layer_ranks()]
    ['0', '2']

    CGP's contrastive loss is part of the loss, which you compute yourself here:
    `classgrad.methods.projection.cgp.contrastive`.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"{shown(type(model).__name__)} is no torch.nn.Module: give the model")
    if optimizer is not None:
        inner_optimizer(optimizer)  # refused before anything is put on the model
    if isinstance(method, Path | str):
        guard = load(model, Path(method))
    else:
        projection_method(method)
        if norms not in ("freeze", "task"):
            raise unknown("norms", str(norms), ["freeze", "task"])
        if on_leak not in ("raise", "warn", "restore"):
            raise unknown("on_leak", str(on_leak), ["raise", "warn", "restore"])
        guard = Guard(
            model,
            method,
            pretrained=pretrained,
            norms=norms,
            on_leak=on_leak,
            project_every=project_every,
        )
    if optimizer is not None:
        guard.watch(optimizer)
    return guard


def load(model: nn.Module, path: Path) -> Guard:
    """Put the guard that was saved in a file on a model with the weights it had then."""
    state = read_file(path)
    with raising_bad_checkpoint(f"'{path}'"), norms_put_back_on_error(unwrapped(model)):
        if state.get("kind") != KIND:
            raise UserError(f"'{path}' holds no guard")
        version = defaults.check_version(state["defaults"])
        guard = Guard(
            model,
            projection_method(restore_method(state["method"], None, version)),
            pretrained=state["pretrained"],
            norms=state["norms"],
            on_leak=state["on_leak"],
            project_every=state.get("project_every", 1),  # since schema 2
        )
        try:
            guard.load_state_dict(state)
        except BaseException:
            guard.detach()
            raise
    return guard


def projection_method(method: object) -> Projected:
    """Return a method that can protect a model in a user's own loop; refuse any other."""
    name = type(checked_method(method)).__name__
    if not isinstance(method, Projected):
        raise UserError(f"{name} is not a projection method: attach takes CGP, GPM or SGP")
    if not method.attachable:
        raise UserError(
            f"{name} changes the network before each task: use it in a run; "
            "attach takes CGP, GPM or SGP"
        )
    return method
