"""Which ranks of a group have GPUs that share an NVLink, and how two of them come together.

Owns the agreement: all ranks learn what the others see, pair up alike by a rule, and either all of them use their pairs or
none does. What a pair does then is in `nvlink`. All of it happens once, before the first tensor that it is for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import link
from .call import Call
from .collective_error import HFReduceError
from .limits import JOIN_SECONDS
from .link import Link

if TYPE_CHECKING:
    import socket

    from ._native import Client, Gpu, Group, Pair

_log = logging.getLogger(__name__)

#: Places in an inbox for each way; four are the fewest that nobody waits for, see `nvlink`.
SLOTS = 4
#: Ways that tensors go: to the other GPU before the host, and back.
WAYS = 2
_UUID_BYTES = 16
#: GPUs that one can be linked with, of those that are named.
_LINKS = 16
_HANDLE_BYTES = 64


@dataclass(frozen=True)
class Policy:
    """What a group asks about pairs."""

    #: The smallest tensor that pairs add up, in bytes.
    least_bytes: int
    #: Global ranks of the group.
    ranks: list[int]
    #: Numbers for the groups of all first and of all second ranks of pairs, which nobody else uses.
    numbers: tuple[int, int]
    #: As the group's own.
    replicated: bool = False
    priority: int = 0


@dataclass(frozen=True)
class Joined:
    """This process and the other one of its pair."""

    pair: Pair
    #: Whether it adds up the first half of each tensor.
    is_first: bool
    links: list[Link]
    #: All ranks that add up the same half.
    lane: Group


@dataclass(frozen=True)
class GpuRecord:
    """What a rank says of its GPU: its name, and the names of those it is linked with."""

    uuid: bytes
    linked: frozenset[bytes]

    def pack(self) -> bytes:
        """All cards have one size."""
        return b"".join([self.uuid, *sorted(self.linked)[:_LINKS]]).ljust(
            (1 + _LINKS) * _UUID_BYTES, b"\0"
        )

    @staticmethod
    def unpack(record: bytes) -> GpuRecord:
        """A card from what `pack` gave."""
        names = [record[at : at + _UUID_BYTES] for at in range(0, len(record), _UUID_BYTES)]
        return GpuRecord(names[0], frozenset(name for name in names[1:] if any(name)))


def match(cards: Sequence[GpuRecord]) -> list[tuple[int, int]]:
    """Pairs of ranks that are linked, each rank in one; none where a rank is left over."""
    pairs, free = [], list(range(len(cards)))
    while free:
        rank = free.pop(0)
        one = cards[rank]
        linked = (
            other
            for other in free
            if cards[other].uuid in one.linked and one.uuid in cards[other].linked
        )
        other = next(linked, None)
        if other is None:
            return []
        free.remove(other)
        pairs.append((rank, other))
    return pairs


def agree(
    client: Client, lane: Group | None, gpu: Gpu, slot_bytes: int, policy: Policy, timeout: float
) -> Joined | None:
    """Brings this rank together with its other, if all ranks of the group `lane` have one. A collective."""
    size = client.world_size if lane is None else lane.size
    own = client.rank if lane is None else lane.rank

    def gather_records(record: bytes) -> list[bytes]:
        records = bytearray(len(record) * size)
        call = Call("allgather", "u8", len(record))
        ticket = client.call(call, record, group=lane, timeout=timeout)
        client.wait(ticket, records, timeout=timeout)
        return [bytes(records[at : at + len(record)]) for at in range(0, len(records), len(record))]

    pairs = match([GpuRecord.unpack(one) for one in gather_records(_card(gpu).pack())])
    if not pairs:
        return None
    pair = next(one for one in pairs if own in one)
    is_first = pair[0] == own
    other = pair[1] if is_first else pair[0]
    offer = _tried(lambda: _Offer(gpu, slot_bytes, is_first), own)
    offers = gather_records(offer.pack() if offer is not None else bytes(_Offer.BYTES))
    joined = None
    if all(any(one) for one in offers) and offer is not None:
        joined = _tried(lambda: offer.join(offers[other]), own)
    if offer is not None and offer.listener is not None:
        offer.listener.close()
    if (
        not all(one == b"\1" for one in gather_records(b"\1" if joined else b"\0"))
        or joined is None
    ):
        return None
    ranks = sorted(policy.ranks[one[0] if is_first else one[1]] for one in pairs)
    number = policy.numbers[0 if is_first else 1]
    try:
        half = client.open(number, ranks, policy.replicated, timeout, policy.priority)
    except HFReduceError as refused:
        # The same on all ranks: both groups have ranks of the same nodes.
        if "which is not possible" not in str(refused):
            raise
        _log.warning(
            "GPUs that share an NVLink are not reduced before the copy to the host: %s", refused
        )
        return None
    links = [Link(connection, policy.ranks[other], timeout) for connection in joined[1]]
    return Joined(joined[0], is_first, links, half)


def _card(gpu: Gpu) -> GpuRecord:
    try:
        return GpuRecord(gpu.uuid(), frozenset(gpu.linked()))
    except HFReduceError as error:
        _log.warning("failed to find GPUs that share an NVLink: %s", error)
        return GpuRecord(bytes(_UUID_BYTES), frozenset())


class _Offer:
    """What one process of a pair gives the other to come to it."""

    BYTES = _HANDLE_BYTES + 2 * link.KEY_BYTES

    def __init__(self, gpu: Gpu, slot_bytes: int, is_first: bool) -> None:
        from ._native import Inbox

        self._inbox = Inbox(gpu, WAYS * SLOTS * slot_bytes)
        self._keys = link.keys()
        self.listener: socket.socket | None = link.listen(self._keys) if is_first else None

    def pack(self) -> bytes:
        """As the other gets it."""
        return self._inbox.handle() + self._keys

    def join(self, other: bytes) -> tuple[Pair, list[socket.socket]]:
        """Comes together with who has made the `other` offer."""
        from ._native import Pair

        pair = Pair(self._inbox, other[:_HANDLE_BYTES])
        if self.listener is not None:
            return pair, link.accept(self.listener, self._keys, WAYS, JOIN_SECONDS)
        return pair, link.connect(other[_HANDLE_BYTES:], WAYS, JOIN_SECONDS)


def _tried(step: Callable, rank: int):
    """What a step gives; none where it fails, for which all others go the ordinary way too."""
    try:
        return step()
    except (HFReduceError, OSError) as error:
        _log.warning("rank %d and its peer cannot use the NVLink that they share: %s", rank, error)
        return None
