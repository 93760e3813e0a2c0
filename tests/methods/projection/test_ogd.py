"""OGD against gradients taken one sample at a time, and what an update does to stored logits."""

import copy

import pytest
import torch
from torch import nn

from classgrad.errors import UserError
from classgrad.methods import OGD
from classgrad.methods.projection.ogd import outside
from classgrad.networks import Network, TaskBatchNorm, build
from oracles.models import built, normal
from streams import blobs, step_of

STREAM = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=30)  # 90 samples: two batches
FIRST, SECOND, THIRD = STREAM


def smooth() -> nn.Sequential:
    """Answers that can be differentiated twice, with biases."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.Tanh(), nn.Linear(9, 5))


def normed(statistics: str = "batch", affine: str = "first") -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 9), TaskBatchNorm(9, statistics, affine), nn.Linear(9, 5)
    )


def wrapped(make=smooth, shared_head=False, **values):
    net = Network(built(make), 5, shared_head=shared_head).double()
    net.add_task(3)
    method = OGD(**values)
    method.wrap(net, STREAM, 1)
    return net, method


def learnt_first(make=smooth, shared_head=False, **values):
    net, method = wrapped(make, shared_head, **{"samples": 12, **values})
    method.end_task(net, FIRST, rng())
    net.add_task(3)
    method.begin_task(net, SECOND)
    return net, method


def rng():
    return torch.Generator().manual_seed(5)


def drawn(count):
    """The samples that a task's end takes from the first task, and the batches they come in."""
    order = torch.randperm(90, generator=rng())
    return order[:count], [order[:64], order[64:]]


def slow_gradients(net, count, task=FIRST):
    """Gradients of true logits, each by a forward of its own; norms have fixed statistics."""
    net = copy.deepcopy(net).eval()
    chosen, groups = drawn(count)
    images = task.train.images.double() / 255
    result = []
    for sample in chosen.tolist():
        group = next(group for group in groups if sample in group.tolist())
        with_constants = copy.deepcopy(net)
        for norm in [m for m in with_constants.modules() if isinstance(m, TaskBatchNorm)]:
            if norm.statistics == "batch":
                fix(norm, seen_by(net, norm, with_constants, images[group]))
        logit = with_constants(images[[sample]], task.id)[0, task.train.labels[sample]]
        own = {id(p) for m in with_constants.modules() if own_norm(m) for p in m.parameters()}
        shared = [p for p in with_constants.protected().parameters() if id(p) not in own]
        parts = torch.autograd.grad(logit, shared)
        result.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(result)


def own_norm(module):
    return isinstance(module, TaskBatchNorm) and module.affine == "task"


def seen_by(net, norm, twin, images):
    """The input of a norm for some images."""
    place = [m for m in twin.modules() if isinstance(m, TaskBatchNorm)].index(norm)
    original = [m for m in net.modules() if isinstance(m, TaskBatchNorm)][place]
    caught = []
    handle = original.register_forward_pre_hook(lambda _module, args: caught.append(args[0]))
    with torch.no_grad():
        net(images, 0)
    handle.remove()
    return caught[0]


def fix(norm, seen):
    """Let a norm use the statistics of some inputs from now on."""
    norm.statistics = "stored"
    norm.mean_0, norm.variance_0 = seen.mean(0), seen.var(0, correction=0)


def optimizers(net, task=1):
    parameters = list(dict.fromkeys([*net.trunk.parameters(), *net.head_parameters(task)]))
    return {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.1),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        "decay": lambda: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1),
        "adam": lambda: torch.optim.Adam(parameters, lr=0.01),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    }


def take(net, method, step):
    loss = method.loss(net, step)
    step.optimizer.zero_grad()
    loss.backward()
    method.adjust_gradients(net, step)
    step.optimizer.step()
    method.after_step(net, step)


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.protected().parameters()])


@pytest.mark.parametrize(
    ("make", "shared_head"),
    [
        (smooth, False),
        (smooth, True),
        (normed, False),
        (lambda: normed("stored"), False),
        (lambda: normed("batch", "task"), True),
    ],
)
def test_what_is_stored_are_gradients_of_true_logits(make, shared_head):
    net, method = wrapped(make, shared_head, samples=70)
    result = method.gradients(net, FIRST, 70, rng())
    wanted = slow_gradients(net, 70)
    assert result.shape == wanted.shape
    assert (result - wanted).abs().max() < 1e-12
    assert wanted.abs().max() > 1e-2


def test_the_basis_is_orthonormal_and_spans_the_gradients():
    net, method = learnt_first()
    gradients = slow_gradients(net, 12)
    s = method.basis
    assert s.shape == (12, sum(p.numel() for p in net.trunk.parameters()))
    assert (s @ s.T - torch.eye(12, dtype=torch.float64)).abs().max() < 1e-12
    outside = gradients - (gradients @ s.T) @ s
    assert outside.norm() < 1e-12 * gradients.norm()


