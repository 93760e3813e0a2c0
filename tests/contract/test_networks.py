"""What every network in the table promises."""

import pytest
import torch

from classgrad import networks
from classgrad.core.layers import sites
from classgrad.core.projector import Projector
from classgrad.data.sentences import as_bytes
from classgrad.errors import UserError
from classgrad.networks import NETWORKS

pytestmark = pytest.mark.parametrize("name", NETWORKS)
SENTENCES = ["move my money", "play jazz", "Où est l'hôtel?", "x", "what?", "a b c", "y z", "!"]
# So that pretrained networks need no files and little time, and have weights to protect.
SMALL = {"weights": "random", "size": 32, "trainable": 99}


def build(name, shape=None, seed=1, **options):
    accepted = {n: v for n, v in SMALL.items() if NETWORKS[name].Options.accepts(n)}
    shape = shape or batch(name, 1).shape[1:]
    return networks.build(name, shape, seed, **accepted, **options)


def batch(name, count=4):
    if NETWORKS[name].reads == "sentences":
        return as_bytes(SENTENCES[:count], 64) / 255
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_gives_logits_per_task(name):
    net = build(name)
    net.add_task(3)
    net.add_task(5)
    assert net(batch(name), 0).shape == (4, 3)
    assert net(batch(name), 1).shape == (4, 5)
    assert net.embed(batch(name), 0).shape == (4, net.embedding)


def test_same_seed_same_weights(name):
    one, two, other = (build(name, seed=seed) for seed in (1, 1, 2))
    for net in (one, two, other):
        net.add_task(3)
    pairs = list(zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_every_weight_matrix_can_be_protected(name):
    net = build(name)
    projector = Projector(net.trunk)
    weights = {id(site.weight) for site in projector.sites.values()}
    beside = projector.non_matrix_parameters(net.trunk.modules())
    trainable = [name for name, p in net.trunk.named_parameters() if p.requires_grad]
    assert len(weights) + len(set(beside).intersection(trainable)) == len(trainable)


def test_the_wiring_names_every_layer_with_weights_once(name):
    trunk = build(name).trunk
    if not any(isinstance(layer, torch.nn.ReLU) for layer in trunk.modules()):
        with pytest.raises(UserError, match="choose another network for this method"):
            trunk.wiring()
        return
    wires = trunk.wiring()
    result = [layer for wire in wires for layer in (wire.layer, wire.norm) if layer]
    weighted = [n for n, m in trunk.named_modules() if list(m.parameters(recurse=False))]
    assert sorted(result) == sorted(weighted)
    relus = {n for n, m in trunk.named_modules() if isinstance(m, torch.nn.ReLU)}
    assert {wire.target for wire in wires} == relus
    assert [wire.source for wire in wires].count(None) == 1
    assert {wire.source for wire in wires} == {None, *relus} - {wires[-1].target}


def test_every_site_sees_the_rows_its_weight_multiplies(name):
    from classgrad.core.layers import tap

    net = build(name)
    result = sites(net.trunk)
    net.eval()
    outputs = {}
    keep = [
        site.layer.register_forward_hook(lambda layer, _x, y: outputs.setdefault(layer, y))
        for site in result.values()
    ]
    with torch.no_grad(), tap(result.values()) as seen:
        net.embed(batch(name, 2), 0)
    for handle in keep:
        handle.remove()
    for site in result.values():
        product = site.rows(seen[site.source][0]) @ site.matrix(site.weight).T
        y = outputs[site.layer]
        if isinstance(site.layer, torch.nn.Linear):
            bias = 0 if site.layer.bias is None else site.layer.bias
            expected = y.flatten(0, -2) - bias
        else:
            expected = y.flatten(2).transpose(1, 2).reshape(-1, y.shape[1])
        torch.testing.assert_close(product, expected, atol=1e-4, rtol=1e-4)


def test_stored_statistics_make_predictions_independent_of_the_batch(name):
    stored = {"norm": "stored"} if NETWORKS[name].Options.accepts("norm") else {}
    net = build(name, **stored)
    net.add_task(3)
    net.train()
    net.embed(batch(name, 8), 0)
    net.eval()
    alone = torch.cat([net(batch(name, 4)[i : i + 1], 0) for i in range(4)])
    torch.testing.assert_close(alone, net(batch(name, 4), 0), atol=1e-5, rtol=1e-5)


def test_inputs_that_it_cannot_read_are_refused_by_name(name):
    if NETWORKS[name].reads == "sentences":
        with pytest.raises(UserError, match="reads the bytes of sentences"):
            build(name, (3, 32, 32))
        return
    if NETWORKS[name].smallest == 1:
        assert build(name, (5,)).embedding
        return
    small = NETWORKS[name].smallest - 1
    with pytest.raises(UserError, match=f"network '{name}' needs images"):
        build(name, (1, small, small))
    assert build(name, (1, small + 1, small + 1)).embedding
