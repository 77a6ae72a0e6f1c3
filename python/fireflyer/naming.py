"""Names for what the sidecar does not learn about a call: a number that all ranks compare, and words for people.

Owns the number's layout. It travels as the call's tag: the sidecar takes calls with different tags for different
calls, so ranks that differ get an error instead of waiting for each other. A name holds itself what it
stands for, hence every rank can say what the others called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

#: Bytes that the sidecar moves without knowing their type.
_BYTES = "bytes"
#: A bucket of gradients.
_BUCKET = "bucket"
#: What is called where two GPUs of a pair have failed.
_PAIR = "pair"
#: Parameters of c10d's methods, by place and by how their names start.
_OUTPUT, _INPUT = 0, 1
_SIDES = ("output", "input")
#: Collectives that gloo does, and which of their tensors are of one size on all ranks; none of alltoall's are.
_COLLECTIVES: dict[str, int] = {
    "allreduce": _OUTPUT,
    "allreduce_coalesced": _OUTPUT,
    "reduce": _OUTPUT,
    "broadcast": _OUTPUT,
    "allgather": _INPUT,
    "allgather_coalesced": _INPUT,
    "allgather_into_tensor_coalesced": _INPUT,
    "gather": _INPUT,
    "scatter": _OUTPUT,
    "reduce_scatter": _OUTPUT,
    "_reduce_scatter_base": _OUTPUT,
    "reduce_scatter_tensor_coalesced": _OUTPUT,
    "alltoall": _INPUT,
    "alltoall_base": _INPUT,
}
_ALIASES = {"_allgather_base": "allgather"}

# The fields of a number from its lowest bit: 5 + 5 + 4 + 17 + 33 = 64. The lists are its code, 0 is for none.
_KINDS = ("", _BYTES, _BUCKET, *_COLLECTIVES, _PAIR)
_DTYPES = ("another type",) + tuple(
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "complex32 complex64 complex128 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()
)
_REDUCTIONS = ("", "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
_BITS = (5, 5, 4, 17, 33)

_IN_TEXT = re.compile(r"barrier\(name ([0-9a-f]{16})\)|name ([0-9a-f]{16})")


def of_bytes(tensor: torch.Tensor) -> int:
    """The name of a tensor that the sidecar moves as bytes."""
    return _pack(_BYTES, _dtype(tensor), "", 0, tensor.numel())


def of_bucket(index: int, layout: int) -> int:
    """The name of a bucket of gradients; `layout` is a sum of 32 bits over what the buckets hold."""
    return _pack(_BUCKET, _DTYPES[0], "", index, layout)


def of_pair() -> int:
    """The name of what is called in place of an allreduce that two GPUs could not begin."""
    return _pack(_PAIR, _DTYPES[0], "", 0, 0)


def of_call(kind: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> int:
    """The name of a call of gloo's method `kind` with c10d's arguments: equal on ranks that call the same."""
    kind = _ALIASES.get(kind, kind)
    tensors = list(tensors_of(_COLLECTIVES[kind], arguments, named))
    root, reduction = 0, "sum" if "reduce" in kind else ""
    for value in (*arguments[1:], *named.values()):
        root = value if type(value) is int else getattr(value, "rootRank", root)
        op = getattr(value, "reduceOp", value)
        # c10d's operations compare equal to their kind, but do not hash like it.
        if isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            known = (word for word in _REDUCTIONS[1:] if op == getattr(dist.ReduceOp, word.upper()))
            reduction = next(known, "")
    count = 0 if kind.startswith("alltoall") else sum(tensor.numel() for tensor in tensors)
    return _pack(kind, _dtype(tensors[0]) if tensors else _DTYPES[0], reduction, root, count)


def tensors_of(
    side: int, arguments: Sequence[Any], named: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensors among the outputs (0) or inputs (1) of a call; what is changed in place is an output."""
    by_name = (value for name, value in named.items() if name.startswith(_SIDES[side]))
    return _flat([*arguments[side : side + 1], *by_name])


def words(name: int) -> str:
    """A name in words, such as ``gather(4 x float64, root 1) over gloo``."""
    fields = []
    rest = name
    for bits in _BITS:
        fields.append(rest & ((1 << bits) - 1))
        rest >>= bits
    code, dtype, reduction, root, count = fields
    if not 0 < code < len(_KINDS) or dtype >= len(_DTYPES) or reduction >= len(_REDUCTIONS):
        return f"name {name:016x}"
    kind = _KINDS[code]
    if kind == _BYTES:
        return f"the bytes of {count} x {_DTYPES[dtype]}"
    if kind == _BUCKET:
        return f"bucket {root} of layout {count:08x}"
    if kind == _PAIR:
        return "nothing, because the GPUs of its pair failed or disagreed"
    said = [_REDUCTIONS[reduction]] if reduction else []
    said.append(_DTYPES[dtype] if kind.startswith("alltoall") else f"{count} x {_DTYPES[dtype]}")
    if kind in ("reduce", "broadcast", "gather", "scatter"):
        said.append(f"root {root}")
    return f"{kind.lstrip('_')}({', '.join(said)}) over gloo"


def explain(text: str) -> str:
    """The sidecar's text with words for the names in it."""
    return _IN_TEXT.sub(lambda found: words(int(found[1] or found[2], 16)), text)


def _pack(kind: str, dtype: str, reduction: str, root: int, count: int) -> int:
    # 131,072 ranks and 8 Gi elements fit; what is more is the same as the most.
    fields = (_KINDS.index(kind), _DTYPES.index(dtype), _REDUCTIONS.index(reduction), root, count)
    name = shift = 0
    for field, bits in zip(fields, _BITS):
        name |= min(max(field, 0), (1 << bits) - 1) << shift
        shift += bits
    return name


def _dtype(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return name if name in _DTYPES else _DTYPES[0]


def _flat(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)
