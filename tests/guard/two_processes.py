"""One of two processes that train a guarded model together; started by test_steps."""

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

from classgrad.guard.attach import attach
from guard.loops import Moves, everything, small, task


def main() -> None:
    """Learn two tasks, each process on its half of the data; save the weights and the leak."""
    rank, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Not a file store: with one, the two have waited for each other without end.
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    inner = small()
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, everything(), optimizer, project_every=int(sys.argv[4]))
    for number in range(2):
        x, y = (values[rank::2] for values in task(number))
        moves = Moves(guard)
        for step in range(5):
            if (number, step, rank) == (1, 2, 0):
                inner.eval()(x)  # one process alone
                inner.train()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if number == 0:
            guard.end_task([(x, y)])
    guard.project()
    torch.save(
        {
            "weights": dict(inner.state_dict()),
            "leak": moves.leak(),
            "moved": moves.moved(),
            "ranks": [layer.rank for layer in guard.layer_ranks()],
            "report": guard.report().as_dict(),
        },
        folder / f"{rank}.pt",
    )
    distributed.barrier()  # the first has the store
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
