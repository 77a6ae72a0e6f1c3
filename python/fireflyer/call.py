"""A collective as one rank calls it: the one description of it, which the native module takes as it is."""

from typing import NamedTuple

_ITEM_BYTES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "u8": 1, "i8": 1, "i32": 4, "i64": 8,
}  # fmt: skip


class Call(NamedTuple):
    """In the sidecar's words. Ranks of a group make equal calls, in the same order."""

    kind: str
    #: Element type, and how many elements each rank brings.
    dtype: str = "u8"
    count: int = 0  # type: ignore[assignment]  # A tuple's `count` is not missed.
    reduction: str = "sum"
    #: What `premul_sum` multiplies with.
    factor: float = 1.0
    #: A rank of the group; of a message the other rank.
    root: int = 0
    #: A name for what the other fields do not say, 0 for none: ranks whose tags differ disagree.
    tag: int = 0
    #: How a sum of floats is rounded.
    numerics: str = "fast"

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return _ITEM_BYTES[self.dtype]
