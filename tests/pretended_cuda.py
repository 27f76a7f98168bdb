"""A pretended CUDA device for machines without one: the CPU computes, and what would fail on a GPU fails.

A tensor's place is written on its storage, so that views and what autograd saves keep it. Unlike with fake tensors,
values are real: ``item()``, ``unique()`` and boolean masks work, and results equal those of the CPU bit by bit.
What it cannot show: kernels that a GPU lacks, its rounding, its memory, streams, and autocast on CUDA.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda")
EITHER = "either"  # made by torch itself while it works on CUDA tensors, as zeros in a backward pass are
BETWEEN_DEVICES = {"copy_", "_to_copy", "_foreach_copy_", "_has_compatible_shallow_copy_type"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}  # CUDA tensors may be indexed by those of the CPU


def place(tensor: Tensor) -> str:
    """Cpu, cuda or either."""
    return getattr(tensor.untyped_storage(), "pretended", "cpu")


def put(value: Any, where: str) -> Any:
    """Set the place of all tensors of a result."""
    for tensor in _tensors(value):
        tensor.untyped_storage().pretended = where
    return value


class PretendedCuda(TorchFunctionMode):
    """Within it ``cuda`` is a device: tensors are moved there and back, and must not meet those of the CPU.

    Attributes:
        operations: names of the operations done on CUDA tensors.
        pinned: number of tensors whose memory was pinned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations = _Operations()
        self.pinned = 0

    @property
    def operations(self) -> set[str]:
        return self._operations.on_cuda

    def __enter__(self) -> Self:
        self._operations.__enter__()
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._operations.__exit__(*problem)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            return torch.device("cuda", 0) if place(args[0]) == "cuda" else torch.device("cpu")
        if func == Tensor.is_cuda.__get__:
            return place(args[0]) == "cuda"
        name = getattr(func, "__name__", "")
        if name in ("numpy", "__array__") and place(args[0]) == "cuda":
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        if name == "pin_memory":
            if place(args[0]) == "cuda":
                raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
            self.pinned += 1
            return args[0].clone()
        if func == Tensor.to:
            return _to(*args, **kwargs)
        if func in (Tensor.cpu, Tensor.cuda):
            return _to(args[0], name)
        if name == "__deepcopy__":
            return put(func(*args, **kwargs), place(args[0]))
        where = kwargs.get("device")
        if where is None:
            with self._operations.of_a_call(any(place(tensor) == "cuda" for tensor in _tensors((args, kwargs)))):
                return func(*args, **kwargs)
        where = torch.device(where).type
        _check_generator(where == "cuda", kwargs)
        return put(func(*args, **kwargs | {"device": "cpu"}), where)


class _Operations(TorchDispatchMode):
    """Every operation, of the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cuda: set[str] = set()
        self._inside_cuda_call = False

    @contextmanager
    def of_a_call(self, on_cuda: bool) -> Iterator[None]:
        """One call from Python; what it makes without naming a device is either, if it works on CUDA tensors."""
        outside, self._inside_cuda_call = self._inside_cuda_call, on_cuda
        try:
            yield
        finally:
            self._inside_cuda_call = outside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        tensors = _tensors((args, kwargs))
        places = {place(tensor) for tensor in tensors}
        if "cuda" in places and name not in BETWEEN_DEVICES:
            self.on_cuda.add(name)
            _check_generator(True, (args, kwargs))
            _check_places(func, name, args, tensors)
        result = func(*args, **kwargs)
        if name in ("copy_", "_foreach_copy_"):
            return result
        where = "cuda" if "cuda" in places else "cpu" if "cpu" in places or not self._inside_cuda_call else EITHER
        fixed = {tensor.untyped_storage()._cdata for tensor in tensors if place(tensor) != EITHER}
        put([tensor for tensor in _tensors(result) if tensor.untyped_storage()._cdata not in fixed], where)
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _to(tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
    if args and isinstance(args[0], Tensor):
        args = (place(args[0]), args[0].dtype, *args[1:])
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    where = device.type if device else place(tensor)
    moved = where != place(tensor)
    result = tensor.to(dtype or tensor.dtype, copy=copy or moved, memory_format=memory_format or torch.preserve_format)
    return put(result, where) if moved else result


def _check_generator(on_cuda: bool, values: Any) -> None:
    if on_cuda and any(isinstance(leaf, torch.Generator) and leaf.device.type == "cpu" for leaf in tree_leaves(values)):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _check_places(func: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
    """CPU tensors may be scalars of an element-wise operation, or indices; nothing on the CPU is written to."""
    if name in INDEXING and place(args[0]) == "cuda":
        tensors = _tensors((args[0], args[2:]))
    scalars = torch.Tag.pointwise in func.tags or name in INDEXING or name.startswith("_foreach_")
    written = [
        tensor
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(value)
    ]
    wrong = [tensor for tensor in tensors if place(tensor) == "cpu" and not (scalars and tensor.dim() == 0)]
    if wrong or any(place(tensor) == "cpu" for tensor in written):
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but found cuda:0 and cpu!")
