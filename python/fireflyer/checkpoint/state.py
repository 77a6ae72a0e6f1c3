"""State dicts as JSON and tensors, and back. Nothing is pickled, so loading executes nothing.

Owns what a state may hold: tensors, numbers, strings, bytes, lists, tuples and dicts of these, and the versions
that a module keeps beside its tensors. Leaves the tensors' bytes to `shard`.
"""

from __future__ import annotations

import base64
import math
import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import CheckpointError, StateError
from ..limits import STATE_DEPTH

#: Tensor types that can be saved, by the name in the manifest.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128 "
        "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
    ).split()
    if hasattr(torch, name)
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: Bits of a whole number that can be stored. Python's JSON reads no longer number back.
_BITS = 8192


def encode(state: Any, prefix: str) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """`state` as a JSON value, and its tensors by name; every name starts with `prefix`."""
    tensors: dict[str, torch.Tensor] = {}
    return _encode(state, prefix, tensors), list(tensors.items())


def decode(value: Any, tensor: Callable[[str], torch.Tensor]) -> Any:
    """What `encode` was given; `tensor` finds a tensor by its name."""
    if not isinstance(value, (dict, list)):
        return value
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensor(content)
        if kind == "dict":
            return {key: decode(item, tensor) for key, item in content.items()}
        if kind == "items":
            return {decode(key, tensor): decode(item, tensor) for key, item in content}
        if kind == "ordered":
            return OrderedDict((decode(k, tensor), decode(v, tensor)) for k, v in content)
        if kind == "module":
            pairs, metadata = content
            state = decode({"ordered": pairs}, tensor)
            state._metadata = decode(metadata, tensor)
            return state
        if kind == "counter":
            return Counter({decode(key, tensor): decode(count, tensor) for key, count in content})
        if kind == "tuple":
            return tuple(decode(item, tensor) for item in content)
        if kind == "float":
            return float(content)
        if kind == "bytes":
            return base64.b64decode(content)
    raise CheckpointError(f"the manifest holds a value of an unknown kind: {str(value)[:80]}")


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of the tensor's type in the manifest."""
    return _NAMES[tensor.dtype]


def capture_random() -> dict[str, Any]:
    """The states of the random number generators of this process."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(gauss)]
    return state


def restore_random(state: Mapping[str, Any]) -> None:
    """Puts the generators back to where `capture_random` found them."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(tuple(state["numpy"]))


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    if depth > STATE_DEPTH:
        raise StateError(f"failed to save {path}: it is nested more than {STATE_DEPTH} levels deep")
    value = _plain(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int and value.bit_length() > _BITS:
        raise StateError(f"failed to save {path}: a number of more than {_BITS} bits")
    if type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"tensor": _place(value, path, tensors)}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    depth += 1
    if type(value) in (list, tuple, torch.Size):
        items = [
            _encode(item, f"{path}.{index}", tensors, depth) for index, item in enumerate(value)
        ]
        return items if type(value) is list else {"tuple": items}
    if isinstance(value, dict):
        # Tensors are named by str(key); the key itself keeps its type.
        pairs = [
            [
                _encode(key, f"{path}.key", tensors, depth),
                _encode(item, f"{path}.{key}", tensors, depth),
            ]
            for key, item in value.items()
        ]
        if isinstance(value, Counter):
            return {"counter": pairs}
        if isinstance(value, OrderedDict):
            # A module's state: the versions of its parts, without which some refuse what they wrote.
            metadata = getattr(value, "_metadata", None)
            if metadata is not None:
                return {"module": [pairs, _encode(metadata, f"{path}._metadata", tensors, depth)]}
            return {"ordered": pairs}
        if all(isinstance(key, str) for key in value):
            return {"dict": dict(pairs)}
        return {"items": pairs}
    raise StateError(
        f"failed to save {path}: a {type(value).__name__} cannot be stored; "
        "use tensors, numbers, strings, bytes, lists, tuples and dicts"
    )


def _plain(value: Any) -> Any:
    """The Python number that a scalar of NumPy is; anything else as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    number = value.item()
    return value if isinstance(number, numpy.generic) else number


def _place(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    plain = (
        tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    )
    if not plain or tensor.dtype not in _NAMES or hasattr(tensor, "to_local"):
        raise StateError(
            f"failed to save {path}: a {type(tensor).__name__} of type {tensor.dtype}, layout "
            f"{tensor.layout} on device {tensor.device} cannot be stored; make it a dense local tensor"
        )
    name, copies = path, 1
    while name in tensors:  # {"a.b": …} beside {"a": {"b": …}}
        copies += 1
        name = f"{path}#{copies}"
    tensors[name] = tensor.detach()
    return name
