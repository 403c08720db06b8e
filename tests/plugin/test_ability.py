"""Abilities: what a version of SGLang lacks switches a whole ability off. Without SGLang."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.link import contract
from seer_sgl.plugin import cpu, sglang_types
from seer_sgl.plugin import plugin as plugins
from seer_sgl.plugin.ability import Ability, refusal, switched_off, unresolved
from seer_sgl.plugin.hook import Hook
from seer_sgl.plugin.needs import PLUGIN, files, lacking, members, needs_of
from seer_sgl.plugin.plugin import Plugin
from seer_sgl.plugin.sources import Sources
from seer_sgl.plugin.speculation import algorithm
from seer_sgl.processes import loopback

from .stand_ins import replace_module

ALL = Plugin(on_cpu=True).abilities
NAMES = [ability.name for ability in ALL]
# Files that serve all abilities, or that run outside of SGLang's schedulers.
SHARED = {
    "__init__",
    "ability",
    "cpu/kernels",
    "cpu/speculative_kernels",
    "hook",
    "needs",
    "server",
    "sglang_types",
    "sources",
    "tokenizer",
}
SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt.py": (
        "class Batch:\n"
        "    def run(self, batch, limit=1, *, pad=False): ...\n"
        "    def stop(self): ...\n"
        "def sample(probs, seeds=None): ...\n"
        "class Key:\n"
        "    tokens: list\n"
    ),
}
PART = """
from sglang.srt import Batch, Key, sample
def hooked(result, batch, *args, **kwargs):
    return sample(result, seeds=None), Key(tokens=[])
class Ours(Batch):
    def run(self, batch, limit=1, pad=False): ...
class Other:
    'Replaces sglang.srt.Batch.'
    def run(self, batch, limit=1, **_): ...
    def stop(self): ...
"""


def takes_all(own: object, *args: object, **kwargs: object) -> None:
    """A hook that takes every call."""


def takes_these(own: object, batch: object, limit: int = 1, *, pad: bool = False) -> None:
    """A hook with SGLang's parameters."""


def takes_less(own: object, batch: object) -> None:
    """A hook that SGLang may call with arguments that it does not take."""


def other_name(own: object, work: object, limit: int = 1, *, pad: bool = False) -> None:
    """A hook that does not take a call by name."""


def hook(function: Any, target: str = "sglang.srt.Batch.run") -> Hook:
    return Hook(target, function, "before", "A test needs it.", "It ends.")


@pytest.fixture
def part(tmp_path: Path) -> Path:
    file = tmp_path / "part.py"
    file.write_text(PART)
    return file


def lines(
    used: Sequence[Path], *hooks: Hook, instead: Mapping[str, str] | None = None
) -> list[str]:
    """Returns what hooks and files lack in the SGLang above, with some text of it replaced."""
    text = dict(SGLANG)
    for old, new in (instead or {}).items():
        assert old in text["sglang/srt.py"]
        text["sglang/srt.py"] = text["sglang/srt.py"].replace(old, new)
    return list(lacking(hooks, used, Sources(text.get)))


def test_an_sglang_with_all_that_a_file_needs_lacks_nothing(part: Path) -> None:
    assert lines([part], hook(takes_all), hook(takes_these)) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("def sample", "def draw", "import sample is gone from sglang.srt"),
        ("def run", "def ran", "hook run is gone from sglang.srt.Batch"),
        ("class Batch", "class Work", "hook run is gone with sglang.srt.Batch"),
        ("seeds=None", "seed=1", "call sglang.srt.sample: its parameters are (probs, seed=1)"),
        ("seeds=None", "seeds, x", "call sglang.srt.sample: its parameters are (probs, seeds, x)"),
        ("pad=False", "pad=False, wide=1", "override sglang.srt.Batch.run: a new parameter wide"),
        (
            "def stop(self)",
            "def stop(self, now)",
            "override sglang.srt.Batch.stop: a new parameter now",
        ),
        ("tokens: list", "pages: list", "call sglang.srt.Key: no parameter tokens"),
        (
            "    tokens: list",
            "    def __init__(self, tokens, salt): ...",
            "call sglang.srt.Key: its parameters are (self, tokens, salt)",
        ),
        (
            "pad=False",
            "pad=False, wide=1",
            "hook sglang.srt.Batch.run: its parameters are "
            "(self, batch, limit=1, *, pad=False, wide=1)",
        ),
    ],
)
def test_what_sglang_lacks_is_named_in_one_line(part: Path, old: str, new: str, line: str) -> None:
    assert line in lines([part], hook(takes_these), instead={old: new})


