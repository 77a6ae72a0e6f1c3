"""What all ranks of a group decide together when it is made: whether it talks to the sidecars.

Owns the keys of a group's store that this takes. A rank writes what it has and counts itself; the last one reads what all
have written and writes what follows, so that no rank but that one reads more than one key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from enum import IntEnum

import torch.distributed as dist

from .collective_error import HFReduceError

#: Ranks that a message names, at most.
_NAMED = 8


class Standing(IntEnum):
    """What a rank has. The smallest decides for all."""

    #: It has a sidecar and cannot use it, or should have one: no rank gets a group.
    FAILED = 0
    #: It has none: the group goes over gloo.
    ALONE = 1
    ATTACHED = 2


def decide(
    store: dist.Store,
    rank: int,
    size: int,
    timeout: timedelta,
    standing: Standing,
    why: str = "",
    *,
    what: str,
) -> tuple[Standing, str]:
    """The smallest standing of all ranks, and the reason that its first rank gave, with the ranks that share it.

    Collective. An `HFReduceError` after `timeout` says that it failed to do `what`, and names the ranks that have not called.
    """
    # Apart from gloo's keys, which are ranks.
    store = dist.PrefixStore("hfreduce", store)
    # A store may be used again: groups of one name follow each other.
    turn = (store.add("arrived", 1) - 1) // size
    store.set(f"{turn}/{rank}", json.dumps([standing, why]))
    keys = [f"{turn}/{each}" for each in range(size)]
    decided = f"{turn}/decided"
    try:
        # Whoever comes last: its count alone says so.
        if store.add(f"{turn}/written", 1) == size:
            written = [json.loads(text) for text in store.multi_get(keys)]
            least = min(one for one, _ in written)
            ranks = [each for each, (one, _) in enumerate(written) if one == least]
            store.set(decided, json.dumps([least, _by(ranks, written[ranks[0]][1])]))
        store.wait([decided], timeout)
        least, reason = json.loads(store.get(decided))
        if store.add(f"{turn}/read", 1) == size:
            store.set(f"{turn}/over", "")
        if rank == 0:
            # The store is this process's as a rule, and ends with it.
            store.wait([f"{turn}/over"], timeout)
    except dist.DistNetworkError as error:
        raise HFReduceError(f"failed to {what}: the store of rank 0 is gone: {error}") from error
    except RuntimeError as error:
        late = [each for each, key in enumerate(keys) if not store.check([key])]
        raise HFReduceError(
            f"failed to {what}: timed out after {timeout.total_seconds():g} s without {_named(late)} ({error})"
        ) from error
    return Standing(least), reason


def _by(ranks: list[int], why: str) -> str:
    return f"{_named(ranks)}: {why}" if why else ""


def _named(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    words = ", ".join(map(str, ranks[:_NAMED])) + more
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"
