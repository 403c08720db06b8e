"""Which groups of a rollout count, and when the rollout has ended. Pure."""

from typing import Literal

from .errors import Conflict, NotFound

End = Literal["complete", "target", "exhausted", "aborted", "left", "failed"]


class RolloutTally:
    """The groups of one rollout, by their state.

    `target`: how many groups must count; None: all. `decided`: a group counts once it is accepted;
    otherwise once it is complete. A rejected group does not count.

    A rollout without decisions ends with the completion of the group that meets its target, so its
    last groups cannot be rejected any more. One with decisions never ends while a complete group is
    undecided and the target is not met: the client's next verdict ends it, not a timer.
    """

    def __init__(self, groups: int, target: int | None, decided: bool) -> None:
        self.target = target
        self.decided = decided
        self.total = groups
        self.complete: dict[str, None] = {}  # in the order of completion, with the rejected ones
        self.accepted: dict[str, None] = {}
        self.rejected: dict[str, None] = {}
        self.failed: dict[str, None] = {}

    @property
    def unfinished(self) -> int:
        """The number of groups that are neither complete nor given up."""
        return self.total - len(self.complete) - len(self.failed)

    @property
    def counted(self) -> list[str]:
        """The ids of the groups that count, in the order of completion."""
        if self.decided:
            return [name for name in self.complete if name in self.accepted]
        return [name for name in self.complete if name not in self.rejected]

    @property
    def undecided(self) -> int:
        """The number of complete groups that wait for a verdict."""
        if not self.decided:
            return 0
        return len(self.complete) - len(self.accepted) - len(self.rejected)

    @property
    def end(self) -> End | None:
        """How the rollout has ended; None while it continues."""
        if self.target is not None and self._count >= self.target:
            return "target"
        if self.unfinished or self.undecided:
            return None
        return "complete" if self.target is None else "exhausted"

    @property
    def _count(self) -> int:
        if self.decided:
            return len(self.accepted)
        return len(self.complete) - len(self.rejected)

    def accept(self, group_id: str) -> None:
        """Makes a complete group count. Raises HttpError if it cannot."""
        if not self.decided:
            raise Conflict("groups count without being accepted; see dynamic_filtering")
        self._require_complete(group_id)
        if group_id in self.rejected:
            raise Conflict(f"group {group_id!r} was rejected")
        self.accepted[group_id] = None

    def reject(self, group_id: str) -> None:
        """Takes a complete group back. Raises HttpError if it cannot."""
        self._require_complete(group_id)
        if group_id in self.accepted:
            raise Conflict(f"group {group_id!r} was accepted")
        if group_id in self.rejected:
            raise Conflict(f"group {group_id!r} was rejected already")
        self.rejected[group_id] = None

    def _require_complete(self, group_id: str) -> None:
        if group_id not in self.complete:
            raise NotFound(f"the rollout has no complete group {group_id!r}")
