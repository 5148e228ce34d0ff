"""A pretended accelerator: its tensors hold real numbers on the CPU, and refuse to be mixed with tensors of the CPU.

Inside `pretended_device()` torch, accelerate and transformers find an accelerator, so that the package computes there.
A tensor that a path forgets on the CPU ends the path with `MixedDevices`, as it ends with a RuntimeError on a GPU.

A device tensor is an `OnDevice`, a wrapper of a CPU tensor that reports the device `lazy:0`. torch's device type `lazy`
has no kernels in this build, and autograd runs its backward in the calling thread. Operations on an `OnDevice` check
their tensors and compute on the CPU; the kernels registered for `lazy` make new tensors, in every thread.

As on CUDA are

- allowed: `copy_`, `to`, `item`, `tolist`; a CPU tensor without dimensions as a number of a pointwise operation; CPU
  indices into a device tensor;
- refused: every other operation on tensors of both devices (also device indices into a CPU tensor), a generator of the
  CPU for numbers of the device, and `numpy()`;
- `torch.accelerator.current_accelerator()` without an index, while tensors report index 0.

A pretended device cannot show

- kernels and their numbers: results equal those of the CPU, also those of the random generator; attention takes torch's
  plain path;
- types and operations that CUDA alone lacks or has, autocast (it does nothing here), `foreach` optimizers;
- streams, pinned memory, the memory of the device, `torch.cuda` and everything that depends on it;
- more than one process, other processes of a command (they see a machine without an accelerator), and libraries that
  read memory by its address in C++.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

optimizers: Any = import_module("torch.optim.optimizer")  # torch.optim hides the module
TYPE = "lazy"
DEVICE = torch.device(TYPE, 0)
_COPIES = {"copy_", "_to_copy", "_copy_from", "_local_scalar_dense"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_WITH_NUMBER = {"fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_"}  # not tagged as pointwise
_FACTORIES = (
    *("empty.memory_format", "empty_strided", "zeros", "ones", "full", "scalar_tensor", "eye", "eye.m", "linspace"),
    *("arange", "arange.start", "arange.start_step", "rand", "rand.generator", "randn", "randn.generator"),
    *("randint", "randint.generator", "randint.low", "randint.low_generator", "randperm", "randperm.generator"),
    *("tril_indices", "triu_indices", "logspace"),
)


class MixedDevices(RuntimeError):
    """An operation was given tensors of two devices."""


class OnDevice(Tensor):
    """A tensor of the pretended device."""

    on_cpu: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, on_cpu: Tensor) -> "OnDevice":
        """Wrap a CPU tensor, whose memory the device tensor shares."""
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            on_cpu.shape,
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=DEVICE,
        )
        made.on_cpu = on_cpu
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _compute(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Make `Module.to` swap whole parameters, since a CPU parameter cannot take a wrapper's memory."""
        return ["on_cpu"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: Any, stride: Any) -> "OnDevice":
        return OnDevice(inner["on_cpu"])

    def __repr__(self, **options: Any) -> str:
        return f"OnDevice({self.on_cpu!r})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Store the tensor as torch stores tensors of devices: `torch.load` moves it back, or where it is told."""
        plain = self.detach().cpu()
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, (
            plain,
            plain.dtype,
            str(DEVICE),
            self.requires_grad,
        )

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can't convert a tensor of the pretended device to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.on_cpu.tolist()

    def data_ptr(self) -> int:
        return self.on_cpu.data_ptr()

    def untyped_storage(self) -> Any:
        return self.on_cpu.untyped_storage()

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, OnDevice) or (value.shape, value.dtype) != (self.shape, self.dtype):
            raise MixedDevices(f"`data` of {_told(self)} cannot become {_told(value)}")
        self.on_cpu = value.on_cpu


class _DeviceGenerator(torch.Generator):
    """A random generator of the pretended device."""

    made: ClassVar[dict[int, "_DeviceGenerator"]] = {}  # by address: torch hands kernels another object of Python

    def __new__(cls, device: Any = "cpu") -> Any:
        chosen = torch.device(device)
        if chosen.type != TYPE:
            return _GENERATOR(chosen)
        generator = super().__new__(cls, "cpu")
        cls.made[generator._cdata] = generator
        return generator

    @property
    def device(self) -> torch.device:
        return DEVICE


_GENERATOR = torch.Generator


