"""What all tests share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def global_chance_untouched():
    """No code under test may draw from PyTorch's global generator."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state())
