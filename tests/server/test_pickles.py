"""Pickled tensors are checked before an engine loads them, without running what they name."""

import ast
import base64
import importlib.util
import io
import os
import pickle
from collections import OrderedDict
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.server.control.pickles import ALLOWED, require_adapter, require_loadable
from seer_sgl.server.errors import BadRequest


def entry(value: Any) -> str:
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(value)
    return base64.b64encode(buffer.getvalue()).decode()


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/evil",)


def test_tensors_as_trainers_send_them_pass() -> None:
    torch = pytest.importorskip("torch")
    tensors = [("a.weight", torch.zeros(3, 2)), ("b", torch.ones(1, dtype=torch.bfloat16))]
    require_loadable([entry(tensors)], None)
    require_loadable([entry(tensors)] * 2, "direct")
    parameter = torch.nn.Parameter(torch.zeros(2))
    require_loadable([entry([("c", parameter)])], "my.loader")
    bucket = {"flattened_tensor": torch.zeros(8), "metadata": []}
    require_loadable([entry(bucket)], "flattened_bucket")
    in_place = pickle.dumps([("d", torch.zeros(2))])  # as bytes, not by a shared descriptor
    require_loadable([base64.b64encode(in_place).decode()], None)


@pytest.mark.parametrize(
    ("bad", "load_format", "why"),
    [
        (entry([("a", Evil())]), None, "may not name posix.system"),
        (entry(5), None, "no list of pairs"),
        (entry([("a", 5)]), None, "no list of pairs"),
        (entry([("a", "b", "c")]), None, "no list of pairs"),
        (entry([]), "flattened_bucket", "no bucket"),
        (entry([]), "nobody knows it", "load_format"),
        ("not base64!", None, "no base64"),
        (base64.b64encode(b"\x80\x04no pickle").decode(), None, "no pickled tensors"),
        (base64.b64encode(b"").decode(), None, "no pickled tensors"),
        (base64.b64encode(b"cseer_sgl.cli\nmain\n.").decode(), None, "seer_sgl.cli.main"),
        (base64.b64encode(b"\x80\x04r\xff\xff\xff\x7f.").decode(), None, "no pickled tensors"),
        (base64.b64encode(b"P5\n.").decode(), None, "other storage"),
    ],
)
def test_what_would_end_an_engine_is_refused(bad: str, load_format: str | None, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        require_loadable([entry([]), bad] if load_format is None else [bad], load_format)
    assert not Path("/tmp/evil").exists()


def test_an_adapter_as_trainers_send_it_passes() -> None:
    torch = pytest.importorskip("torch")
    require_adapter([entry({"a.lora_A.weight": torch.zeros(3, 2)})] * 3, None, 2)
    require_adapter([entry(OrderedDict(a=torch.zeros(2)))], "a format that SGLang ignores", 1)
    bucket = {"flattened_tensor": torch.zeros(8), "metadata": []}
    require_adapter([entry(bucket)], "flattened_bucket", 1)


@pytest.mark.parametrize(
    ("entries", "load_format", "why"),
    [
        ([entry({})], None, "1 entries for 2 ranks"),
        ([entry({}), entry({"a": Evil()})], None, "may not name posix.system"),
        ([entry({}), entry([("a", 5)])], None, "no tensors by name"),
        ([entry({}), entry({})], "flattened_bucket", "no bucket"),
    ],
)
def test_an_adapter_that_would_end_an_engine_is_refused(
    entries: list[str], load_format: str | None, why: str
) -> None:
    with pytest.raises(BadRequest, match=why):
        require_adapter(entries, load_format, 2)


def test_no_name_is_allowed_that_sglang_refuses() -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("SGLang is not installed")
    source = Path(spec.submodule_search_locations[0]) / "srt/utils/common.py"
    tree = ast.parse(source.read_text())
    (found,) = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "ALLOWED_GLOBALS"
    )
    sglang = ast.literal_eval(found)
    ours = {(module, name) for module, names in ALLOWED.items() for name in names}
    assert ours - sglang == {("torch.storage", "_load_from_bytes")}  # it has a rule of its own
