"""What the layers of a model see of each class, gathered in one pass over a task's data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from classgrad.core.layers import Site, Source, tap
from classgrad.core.merging import ClassInputs, merged
from classgrad.core.refusals import refuse_bypassed
from classgrad.core.subspace import Representation
from classgrad.distributed import world
from classgrad.errors import UserError

Forward = Callable[[Tensor], Tensor]
Batches = Iterable[tuple[Tensor, Tensor]]

# So many numbers may wait until they are put into representations: 32 MB in float32.
MANY = 2**23


@dataclass
class Collected:
    """Inputs by class, and the layers with parameters that took part.

    Pooled, they are those of the whole task, as class 0.
    """

    classes: dict[int, ClassInputs]
    used: set[nn.Module]
    pooled: bool


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
) -> Collected:
    """Run the model in evaluation mode and keep, per class and site, the first `samples[site]`.

    Whole mixed batches go through the model, because BatchNorm may use their statistics; which
    samples count is decided afterwards. With `correct_only` only those classified right do
    (BR-GTL); a class with none of them is taken as it is. With `pool` all samples count as one
    class, 0. Stops as soon as every class in `classes` has enough.

    Several processes give batches in turn, each its own, and name `classes`; what they keep is put
    together in the first, as if it had seen all, and the others keep nothing.
    """
    wanted = None if classes is None else set(classes)
    training = {module: module.training for module in model.modules()}
    model.eval()
    used = _modules_with_parameters(model)
    called: set[nn.Module] = set()
    hooks = [m.register_forward_pre_hook(lambda module, _args: called.add(module)) for m in used]
    try:
        with torch.no_grad(), tap(sites.values()) as seen:
            gather = _Gather(sites, samples, seen, wanted, pool)
            gather.run(forward, batches(), correct_only)
            missed = {label for label in gather.present if not gather.found[label].count}
            if missed:
                gather.only = missed
                gather.run(forward, batches(), False)
            # An attention layer uses its out-projection without calling it.
            called |= {m.out_proj for m in called if isinstance(m, nn.MultiheadAttention)}
            if gather.last is not None:
                refuse_bypassed(model, partial(forward, gather.last), called)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in training.items():
            module.training = mode
    called = {m for m, n in zip(used, calls_of_all(used, called), strict=True) if n}
    absent = set() if wanted is None else wanted - gather.labels
    if absent:
        raise UserError(f"class {min(absent)} has no sample in the data given at the task's end")
    if not gather.present:
        raise UserError("the data given at the task's end hold no sample")
    found = {c: gather.found[c] for c in sorted(gather.present)}
    merged(list(found.values()), sites)
    return Collected(found, called, pool)


def calls_of_all(modules: list[nn.Module], called: set[nn.Module]) -> list[int]:
    """Tell of each module whether any process has called it."""
    return world().largest([module in called for module in modules])


class _Gather:
    """The state of one pass: what each class has, and which classes are still wanted."""

    def __init__(
        self,
        sites: Mapping[str, Site],
        samples: Mapping[str, int],
        seen: dict[Source, list[Tensor]],
        wanted: set[int] | None,
        pool: bool,
    ) -> None:
        self.sites, self.samples, self.seen = sites, samples, seen
        self.pool = pool
        self.most = max(samples.values())
        self.found: dict[int, ClassInputs] = {}
        self.present: set[int] = set()
        self.wanted = wanted
        self.labels: set[int] = set()  # every label seen, of classes wanted or not
        self.only = None if pool else wanted
        self.waiting = 0  # how many numbers of all classes are not yet in representations
        self.last: Tensor | None = None  # the last batch

    def run(self, forward: Forward, batches: Batches, correct_only: bool) -> None:
        for batch in world().in_step(batches):
            self.seen.clear()
            chosen: dict[int, Tensor] = {}
            with world().errors_shared():
                if batch is not None:
                    chosen = self._see(forward, *batch, correct_only)
            for value, (before, total) in self._counts(chosen).items():
                self.present.add(value)
                entry = self.found.setdefault(value, ClassInputs())
                if value in chosen:
                    self._add(entry, chosen[value], before)
                entry.count = min(self.most, entry.count + total)
            if self.waiting > MANY:
                self._settle_all()
            if self._enough():
                break
        self._settle_all()

    def _see(self, forward: Forward, x: Tensor, y: Tensor, correct_only: bool) -> dict[int, Tensor]:
        """Run the model on a batch; return which samples count, by class."""
        if y.dim() != 1 or y.is_floating_point() or len(y) != len(x):
            raise UserError(
                f"labels of shape {tuple(y.shape)} and type {y.dtype} for {len(x)} samples: "
                "give one whole number for each"
            )
        output, self.last, y = forward(x), x, y.cpu()
        self._check_inputs(len(y))
        self.labels.update(y.unique().tolist())
        right = torch.ones_like(y, dtype=torch.bool)
        if correct_only:
            right = output.argmax(1).cpu() == y
        label = torch.zeros_like(y) if self.pool else y
        return {
            value: ((label == value) & right).nonzero().flatten()
            for value in label.unique().tolist()
            if self.only is None or value in self.only
        }

    def _counts(self, chosen: dict[int, Tensor]) -> dict[int, tuple[int, int]]:
        """Return, by class, how many samples come before those of this process, and all.

        Batches of one round are in the order of the processes. Labels that others saw are noted.
        """
        if world().size == 1:
            return {value: (0, len(index)) for value, index in chosen.items()}
        assert self.wanted is not None, "several processes have to name the classes"
        known = sorted(self.wanted)
        classes = [0] if self.pool else known
        counts = [len(chosen[value]) if value in chosen else 0 for value in classes]
        here = [value in chosen for value in classes]
        seen = [value in self.labels for value in known]
        table = world().table(torch.tensor([*counts, *here, *seen]))
        by_process, present, labels = table.split([len(classes), len(classes), len(known)], dim=1)
        self.labels.update(v for v, any_of in zip(known, labels.any(0), strict=True) if any_of)
        before, total = by_process[: world().rank].sum(0).tolist(), by_process.sum(0).tolist()
        return {
            value: (before[place], total[place])
            for place, value in enumerate(classes)
            if present[:, place].any()
        }

    def _add(self, entry: ClassInputs, index: Tensor, before: int) -> None:
        for name, site in self.sites.items():
            chosen = index[: max(0, self.samples[name] - entry.count - before)]
            if not len(chosen) or site.source not in self.seen:
                continue
            # On the CPU whatever the model is on: not every device computes in double precision.
            inputs = [x[chosen.to(x.device)].cpu() for x in self.seen[site.source]]
            waiting = entry.waiting.setdefault(name, [])
            if waiting and shapes(waiting[-1]) != shapes(inputs):
                self._settle(entry, name)
            waiting.append(inputs)
            self.waiting += sum(x.numel() for x in inputs)

    def _settle_all(self) -> None:
        for entry in self.found.values():
            for name in entry.waiting:
                self._settle(entry, name)
        self.waiting = 0

    def _settle(self, entry: ClassInputs, name: str) -> None:
        """Put the inputs of a class that wait into its representation: few large products."""
        site, waiting = self.sites[name], entry.waiting[name]
        inputs = [torch.cat(batches) for batches in zip(*waiting, strict=True)]
        waiting.clear()
        for x in inputs:
            known = entry.representations.setdefault(name, Representation(site.dimension))
            count = len(x) * len(site.rows(x[:1]))
            if known.count + count < site.dimension:
                known.add(site.rows(x))
            else:
                known.add_gram(site.gram(x), count)
        if inputs and not self.pool:
            self._add_mean(entry, name, [site.share(x).flatten(1) for x in inputs])

    def _add_mean(self, entry: ClassInputs, name: str, inputs: list[Tensor]) -> None:
        flat = torch.cat(inputs, 1)
        known = entry.sums.get(name, torch.zeros_like(flat[0], dtype=torch.float64))
        if known.shape != flat[0].shape:
            raise UserError(
                f"layer '{name}' saw inputs of {len(known)} and of {flat.shape[1]} numbers: class "
                "prototypes need images of one size"
            )
        entry.sums[name] = known + flat.sum(0, dtype=torch.float64)
        entry.counts[name] = entry.counts.get(name, 0) + len(flat)

    def _enough(self) -> bool:
        if self.wanted is not None and not self.wanted <= self.labels:
            return False
        wanted = {0} if self.pool else self.only
        if wanted is None:
            return False
        return all(c in self.found and self.found[c].count >= self.most for c in wanted)

    def _check_inputs(self, count: int) -> None:
        for name, site in self.sites.items():
            for x in self.seen.get(site.source, []):
                if not x.isfinite().all():
                    raise UserError(f"layer '{name}' saw an input that is not a finite number")
                if len(x) != count:
                    raise UserError(
                        f"layer '{name}' saw an input of shape {tuple(x.shape)} for a batch of "
                        f"{count}: its first dimension must be the batch"
                    )


def shapes(inputs: list[Tensor]) -> list[torch.Size]:
    """Return the shapes of the inputs of a layer's calls, without the number of samples."""
    return [x.shape[1:] for x in inputs]


def _modules_with_parameters(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