@pytest.mark.parametrize(
    ("function", "fits"),
    [(takes_all, True), (takes_these, True), (takes_less, False), (other_name, False)],
)
def test_a_hook_must_take_every_call_of_the_function_that_it_hooks(
    function: Any, fits: bool
) -> None:
    assert (lines([], hook(function)) == []) is fits


def test_a_hook_must_take_arguments_that_sglang_collects() -> None:
    collected = {"limit=1, *, pad=False": "*limits, **options"}
    assert lines([], hook(takes_all), instead=collected) == []
    assert lines([], hook(takes_these), instead=collected) != []


def test_an_ability_is_off_with_the_one_that_it_needs() -> None:
    names = {"digest": [], "pool": ["digest"], "pages": ["pool"], "stops": []}
    some = [Ability(name, [], "It ends.", after) for name, after in names.items()]
    lacks = {"digest": ["a hook", "a name"], "pages": ["a member"]}
    assert switched_off(some, lambda ability: iter(lacks.get(ability.name, []))) == {
        "digest": "a hook (and 1 more)",
        "pool": "it needs digest, which is off",
        "pages": "a member (and 1 more)",
    }


def test_every_file_of_the_plugin_belongs_to_an_ability() -> None:
    owned = {file for ability in ALL for file in ability.files()}
    shared = {file for name in SHARED for file in files(name)}
    assert owned | shared == set(PLUGIN.rglob("*.py"))
    assert not owned & shared


def test_every_member_of_sglangs_objects_is_needed_by_a_file() -> None:
    protocols = [value for name, value in vars(sglang_types).items() if name.startswith("Sgl")]
    needed = {member for file in PLUGIN.rglob("*.py") for member in needs_of(file).members}
    assert set(members(protocols)) - needed == set()


def test_an_ability_needs_what_its_files_use_and_no_more() -> None:
    def used(name: str) -> set[str]:
        [one] = [ability for ability in ALL if ability.name == name]
        return {member for file in one.files() for member, _ in needs_of(file).members}

    assert {"extra_key", "skip_radix_cache_insert", "waiting_queue"} <= used("digest")
    assert {"stop_strs", "output_ids", "finished_len"} <= used("stops")
    assert not {"extra_key", "stop_strs", "tree_cache"} & used("counters")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the targets that are registered, with a stand-in for SGLang's registry."""
    targets: list[str] = []
    registry = SimpleNamespace(register=lambda target, *_: targets.append(target))
    name = "sglang.srt.plugins.hook_registry"
    replace_module(monkeypatch, name, HookType=str, HookRegistry=registry)
    monkeypatch.setattr(plugins, "unresolved", lambda _: iter(()))
    monkeypatch.setattr(algorithm, "register", lambda _: targets.append("the algorithm"))
    return targets


