"""The YAML of the pages is valid, and the config keys that the pages name exist."""

import re
from pathlib import Path

import msgspec
import pytest

from seer_sgl import Rollout, load_ready
from seer_sgl.benchmark.config import load_ready_bench as load_bench
from seer_sgl.config import Config
from seer_sgl.config.engines import KEYS
from seer_sgl.errors import ConfigError
from seer_sgl.sampling import ALIAS
from tools.docs.pages import ROOT

from .blocks import PAGES, blocks
from .configs import PageConfig, configs
from .links import FENCE

KEY = re.compile(r"`([a-z_]+)\.([a-z_]+)\b(?![/(])[^`]*`")
OVERRIDE = re.compile(r"`--set ([a-z][\w.-]*=[^`]+)`")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("config", configs(), ids=lambda config: config.place)
def test_a_config_of_a_page_is_valid(config: PageConfig) -> None:
    assert config.load().model.path is not None


def test_the_ready_config_that_a_page_explains_is_that_config() -> None:
    (shown,) = [config for config in configs() if config.place.endswith("#the-config-line-by-line")]
    assert shown.load() == load_ready("cpu")


def test_config_keys_that_the_pages_name_exist() -> None:
    known = {
        name: {*type(section).__struct_fields__}
        for name, section in msgspec.structs.asdict(Config()).items()
    }
    known["engines"] = {"launch", *KEYS}
    known["rollout"] |= {*dir(Rollout)}  # the object `rollout`
    known["sampling"].add(ALIAS)
    named = {
        (page.name, section, key)
        for page in PAGES
        for section, key in KEY.findall(prose(page))
        if section in known and key != "py"
    }
    assert len(named) > 40
    assert [each for each in named if each[2] not in known[each[1]]] == []


def test_overrides_that_the_pages_name_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    named = [(page, override) for page in PAGES for override in OVERRIDE.findall(prose(page))]
    assert {page.parent.name == "gpu" for page, _ in named} == {False, True}
    for page, override in named:
        if page.parent.name == "gpu":
            load_bench(True, [override])
        else:
            load_ready("cpu", [override])


def test_a_mistake_is_reported_in_the_words_of_the_page() -> None:
    page = blocks(ROOT / "docs" / "getting-started.md")
    texts = [block.code.strip() for block in page if block.language == "text"]
    (shown,) = [text for text in texts if text.startswith("seer-sgl: --set ")]
    override = shown.removeprefix("seer-sgl: --set ").partition(":")[0]
    with pytest.raises(ConfigError) as raised:
        load_ready("cpu", [override])
    assert f"seer-sgl: {raised.value}" == shown
