"""What a process group of ours can be asked for.

Needs neither PyTorch nor the native module, so that importing the package stays cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

from .environment import NUMERICS, NVLINK


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one group: ``dist.new_group(ranks, backend="hfreduce", pg_options=fireflyer.Options(priority=1))``.

    They are the same on all ranks of the group. `init_process_group` takes them as well, but for `priority` and
    `replicated`, which the group of all ranks does not need. An option that does not exist is a ``TypeError``, a value that
    is none of an option's an `HFReduceError`.

    Args:
        numerics: how sums of floats are rounded: ``"fast"``, ``"precise"`` or ``"bitwise"``. None: as in the job.
        priority: -128 to 127. Above 0, operations of this group go before others; below 0, after them.
        replicated: in a job with ``onPeerLoss: Shrink``, the group goes on when ranks of it are lost.
        nvlink: ``"never"`` or ``"auto"``: whether tensors of two GPUs that share an NVLink are reduced first. None: as in the
            job. Alpha.
    """

    numerics: str | None = None
    priority: int = 0
    replicated: bool = False
    nvlink: str | None = None

    def __post_init__(self) -> None:
        for name, words in (("numerics", NUMERICS), ("nvlink", NVLINK)):
            known = [word.lower() for word in words]
            asked = getattr(self, name)
            if asked is not None and asked not in known:
                raise _error(f"its {name} must be {' or '.join(known)}, not {asked!r}")
        if not isinstance(self.priority, int) or not -128 <= self.priority <= 127:
            raise _error(
                f"its priority must be a whole number from -128 to 127, not {self.priority!r}"
            )

    @classmethod
    def of(cls, given: object) -> Options:
        """What `pg_options` say: nothing, or these."""
        if given is None:
            return cls()
        if not isinstance(given, cls):
            raise _error(f"pg_options must be a fireflyer.Options, not a {type(given).__name__}")
        return given


def _error(text: str) -> Exception:
    from .collective_error import HFReduceError

    return HFReduceError(f"failed to make a group: {text}")
