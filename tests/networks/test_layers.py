"""BatchNorm per task against PyTorch's, and dropout from a passed generator."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from classgrad import GPM, attach
from classgrad.errors import UserError
from classgrad.networks import build
from classgrad.networks.layers import Dropout, TaskBatchNorm
from oracles.models import built, normal

SHAPES = [(6, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)]


def norm(statistics: str = "batch", affine: str = "first") -> TaskBatchNorm:
    return TaskBatchNorm(3, statistics, affine).double()


def scaled(layer: TaskBatchNorm, task: int, seed: int) -> tuple[Tensor, Tensor]:
    """Give the scale and shift of a task some values, and return them."""
    scale, shift = layer.get_parameter(f"scale_{task}"), layer.get_parameter(f"shift_{task}")
    with torch.no_grad():
        scale.copy_(normal(3, seed=seed))
        shift.copy_(normal(3, seed=seed + 1))
    return scale.detach().clone(), shift.detach().clone()


def by_hand(x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(x - m) / sqrt(v + 1e-5) * scale + shift, for every channel."""
    result = torch.empty_like(x)
    for c in range(x.shape[1]):
        result[:, c] = (x[:, c] - mean[c]) / (variance[c] + 1e-5).sqrt() * scale[c] + shift[c]
    return result


def of_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    channels = x.movedim(1, 0).flatten(1)
    return channels.mean(1), channels.var(1, unbiased=False)


def pytorch_norm(x: Tensor, *, running: bool) -> nn.Module:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[x.dim()]
    return kind(3, track_running_stats=running).double()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_are_those_of_the_current_batch_always(
    shape: tuple[int, ...], training: bool
) -> None:
    x = normal(*shape) * 3 + 1
    layer = norm().train(training)
    other = pytorch_norm(x, running=False).train(training)
    assert torch.allclose(layer(x), other(x), atol=1e-12)
    scale, shift = scaled(layer, 0, 5)
    assert torch.allclose(layer(x), by_hand(x, *of_batch(x), scale, shift), atol=1e-12)
    assert not list(layer.buffers())


@pytest.mark.parametrize("shape", SHAPES)
def test_stored_statistics_run_as_those_of_pytorch(shape: tuple[int, ...]) -> None:
    layer = norm("stored")
    other = pytorch_norm(normal(*shape), running=True)
    for seed in range(4):
        x = normal(*shape, seed=seed) * 3 + 1
        assert torch.allclose(layer(x), other(x), atol=1e-12)
    assert torch.allclose(layer.mean_0, other.running_mean, atol=1e-12)
    assert torch.allclose(layer.variance_0, other.running_var, atol=1e-12)
    layer.eval()
    other.eval()
    assert torch.allclose(layer(x), other(x), atol=1e-12)
    assert torch.allclose(layer(x[:1]), layer(x)[:1], atol=1e-12)  # whatever else is in the batch
    assert torch.allclose(layer.mean_0, other.running_mean, atol=1e-12)


def test_every_task_has_stored_statistics_of_its_own() -> None:
    layer = norm("stored")
    first, second = normal(6, 3) + 5, normal(6, 3, seed=1) * 4
    layer(first)
    kept = layer.mean_0.clone(), layer.variance_0.clone()
    layer.add_task()
    assert (layer.tasks, layer.task) == (2, 1)
    assert not layer.mean_1.any()
    assert bool((layer.variance_1 == 1).all())
    for _ in range(3):
        layer(second)
    assert torch.equal(layer.mean_0, kept[0])
    assert torch.equal(layer.variance_0, kept[1])
    layer.eval()
    for task in (0, 1):
        layer.task = task
        stored = layer.get_buffer(f"mean_{task}"), layer.get_buffer(f"variance_{task}")
        expected = by_hand(first, *stored, torch.ones(3), torch.zeros(3))
        assert torch.allclose(layer(first), expected, atol=1e-12)


