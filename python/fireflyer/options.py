"""What c10d's options say about a call: which reduction, by which factor, which root."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

#: Reductions in the sidecar's words, and the one that it does of booleans only.
_REDUCTIONS = [
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "avg"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.PREMUL_SUM, "premul_sum"),
    (dist.ReduceOp.BAND, "band"),
    (dist.ReduceOp.BOR, "bor"),
    (dist.ReduceOp.BXOR, "bxor"),
    (dist.ReduceOp.PRODUCT, "product"),
]


def reduction_of(given: Any) -> str | None:
    """The word for a reduction, or for that of c10d's options; none if there is none."""
    if given is None:
        return "sum"
    op = getattr(given, "reduceOp", given)
    # c10d's operations compare equal to their kind, but do not hash like it.
    for known, word in _REDUCTIONS:
        if op == known:
            return word
    return None


def factor_of(given: Any) -> float:
    """The factor of a reduction that has one; c10d shows it in what it pickles only."""
    op = getattr(given, "reduceOp", given)
    if isinstance(op, dist.ReduceOp) and op == dist.ReduceOp.PREMUL_SUM:
        return float(op.__getstate__()[1])
    return 1.0


def allreduce_options(opts: Any, op: Any) -> Any:
    """Options for gloo, from options, an operation in their place, or one by keyword."""
    if hasattr(opts, "reduceOp"):
        return opts
    options = dist.AllreduceOptions()
    chosen = op if op is not None else opts
    if chosen is not None:
        options.reduceOp = chosen
    return options


def given(opts: Any) -> tuple[Any, ...]:
    """The options as arguments: none, where there are none."""
    return () if opts is None else (opts,)


def root_of(opts: Any, root: int | None) -> int:
    """The root: in options, in their place, or by keyword."""
    if isinstance(opts, int):
        return opts
    return int(root or 0) if opts is None else opts.rootRank
