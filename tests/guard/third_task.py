"""A process that loads a model and its guard and learns a third task; started by test_saved."""

import sys
from pathlib import Path

import torch

from classgrad.guard.attach import attach
from guard.loops import small, train


def main() -> None:
    """Load, learn, and save the weights."""
    folder = Path(sys.argv[1])
    model = small()
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
    attach(model, folder / "guard.safetensors", optimizer)
    train(model, optimizer, 2, 3)
    torch.save(model.state_dict(), folder / "learnt.pt")


if __name__ == "__main__":
    main()
