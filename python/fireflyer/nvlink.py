"""An allreduce of tensors on GPUs that share an NVLink: two GPUs are added up before anything goes to the host.

Each GPU of a pair gets the other's half of a tensor and adds it to its own; all first GPUs of the pairs reduce the first
half over their sidecars, all second ones the second half, and each pair exchanges what comes back. So half as many bytes
cross PCIe, and the sidecars add up half as many inputs.

Owns the order. On a GPU what goes to the host runs on one stream, what comes back on another, and the host waits between
them. Between the two, a process says that a copy into the other's
inbox has come when it has come: no stream ever waits for another process, which might have ended. Parts are worked on
three at a time: while one is on its way to the host, the next one is announced, and the one after that begins. A place
in an inbox is used again after `SLOTS` parts: who receives part n's message knows that the other is through with part n - 2,
because it has announced n after it waited for that one, and writes to the places of n + 2 at the earliest.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from . import naming
from .call import Call
from .collective_error import HFReduceError
from .link import Head, Link
from .pairs import SLOTS, Joined
from .shared import ALIGNMENT, Memory

if TYPE_CHECKING:
    from ._native import Client, Copy, Event, Gpu, Ticket

#: A premultiplied sum is a sum once the pairs have multiplied.
_AFTERWARDS = {"premul_sum": "sum"}


class _Part:
    """A part of a tensor on its way: the half that this GPU adds up, the other half, addresses and bytes of each."""

    def __init__(self, own: tuple[int, int], other: tuple[int, int], offset: int) -> None:
        self.own, self.other = own, other
        #: Its place in the memory that is shared with the sidecar.
        self.offset = offset
        #: Count the parts of a pair, on their way to the host and back.
        self.up = self.down = 0
        self.sent: Event | None = None
        self.fetched: Copy | None = None
        self.ticket: Ticket | None = None
        self.delivered: Copy | None = None
        self.returned: Event | None = None
        self.error: HFReduceError | None = None
        #: Whether the two have called different things, so that the other knows nothing of this one.
        self.is_alone = False
        #: Set when it has been called, or could not be.
        self.called = threading.Event()

    def fails(self, error: HFReduceError) -> None:
        """The first error is the one that is raised."""
        self.error = self.error or error


def cut(start: int, total: int, itemsize: int, half_bytes: int, is_first: bool) -> list[_Part]:
    """A tensor in parts whose halves have at most so many bytes, but two elements: as equal as can be, so that no half is
    empty."""
    parts = []
    pieces = -(-total // max(2 * (half_bytes // itemsize), 4))
    offset = 0
    for index in range(pieces):
        count = total // pieces + (index < total % pieces)
        upper = (count + 1) // 2 * itemsize
        lower = count * itemsize - upper
        halves = (start, upper), (start + upper, lower)
        own, other = halves if is_first else reversed(halves)
        parts.append(_Part(own, other, offset))
        offset += -(-own[1] // ALIGNMENT) * ALIGNMENT
        start += count * itemsize
    return parts


class Bridge:
    """This process's side of a pair."""

    def __init__(
        self, client: Client, gpu: Gpu, joined: Joined, slot_bytes: int, timeout: float
    ) -> None:
        self._client, self._gpu, self._timeout = client, gpu, timeout
        self._pair, self._lane = joined.pair, joined.lane
        self._up, self._down = joined.links
        self._is_first, self._slot_bytes = joined.is_first, slot_bytes
        #: The numbers of the next parts.
        self._next_up = self._next_down = 0

    def after(self, stream: int) -> Event:
        """The end of all that a stream was given so far."""
        return self._gpu.event(stream)

    def cut(self, start: int, total: int, itemsize: int) -> list[_Part]:
        """The parts of a tensor."""
        return cut(start, total, itemsize, self._slot_bytes, self._is_first)

    def bring(
        self,
        parts: list[_Part],
        call: Call,
        memory: Memory,
        after: Event,
    ) -> None:
        """Adds up each part and calls it."""
        digest = hashlib.blake2b(repr(call).encode(), digest_size=8).digest()
        name = int.from_bytes(digest, "little")
        first, self._next_up = self._next_up, self._next_up + len(parts)
        for number, part in enumerate(parts, first):
            part.up = number
        try:
            for step in range(len(parts) + 2):
                if step < len(parts):
                    self._send(parts[step], after)
                if 0 < step <= len(parts):
                    self._fetch(parts, step - 1, call, name, memory)
                if step > 1:
                    self._call(parts[step - 2], call, memory)
        except Exception as raised:  # A bug of ours must not leave a rank waiting.
            error = HFReduceError(f"failed to reduce two GPUs: {raised!r}")
            for part in parts:
                if not part.called.is_set():
                    part.fails(error)
        finally:
            for part in parts:
                part.called.set()

    def _send(self, part: _Part, after: Event) -> None:
        if part.is_alone:
            return
        try:
            part.sent = self._pair.send(*part.other, self._place(0, part.up), after)
        except HFReduceError as error:
            part.fails(error)

    def _fetch(
        self,
        parts: list[_Part],
        index: int,
        call: Call,
        name: int,
        memory: Memory,
    ) -> None:
        part = parts[index]
        try:
            if part.sent is not None:
                part.sent.wait()
        except HFReduceError as error:
            part.fails(error)
        if part.is_alone:
            return
        try:
            ours = Head(part.up, parts[-1].up + 1, name)
            theirs = self._exchange_heads(self._up, part, ours)
            if theirs != ours:
                self._part_ways(parts, ours, theirs)
            elif part.error is None:
                place = self._place(0, part.up)
                part.fetched = self._pair.fetch(call, part.own, place, memory.arena, part.offset)
        except HFReduceError as error:
            part.fails(error)

    def _part_ways(self, parts: list[_Part], ours: Head, theirs: Head) -> None:
        """The two have called different things: both leave it at that, and begin the next call with the same number."""
        self._next_up = max(ours.end, theirs.end)
        for part in parts:
            part.is_alone = True
            part.fails(
                HFReduceError(
                    "ranks disagree: this rank and its NVLink peer have called different collectives"
                )
            )

    def _call(self, part: _Part, call: Call, memory: Memory) -> None:
        try:
            if part.fetched is not None:
                part.fetched.wait()
                reduction = _AFTERWARDS.get(call.reduction, call.reduction)
                half = call._replace(count=part.own[1] // call.item_bytes, reduction=reduction)
                part.ticket = self._client.submit(
                    half, memory.arena, part.offset, group=self._lane, timeout=self._timeout
                )
            elif not self._up.is_broken:
                # In its place, so that all ranks get an error and the next call finds them in step.
                barrier = Call("barrier", tag=naming.of_pair())
                part.ticket = self._client.call(
                    barrier, None, group=self._lane, timeout=self._timeout
                )
        except HFReduceError as error:
            part.fails(error)
        finally:
            part.called.set()

    def take_back(self, parts: list[_Part], memory: Memory) -> Event:
        """Waits for the results and exchanges their halves. What a stream waits for that reads them."""
        arrived = None
        for step in range(len(parts) + 1):
            if step < len(parts):
                self._deliver(parts[step], memory)
            if step > 0:
                arrived = self._exchange(parts[step - 1]) or arrived
        errors = [part.error for part in parts if part.error is not None]
        if errors:
            if arrived is not None:
                arrived.wait()  # Whoever catches the error may drop the tensor.
            raise HFReduceError(naming.explain(str(errors[0])))
        assert arrived is not None
        return arrived

    def _deliver(self, part: _Part, memory: Memory) -> None:
        part.called.wait()
        if not part.is_alone:
            part.down, self._next_down = self._next_down, self._next_down + 1
        try:
            if part.error is None:
                assert part.ticket is not None, "it was called"
                part.delivered = self._client.deliver(
                    part.ticket, self._gpu, memory.arena, part.offset, [(0, *part.own)],
                    timeout=self._timeout,
                )  # fmt: skip
                part.returned = self._pair.send(*part.own, self._place(1, part.down))
            elif part.ticket is not None:
                self._client.wait(part.ticket, None, timeout=self._timeout)
        except HFReduceError as error:
            part.fails(error)

    def _exchange(self, part: _Part) -> Event | None:
        try:
            # Of nothing, when all before is over: the next message covers that too.
            (part.returned or self._pair.send(0, 0, 0)).wait()
            if part.delivered is not None:
                part.delivered.wait()  # The sidecar gets the memory of its result back.
        except HFReduceError as error:
            part.fails(error)
        if part.is_alone:
            return None
        try:
            self._exchange_heads(self._down, part, Head(part.down, 0, 0))
            if part.error is None:
                start, nbytes = part.other
                return self._pair.receive(self._place(1, part.down), start, nbytes)
        except HFReduceError as error:
            part.fails(error)
        return None

    def _exchange_heads(self, link: Link, part: _Part, head: Head) -> Head:
        """Both say how far they are with a part; either's error is both's."""
        link.send(head, str(part.error or ""))
        theirs, error = link.receive()
        if error:
            part.fails(HFReduceError(error))
        return theirs

    def _place(self, way: int, number: int) -> int:
        return (way * SLOTS + number % SLOTS) * self._slot_bytes
