"""The trainer's process groups: the ranks of all engines join one and leave it together."""

from collections.abc import Collection, Iterable
from typing import Self

import msgspec

from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import InputError, StateError

from .bodies import Fields, body_of, fields_of, group_bodies
from .calls import call_all
from .replies import CallResult, failed_of, failures
from .state import FleetState, ranks_of, start_of

DEFAULT_GROUP = "weight_update_group"  # SGLang's
# SGLang's words of an engine that was restarted, or has joined, since the group was made.
NO_MEMBER = "group to be destroyed does not exist"


class TrainerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group of the trainer, for `init_weights_update_group` (SGLang).

    The trainer's own ranks come before `rank_offset`. `fields`: all of the call.
    """

    rank_offset: int
    world_size: int
    name: str = DEFAULT_GROUP
    fields: Fields = {}

    @classmethod
    def at(
        cls,
        address: str,
        port: int,
        *,
        world_size: int,
        rank_offset: int = 1,
        name: str = DEFAULT_GROUP,
        backend: str = "nccl",
    ) -> Self:
        """Returns the group whose first rank listens at `address:port`.

        `world_size`: the trainer's ranks and those of all engines.
        """
        fields = fields_of(
            master_address=address,
            master_port=port,
            rank_offset=rank_offset,
            world_size=world_size,
            group_name=name,
            backend=backend,
        )
        return cls(rank_offset=rank_offset, world_size=world_size, name=name, fields=fields)


async def init_group(state: FleetState, group: TrainerGroup) -> CallResult:
    """Makes every engine's ranks join the trainer's process group.

    Between begin and end of an update: the ranks of the engines that take part in it, because
    the others would wait for an engine that does not answer.
    """
    engines = state.taking_part()
    require_one_copy("init_weights_update_group", engines)
    bodies = group_bodies(group.fields, ranks_of(engines), group.rank_offset, group.world_size)
    async with state.holds.during("init_weights_update_group"):
        replies = await call_all(engines, "POST", "/init_weights_update_group", bodies)
    failed = failed_of(replies)  # a collective operation needs all engines
    if not failed:
        state.groups[group.name] = frozenset(start_of(engine) for engine in engines)
    return CallResult(replies, failed)


async def destroy_group(state: FleetState, name: str, fields: Fields) -> CallResult:
    state.groups.pop(name, None)
    path = "/destroy_weights_update_group"
    async with state.holds.during("destroy_weights_update_group"):
        replies = await call_all(state.engines(), "POST", path, body_of(fields))
    members = {name: it for name, it in replies.items() if NO_MEMBER not in str(it.reply)}
    return CallResult(replies, failures(members or replies))


def require_one_copy(call: str, engines: Iterable[HttpEngine]) -> None:
    """Raises InputError for a server with several copies of the model: SGLang gives them new
    weights from disk only, and fails an assertion otherwise."""
    for info in (engine.info for engine in engines):
        if info.dp_size > 1 and not info.dp_attention:
            raise InputError(
                f"{call}: engine {info.server_id} has dp-size {info.dp_size} without "
                "enable-dp-attention: SGLang updates its weights from disk only"
            )


def require_complete(state: FleetState, name: str, engines: Collection[HttpEngine]) -> None:
    """Raises StateError unless all members of a process group are among the engines.

    The others would wait for the missing ranks for ever. A group that was made elsewhere is
    unknown, and so are its members.
    """
    present = {start_of(engine) for engine in engines}
    missing = sorted(engine_id for engine_id, _ in state.groups.get(name, frozenset()) - present)
    if missing:
        raise StateError(
            f"process group {name!r} has lost {', '.join(missing)}: destroy it, and create it again"
        )
