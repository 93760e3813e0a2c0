"""The optimiser of runs is PyTorch's SGD, without what torch.compile needs."""

import subprocess
import sys

import pytest
import torch

from classgrad.core.projector import updates_follow_gradients
from classgrad.training.sgd import SGD


def weights(seed):
    rng = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(5, 4, generator=rng)) for _ in range(3)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "fused": True},
    ],
)
def test_it_is_sgd_bit_for_bit(settings):
    both = [weights(0), weights(0)]
    kinds = SGD, torch.optim.SGD
    optimizers = [kind(p, lr=0.1, **settings) for kind, p in zip(kinds, both, strict=True)]
    before = [p.detach().clone() for p in both[0]]
    for number in range(4):
        for parameters, optimizer in zip(both, optimizers, strict=True):
            optimizer.zero_grad()
            assert all(p.grad is None for p in parameters)
            gradients = weights(number + 1)
            sum((p * g).sum() for p, g in zip(parameters, gradients, strict=True)).backward()
            optimizer.step()
        for ours, theirs in zip(*both, strict=True):
            assert torch.equal(ours, theirs)
    assert not any(torch.equal(p, start) for p, start in zip(both[0], before, strict=True))


def test_its_hooks_are_called_and_a_closure_is():
    parameters = weights(0)
    optimizer, called = SGD(parameters, lr=0.1), []
    optimizer.register_step_post_hook(lambda *_: called.append("hook"))

    def closure():
        assert torch.is_grad_enabled()
        called.append("closure")
        return 2.0

    assert optimizer.step(closure) == 2.0
    assert called == ["closure", "hook"]


def test_its_updates_follow_projected_gradients_but_not_with_weight_decay_or_a_step_of_its_own():
    class Other(SGD):
        def step(self, closure=None):
            return None

    assert updates_follow_gradients(SGD(weights(0), lr=0.1, momentum=0.9))
    assert not updates_follow_gradients(SGD(weights(0), lr=0.1, weight_decay=0.1))
    assert not updates_follow_gradients(Other(weights(0), lr=0.1))


def test_a_run_does_not_import_what_torch_compile_needs(tmp_path):
    code = (
        "import sys; from classgrad.cli import main; sys.argv = ['classgrad', 'run', "
        "'--method', 'cgp,gpm,finetune', '--set', 'epochs=1', '--set', 'train_per_class=8', "
        f"'--out', {str(tmp_path)!r}]\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "assert 'torch.optim' in sys.modules\n"
        "print(sorted({'torch._dynamo', 'sympy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"
