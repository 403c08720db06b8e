"""The page docs/hooks.md: every hook of the plugin, from `Hook.why`."""

from collections.abc import Iterator

from seer_sgl.plugin.hook import Hook
from seer_sgl.plugin.plugin import Plugin

HEAD = """\
# Hooks into SGLang

Where the plugin acts inside SGLang 0.5.21, and why: for reviewers of the plugin, and for an upgrade of SGLang.

SGLang loads the plugin through its entry point `sglang.srt.plugins` and applies the hooks with its own `HookRegistry`. Nothing of SGLang is copied or patched on disk. SGLang logs
a hook that fails and continues. Therefore each scheduler reports in `/server_info` which hooks are in place. Launcher and client refuse a server where one is missing.
`make test-index` compares every name that the plugin uses with the sources of the newest SGLang.

A hook `before` a function may change its arguments. One `after` it receives the result. One `around` it calls SGLang's function itself. A `replace` hook runs in its place.
"""
ROOMS = {
    "plugin": "Report",
    "prepare": "Before the engine is ready",
    "work": "Counters",
    "kv_waits": "Requests that wait for KV",
    "weights": "Digest of the weights",
    "pool": "KV pool",
    "kv_threads": "Threads of the KV pool",
    "page_hash": "Names of pages",
    "stops": "Stop conditions of drafted tokens",
    "ends": "End of an aborted chunk",
    "stop_windows": "Stop strings at the end of a chunk",
    "noise": "Sampling noise",
    "penalties": "Penalties",
    "ports": "Ports",
    "secrets": "Secrets",
    "speculation": "Speculative decoding",
    "cpu": "Machines without a GPU",
}


def text() -> str:
    """Returns the page."""
    rooms: dict[str, list[Hook]] = {}
    for hook in Plugin(on_cpu=True).hooks:
        rooms.setdefault(_room(hook), []).append(hook)
    assert list(rooms) == [name for name in ROOMS if name in rooms], "in the order of ROOMS"
    return "\n".join([HEAD, *(line for name in rooms for line in _section(name, rooms[name]))])


def _room(hook: Hook) -> str:
    return hook.function.__module__.removeprefix("seer_sgl.plugin.").partition(".")[0]


def _section(name: str, hooks: list[Hook]) -> Iterator[str]:
    yield f"## {ROOMS[name]}\n"
    yield "| function of SGLang | kind | why |\n|---|---|---|"
    for hook in hooks:
        owner, _, function = hook.target.rpartition(".")
        shown = ".".join([owner.rpartition(".")[2], function])
        yield f"| `{shown}`<br>{owner} | {hook.kind} | {hook.why} |"
    yield ""
