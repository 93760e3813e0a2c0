"""The networks of the paper, to the last weight."""

import pytest
import torch
from torch import nn

from classgrad import networks
from classgrad.core.layers import sites
from classgrad.networks.layers import TaskBatchNorm


def built(name, **options):
    return networks.build(name, (3, 32, 32), **options)


@pytest.mark.parametrize(
    ("name", "weights", "norms", "embedding", "dimensions"),
    [
        ("alexnet5", 6_499_328, 9_088, 2048, [48, 576, 512, 1024, 2048]),
        ("lenet5", 2_986_500, 0, 500, [75, 500, 3200, 800]),
        ("resnet18", 1_090_140, 3_000, 640, None),
    ],
)
def test_counts_are_those_of_the_released_code(name, weights, norms, embedding, dimensions):
    net = built(name)
    result = sites(net.trunk)
    assert sum(site.weight.numel() for site in result.values()) == weights
    assert sum(p.numel() for p in net.trunk.parameters()) == weights + norms
    assert net.embedding == embedding
    if dimensions:
        assert [site.dimension for site in result.values()] == dimensions


def test_resnet18_has_twenty_projected_layers_with_three_shortcuts():
    result = sites(built("resnet18").trunk)
    assert len(result) == 20
    assert [name for name in result if "shortcut" in name] == [
        "stage2.0.shortcut.0",
        "stage3.0.shortcut.0",
        "stage4.0.shortcut.0",
    ]
    wide = {name: site.dimension for name, site in result.items()}
    assert wide["conv1"] == 27
    assert wide["stage4.1.conv2"] == 160 * 9
    assert wide["stage4.0.shortcut.0"] == 80


def test_layers_come_in_the_order_of_the_released_code():
    order = [type(layer).__name__ for layer in built("alexnet5").trunk]
    block = ["Conv2d", "TaskBatchNorm", "ReLU", "Dropout", "MaxPool2d"]
    dense = ["Linear", "TaskBatchNorm", "ReLU", "Dropout"]
    assert order == block * 3 + ["Flatten"] + dense * 2
    shares = [
        layer.share for layer in built("alexnet5").trunk if isinstance(layer, networks.Dropout)
    ]
    assert shares == pytest.approx([0.2, 0.2, 0.5, 0.5, 0.5], abs=1 / 512)
    lenet = [type(layer).__name__ for layer in built("lenet5").trunk]
    part = ["Conv2d", "ReLU", "LocalResponseNorm", "MaxPool2d"]
    assert lenet == part * 2 + ["Flatten"] + ["Linear", "ReLU"] * 2


def test_sizes_shrink_as_in_the_released_code():
    sizes = {"alexnet5": {"pool1": 14, "pool2": 6, "pool3": 2}, "lenet5": {"pool1": 16, "pool2": 8}}
    for name, wanted in sizes.items():
        x = torch.zeros(2, 3, 32, 32)
        for label, layer in built(name).trunk.named_children():
            x = layer(x)
            if label in wanted:
                assert x.shape[-1] == wanted[label]


def test_lenet_weights_are_spread_for_relu_and_the_others_as_pytorch_does():
    lenet = built("lenet5").trunk.get_submodule("fc1").weight.detach()
    assert lenet.abs().max() == pytest.approx((6 / 3200) ** 0.5, rel=1e-3)
    alexnet = built("alexnet5").trunk.get_submodule("fc1").weight.detach()
    assert alexnet.abs().max() == pytest.approx((1 / 1024) ** 0.5, rel=1e-3)


def test_nothing_has_a_bias_and_all_norms_are_per_task():
    for name in ("alexnet5", "lenet5", "resnet18", "mlp"):
        for layer in built(name, norm="stored", affine="task").trunk.modules():
            assert getattr(layer, "bias", None) is None
            assert not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
            if isinstance(layer, TaskBatchNorm):
                assert (layer.statistics, layer.affine) == ("stored", "task")
