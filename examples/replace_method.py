"""The same learner with another method: what each still knows of the first task in the end."""

import torch
from torch import Tensor, nn

from classgrad import CGP, GPM, Learner, Training
from classgrad.benchmarks.digits import digits
from classgrad.methods import Finetune


def main() -> None:
    """Learn handwritten digits, then two tasks of them with their pixels in another order."""
    train, test = digits()
    rng = torch.Generator().manual_seed(1)
    orders = [torch.arange(64), *(torch.randperm(64, generator=rng) for _ in range(2))]
    torch.manual_seed(1)
    trunk = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
    training = Training(epochs=6, batch_size=32, learning_rate=0.4)
    for method in (CGP(contrast=0), GPM(), Finetune()):  # the contrast is for pictures
        learner = Learner(trunk, method, training=training)  # learns with a copy of the trunk
        known = []
        for number, order in enumerate(orders):
            learner.learn(f"order {number}", (flat(train.images)[:, order], train.labels))
            predictions = learner.predict(flat(test.images), task="order 0", batch_size=64)
            right = [
                int(one.name) == label for one, label in zip(predictions, test.labels, strict=True)
            ]
            known.append(100 * sum(right) / len(right))
        print(f"{method.name}: {known[0]:.1f} % of the first task, in the end {known[-1]:.1f} %")


def flat(images: Tensor) -> Tensor:
    """Return images as rows of numbers from 0 to 1."""
    return images.flatten(1) / 255


if __name__ == "__main__":
    main()