def test_later_tasks_extend_the_basis_and_keep_what_is_held():
    net, method = learnt_first()
    before = method.basis.clone()
    method.end_task(net, SECOND, rng())
    after = method.basis
    assert torch.equal(after[:12], before)
    assert len(after) == 24
    assert (after @ after.T - torch.eye(24, dtype=torch.float64)).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["sgd", "momentum", "decay", "adam", "adamw"])
@pytest.mark.parametrize("shared_head", [False, True])
def test_no_update_has_a_part_along_a_stored_gradient(kind, shared_head):
    net, method = learnt_first(shared_head=shared_head)
    gradients = nn.functional.normalize(slow_gradients(net, 12), dim=1)
    optimizer = optimizers(net)[kind]()
    for number in range(3):
        before = flat(net)
        take(net, method, step_of(SECOND, optimizer, number=number, steps=3))
        update = flat(net) - before
        assert update.norm() > 1e-3
        assert (gradients @ update).norm() < 1e-9 * update.norm()


def test_momentum_from_before_the_basis_grew_is_held_back_too():
    net, method = wrapped(samples=12)
    optimizer = optimizers(net, 0)["momentum"]()
    take(net, method, step_of(FIRST, optimizer))
    method.end_task(net, FIRST, rng())
    gradients = nn.functional.normalize(slow_gradients(net, 12), dim=1)
    before = flat(net)
    take(net, method, step_of(FIRST, optimizer))
    update = flat(net) - before
    assert (gradients @ update).norm() < 1e-9 * update.norm()


