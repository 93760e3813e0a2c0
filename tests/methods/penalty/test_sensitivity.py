"""Sums over gradients per sample, against one backward pass for each sample."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from classgrad import networks
from classgrad.errors import UserError
from classgrad.methods.penalty import sensitivity as module
from classgrad.methods.penalty.sensitivity import per_sample_sums, sensitivity
from classgrad.networks.layers import TaskBatchNorm
from oracles.models import built, in_turn, normal
from oracles.sensitivities import logits_apart, one_by_one
from streams import blobs

MEASURES = [torch.square, torch.abs]
FLAT = blobs(tasks=2, classes=3, shape=(1, 4, 4), per_class=5)
IMAGES = blobs(tasks=2, classes=2, shape=(3, 19, 19), per_class=1)
SMALL = blobs(tasks=2, classes=2, shape=(3, 10, 10), per_class=3)
NETS = {
    "mlp": ("mlp", FLAT, {"width": 7}),
    "mlp batch": ("mlp", FLAT, {"width": 7, "batch_norm": True, "dropout": 0.5}),
    "mlp stored": ("mlp", FLAT, {"width": 7, "batch_norm": True, "norm": "stored"}),
    "mlp own affine": ("mlp", FLAT, {"width": 7, "batch_norm": True, "affine": "task"}),
    "mlp shared head": ("mlp", FLAT, {"width": 7, "batch_norm": True, "heads": "shared"}),
    "lenet5": ("lenet5", SMALL, {}),
    "alexnet5": ("alexnet5", IMAGES, {}),
    "resnet18 batch": ("resnet18", SMALL, {"width": 2}),
    "resnet18 stored": ("resnet18", SMALL, {"width": 2, "norm": "stored"}),
}


def prepared(kind):
    """A network in float64 at its second task, with norms that have learnt something."""
    name, stream, options = NETS[kind]
    net = networks.build(name, stream.input_shape, **options)
    for task in stream:
        net.add_task(task.classes)
    net.double()
    rng = torch.Generator().manual_seed(1)
    for path, value in net.state_dict().items():
        if any(word in path for word in ("scale", "shift", "mean", "variance")):
            value.add_(torch.rand(value.shape, generator=rng, dtype=value.dtype))
    return net, stream[1]


def close(result, wanted):
    return all(
        torch.allclose(result.get(name, torch.zeros_like(value)), value, rtol=1e-10, atol=1e-14)
        for name, value in wanted.items()
    )


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("kind", NETS)
def test_sums_equal_those_of_one_backward_pass_for_each_sample(kind, measure):
    net, task = prepared(kind)
    result = sensitivity(
        net,
        task,
        dict(net.protected().named_parameters()),
        lambda logits, y: functional.cross_entropy(logits, y, reduction="none"),
        measure,
        1000,
        torch.Generator(),
    )
    logits = logits_apart(net, task)
    entropies = functional.cross_entropy(logits, task.train.labels, reduction="none")
    wanted = one_by_one(net.protected(), entropies, measure)
    assert result.keys() == wanted.keys()
    assert sum(bool(value.any()) for value in wanted.values()) > 1
    count = len(task.train)
    assert close(result, {name: value / count for name, value in wanted.items()})
    assert not close(result, {name: value / (count + 1) for name, value in wanted.items()})


def everything():
    """Biases, groups, several rows per sample, and one layer used twice."""
    return nn.ModuleDict(
        {
            "conv": nn.Conv1d(4, 6, 2, stride=2, padding=1, groups=2),
            "twice": nn.Linear(6, 6),
            "out": nn.Linear(6, 3),
        }
    )


def through(model, x):
    hidden = model["conv"](x).transpose(1, 2)
    hidden = torch.tanh(model["twice"](input=hidden))
    return model["out"](torch.tanh(model["twice"](hidden.sum(1)))).square().sum(1)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("chunk", [1, 2**19])
def test_biases_groups_rows_and_layers_used_twice(measure, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    model, x = built(everything), normal(5, 4, 6)
    result = per_sample_sums(model, lambda: through(model, x), measure)
    wanted = one_by_one(model, through(model, x), measure)
    assert result.keys() == wanted.keys()
    assert close(result, wanted)


CONVOLUTIONS = {
    "strides": (lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1)), (5, 3, 9, 7)),
    "padding": (lambda: nn.Conv2d(3, 4, 3, padding=(2, 1)), (5, 3, 6, 7)),
    "same": (lambda: nn.Conv2d(3, 4, 3, padding="same", dilation=(1, 2)), (5, 3, 6, 7)),
    "reflected": (lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), (5, 3, 6, 7)),
    "dilation": (lambda: nn.Conv2d(3, 4, (2, 3), dilation=(3, 2)), (5, 3, 8, 9)),
    "groups": (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2), (5, 6, 7, 7)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, dilation=2, groups=4), (5, 4, 8, 7)),
    "one position": (lambda: nn.Conv2d(3, 4, (6, 7)), (5, 3, 6, 7)),
    "groups, one position": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (5, 4, 3, 3)),
    "one axis": (lambda: nn.Conv1d(4, 6, 3, padding=2, dilation=2, groups=2), (5, 4, 9)),
    "three axes": (lambda: nn.Conv3d(4, 6, (2, 1, 3), padding=1, groups=2), (5, 4, 4, 3, 5)),
}


def lengths(model, x):
    return torch.tanh(model(x)).flatten(1).square().sum(1)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("chunk", [300, 2**19])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_of_every_kind(kind, chunk, measure, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    make, shape = CONVOLUTIONS[kind]
    model, x = built(make), normal(*shape)
    layouts = [torch.contiguous_format, *([torch.channels_last] if x.dim() == 4 else [])]
    for layout in layouts:
        model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)

        result = per_sample_sums(model, partial(lengths, model, x), measure)
        wanted = one_by_one(model, lengths(model, x), measure)
        assert result.keys() == wanted.keys()
        assert all(result[name].shape == value.shape for name, value in wanted.items())
        assert close(result, wanted)
        assert not close(result, {name: value.flip(0) for name, value in wanted.items()})


def test_sums_are_added_to_totals():
    model = built(everything)
    first, second = normal(5, 4, 6), normal(3, 4, 6, seed=1)
    totals = {}
    for x in (first, second):
        result = per_sample_sums(model, lambda x=x: through(model, x), torch.square, totals)
        assert result is totals
    assert close(
        totals, one_by_one(model, through(model, torch.cat([first, second])), torch.square)
    )
    assert not close(totals, one_by_one(model, through(model, second), torch.square))


def test_a_model_of_one_layer_has_names_without_a_prefix():
    model, x = built(lambda: nn.Linear(4, 2)), normal(6, 4)
    result = per_sample_sums(model, lambda: model(x).square().sum(1), torch.square)
    assert result.keys() == {"weight", "bias"}


def test_an_in_place_layer_changes_nothing():
    model = built(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)))
    x = normal(6, 4)
    result = per_sample_sums(model, lambda: model(x).square().sum(1), torch.square)
    assert close(result, one_by_one(model, model(x).square().sum(1), torch.square))


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 2), lambda: TaskBatchNorm(4, "stored")])
def test_an_input_that_is_overwritten_later_counts_as_it_was(make):
    model, x = built(make).eval(), normal(6, 4)

    def run():
        passing = x.clone()
        output = model(passing)
        passing.zero_()
        return output.square().sum(1)

    result = per_sample_sums(model, run, torch.square)
    assert close(result, one_by_one(model, model(x).square().sum(1), torch.square))


def test_an_input_of_batch_norm_that_is_overwritten_later_is_never_counted_wrongly():
    model = built(lambda: nn.Sequential(nn.Linear(4, 4), TaskBatchNorm(4, "stored")))
    model.eval()
    x = normal(6, 4)

    def run():
        hidden = model[0](x)
        output = model[1](hidden)
        hidden.zero_()
        return output.square().sum(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        per_sample_sums(model, run, torch.square)


def test_samples_are_drawn_from_the_generator_and_no_more_than_asked():
    net, task = prepared("mlp stored")
    seen = []

    def count(logits, y):
        seen.append(len(y))
        return logits[:, 0]

    parameters = {"fc1.weight": net.trunk.fc1.weight}
    runs = [
        sensitivity(net, task, parameters, count, torch.abs, 4, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert seen == [4, 4, 4]
    assert runs[0].keys() == parameters.keys()
    assert torch.equal(runs[0]["fc1.weight"], runs[1]["fc1.weight"])
    assert not torch.equal(runs[0]["fc1.weight"], runs[2]["fc1.weight"])


@pytest.mark.parametrize("mode", [True, False])
def test_the_network_is_left_as_it_was(mode):
    net, task = prepared("mlp stored")
    net.train(mode)
    before = {name: value.clone() for name, value in net.state_dict().items()}

    def explode(logits, y):
        raise RuntimeError("half way")

    def plain(logits, y):
        return logits[:, 0]

    for scalar, wanted in ((plain, nullcontext()), (explode, pytest.raises(RuntimeError))):
        with wanted:
            sensitivity(net, task, {}, scalar, torch.abs, 9, torch.Generator())
        assert net.training is mode
        assert all(m.training is mode and not m._forward_hooks for m in net.modules())
        assert not net.trunk.bn1.constant
        assert all(torch.equal(before[name], v) for name, v in net.state_dict().items())
        assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize(
    ("layer", "named"),
    [(nn.LayerNorm(4), "LayerNorm"), (nn.PReLU(), "PReLU"), (nn.Bilinear(4, 4, 4), "Bilinear")],
)
def test_other_layers_with_parameters_are_refused_by_name(layer, named):
    model = nn.Sequential(nn.Identity(), layer)
    with pytest.raises(UserError, match=f"'1' \\({named}\\)"):
        per_sample_sums(model, lambda: torch.zeros(3), torch.abs)


def test_frozen_layers_of_any_kind_are_passed_over():
    model = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    model[1].requires_grad_(False)
    x = normal(6, 4)
    result = per_sample_sums(model, lambda: model(x)[:, 0], torch.abs)
    assert result.keys() == {"0.weight", "0.bias"}
    assert close(result, one_by_one(model, model(x)[:, 0], torch.abs))


def test_a_layer_that_mixes_samples_is_refused():
    model = built(lambda: nn.Sequential(nn.Linear(4, 2)))
    x = normal(6, 4)
    with pytest.raises(UserError, match=r"'0' saw an input of shape \(3, 2, 4\)"):
        per_sample_sums(model, lambda: model(x.view(3, 2, 4)).flatten(0, 1).sum(1), torch.abs)


def test_labels_go_with_their_images():
    net, task = prepared("mlp")
    seen = {}

    def note(logits, y):
        seen["y"], seen["logits"] = y, logits.detach()
        return logits[:, 0]

    rng = torch.Generator().manual_seed(3)
    sensitivity(net, task, {}, note, torch.abs, 1000, rng)
    logits = logits_apart(net, task).detach()
    for row, label in zip(seen["logits"], seen["y"], strict=True):
        match = (logits - row).abs().sum(1).argmin()
        assert task.train.labels[match] == label
    assert torch.equal(seen["y"].sort().values, task.train.labels.sort().values)
    assert not torch.equal(seen["y"], in_turn(len(seen["y"]), 3))
