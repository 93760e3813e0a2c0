"""The embedding of one sentence by BERT's equations, token by token, without padding."""

import math

import torch
from torch import Tensor


def embedding(weights: dict[str, Tensor], ids: list[int], heads: int) -> Tensor:
    """Return the mean over tokens of what the last block makes of them."""
    x = [weights["tokens.word.weight"][i] + weights["tokens.position.weight"][at]
         for at, i in enumerate(ids)]  # fmt: skip
    x = [norm(weights, "tokens.norm", row) for row in x]
    number = 0
    while f"block{number}.query.weight" in weights:
        x = block(weights, f"block{number}", x, heads)
        number += 1
    return torch.stack(x).mean(0)


def block(weights: dict[str, Tensor], name: str, x: list[Tensor], heads: int) -> list[Tensor]:
    """Return what one block makes of the tokens."""
    q, k, v = ([linear(weights, f"{name}.{part}", row) for row in x]
               for part in ("query", "key", "value"))  # fmt: skip
    size = len(x[0]) // heads
    out = []
    for at, row in enumerate(x):
        attended = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = [float(q[at][part] @ key[part]) / math.sqrt(size) for key in k]
            total = sum(math.exp(score) for score in scores)
            shares = [math.exp(score) / total for score in scores]
            attended.append(
                sum(share * value[part] for share, value in zip(shares, v, strict=True))
            )
        mixed = linear(weights, f"{name}.mix", torch.cat(attended))
        row = norm(weights, f"{name}.norm_mix", row + mixed)
        wide = linear(weights, f"{name}.widen", row)
        wide = wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
        out.append(
            norm(weights, f"{name}.norm_narrow", row + linear(weights, f"{name}.narrow", wide))
        )
    return out


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Return W x + b."""
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def norm(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Return x with mean 0 and deviation 1, scaled and shifted."""
    spread = (x - x.mean()).square().mean()
    return (x - x.mean()) / (spread + 1e-12).sqrt() * weights[f"{name}.weight"] + weights[
        f"{name}.bias"
    ]