@pytest.mark.parametrize("name", NAMES)
def test_the_hooks_of_an_ability_that_is_off_are_not_applied_and_the_others_are(
    registry: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def one_gone(one: Ability) -> Iterator[str]:
        return iter(["the last hook"] if one.name == name else [])

    monkeypatch.setattr(plugins, "unresolved", one_gone)
    loaded = Plugin(on_cpu=True)
    loaded.register()
    assert loaded.off[name] == "the last hook"
    assert set(loaded.off) - {name} == {ability.name for ability in ALL if name in ability.after}
    assert loaded.hooks == [
        one
        for ability in loaded.abilities
        if ability.name not in loaded.off
        for one in ability.hooks
    ]
    drafting = [] if "drafts" in loaded.off else ["the algorithm"]
    assert registry == [*(one.target for one in loaded.hooks), *drafting]


def test_a_child_process_takes_over_what_its_parent_found(
    registry: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[dict[str, str]] = []
    monkeypatch.setattr(cpu, "wanted", lambda: True)
    monkeypatch.setattr(cpu, "prepare_sglang", prepared.append)
    monkeypatch.setenv(contract.OFF, json.dumps({"stops": "gone", "drafts": "gone too"}))
    monkeypatch.setattr(plugins, "_current", None)
    plugins.load()
    loaded = plugins.current()
    assert loaded is not None
    assert loaded.off == {"stops": "gone", "drafts": "gone too"}
    assert prepared == [loaded.off]
    assert "the algorithm" not in registry


def test_the_first_process_looks_at_the_sources_and_hands_on_what_it_found(
    registry: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(contract.OFF, "to be undone")
    monkeypatch.delenv(contract.OFF)
    monkeypatch.setattr(cpu, "wanted", lambda: False)
    monkeypatch.setattr(Sources, "installed", lambda: Sources(SGLANG.get))
    monkeypatch.setattr(plugins, "version", lambda _: "0.0.1")
    monkeypatch.setattr(plugins, "_current", None)
    plugins.load()
    loaded = plugins.current()
    assert loaded is not None
    assert set(loaded.off) == {ability.name for ability in Plugin(on_cpu=False).abilities}
    assert json.loads(os.environ[contract.OFF]) == loaded.off
    assert registry == []
    assert loaded.off["counters"].startswith("SGLang 0.0.1: hook run_batch is gone with sglang.srt")
    assert len(caplog.messages) == len(loaded.off), "one line per ability"


def test_a_function_that_cannot_be_imported_is_named() -> None:
    here = Ability("a", [hook(takes_all, "json.loads")], "It ends.")
    assert list(unresolved(here)) == []
    gone = Ability("a", [hook(takes_all, "no_module.function")], "It ends.")
    [line] = unresolved(gone)
    assert line.startswith("no_module.function cannot be imported: ModuleNotFoundError")


def server(**fields: Any) -> Any:
    plain = {
        "api_key": None,
        "admin_api_key": None,
        "ssl_keyfile_password": None,
        "speculative_algorithm": None,
        "hicache_storage_backend": None,
        "enable_deterministic_inference": False,
        "dp_size": 1,
    }
    return SimpleNamespace(**{**plain, **fields})


DEMANDS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("drafts", {"speculative_algorithm": contract.ALGORITHM}, {}),
    ("pool", {"hicache_storage_backend": "mooncake"}, {}),
    ("exact", {"enable_deterministic_inference": True}, {}),
    ("secrets", {"api_key": "k"}, {}),
    ("secrets", {"admin_api_key": "k"}, {}),
    ("secrets", {"ssl_keyfile_password": "k"}, {}),
    ("ports", {"api_key": "k"}, {}),
    ("ports", {}, {loopback.ONLY: "1"}),
    ("dp-ranks", {"dp_size": 2}, {}),
]


@pytest.mark.parametrize(("name", "fields", "environment"), DEMANDS)
def test_a_server_that_is_to_do_what_its_sglang_cannot_do_does_not_start(
    name: str, fields: dict[str, Any], environment: dict[str, str]
) -> None:
    line = refusal({name: "a hook is gone"}, server(**fields), environment)
    assert line is not None
    assert line.startswith(f"this server cannot run without `{name}`: ")
    assert line.endswith("; a hook is gone")
    assert "\n" not in line
    assert refusal({}, server(**fields), environment) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_server_without_an_ability_that_nothing_demands_starts(name: str) -> None:
    refused = refusal({name: "a hook is gone"}, server(), {})
    assert (refused is not None) is (name == "report")
