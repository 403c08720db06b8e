"""SGLang's sources define every name that the plugin uses; nothing is imported."""

import zipfile
from pathlib import Path

import pytest

from seer_sgl.plugin.sources import PACKAGE, Sources

from . import upgrade

FILES = {
    "__init__.py": "",
    "base.py": (
        "class Base:\n"
        "    def __init__(self):\n"
        "        self.size = 1\n"
        "    def run(self, n: int): ...\n"
    ),
    "inner/__init__.py": "from ..base import Base as Hidden\nfrom .names import *\n",
    "inner/names.py": "try:\n    import torch\n    LIMIT: int = 3\nexcept ImportError: ...\n",
    "child.py": (
        "from torch.nn import Module\n"
        "from sglang.inner import Hidden\n"
        "if True:\n"
        "    class Child(Module, Hidden):\n"
        "        field: int\n"
        "        one, two = 1, 2\n"
    ),
    "circle.py": "from sglang.circle import lost\nclass Round(Round): ...\n",
}
THERE = [
    "sglang.child",
    "sglang.child.Child.run",
    "sglang.child.Child.size",
    "sglang.child.Child.field",
    "sglang.child.Child.two",
    "sglang.inner.Hidden",
    "sglang.inner.LIMIT",
    "sglang.child.Module",
]
NOT_THERE = [
    "sglang.gone.Child",
    "sglang.child.Child.walk",
    "sglang.inner.MISSING",
    "sglang.base.Base.run.inner",
    "sglang.circle.lost",
    "sglang.circle.Round.run",
]


@pytest.fixture(params=["folder", "wheel"])
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> Sources:
    wheel = tmp_path / "sglang-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(f"{PACKAGE}/{name}", text)
    if request.param == "wheel":
        return upgrade.in_wheel(wheel)
    zipfile.ZipFile(wheel).extractall(tmp_path)
    return Sources.folder(tmp_path)


def test_a_name_is_found_through_imports_conditions_and_base_classes(sources: Sources) -> None:
    assert [name for name in THERE if sources.find(name) is None] == []
    assert [name for name in NOT_THERE if sources.find(name) is not None] == []


@pytest.mark.process
def test_sglang_has_every_name_that_the_plugin_uses() -> None:
    assert list(upgrade.missing(Sources.installed())) == []


def test_a_name_that_is_gone_is_listed(sources: Sources) -> None:
    gone = list(upgrade.missing(sources))
    assert "counters: hook run_batch is gone with sglang.srt.managers.scheduler.Scheduler" in gone
    for kind in ("hook", "import", "member"):
        assert sum(f": {kind} " in line for line in gone) > 30
