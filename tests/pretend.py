"""A GPU that is not there: tensors say they are on it, and compute on the CPU.

It is as strict as a real one. What a real one refuses raises here too: operations on tensors of two
places (a number, or an index, may be on the CPU), random numbers from a generator of the CPU, and
`numpy()`; on mps double precision, too.
"""

from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

aten = torch.ops.aten
CROSSING = {aten.copy_.default, aten._to_copy.default}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}


class WrongPlace(RuntimeError):
    """An operation that a real device would refuse."""


class Pretend(Tensor):
    """A tensor on the device; `inner` has its numbers, on the CPU.

    To the C++ of PyTorch it is a tensor without numbers (meta), so that nothing there touches them.
    """

    place = torch.device("cuda:0")

    @staticmethod
    def __new__(cls, inner):
        if inner.dtype == torch.float64 and cls.place.type == "mps":
            raise WrongPlace("no double precision on this device")
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner):
        self.inner = inner

    @property
    def device(self):
        return self.place

    @property
    def is_meta(self):
        return False

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, value):
        Tensor.data.__set__(self, value)
        self.inner = value.inner

    def numpy(self, *args, **kwargs):
        raise WrongPlace("numpy() of a tensor on a device")

    def tolist(self):
        return self.inner.tolist()

    def __repr__(self, **kwargs):
        return f"Pretend({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """Do an operation in the place where its tensors are."""
    values, form = tree_flatten((args, kwargs))
    given = [value for value in values if isinstance(value, Tensor)]
    owners = {id(value.inner): value for value in given if isinstance(value, Pretend)}
    wanted = kwargs.get("device")
    here = bool(owners) if wanted is None else wanted.type in (Pretend.place.type, "meta")
    if here and any(isinstance(value, torch.Generator) for value in values):
        raise WrongPlace(f"{func} with a generator of the CPU")
    refuse(func, args, given, owners)
    values = [value.inner if isinstance(value, Pretend) else value for value in values]
    args, kwargs = tree_unflatten(values, form)
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    out = func(*args, **kwargs)
    if not here:
        return out

    def owned(value):
        return owners[id(value)] if id(value) in owners else Pretend(value)

    return tree_map_only(Tensor, owned, out)  # what is changed in place stays the tensor it was


def refuse(func, args, given, owners):
    """Refuse tensors of two places."""
    if any(value.is_meta for value in given):  # made from a list by C++, which asks nobody here
        raise WrongPlace(f"{func} of a tensor without numbers")
    if not owners or func in CROSSING:
        return
    if func in INDEXING and isinstance(args[0], Pretend):
        given = [args[0], *args[2:3]]  # indices may be anywhere
    plain = [value for value in given if type(value) is not Pretend and value.dim()]
    if plain:
        raise WrongPlace(f"{func} of tensors on a device and on the CPU")


class _Mode(TorchDispatchMode):
    """Makes new tensors on the device where that is asked for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if Pretend not in types and kwargs.get("device") is None:
            return func(*args, **kwargs)
        return run(func, args, kwargs)


def tensor(make, data, *, device=None, **options):
    """Do what `torch.tensor` does."""
    made = make(data, **options)
    return made if device is None else made.to(device)


@contextmanager
def pretend_device(patch, name="cuda:0"):
    """Have a device in the block."""
    patch.setattr(torch.cuda, "_lazy_init", lambda: None)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(torch, "tensor", partial(tensor, torch.tensor))  # it asks no mode
    patch.setattr(torch.backends.mps, "is_available", lambda: True)
    patch.setattr(Pretend, "place", torch.device(name))
    with _Mode():
        yield Pretend.place
