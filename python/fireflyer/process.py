"""Which process this is: what belongs to one does not work in its forked children.

Owns the number, which is asked for with every call of a collective; to ask the kernel takes longer than all else that is
checked then.
"""

from __future__ import annotations

import os

_own = os.getpid()


def own() -> int:
    """The number of this process."""
    return _own


def _in_child() -> None:
    global _own
    _own = os.getpid()


os.register_at_fork(after_in_child=_in_child)