def _told(tensor: Tensor) -> str:
    return f"{tensor.device.type} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU, and return tensors of the device that a GPU would return them on."""
    name = func.overloadpacket.__name__
    if name == "_fused_sdp_choice":
        return 0  # attention by plain operations: the CPU's own kernel would be chosen otherwise
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if name not in _COPIES:
        _refuse_mixed(func, name, args, tensors)
    device = kwargs.get("device")
    to_device = device is None or torch.device(device).type == TYPE
    if to_device:
        _refuse_generator(func, args, kwargs)
    if device is not None and to_device:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(
        lambda leaf: leaf.on_cpu if isinstance(leaf, OnDevice) else leaf, (args, kwargs)
    )
    result = func(*plain_args, **plain_kwargs)
    given = {id(tensor.on_cpu): tensor for tensor in tensors if isinstance(tensor, OnDevice)}
    plain = {id(tensor) for tensor in tensors if not isinstance(tensor, OnDevice)}
    for tensor in given.values():
        if tensor.shape != tensor.on_cpu.shape:
            raise NotImplementedError(
                f"{func} changes the shape of a tensor in place, which the pretended device lacks"
            )

    def wrapped(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not to_device or id(leaf) in plain:
            return leaf
        return given.get(id(leaf)) if id(leaf) in given else OnDevice(leaf)

    return tree_map(wrapped, result)


def _refuse_mixed(func: Any, name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    on_device = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    others = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    if on_device and others:
        if name in _INDEXING:
            values = args[2:3] if "put" in name else ()
            others = [
                tensor
                for tensor in (args[0], *values)
                if tensor.device.type == "cpu" and (tensor is args[0] or tensor.dim())
            ]
        elif torch.Tag.pointwise in func.tags or name in _WITH_NUMBER or name.startswith("_foreach_"):
            written = [
                value for value, argument in zip(args, func._schema.arguments, strict=False) if argument.alias_info
            ]
            others = [
                tensor for tensor in others if tensor.dim() or any(tensor is value for value in tree_leaves(written))
            ]
        if others:
            raise MixedDevices(f"{func} got tensors of two devices: {', '.join(map(_told, tensors))}")


def _refuse_generator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, _GENERATOR) and value._cdata not in _DeviceGenerator.made:
            raise MixedDevices(f"{func} got a generator of the CPU for numbers of the device")


def _factory(name: str) -> Callable[..., Tensor]:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def make(*args: Any, **options: Any) -> Tensor:
        _refuse_generator(func, args, options)
        return OnDevice(func(*args, **{**options, "device": torch.device("cpu"), "pin_memory": False}))

    return make


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy to a new tensor of the device for `torch.tensor`, which calls no Python below itself."""
    assert isinstance(target, OnDevice)
    target.on_cpu.copy_(source)
    return target


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    if isinstance(tensor, OnDevice):
        raise RuntimeError(f"cannot pin {_told(tensor)}: only tensors of the CPU can be pinned")
    return tensor


def _device_module() -> SimpleNamespace:
    """Return `torch.lazy`, which stands beside `torch.cuda`: the device's random numbers are the CPU's."""
    return SimpleNamespace(
        device=lambda index: nullcontext(),
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,
        synchronize=lambda device=None: None,
        empty_cache=lambda: None,
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        get_rng_state_all=lambda: [torch.get_rng_state()],
        set_rng_state_all=lambda states: torch.set_rng_state(states[0]),
        manual_seed=lambda seed: None,
        manual_seed_all=lambda seed: None,
    )


def _autocast_start(autocast: Any, device_type: str, *args: Any, **options: Any) -> None:
    """Start a context for the device as one of the CPU, which does not touch tensors of the device."""
    _AUTOCAST_START(autocast, "cpu" if device_type == TYPE else device_type, *args, **options)


def _as_of_the_cpu(function: Callable[..., Any], *device_type: str) -> Any:
    return function(*("cpu" if kind == TYPE else kind for kind in device_type))


_AUTOCAST_START = torch.autocast.__init__
_FUSED = optimizers._get_fused_kernels_supported_devices


def _forget_accelerate() -> None:
    """Forget the state of accelerate, which belongs to the process and holds a device."""
    AcceleratorState._reset_state(reset_partial_state=True)


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Pretend an accelerator; the end of the context takes it away. Yields the device of its tensors."""
    kernels = torch.library.Library("aten", "IMPL", "Lazy")
    try:
        for name in _FACTORIES:
            kernels.impl(name, _factory(name), "Lazy")
        kernels.impl("_copy_from", _copy_from, "Lazy")
        with pytest.MonkeyPatch.context() as patch:
            _patch(patch)
            _forget_accelerate()
            yield DEVICE
    finally:
        _forget_accelerate()
        _DeviceGenerator.made.clear()
        kernels._destroy()


def _patch(patch: pytest.MonkeyPatch) -> None:
    """Let torch, accelerate and transformers find the device."""
    patch.setattr(torch, TYPE, _device_module(), raising=False)
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "current_accelerator": torch.device(TYPE),
        "current_device_index": 0,
        "set_device_index": None,
        "current_stream": SimpleNamespace(is_capturing=lambda: False),
        "synchronize": None,
        "empty_cache": None,
    }.items():
        patch.setattr(torch.accelerator, name, lambda *args, _value=value, **options: _value)
    patch.setattr(torch, "Generator", _DeviceGenerator)
    patch.setattr(torch.autocast, "__init__", _autocast_start)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        patch.setattr(torch, name, partial(_as_of_the_cpu, getattr(torch, name)))
    patch.setattr(Tensor, "pin_memory", _pinned)
    patch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: [*_FUSED(), TYPE])
    patch.setenv("ACCELERATE_TORCH_DEVICE", TYPE)  # also read by the trainers of transformers
