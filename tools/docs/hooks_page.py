"""The page docs/hooks.md: every hook of the plugin by ability, from `Hook.why`."""

from collections.abc import Iterator

from seer_sgl.plugin.ability import Ability
from seer_sgl.plugin.plugin import Plugin

from .prose import wrapped

HEAD = """\
# Hooks into SGLang

SGLang loads the plugin through its entry point `sglang.srt.plugins` and applies the hooks with its own `HookRegistry`. Nothing of SGLang is copied or
patched on disk.

The hooks of an ability are applied all together or not at all. Before that, the plugin compares what the ability needs with SGLang's sources: the
functions that it hooks and their parameters, the names that it imports, the functions that it calls, and the members that it
uses. An ability that lacks one of them is off. The engine serves without it; the
log, `/server_info` and the report say why ([Versions of SGLang](sglang-versions.md)). SGLang only logs a hook that fails
all the same. Therefore each scheduler reports in `/server_info` which hooks are in place, and launcher and client refuse a server where one is missing.
`make test-index` looks at the newest SGLang.

"Until" says which change of SGLang would make a hook unnecessary. Three of these changes are written out: [seeded noise by token](upstream/seeded-noise.md),
[masked keys](upstream/masked-keys.md), [stops within an accepted run](upstream/stops.md).

A hook `before` a function may change its arguments. One `after` it receives the result. One `around` it calls SGLang's function itself. A `replace` hook
runs in its place.
"""


def text() -> str:
    """Returns the page."""
    abilities = Plugin(on_cpu=True).abilities
    return "\n".join([HEAD, *(line for ability in abilities for line in _section(ability))])


def _section(ability: Ability) -> Iterator[str]:
    yield f"## {ability.name.replace('-', ' ').capitalize()}\n"
    needs = f" It needs {' and '.join(f'`{name}`' for name in ability.after)}."
    without = f"Without `{ability.name}`: {ability.without}{needs if ability.after else ''}"
    yield f"{wrapped(without)}\n"
    yield "| function of SGLang | kind | why | until |\n|---|---|---|---|"
    for hook in ability.hooks:
        owner, _, function = hook.target.rpartition(".")
        shown = ".".join([owner.rpartition(".")[2], function])
        yield f"| `{shown}`<br>{owner} | {hook.kind} | {hook.why} | {hook.until} |"
    yield ""
