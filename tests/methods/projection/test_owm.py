"""OWM against loops over batches, rows and rank-1 updates."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from classgrad.core.layers import sites
from classgrad.errors import UserError
from classgrad.methods import OWM
from classgrad.methods.projection.owm import ShrinkingProjection, mean_rows, woodbury_update
from classgrad.networks import Network, TaskBatchNorm, build
from classgrad.networks.shard import Shard
from classgrad.runs.run import run
from oracles.models import built, normal
from oracles.shrinking import closed, layer_inputs, learnt, rows_of
from streams import blobs, step_of

STREAM = blobs(tasks=2, classes=3, shape=(2, 7, 6), per_class=50)  # batches of 64, 64 and 22
FIRST, SECOND = STREAM


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(84, 12, bias=False), nn.ReLU(), nn.Linear(12, 5, bias=False)
    )


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(27, 5, bias=False),
    )


def wrapped(make, shared_head=False, **values):
    net = Network(built(make), 5, shared_head=shared_head).double()
    net.add_task(3)
    method = OWM(**values)
    method.wrap(net, STREAM, 1)
    return net, method


def learnt_first(make, shared_head=False, **values):
    """A network that has ended its first task and begun the second."""
    net, method = wrapped(make, shared_head, **values)
    method.begin_task(net, FIRST)
    method.end_task(net, FIRST, torch.Generator().manual_seed(5))
    net.add_task(3)
    method.begin_task(net, SECOND)
    return net, method


def sgd(net, task=1, **values):
    parameters = [*net.trunk.parameters(), *net.head_parameters(task)]
    return torch.optim.SGD(list(dict.fromkeys(parameters)), **{"lr": 0.1, **values})


def take(net, method, step):
    """One training step."""
    loss = method.loss(net, step)
    step.optimizer.zero_grad()
    loss.backward()
    method.adjust_gradients(net, step)
    step.optimizer.step()
    method.after_step(net, step)


def plain_gradients(net, step):
    """Gradients of the trunk's weights for a step's batch, of a copy that no method has touched."""
    other = copy.deepcopy(net)
    for module in other.modules():
        vars(module).pop("forward", None)
    nn.functional.cross_entropy(other(step.x, step.task.id), step.y).backward()
    return {name: p.grad for name, p in other.trunk.named_parameters()}


def slow_matrices(net, alphas, every, patches="mean"):
    """P of each layer after a pass over the first task, in the order of generator 5."""
    order = torch.randperm(150, generator=torch.Generator().manual_seed(5))
    result = {}
    for alpha, index in zip(alphas, order.split(64), strict=True):
        images = FIRST.train.images[index].double() / 255
        for name, x in layer_inputs(net.trunk, images).items():
            rows = rows_of(net.trunk.get_submodule(name), x, every)
            # Every patch with the weight 1/n: the mean of the n matrices rᵀ r.
            weaker = alpha * len(rows) if patches == "mean" else alpha
            result[name] = learnt(result.get(name, np.eye(rows.shape[1])), rows, weaker)
    return result


@pytest.mark.parametrize("patches", ["mean", "sum"])
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("make", [perceptron, convolutions])
def test_gradients_of_later_tasks_are_multiplied_by_p(make, every, patches):
    net, method = learnt_first(make, damping=1e-3, patch_stride=every, patches=patches)
    slow = slow_matrices(net, [10**-1, 10**-2, 10**-3], every, patches)
    step = step_of(SECOND, sgd(net))
    wanted = plain_gradients(net, step)
    method.loss(net, step).backward()
    method.adjust_gradients(net, step)
    assert slow.keys() == method.matrices.keys()
    for name, p in slow.items():
        assert np.abs(method.matrices[name].numpy() - p).max() < 1e-10
        raw = wanted[f"{name}.weight"]
        result = net.trunk.get_submodule(name).weight.grad.flatten(1).numpy()
        assert np.abs(result - raw.flatten(1).numpy() @ p).max() < 1e-12
        assert np.abs(result - raw.flatten(1).numpy()).max() > 1e-3 * float(raw.abs().max())
    method.close()


def test_damping_falls_over_the_batches_and_can_differ_by_layer():
    net, method = learnt_first(perceptron, alpha={"1": 1e-3, "*": 1e-6})
    order = torch.randperm(150, generator=torch.Generator().manual_seed(5))
    images = FIRST.train.images.double() / 255
    inputs = layer_inputs(net.trunk, images)
    for name, alphas in {"1": [1e-1, 1e-2, 1e-3], "3": [1e-2, 1e-4, 1e-6]}.items():
        rows = np.array([inputs[name][index].mean(0).numpy() for index in order.split(64)])
        wanted = closed(rows, np.array(alphas))
        assert np.abs(method.matrices[name].numpy() - wanted).max() < 1e-9
    method.close()


def test_means_of_fewer_samples_are_more_rows_with_the_damping_of_their_batch():
    _, method = learnt_first(perceptron, damping=1e-3, mean_of=32)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(5))
    flat = (FIRST.train.images.double() / 255).flatten(1)[order]
    rows = [flat[:32], flat[32:64], flat[64:96], flat[96:128], flat[128:]]
    wanted = closed(
        np.array([part.mean(0).numpy() for part in rows]),
        np.array([1e-1, 1e-1, 1e-2, 1e-2, 1e-3]),
    )
    assert np.abs(method.matrices["1"].numpy() - wanted).max() < 1e-9
    assert method.layer_ranks()[0].rank == round(84 - np.trace(wanted)) >= 2
    method.close()


@pytest.mark.parametrize("damping", [1e-2, 1e-6])
def test_a_step_hardly_changes_the_outputs_for_mean_inputs(damping):
    net, method = learnt_first(perceptron, damping=damping)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(5))
    flat = (FIRST.train.images.double() / 255).flatten(1)
    layer = net.trunk.get_submodule("1")
    before = layer.weight.detach().clone()
    step = step_of(SECOND, sgd(net, lr=1.0))
    raw = plain_gradients(net, step)["1.weight"].norm()
    take(net, method, step)
    change = layer.weight.detach() - before
    for share, index in zip([1 / 3, 2 / 3, 1], order.split(64), strict=True):
        moved = (change @ flat[index].mean(0)).norm()
        assert moved <= damping ** (share / 2) / 2 * raw
    assert change.norm() > 0.1 * raw
    method.close()


def test_the_first_task_is_free_and_nothing_is_multiplied():
    net, method = wrapped(perceptron)
    method.begin_task(net, FIRST)
    step = step_of(FIRST, sgd(net, 0))
    wanted = plain_gradients(net, step)
    method.loss(net, step).backward()
    method.adjust_gradients(net, step)
    assert torch.equal(net.trunk.get_submodule("1").weight.grad, wanted["1.weight"])
    assert method.matrices == {}
    assert [layer.rank for layer in method.layer_ranks()] == [0, 0]


@pytest.mark.parametrize("make", [perceptron, convolutions])
def test_in_task_p_learns_from_a_batch_before_it_multiplies_its_gradient(make):
    net, method = wrapped(make, update="step", damping=1e-2, patch_stride=1)
    method.begin_task(net, FIRST)
    optimizer = sgd(net, 0)
    slow = {}
    for number, index in enumerate(torch.arange(150).split(50)):
        step = step_of(FIRST, optimizer, index, number=number, steps=3)
        raw = plain_gradients(net, step)
        for name, x in layer_inputs(net.trunk, step.x).items():
            rows = rows_of(net.trunk.get_submodule(name), x, 1)
            alpha = len(rows) * 1e-2 ** ((number + 1) / 3)
            slow[name] = learnt(slow.get(name, np.eye(rows.shape[1])), rows, alpha)
        before = {name: net.trunk.get_submodule(name).weight.detach().clone() for name in slow}
        take(net, method, step)
        for name, p in slow.items():
            assert np.abs(method.matrices[name].numpy() - p).max() < 1e-10
            change = net.trunk.get_submodule(name).weight.detach() - before[name]
            wanted = -0.1 * raw[f"{name}.weight"].flatten(1).numpy() @ p
            assert np.abs(change.flatten(1).numpy() - wanted).max() < 1e-12
    method.close()


def test_a_state_from_the_middle_of_a_task_continues_with_the_same_bits():
    net, method = wrapped(convolutions, update="step")
    method.begin_task(net, FIRST)
    optimizer = sgd(net, 0, momentum=0.9)
    batches = torch.arange(150).split(30)
    for number in (0, 1):
        take(net, method, step_of(FIRST, optimizer, batches[number], number=number, steps=5))
    state, other = method.state_dict(), copy.deepcopy(net)
    for module in other.modules():
        vars(module).pop("forward", None)
    again = OWM(update="step")
    again.wrap(other, STREAM, 1)
    again.load_state_dict(state, other)
    again.begin_task(other, FIRST)
    resumed = sgd(other, 0, momentum=0.9)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for model, guard, moves in ((net, method, optimizer), (other, again, resumed)):
        for number in (2, 3, 4):
            take(model, guard, step_of(FIRST, moves, batches[number], number=number, steps=5))
        guard.close()
    for left, right in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)
    for name, p in method.matrices.items():
        assert torch.equal(p, again.matrices[name])


@pytest.mark.parametrize("update", ["task", "step"])
def test_hooks_are_gone_however_a_task_ended(update):
    net, method = learnt_first(perceptron, update=update)
    step = step_of(SECOND, sgd(net))
    wrong = step_of(SECOND, sgd(net))
    object.__setattr__(wrong, "y", wrong.y + 7)
    method.loss(net, step)
    with pytest.raises(IndexError):
        method.loss(net, wrong)
    method.close()
    assert not any(m._forward_pre_hooks or "forward" in vars(m) for m in net.modules())


def test_with_weight_decay_and_adam_the_update_is_multiplied_by_p_too():
    for make in (
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.3),
        lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    ):
        net, method = learnt_first(convolutions, damping=1e-2)
        step = step_of(SECOND, make([*net.trunk.parameters(), *net.head_parameters(1)]))
        raw = plain_gradients(net, step)
        other = copy.deepcopy(net)
        before = {name: p.detach().clone() for name, p in net.trunk.named_parameters()}
        take(net, method, step)
        by_hand = make(list(other.trunk.parameters()))
        for name, weight in other.trunk.named_parameters():
            p = method.matrices[name.removesuffix(".weight")]
            weight.grad = (raw[name].flatten(1) @ p).view_as(weight)
        by_hand.step()
        for name, weight in other.trunk.named_parameters():
            p = method.matrices[name.removesuffix(".weight")]
            wanted = (weight.detach() - before[name]).flatten(1) @ p
            result = (net.trunk.get_parameter(name).detach() - before[name]).flatten(1)
            # Adam divides by the gradient: entries that are all rounding stay out of it.
            assert (result - wanted).abs().max() < 1e-6 * wanted.abs().max()
        method.close()


def test_gradients_are_clipped_after_the_product():
    net, method = learnt_first(perceptron, clip=1e-3)
    free, loose = learnt_first(perceptron)
    step = step_of(SECOND, sgd(net))
    for model, guard in ((net, method), (free, loose)):
        guard.loss(model, step).backward()
    loose.adjust_gradients(free, step)
    method.adjust_gradients(net, step)
    parts = [p.grad for p in (*free.trunk.parameters(), *free.head_parameters(1))]
    size = torch.cat([part.flatten() for part in parts]).norm()
    for left, right in zip(net.trunk.parameters(), free.trunk.parameters(), strict=True):
        assert torch.allclose(left.grad, right.grad * 1e-3 / size, rtol=1e-2, atol=0)
    method.close()
    loose.close()


class Normed(nn.Sequential):
    def __init__(self, affine):
        super().__init__(nn.Flatten(), nn.Linear(84, 5), TaskBatchNorm(5, affine=affine))


@pytest.mark.parametrize("update", ["task", "step"])
@pytest.mark.parametrize("affine", ["first", "task"])
def test_biases_and_shared_norms_stay_after_the_first_task_and_own_norms_learn(affine, update):
    net, method = wrapped(lambda: Normed(affine), update=update)
    method.begin_task(net, FIRST)
    start = copy.deepcopy(net.trunk.state_dict())
    take(net, method, step_of(FIRST, sgd(net, 0)))
    assert not torch.equal(start["2.scale_0"], net.trunk[2].scale_0)
    method.end_task(net, FIRST, torch.Generator().manual_seed(5))
    net.add_task(3)
    method.begin_task(net, SECOND)
    start = copy.deepcopy(net.trunk.state_dict())
    optimizer = sgd(net, momentum=0.9)
    for number in range(2):
        take(net, method, step_of(SECOND, optimizer, number=number, steps=2))
    method.close()
    moved = {name for name, p in net.trunk.state_dict().items() if not torch.equal(p, start[name])}
    own = {"2.scale_1", "2.shift_1"} if affine == "task" else set()
    assert moved == {"1.weight", *own}


def test_the_pass_at_the_end_of_a_task_is_in_evaluation_mode():
    def make() -> nn.Sequential:
        norm = TaskBatchNorm(12, statistics="stored")
        return nn.Sequential(nn.Flatten(), nn.Linear(84, 12), norm, nn.Linear(12, 5))

    net, method = wrapped(make)
    start = copy.deepcopy(net.state_dict())
    method.end_task(net, FIRST, torch.Generator().manual_seed(5))
    assert all(torch.equal(value, start[name]) for name, value in net.state_dict().items())
    inputs = layer_inputs(net.eval().trunk, FIRST.train.images.double() / 255)["3"]
    order = torch.randperm(150, generator=torch.Generator().manual_seed(5))
    rows = np.array([inputs[index].mean(0).numpy() for index in order.split(64)])
    wanted = closed(rows, np.array([1e-1, 1e-2, 1e-3]))
    assert np.abs(method.matrices["3"].numpy() - wanted).max() < 1e-9


def test_a_shared_head_is_guarded_too():
    net, method = learnt_first(perceptron, shared_head=True, damping=1e-6)
    assert [layer.name for layer in method.layer_ranks()] == ["trunk.1", "trunk.3", "heads.0"]
    step = step_of(SECOND, sgd(net))
    features = net.embed(FIRST.train.images.double() / 255, 0).detach()
    head = net.heads[0].weight
    before = head.detach().clone()
    take(net, method, step)
    change = head.detach() - before
    assert change.norm() > 0
    # Fewer than 1 % of what the change does to an input as long as the mean one can be.
    order = torch.randperm(150, generator=torch.Generator().manual_seed(5))
    mean = features[order[128:]].mean(0)
    assert (change @ mean).norm() < 1e-2 * change.norm() * mean.norm()
    method.close()


def test_what_is_kept_is_half_a_matrix_for_each_layer():
    net, method = learnt_first(perceptron)
    method.close()
    assert method.memory_bytes() == 8 * (84 * 85 // 2 + 12 * 13 // 2)
    state = method.state_dict()
    assert state["frozen"] == []
    for matrices in (state["matrices"], method.matrices):  # earlier versions saved all of it
        again = OWM()
        again.load_state_dict({**state, "matrices": dict(matrices)}, net)
        assert all(torch.equal(p, again.matrices[name]) for name, p in method.matrices.items())
        assert all(p.is_contiguous() for p in [*again.matrices.values(), *method.matrices.values()])


def test_batch_norm_of_both_kinds_and_a_whole_stream():
    for norm in ("batch", "stored"):
        record = run(
            blobs(),
            "owm",
            values={"epochs": 4, "batch_size": 12, "batch_norm": True, "norm": norm, "warmup": 0},
        )
        assert record.complete
        assert [layer.name for layer in record.layers] == ["fc1", "fc2"]
        assert record.layers[0].ranks[-1] > record.layers[0].ranks[0] > 0


def test_channels_last_weights_are_written_in_place():
    net = build("lenet5", (3, 8, 8)).double()
    stream = blobs(tasks=2, classes=2, shape=(3, 8, 8), per_class=4)
    net.add_task(2)
    method = OWM()
    method.wrap(net, stream, 1)
    method.end_task(net, stream[0], torch.Generator().manual_seed(0))
    net.add_task(2)
    method.begin_task(net, stream[1])
    step = step_of(stream[1], sgd(net, 1))
    raw = plain_gradients(net, step)["conv2.weight"]
    method.loss(net, step).backward()
    method.adjust_gradients(net, step)
    result = net.trunk.get_submodule("conv2").weight.grad
    wanted = (raw.flatten(1) @ method.matrices["conv2"]).view_as(raw)
    assert (result - wanted).abs().max() < 1e-12
    method.close()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"damping": 0.0}, "damping"),
        ({"alpha": 2.0}, "alpha"),
        ({"update": "epoch"}, "update"),
        ({"mean_of": 65}, "mean_of"),
        ({"patch_stride": 0}, "patch_stride"),
        ({"clip": -1}, "clip"),
        ({"damping": {"1": 0.1}}, "no value for layer '3'"),
        ({"damping": {"1": 0.1, "*": 0.1, "head": 0.1}}, "'head' matches no layer"),
    ],
)
def test_bad_settings_are_refused(values, named):
    with pytest.raises(UserError, match=named):
        wrapped(perceptron, **values)


def test_inputs_that_are_no_numbers_are_refused():
    net, method = wrapped(perceptron)
    with torch.no_grad():
        net.trunk[1].weight[0, 0] = torch.inf
    with pytest.raises(UserError, match="layer '3' saw"):
        method.end_task(net, FIRST, torch.Generator())


def test_inputs_too_large_for_the_damping_are_refused_in_one_line():
    net, method = wrapped(perceptron, damping=1e-8)
    large = {(net.trunk[1], 0): 20 * [1e8 * normal(64, net.trunk[1].in_features)]}
    with pytest.raises(UserError, match="layer '1' has inputs too large for damping=1e-08"):
        method._learn(large, 1.0, 1, Shard(64, 0, 64))


@pytest.mark.parametrize("count", [1, 5, 12, 40])
@pytest.mark.parametrize("alpha", [1.0, 1e-5])
def test_a_block_of_rows_equals_one_update_after_another_and_the_closed_form(count, alpha):
    start, rows = normal(7, 12, seed=1), normal(count, 12, seed=2)
    p = woodbury_update(torch.eye(12, dtype=torch.float64), start, 0.1)
    result = woodbury_update(p, rows, alpha).numpy()
    in_turn = learnt(learnt(np.eye(12), start.numpy(), 0.1), rows.numpy(), alpha)
    both = np.vstack([start.numpy(), rows.numpy()])
    assert np.abs(result - in_turn).max() < 1e-11
    assert np.abs(result - closed(both, np.array([0.1] * 7 + [alpha] * count))).max() < 1e-9
    assert np.abs(result - p.numpy()).max() > 1e-2


def test_rows_with_different_damping_weigh_by_it():
    rows, alphas = normal(6, 9), np.array([1.0, 0.5, 0.1, 0.03, 0.01, 0.001])
    p = torch.eye(9, dtype=torch.float64)
    for row, alpha in zip(rows, alphas, strict=True):
        p = woodbury_update(p, row[None], float(alpha))
    assert np.abs(p.numpy() - closed(rows.numpy(), alphas)).max() < 1e-12


def test_p_stays_symmetric_and_between_zero_and_one():
    p = torch.eye(20, dtype=torch.float64)
    for seed in range(60):
        p = woodbury_update(p, 30 * normal(1 + seed % 30, 20, seed=seed), 1e-6)
        assert torch.equal(p, p.T)
    values = torch.linalg.eigvalsh(p)
    assert values.min() > -1e-14
    assert values.max() <= 1 + 1e-14


def test_no_learnt_row_keeps_more_than_half_the_root_of_its_damping():
    """||r P|| <= √α / 2, and nearly so for a row as long as √α."""
    alpha = 1e-4
    rows = normal(5, 8) * torch.tensor([10.0, 1.0, 0.1, 0.01, 0.001], dtype=torch.float64)[:, None]
    p = woodbury_update(torch.eye(8, dtype=torch.float64), rows, alpha)
    assert (rows @ p).norm(dim=1).max() <= alpha**0.5 / 2
    lone = nn.functional.normalize(normal(1, 8, seed=3)) * alpha**0.5
    p = woodbury_update(torch.eye(8, dtype=torch.float64), lone, alpha)
    assert (lone @ p).norm() == pytest.approx(alpha**0.5 / 2)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_rows_are_the_patches_of_mean_images(every):
    layer = built(lambda: nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(2, 1), bias=False))
    site = sites(nn.Sequential(layer))["0"]
    x = normal(10, 3, 9, 8)
    result = mean_rows(site, x, 5, every)
    wanted = np.vstack([rows_of(layer, half, every) for half in x.split(5)])
    assert np.abs(result.numpy() - wanted).max() < 1e-14


@pytest.mark.parametrize(
    ("count", "mean_of", "sizes"), [(65, 64, [65]), (9, 4, [5, 4]), (3, 8, [3])]
)
def test_no_mean_is_of_fewer_samples_than_asked_for(count, mean_of, sizes):
    site = sites(nn.Sequential(built(lambda: nn.Linear(4, 2))))["0"]
    x = normal(count, 4)
    wanted = torch.stack([part.mean(0) for part in x.split(sizes)])
    assert torch.allclose(mean_rows(site, x, mean_of, 1), wanted, atol=1e-14, rtol=0)


def test_products_are_in_the_precision_of_the_weights_and_p_is_not():
    layer = built(lambda: nn.Linear(6, 3)).float()
    projection = ShrinkingProjection(sites(nn.Sequential(layer))["0"])
    projection.set_matrix(woodbury_update(projection.matrix, normal(3, 6), 1e-3))
    gradient = normal(3, 6, seed=4)
    assert projection.matrix.dtype == torch.float64
    assert projection.project(gradient.float()).dtype == torch.float32
    assert torch.allclose(
        projection.project(gradient.float()).double(), gradient @ projection.matrix, atol=1e-6
    )


def test_a_convolution_keeps_directions_to_learn_in_after_a_task():
    """With every patch as a row none is left. The noise uses every direction, unlike a photo."""
    stream = blobs(tasks=1, classes=3, shape=(3, 20, 20), per_class=100)
    left = {}
    for patches, damping in (("sum", 1e-5), ("mean", 1e-2)):
        net = build("lenet5", stream.input_shape, 1)
        net.add_task(3)
        method = OWM(damping={"conv*": damping, "fc*": 1e-3}, patches=patches)
        method.wrap(net, stream, 1)
        method.begin_task(net, stream[0])
        method.end_task(net, stream[0], torch.Generator().manual_seed(5))
        first = method.layer_ranks()[0]
        left[patches] = 1 - first.rank / first.dimension
    assert left["sum"] < 0.01
    assert 0.15 < left["mean"] < 0.95