def test_statistics_of_the_first_task_are_used_in_all_later_ones_in_training_too() -> None:
    layer, oracle = norm("first"), nn.BatchNorm1d(3).double()
    generator = torch.Generator().manual_seed(4)
    for _ in range(5):
        x = torch.randn(8, 3, generator=generator, dtype=torch.float64) * 3 + 1
        assert torch.allclose(layer(x), oracle(x), atol=1e-12)
    layer.add_task()
    oracle.eval()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for training in (True, False):
        x = torch.randn(1, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        y = layer.train(training)(x)
        assert torch.allclose(y, oracle(x), atol=1e-12)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        slope = oracle.weight / (oracle.running_var + oracle.eps).sqrt()
        assert torch.allclose(gradient, slope.expand(1, 3))
    assert before.keys() == layer.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    assert layer.fixed
    assert not layer.task_dependent


@pytest.mark.parametrize("network", ["alexnet5", "resnet18"])
def test_with_statistics_of_the_first_task_features_are_those_of_the_layers_one_by_one(
    network: str,
) -> None:
    net = build(network, (3, 32, 32), norm="first").double()
    net.add_task(2)
    x = normal(6, 3, 32, 32)
    net(x, 0)
    net.recalibrate(0, [x])
    net.add_task(2)
    assert not net.task_dependent
    assert not net.batch_dependent
    net.recalibrate(1, [x + 1])  # nothing is left to measure
    with torch.no_grad():
        net.eval()
        alone = torch.cat([net.embed(one[None], 1) for one in x])
        assert torch.allclose(net.embed(x, 0), alone, atol=1e-9)
        dropouts = [m for m in net.modules() if isinstance(m, Dropout)]
        for dropout in dropouts:
            dropout.share = 0.0
        assert torch.allclose(net.train().embed(x, 1), alone, atol=1e-9)


@pytest.mark.parametrize("statistics", ["batch", "stored"])
def test_one_scale_and_shift_serve_all_tasks(statistics: str) -> None:
    layer = norm(statistics)
    scale, shift = scaled(layer, 0, 5)
    layer.add_task()
    assert [name for name, _ in layer.named_parameters()] == ["scale_0", "shift_0"]
    x = normal(6, 3)
    for task in (0, 1):
        layer.task = task
        assert torch.allclose(layer(x), by_hand(x, *of_batch(x), scale, shift), atol=1e-12)


@pytest.mark.parametrize("statistics", ["batch", "stored"])
def test_every_task_starts_from_the_scale_and_shift_before_and_keeps_its_own(
    statistics: str,
) -> None:
    layer = norm(statistics, "task")
    first = scaled(layer, 0, 5)
    layer.add_task()
    assert torch.equal(layer.scale_1, first[0])
    assert torch.equal(layer.shift_1, first[1])
    assert layer.scale_1.requires_grad
    second = scaled(layer, 1, 7)
    x = normal(6, 3)
    layer(x).sin().sum().backward()
    assert layer.scale_0.grad is None
    assert layer.scale_1.grad.any()
    for task, own in ((0, first), (1, second)):
        layer.task = task
        assert torch.allclose(layer(x), by_hand(x, *of_batch(x), *own), atol=1e-12)


@pytest.mark.parametrize("affine", ["first", "task"])
def test_a_new_task_has_the_precision_of_the_layer(affine: str) -> None:
    layer = norm("stored", affine)
    layer.add_task()
    assert {t.dtype for t in layer.state_dict().values()} == {torch.float64}


def test_one_sample_is_refused_where_its_batch_is_all_there_is() -> None:
    x = normal(1, 3)
    for layer in (norm(), norm().eval(), norm("stored")):
        with pytest.raises(UserError, match="one sample"):
            layer(x)
    assert norm("stored").eval()(x).shape == (1, 3)
    assert norm()(normal(1, 3, 4)).shape == (1, 3, 4)  # four values for every channel


def dropped(share: float, x: Tensor, seed: int) -> Tensor:
    layer = Dropout(share)
    layer.generator = torch.Generator().manual_seed(seed)
    return layer(x)


@settings(deadline=None, max_examples=30)
@given(share=st.floats(0.01, 0.95), seed=st.integers(0, 2**32 - 1))
def test_dropout_depends_on_its_generator_alone(share: float, seed: int) -> None:
    x = normal(5, 40)
    actual = dropped(share, x, seed)
    assert torch.equal(actual, dropped(share, x, seed))
    kept = actual != 0
    rounded = round(share * 256) / 256
    assert torch.allclose(actual[kept], x[kept] / (1 - rounded), rtol=1e-12)


def test_dropout_treats_every_layout_alike() -> None:
    x = 1 + normal(2, 3, 4, 5).abs()
    last = x.contiguous(memory_format=torch.channels_last)
    for tensor in (x, last, x[:, :, ::2], x.transpose(1, 2)):
        actual = dropped(0.5, tensor, 3)
        kept = actual != 0
        assert 0.2 < kept.double().mean() < 0.8
        assert torch.equal(actual[kept], 2 * tensor[kept])


def test_dropout_draws_anew_for_every_batch() -> None:
    layer = Dropout(0.5)
    layer.generator = torch.Generator().manual_seed(0)
    x = torch.ones(4, 50)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_dropout_is_right_on_average(share: float) -> None:
    count = 200_000
    actual = dropped(share, torch.ones(count, dtype=torch.float64), 0)
    share = round(share * 256) / 256
    error = (share / (1 - share) / count) ** 0.5  # standard deviation of the mean
    assert abs(actual.mean().item() - 1) < 4 * error
    assert (
        abs((actual == 0).double().mean().item() - share) < 4 * (share * (1 - share) / count) ** 0.5
    )


def test_dropout_leaves_predictions_and_gradients_of_kept_values_alone() -> None:
    x = normal(3, 4).requires_grad_()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    actual = dropped(0.5, x, 0)
    actual.sum().backward()
    assert torch.equal(x.grad, (actual != 0).double() * 2)


def test_copies_for_contrast_do_not_count_for_the_statistics_of_predictions() -> None:
    net = build("mlp", (1, 4, 4), batch_norm=True, norm="stored")
    net.add_task(2)
    net.train()
    with net.frozen_bn_stats():
        net.embed(normal(6, 1, 4, 4).float(), 0)
    norms = [m for m in net.modules() if isinstance(m, TaskBatchNorm)]
    assert all(not norm.mean_0.any() and norm.variance_0.eq(1).all() for norm in norms)
    net.embed(normal(6, 1, 4, 4).float(), 0)
    assert all(norm.mean_0.any() for norm in norms)


def elsewhere(call: Callable[[], int]) -> int:
    """Return the result of a call in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_a_selected_task_holds_in_all_threads_and_in_copies() -> None:
    layer = norm("stored")
    layer.add_task()
    layer.add_task()
    layer.task = 1
    assert elsewhere(lambda: layer.task) == 1
    copies: list[TaskBatchNorm] = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    for one in copies:
        assert (one.task, elsewhere(lambda one=one: one.task)) == (1, 1)
        one.task = 2
    assert layer.task == 1


def test_a_thread_that_selects_a_task_itself_changes_no_other() -> None:
    layer = norm("stored")
    layer.add_task()

    def select() -> int:
        layer.selection.select_here(0)
        return layer.task

    assert elsewhere(select) == 0
    assert (layer.task, elsewhere(lambda: layer.task)) == (1, 1)
    layer.selection.select_here(0)
    layer.task = 1  # the last word counts
    assert layer.task == 1


def test_layers_that_share_a_selection_do_so_in_copies() -> None:
    first, second = norm("stored"), norm("stored")
    second.selection = first.selection
    for one, other in [
        copy.deepcopy((first, second)),
        pickle.loads(pickle.dumps((first, second))),
    ]:
        one.task = 3
        assert other.task == 3


def test_a_network_selects_for_all_threads_in_training_and_for_its_own_in_predictions() -> None:
    net = build("mlp", (6,), 1, norm="stored", affine="task", batch_norm=True, width=8)
    for _ in range(3):
        net.add_task(2)
    layer = next(module for module in net.modules() if isinstance(module, TaskBatchNorm))
    net.train()(normal(4, 6, seed=1).float(), 1)
    assert (layer.task, elsewhere(lambda: layer.task)) == (1, 1)
    net.eval()(normal(4, 6, seed=1).float(), 2)
    assert (layer.task, elsewhere(lambda: layer.task)) == (2, 1)


def test_the_task_of_a_guard_holds_in_other_threads() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(3, 3), norm("stored"))).double()
    x, labels = normal(12, 3), torch.arange(12) % 2
    model.train()(x)
    guard = attach(model, GPM())
    guard.end_task([(x, labels)])
    model.train()(5 + x)
    model.eval()
    outputs = []
    for task in (1, 0):
        guard.use_task(task)
        outputs.append(model(x))
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(model, x).result(), outputs[-1])
    assert not torch.allclose(*outputs)
