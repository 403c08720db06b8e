"""Names of KV are equal only if the bytes are interchangeable."""

from typing import Any

import msgspec
import pytest

from seer_sgl.kvpool.namespace import KvLayout, weights_name

LAYOUT = KvLayout(dtype="torch.float32", layout="page_first", page_size=64, tp_size=1, pp_size=1)
OTHERS: dict[str, Any] = {
    "dtype": "torch.bfloat16",
    "layout": "layer_first",
    "page_size": 16,
    "tp_size": 2,
    "pp_size": 2,
}


def test_a_name_is_of_one_namespace_and_of_all_facts_of_a_layout() -> None:
    changes = [{}, *({field: OTHERS[field]} for field in KvLayout.__struct_fields__)]
    layouts = [msgspec.structs.replace(LAYOUT, **change) for change in changes]
    tags = [layout.tag(namespace) for layout in layouts for namespace in ("", "a", "b")]
    assert len(set(tags)) == len(tags)


def test_a_name_is_short_and_safe_in_a_file_name() -> None:
    tag = LAYOUT.tag("a/b:c d" * 100)
    assert len(tag) < 32
    assert tag.replace("-", "").isalnum()


CONFIG = {"hidden_size": 64, "rope_parameters": {"factor": 2.0}, "_name_or_path": "here"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CONFIG, dict(reversed(CONFIG.items())) | {"_name_or_path": "elsewhere"}),
        ({"x": object()}, {"x": object()}),
        ({"a": {1: "x", "b": 2}}, {"a": {"b": 2, 1: "x"}}),
    ],
    ids=["found elsewhere", "at another place in memory", "keys of two kinds"],
)
def test_the_same_model_has_the_same_name(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert weights_name(one, ["a", "b"]) == weights_name(other, ["a", "b"])


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        (CONFIG, ["a", "c"]),
        (CONFIG, ["b", "a"]),
        (CONFIG, ["a"]),
        (CONFIG, ["ab"]),
        (CONFIG, []),
        (CONFIG | {"hidden_size": 65}, ["a", "b"]),
        (CONFIG | {"rope_parameters": {"factor": 4.0}}, ["a", "b"]),
        ({}, ["a", "b"]),
    ],
)
def test_a_change_of_a_weight_on_any_rank_or_of_the_configuration_changes_the_name(
    config: dict[str, Any], ranks: list[str]
) -> None:
    assert weights_name(config, ranks) != weights_name(CONFIG, ["a", "b"])
