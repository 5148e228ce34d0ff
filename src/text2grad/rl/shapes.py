"""The check of shapes where tensors meet."""

from torch import Tensor

from text2grad.errors import ShapeError


def check_same_shape(**tensors: Tensor) -> None:
    """Raise ShapeError unless all the named tensors are [B, T] of one shape."""
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    first = next(iter(shapes.values()))
    if len(first) != 2 or any(shape != first for shape in shapes.values()):
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(f"expected one shape [B, T], got {got}")
