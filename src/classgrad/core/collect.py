"""Inputs of a model's layers by class, collected in one pass over a task's data."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from classgrad.core.layers import Site, Source, inner_modules, tap
from classgrad.core.projector import bypassed
from classgrad.core.subspace import Representation
from classgrad.errors import Diverged, UserError

Forward = Callable[[Any], Tensor]
Batch = tuple[Any, Tensor]  # inputs, most often a tensor, and labels
Batches = Iterable[Batch]

# Numbers that may wait to be added to representations: 64 MB in float32.
MAX_PENDING = 2**24


class Pending(NamedTuple):
    """Inputs of a layer's calls for some samples, of which the first are for a representation."""

    inputs: list[Tensor]
    samples: int
    taken: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the inputs of one sample."""
        return shapes(self.inputs, self.samples)


@dataclass
class ClassInputs:
    """The inputs of one class, by site: their representation, and their sums for the prototype."""

    count: int = 0
    representations: dict[str, Representation] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    # By site, the share of the energy that is held, which a method notes when it extends its basis.
    held: dict[str, float] = field(default_factory=dict)
    pending: dict[str, list[Pending]] = field(default_factory=dict)  # by batch

    def mean(self, site: str) -> Tensor:
        """Return the mean input at a site."""
        return self.sums[site] / self.counts[site]

    def prototype(self, site: str) -> Tensor:
        """Return the mean input at a site, of length one or zero (Eq. prototype)."""
        return nn.functional.normalize(self.mean(site), dim=0)

    def note_held(self, site: str, share: float) -> None:
        """Note the share of the energy that is held at a site, if there is any energy."""
        if self.representations[site].energy() > 0:
            self.held[site] = share


@dataclass
class Collected:
    """Inputs by class, and the layers with parameters that were called.

    If `pooled`, class 0 has the inputs of the whole task. `bypassed` names parameters that were
    used although their layers were not called; they are no weight matrices.
    """

    classes: dict[int, ClassInputs]
    used: set[nn.Module]
    pooled: bool
    bypassed: list[str] = field(default_factory=list)


class Processes(Protocol):
    """Processes that collect together, each with its own batches; `ALONE` is a single one."""

    def in_step(self, batches: Batches) -> Iterator[Batch | None]:
        """Yield the batches of this process, and None after them while others have some left."""

    def errors_shared(self) -> AbstractContextManager[None]:
        """Raise an error that one process raises in the block in all of them."""

    def counts(
        self,
        own: Mapping[int, int],
        classes: Collection[int] | None,
        labels: set[int],
        expected: Collection[int] | None,
    ) -> dict[int, tuple[int, int]]:
        """Return, by class, how many samples of a round come before this process's, and in total.

        `own` has the counts of this process, `classes` all classes that are counted. `labels` has
        the labels this process has seen; those of `expected` that others have seen are added to it.
        """

    def in_any(self, values: Sequence[bool]) -> list[bool]:
        """Tell for each value whether it is true in any process."""

    def merge(self, classes: Sequence[ClassInputs], sites: Mapping[str, Site]) -> None:
        """Merge the inputs of these classes into the main process; the others keep none."""


class Alone:
    """A single process: nothing has to be merged."""

    def in_step(self, batches: Batches) -> Iterator[Batch | None]:
        """Yield the batches."""
        return iter(batches)

    def errors_shared(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def counts(
        self,
        own: Mapping[int, int],
        classes: Collection[int] | None,
        labels: set[int],
        expected: Collection[int] | None,
    ) -> dict[int, tuple[int, int]]:
        """Return the counts, with nothing before them."""
        return {value: (0, count) for value, count in own.items()}

    def in_any(self, values: Sequence[bool]) -> list[bool]:
        """Return the values."""
        return list(values)

    def merge(self, classes: Sequence[ClassInputs], sites: Mapping[str, Site]) -> None:
        """Do nothing."""


ALONE = Alone()


def collect(
    model: nn.Module,
    forward: Forward,
    batches: Callable[[], Batches],
    sites: Mapping[str, Site],
    samples: Mapping[str, int],
    *,
    classes: Iterable[int] | None = None,
    correct_only: bool = False,
    pool: bool = False,
    processes: Processes = ALONE,
) -> Collected:
    """Collect layer inputs in evaluation mode, from the first `samples[site]` samples of a class.

    Means, of which prototypes are made, are of the largest of these numbers at every site.

    Whole mixed batches go through the model, because BatchNorm may use their statistics; which
    samples count is decided afterwards. With `correct_only` only samples classified correctly count
    (BR-GTL); of a class without any, all samples do. With `pool` all samples count as class 0. The
    pass stops as soon as every class in `classes` has enough samples.

    Several `processes` take turns, each with its own batches, and must name `classes`. Their inputs
    are merged in the main process, as if it had seen all batches; the others keep nothing.
    """
    wanted = None if classes is None else set(classes)
    training = {module: module.training for module in model.modules()}
    model.eval()
    used = _modules_with_parameters(model)
    called: set[nn.Module] = set()
    hooks = [m.register_forward_pre_hook(lambda module, _args: called.add(module)) for m in used]
    try:
        with torch.no_grad(), tap(sites.values()) as seen:
            gather = _Gather(sites, samples, seen, wanted, pool, processes)
            gather.run(forward, batches(), correct_only)
            never_correct = {label for label in gather.present if not gather.inputs[label].count}
            if never_correct:
                gather.open_classes = never_correct
                gather.run(forward, batches(), False)
                gone = {label for label in never_correct if not gather.inputs[label].count}
                if correct_only and gone:
                    raise UserError(
                        f"the samples of class {min(gone)} were not there when the data given at "
                        "the task's end were gone through again: give a list or a DataLoader"
                    )
            called |= {inner for module in called for inner in inner_modules(module)}
            unseen = []
            if gather.last_batch is not None:
                unseen = bypassed(model, partial(forward, gather.last_batch), called)
                refuse_unseen_inputs(model, unseen, sites)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in training.items():
            module.training = mode
    in_any = processes.in_any([module in called for module in used])
    called = {module for module, was_called in zip(used, in_any, strict=True) if was_called}
    absent = set() if wanted is None else wanted - gather.labels
    if absent:
        raise UserError(f"class {min(absent)} has no sample in the data given at the task's end")
    if not gather.present:
        raise UserError("the data given at the task's end hold no sample")
    inputs = {label: gather.inputs[label] for label in sorted(gather.present)}
    processes.merge(list(inputs.values()), sites)
    return Collected(inputs, called, pool, unseen)


def refuse_unseen_inputs(
    model: nn.Module, unseen: Iterable[str], sites: Mapping[str, Site]
) -> None:
    """Refuse a weight matrix that was used without a call of its layer."""
    weights = {site.weight for site in sites.values()}
    for name in unseen:
        if model.get_parameter(name) in weights:
            raise UserError(
                f"parameter '{name}' is used without a call of its layer, so its inputs cannot be "
                "seen: call the layer, or freeze it with requires_grad_(False)"
            )


class _Gather:
    """The state of one pass: the inputs of each class, and which classes still need samples."""

    def __init__(
        self,
        sites: Mapping[str, Site],
        samples: Mapping[str, int],
        seen: dict[Source, list[Tensor]],
        wanted: set[int] | None,
        pool: bool,
        processes: Processes,
    ) -> None:
        self.sites, self.samples, self.seen = sites, samples, seen
        self.pool, self.processes = pool, processes
        self.max_samples = max(samples.values())
        self.inputs: dict[int, ClassInputs] = {}
        self.present: set[int] = set()
        self.wanted = wanted
        self.labels: set[int] = set()  # every label seen, wanted or not
        self.open_classes = None if pool else wanted  # None: all
        self.pending = 0  # numbers of all classes that are not yet in representations
        self.last_batch: Any = None
        self.batch_size = 0  # of the last batch

    def run(self, forward: Forward, batches: Batches, correct_only: bool) -> None:
        for batch in self.processes.in_step(batches):
            self.seen.clear()
            chosen: dict[int, Tensor] = {}
            with self.processes.errors_shared():
                if batch is not None:
                    chosen = self._run_batch(forward, *batch, correct_only)
            own = {value: len(index) for value, index in chosen.items()}
            classes = {0} if self.pool else self.wanted
            counts = self.processes.counts(own, classes, self.labels, self.wanted)
            for value, (before, total) in counts.items():
                self.present.add(value)
                entry = self.inputs.setdefault(value, ClassInputs())
                if value in chosen:
                    self._add(entry, chosen[value], before)
                entry.count = min(self.max_samples, entry.count + total)
            if self.pending > MAX_PENDING:
                self._flush_all()
            if self._has_enough():
                break
        self._flush_all()

    def _run_batch(
        self, forward: Forward, x: Any, y: Tensor, correct_only: bool
    ) -> dict[int, Tensor]:
        """Run the model on a batch; return which samples count, by class."""
        count = len(x) if isinstance(x, Tensor) else None
        if y.dim() != 1 or y.is_floating_point() or count not in (None, len(y)):
            raise UserError(
                f"labels of shape {tuple(y.shape)} and type {y.dtype} for "
                f"{'the' if count is None else count} samples: give one whole number for each"
            )
        output, self.last_batch, self.batch_size, y = forward(x), x, len(y), y.cpu()
        self._check_inputs(len(y))
        self._check_parts(forward, x, len(y))
        self.labels.update(y.unique().tolist())
        correct = torch.ones_like(y, dtype=torch.bool)
        if correct_only:
            if output.dim() != 2 or len(output) != len(y):
                raise UserError(
                    f"the model's output for {len(y)} samples has shape {tuple(output.shape)}: it "
                    "has to be (samples, classes), to tell which are classified correctly"
                )
            correct = output.argmax(1).cpu() == y
        label = torch.zeros_like(y) if self.pool else y
        return {
            value: ((label == value) & correct).nonzero().flatten()
            for value in label.unique().tolist()
            if self.open_classes is None or value in self.open_classes
        }

    def _add(self, entry: ClassInputs, index: Tensor, before: int) -> None:
        index = index[: max(0, self.max_samples - entry.count - before)]
        for name, site in self.sites.items():
            if not len(index) or site.source not in self.seen:
                continue
            # On the CPU, because not every device has double precision.
            inputs = [self._of_samples(x, index).cpu() for x in self.seen[site.source]]
            count = min(len(index), max(0, self.samples[name] - entry.count - before))
            samples = len(index)
            if self.pool:  # without means
                inputs = [x[: count * len(x) // samples] for x in inputs]
                samples = count
            if not samples:
                continue
            pending = entry.pending.setdefault(name, [])
            if pending and pending[-1].shapes != shapes(inputs, samples):
                self._flush(entry, name)
            pending.append(Pending(inputs, samples, count))
            self.pending += sum(x.numel() for x in inputs)

    def _of_samples(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the inputs of some samples of the batch, each of which may have several."""
        index = index.to(x.device)
        if len(x) == self.batch_size:
            return x[index]
        each: Tensor = x.unflatten(0, (self.batch_size, -1))
        return each[index].flatten(0, 1)

    def _flush_all(self) -> None:
        for entry in self.inputs.values():
            for name in entry.pending:
                self._flush(entry, name)
        self.pending = 0

    def _flush(self, entry: ClassInputs, name: str) -> None:
        """Add the pending inputs of a class to its representation, in few large products."""
        site, pending = self.sites[name], entry.pending[name]
        if not pending:
            return
        inputs = [torch.cat(calls) for calls in zip(*(one.inputs for one in pending), strict=True)]
        # A site takes the first samples of a class: of the batches, only the last is taken in part.
        samples, taken = (sum(getattr(one, n) for one in pending) for n in ("samples", "taken"))
        pending.clear()
        if not self.pool:
            each = [site.matrix_input(x).reshape(samples, -1) for x in inputs]
            self._add_mean(entry, name, each)
        for x in inputs if taken else []:
            x = x[: taken * len(x) // samples]
            representation = entry.representations.setdefault(name, Representation(site.dimension))
            count = len(x) * len(site.rows(x[:1]))
            if representation.count + count < site.dimension:
                representation.add(site.rows(x))
            else:
                representation.add_gram(site.gram(x), count)

    def _add_mean(self, entry: ClassInputs, name: str, inputs: list[Tensor]) -> None:
        flat = torch.cat(inputs, 1)
        total = entry.sums.get(name, torch.zeros_like(flat[0], dtype=torch.float64))
        if total.shape != flat[0].shape:
            raise UserError(
                f"layer '{name}' saw inputs of {len(total)} and of {flat.shape[1]} numbers: class "
                "prototypes need images of one size"
            )
        entry.sums[name] = total + flat.sum(0, dtype=torch.float64)
        entry.counts[name] = entry.counts.get(name, 0) + len(flat)

    def _has_enough(self) -> bool:
        if self.wanted is not None and not self.wanted <= self.labels:
            return False
        wanted = {0} if self.pool else self.open_classes
        if wanted is None:
            return False
        return all(c in self.inputs and self.inputs[c].count >= self.max_samples for c in wanted)

    def _check_inputs(self, count: int) -> None:
        for name, site in self.sites.items():
            for x in self.seen.get(site.source, []):
                # The sum of finite numbers can only be infinite if it overflows.
                if not x.sum().isfinite() and not x.isfinite().all():
                    raise Diverged(f"layer '{name}' saw an input that is not a finite number")
                if not len(x) or len(x) % count:
                    raise not_the_batch(name, x, count)

    def _check_parts(self, forward: Forward, x: Any, count: int) -> None:
        """Refuse inputs of several rows for a sample, unless one sample comes after another.

        Windows of images are in that order. They are compared with those of the first sample alone.
        """
        whole = dict(self.seen)
        in_parts = {
            name: site.source
            for name, site in self.sites.items()
            if any(len(one) != count for one in whole.get(site.source, []))
        }
        if not in_parts:
            return
        self.seen.clear()
        forward(first_sample(x, count))
        alone = dict(self.seen)
        self.seen.clear()
        self.seen.update(whole)
        for name, source in in_parts.items():
            for every, first in zip(whole[source], alone.get(source, []), strict=False):
                same = len(every) == count * len(first) and every[0].shape == first[0].shape
                if not same or not is_near(every[: len(first)], first):
                    raise not_the_batch(name, every, count)


def not_the_batch(name: str, x: Tensor, count: int) -> UserError:
    """Return the error of a layer whose inputs cannot be told apart by sample."""
    return UserError(
        f"layer '{name}' saw an input of shape {tuple(x.shape)} for a batch of {count}: its first "
        "dimension must be the batch"
    )


def first_sample(x: Any, count: int) -> Any:
    """Return the first sample of the inputs of a batch: a tensor, or a collection of them."""
    if isinstance(x, Mapping):
        return {name: first_sample(value, count) for name, value in x.items()}
    if isinstance(x, tuple | list):
        values = [first_sample(value, count) for value in x]
        return type(x)(*values) if hasattr(x, "_fields") else type(x)(values)
    return x[:1] if isinstance(x, Tensor) and x.dim() and len(x) == count else x


def is_near(x: Tensor, y: Tensor) -> bool:
    """Tell whether two tensors differ by no more than the rounding of low precision."""
    return float((x - y).norm()) <= 0.03 * float(y.norm())


def shapes(inputs: list[Tensor], samples: int) -> list[tuple[int, ...]]:
    """Return the shapes of the inputs of a layer's calls for one of the samples."""
    return [(len(x) // samples, *x.shape[1:]) for x in inputs]


def _modules_with_parameters(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
