"""Who takes part in collectives at present.

Owns the answer for scripts; where it comes from is the group's business.
"""

from __future__ import annotations

from typing import NamedTuple


class Members(NamedTuple):
    """The members of an epoch. Everybody, unless nodes were lost and the job goes on without them."""

    #: Counts the sets of members within the attempt; 0 where no sidecar says.
    epoch: int
    #: How many ranks there are: what averages divide by. At most the world size, which does not change.
    ranks: int
    #: The ranks of their nodes, ascending; empty where no sidecar says.
    nodes: tuple[int, ...]


def members() -> Members:
    """Who takes part in the collectives of the default group at present. Not collective.

    A collective that is called now may still be of an earlier set, or of a later one: how many took part in one of them,
    `participants` says of its handle.

    Returns:
        Epoch 0 with all ranks and no nodes, where the group does not use sidecars.

    Raises:
        HFReduceError: the sidecar is gone, or did not answer within the group's timeout.
    """
    import torch.distributed as dist

    from .group import backend_of

    ours = backend_of()
    current = None if ours is None else ours.members()
    return current or Members(0, dist.get_world_size(), ())
