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


@pytest.mark.parametrize("field", KvLayout.__struct_fields__)
def test_every_fact_of_a_layout_changes_the_name(field: str) -> None:
    other = msgspec.structs.replace(LAYOUT, **{field: OTHERS[field]})
    assert other.tag("fleet") != LAYOUT.tag("fleet")


def test_neither_facts_nor_namespaces_stand_in_for_each_other() -> None:
    swapped = msgspec.structs.replace(LAYOUT, tp_size=2), msgspec.structs.replace(LAYOUT, pp_size=2)
    assert len({layout.tag("fleet") for layout in swapped}) == 2
    assert len({LAYOUT.tag(name) for name in ("", "a", "b")}) == 3


def test_a_name_is_short_and_safe_in_a_file_name() -> None:
    tag = LAYOUT.tag("a/b:c d" * 100)
    assert len(tag) < 32
    assert tag.replace("-", "").isalnum()


CONFIG = {"hidden_size": 64, "rope_parameters": {"factor": 2.0}, "_name_or_path": "here"}


def test_the_same_model_has_the_same_name_wherever_it_was_found() -> None:
    elsewhere = dict(reversed(CONFIG.items())) | {"_name_or_path": "elsewhere"}
    assert weights_name(elsewhere, ["a", "b"]) == weights_name(CONFIG, ["a", "b"])


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


def test_a_name_does_not_depend_on_where_in_memory_a_value_lies() -> None:
    assert weights_name({"x": object()}, []) == weights_name({"x": object()}, [])


def test_a_configuration_with_keys_of_two_kinds_has_a_name() -> None:
    assert weights_name({"a": {1: "x", "b": 2}}, []) == weights_name({"a": {"b": 2, 1: "x"}}, [])
