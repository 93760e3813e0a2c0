"""The inputs of the weight matrices of nn.RNN, nn.LSTM and nn.GRU.

Every layer and direction has two: W_ih multiplies the inputs x_t, W_hh the hidden states h_{t-1}.
The module returns the states of its last layer only. So its layers are run one after another, each
on the outputs of the one before. Biases, and the matrix W_hr of an LSTM with `proj_size`, whose
inputs are never returned, are no sites: they are frozen once a task has used them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from classgrad.core.layers import LayerKind, Matrix, Record, register_layer
from classgrad.errors import UserError

FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


class RecurrentKind(LayerKind[nn.RNNBase]):
    """Two matrices for each layer and direction; both directions have the same inputs."""

    def matrices(self, layer: nn.RNNBase) -> list[Matrix]:
        """List the matrices for inputs and hidden states.

        >>> [(m.suffix, m.input) for m in RecurrentKind().matrices(nn.GRU(2, 3, num_layers=2))]
        [('[ih_l0]', 0), ('[hh_l0]', 1), ('[ih_l1]', 2), ('[hh_l1]', 3)]
        """
        matrices = []
        for number in range(layer.num_layers):
            first = number * (1 + directions(layer))
            for direction in range(directions(layer)):
                end = f"l{number}" + direction * "_reverse"
                for part, index in (("ih", first), ("hh", first + 1 + direction)):
                    name = f"weight_{part}_{end}"
                    height = len(layer.get_parameter(name))
                    matrices.append(Matrix(f"[{part}_{end}]", name, 0, height, index))
        return matrices

    @contextmanager
    def record_inputs(self, layer: nn.RNNBase, record: Record) -> Iterator[None]:
        """Record the inputs and hidden states of every layer and direction in the block."""

        def hook(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            sequence = args[0] if args else kwargs["input"]
            record_layers(layer, record, sequence, args[1] if args[1:] else kwargs.get("hx"))

        handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def directions(layer: nn.RNNBase) -> int:
    """Return 2 for a bidirectional layer, otherwise 1."""
    return 1 + layer.bidirectional


@torch.no_grad()
def record_layers(layer: nn.RNNBase, record: Record, x: Tensor, states: Any) -> None:
    """Run the layers of the module one after another, and record what each multiplies."""
    if not isinstance(x, Tensor) or x.dim() != 3:
        raise UserError(
            f"a {type(layer).__name__} saw a packed sequence, or one without a batch: to know "
            "which inputs belong to one sample, give it a tensor of three dimensions"
        )
    x = x if layer.batch_first else x.transpose(0, 1)
    both = directions(layer)
    memory = layer.mode == "LSTM"
    if states is None:
        widths = [layer.proj_size or layer.hidden_size, *[layer.hidden_size] * memory]
        states = [x.new_zeros(layer.num_layers * both, len(x), width) for width in widths]
    else:
        states = list(states) if memory else [states]
    for number in range(layer.num_layers):
        part = slice(number * both, (number + 1) * both)
        own = [state[part].contiguous() for state in states]
        weights = [weight for group in layer.all_weights[part] for weight in group]
        outputs, *_ = FUNCTIONS[layer.mode](
            x, own if memory else own[0], weights, layer.bias, 1, 0.0, False, both == 2, True
        )
        first = number * (1 + both)
        record(first, x)
        for direction, hidden in enumerate(outputs.chunk(both, dim=-1)):
            start = own[0][direction].unsqueeze(1)
            before = [hidden[:, 1:], start] if direction else [start, hidden[:, :-1]]
            record(first + 1 + direction, torch.cat(before, 1))
        x = outputs


register_layer(nn.RNN, RecurrentKind())
register_layer(nn.LSTM, RecurrentKind())
register_layer(nn.GRU, RecurrentKind())
