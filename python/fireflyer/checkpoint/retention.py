"""Which checkpoints a new one replaces. Pure: what lies there goes in, what may be removed comes out.

A checkpoint is *verified* when this run has loaded it, or has written it and read it back. It is *whole* when a gang of
full size can resume it: with sharded states one that was saved by fewer ranks is not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from .manifest import Manifest

#: A checkpoint and the digest of its manifest.
Known = tuple[Manifest, str]


@dataclass
class Retention:
    """What a run knows about the checkpoints that lie there."""

    keep_last: int
    #: The number of ranks that a whole checkpoint has; none where any number can resume it.
    world_size: int | None = None
    #: Digests of those that this run has loaded, or written and read back.
    verified: set[str] = field(default_factory=set)
    #: Names of those that this run could not load: somebody may still repair them, or load them elsewhere.
    skipped: set[str] = field(default_factory=set)

    def needs_proof(self, found: Sequence[Known], saved: Manifest) -> bool:
        """Whether `saved`, just written, has to be read back: none of its kind among those that stay is verified."""
        stay = [one for one in found if one[0].name != saved.name][: self.keep_last - 1]
        return not any(
            digest in self.verified and self._is_whole(retained) == self._is_whole(saved)
            for retained, digest in stay
        )

    def removable(self, found: Sequence[Known]) -> list[Manifest]:
        """Those of `found`, newest first, that newer verified ones replace."""
        guards = self._guards(found)
        retained = {digest for _, digest in found[: self.keep_last]} | {
            digest for _, digest in guards
        }
        removable = []
        for place, (manifest, digest) in enumerate(found):
            replaced = any(
                found.index(guard) < place
                and (self._is_whole(guard[0]) or not self._is_whole(manifest))
                for guard in guards
            )
            if replaced and digest not in retained and manifest.name not in self.skipped:
                removable.append(manifest)
        return removable

    def has_verified(self, found: Collection[Known]) -> bool:
        """Whether any of them is verified."""
        return any(digest in self.verified for _, digest in found)

    def _guards(self, found: Sequence[Known]) -> list[Known]:
        """The newest verified one, and the newest verified whole one."""
        verified = [one for one in found if one[1] in self.verified]
        whole = [one for one in verified if self._is_whole(one[0])]
        return verified[:1] + whole[:1]

    def _is_whole(self, manifest: Manifest) -> bool:
        return self.world_size is None or manifest.is_of_gang(self.world_size)
