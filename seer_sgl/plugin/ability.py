"""The abilities of the plugin: groups of hooks that act all together or not at all.

A version of SGLang may lack something that an ability needs. Then this ability is off, and the
engine works without it. A server or a config that demands the ability is refused instead.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from seer_sgl.link.contract import ALGORITHM, DP_RANKS, DRAFTS, EXACT, POOL, PORTS, SECRETS
from seer_sgl.processes import loopback

from .hook import Hook
from .needs import files, lacking
from .sglang_types import SglServerArgs
from .sources import Sources


class Ability(NamedTuple):
    """Some hooks, and what is lost if one of them cannot be applied.

    without: one sentence about an engine that lacks the ability. after: other abilities without
    which this one is off. parts: modules and packages of the plugin whose needs are the ability's,
    beside the files of its hooks.
    """

    name: str
    hooks: Sequence[Hook]
    without: str
    after: Sequence[str] = ()
    parts: Sequence[str] = ()

    def files(self) -> list[Path]:
        own = {Path(inspect.getfile(hook.function)) for hook in self.hooks}
        return sorted(own.union(*map(files, self.parts)))


def switched_off(
    abilities: Sequence[Ability],
    lacks: Callable[[Ability], Iterator[str]],
    known: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns why abilities are off, by name.

    lacks: yields what one of them needs and has not. known: those that are off already.
    """
    off = dict(known or {})
    for ability in abilities:  # an ability follows the ones that it needs
        if ability.name in off:
            continue
        found = list(lacks(ability))
        found += [f"it needs {other}, which is off" for other in ability.after if other in off]
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            off[ability.name] = f"{found[0]}{more}"
    return off


def lacked_by(sources: Sources, version: str) -> Callable[[Ability], Iterator[str]]:
    """Returns what yields the needs of an ability that a version of SGLang does not meet."""

    def lacks(ability: Ability) -> Iterator[str]:
        for line in lacking(ability.hooks, ability.files(), sources):
            yield f"SGLang {version}: {line}"

    return lacks


def unresolved(ability: Ability) -> Iterator[str]:
    """Yields one line per hook whose function cannot be imported in this process."""
    for hook in ability.hooks:
        try:
            pkgutil.resolve_name(hook.target)
        except Exception as error:  # of any module of SGLang, or of what it imports
            yield f"{hook.target} cannot be imported: {error!r}"


def refusal(
    off: Mapping[str, str], server_args: SglServerArgs, environment: Mapping[str, str]
) -> str | None:
    """Returns why a server must not run without the abilities that are off; None if it may."""
    key = server_args.api_key or server_args.admin_api_key or server_args.ssl_keyfile_password
    storage = server_args.hicache_storage_backend
    demands = (
        ("report", True, "a driver could not tell it from a stock server"),
        (DP_RANKS, server_args.dp_size > 1, "a flush would seem done before it is"),
        (DRAFTS, server_args.speculative_algorithm == ALGORITHM, "it is to draft"),
        (POOL, storage is not None, "it would share KV under the names of other weights"),
        (EXACT, server_args.enable_deterministic_inference, "its seeds would not fix its tokens"),
        (SECRETS, bool(key), "its keys would be in its log"),
        (PORTS, bool(key), "its ports would be open without a key"),
        (PORTS, loopback.ONLY in environment, "the ports of its KV pool would be open"),
    )
    for name, demanded, why in demands:
        if demanded and name in off:
            return f"this server cannot run without `{name}`: {why}; {off[name]}"
    return None