class Skipping(nn.Module):
    """A stack whose middle layer is left out while `short` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 9), nn.Linear(9, 9), nn.Linear(9, 5)
        self.short = False

    def forward(self, x):
        x = self.first(x.flatten(1)).tanh()
        return self.last(x if self.short else self.middle(x).tanh())


def test_a_layer_that_a_task_does_not_use_moves_along_where_that_keeps_stored_logits():
    net, method = learnt_first(Skipping)
    gradients = nn.functional.normalize(slow_gradients(net, 12), dim=1)
    net.trunk.short = True
    before = flat(net)
    take(net, method, step_of(SECOND, optimizers(net)["sgd"]()))
    update = flat(net) - before
    assert (gradients @ update).norm() < 1e-9 * update.norm()


def test_gradients_lose_just_their_part_in_the_basis():
    net, method = learnt_first()
    step = step_of(SECOND, optimizers(net)["sgd"]())
    method.loss(net, step).backward()
    raw = torch.cat([p.grad.flatten() for p in net.trunk.parameters()])
    head = net.heads[1].weight.grad.clone()
    method.adjust_gradients(net, step)
    result = torch.cat([p.grad.flatten() for p in net.trunk.parameters()])
    gradients = slow_gradients(net, 12)
    inside = gradients.T @ torch.linalg.lstsq(gradients.T, raw[:, None]).solution
    assert (result - (raw - inside[:, 0])).norm() < 1e-10 * raw.norm()
    assert inside.norm() > 1e-2 * raw.norm()
    assert torch.equal(net.heads[1].weight.grad, head)


def test_stored_logits_change_only_to_second_order():
    """Halving the step quarters the change; without the method it is halved."""
    ratios = {}
    chosen, _ = drawn(12)
    images, labels = FIRST.train.images[chosen].double() / 255, FIRST.train.labels[chosen]
    for guarded in (True, False):
        changes = []
        for rate in (2e-3, 1e-3):
            net, method = learnt_first()
            start = net(images, 0).detach()[range(12), labels]
            step = step_of(SECOND, torch.optim.SGD(net.trunk.parameters(), lr=rate))
            method.loss(net, step).backward()
            if guarded:
                method.adjust_gradients(net, step)
            step.optimizer.step()
            changes.append((net(images, 0).detach()[range(12), labels] - start).norm())
        ratios[guarded] = float(changes[0] / changes[1])
    assert ratios[True] == pytest.approx(4, rel=0.02)
    assert ratios[False] == pytest.approx(2, rel=0.02)


def test_budgets_are_kept():
    net, method = wrapped(samples=10, max_vectors=25)
    sizes = []
    for task in STREAM:
        if task.id:
            net.add_task(3)
        method.end_task(net, task, rng())
        sizes.append(len(method.basis))
    assert sizes == [10, 20, 25]
    full = method.basis.clone()
    method.end_task(net, THIRD, torch.Generator().manual_seed(9))
    assert torch.equal(method.basis, full)
    assert method.memory_bytes() == 25 * full.shape[1] * 8
    assert [(r.name, r.dimension, r.rank) for r in method.layer_ranks()] == [
        ("parameters", full.shape[1], 25)
    ]


def test_more_samples_than_there_are_is_all_of_them():
    net, method = wrapped(samples=1000)
    method.end_task(net, FIRST, rng())
    assert 50 < len(method.basis) <= 90


def extended(basis, rows):
    return torch.cat([basis, outside(basis, rows)])


def test_dependent_gradients_add_nothing():
    net, method = learnt_first()
    method.end_task(net, FIRST, rng())
    assert len(method.basis) == 12
    start = extended(torch.zeros(0, 8, dtype=torch.float64), normal(2, 8))
    a, b = normal(2, 8, seed=1)
    rows = torch.stack([a, 3 * a, b, a - b, start[0], torch.zeros_like(a), 1e-9 * a])
    grown = extended(start, rows)
    assert len(grown) == 4
    assert (grown @ grown.T - torch.eye(4, dtype=torch.float64)).abs().max() < 1e-12
    assert (rows - (rows @ grown.T) @ grown).abs().max() < 1e-12
    assert torch.equal(extended(start, 5 * start), start)


def test_nearly_dependent_gradients_still_give_an_orthonormal_basis():
    for dtype, tiny, accuracy in ((torch.float64, 1e-4, 1e-12), (torch.float32, 1e-3, 1e-6)):
        base = normal(3, 500).to(dtype)
        near = base + tiny * normal(3, 500, seed=1).to(dtype)
        grown = extended(extended(base[:0], base), torch.cat([near, near[:1]]))
        assert len(grown) == 6
        assert (grown @ grown.T - torch.eye(6, dtype=dtype)).abs().max() < accuracy


def test_a_wide_network_in_float32_has_a_float32_basis():
    net = build("mlp", (1, 4, 4), width=40)
    net.add_task(3)
    method = OGD(samples=30)
    method.wrap(net, STREAM, 1)
    method.end_task(net, FIRST, rng())
    assert method.basis.dtype == torch.float32
    count = len(method.basis)
    assert (method.basis @ method.basis.T - torch.eye(count)).abs().max() < 1e-6


def test_own_norms_of_a_task_learn_freely_and_have_no_part_in_the_basis():
    net, method = learnt_first(lambda: normed("batch", "task"))
    own = [p for name, p in net.trunk.named_parameters() if "scale" in name or "shift" in name]
    shared = [p for p in net.trunk.parameters() if all(p is not other for other in own)]
    assert method.basis.shape[1] == sum(p.numel() for p in shared)
    start = copy.deepcopy(net.trunk.state_dict())
    step = step_of(SECOND, optimizers(net)["sgd"]())
    method.loss(net, step).backward()
    raw = net.trunk[2].scale_1.grad.clone()
    method.adjust_gradients(net, step)
    assert torch.equal(net.trunk[2].scale_1.grad, raw)
    step.optimizer.step()
    method.after_step(net, step)
    moved = {name for name, p in net.trunk.state_dict().items() if not torch.equal(p, start[name])}
    assert not moved & {"2.scale_0", "2.shift_0"}
    assert {"2.scale_1", "2.shift_1", "1.weight", "3.bias"} <= moved


@pytest.mark.parametrize("statistics", ["batch", "stored"])
def test_shared_norms_move_along_the_free_part_only(statistics):
    net, method = learnt_first(lambda: normed(statistics))
    gradients = nn.functional.normalize(slow_gradients(net, 12), dim=1)
    before = flat(net)
    take(net, method, step_of(SECOND, optimizers(net)["momentum"]()))
    update = flat(net) - before
    assert net.trunk[2].scale_0.grad.any()
    assert (gradients @ update).norm() < 1e-9 * update.norm()


def test_statistics_of_the_task_are_not_moved_by_the_gradients():
    net, method = wrapped(lambda: normed("stored"))
    start = copy.deepcopy(net.state_dict())
    method.end_task(net, FIRST, rng())
    for name, value in net.state_dict().items():
        assert torch.equal(value, start[name]), name
    assert all(p.grad is None for p in net.parameters())


def test_a_state_continues_in_the_middle_of_a_task():
    net, method = learnt_first()
    optimizer = optimizers(net)["sgd"]()
    take(net, method, step_of(SECOND, optimizer))
    other = copy.deepcopy(net)
    again = OGD(samples=12)
    again.wrap(other, STREAM, 1)
    again.load_state_dict(method.state_dict(), other)
    take(net, method, step_of(SECOND, optimizer))
    take(other, again, step_of(SECOND, optimizers(other)["sgd"]()))
    assert torch.equal(flat(net), flat(other))


@pytest.mark.parametrize(
    ("values", "named"), [({"samples": 0}, "samples"), ({"max_vectors": 0}, "max_vectors")]
)
def test_bad_settings_are_refused(values, named):
    with pytest.raises(UserError, match=named):
        OGD(**values)
