"""What would overflow the stack of an engine's compiler of grammars is refused."""

import json
from typing import Any

import msgspec
import pytest

from seer_sgl.admission.grammars import MOST_GROUPS, MOST_LEVELS, grammar_risk
from seer_sgl.admission.sampling import invalid
from seer_sgl.types import Sampling


def grouped(groups: int) -> str:
    return "(" * groups + "a" + ")" * groups


def chain(references: int) -> dict[str, Any]:
    """Returns a schema of four levels whose parts lead to each other."""
    parts: dict[str, Any] = {
        f"p{i}": {"items": {"$ref": f"#/$defs/p{i + 1}"}} for i in range(references)
    }
    return {"$defs": parts | {f"p{references}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ({"pattern": grouped(MOST_GROUPS)}, {"pattern": grouped(MOST_GROUPS + 1)}),
        ({"pattern": "(a)" * 5000}, {"patternProperties": {grouped(MOST_GROUPS + 1): {}}}),
        (chain(MOST_LEVELS // 4), chain(MOST_LEVELS // 4 + 1)),
        ({"enum": [{"$ref": "#"}] * 9999}, {"anyOf": [chain(MOST_LEVELS)]}),
    ],
)
def test_a_schema_has_an_end_to_its_recursion(most: Any, more: Any) -> None:
    assert grammar_risk(json.dumps(most)) is None
    assert grammar_risk(json.dumps(more)) is not None


@pytest.mark.parametrize("name", ["json_schema", "structural_tag"])
def test_a_grammar_is_refused_by_its_name(name: str) -> None:
    def refused(text: str) -> list[str]:
        return [reason.key for reason in invalid(msgspec.convert({name: text}, Sampling))]

    more = json.dumps({"format": {"json_schema": {"pattern": grouped(MOST_GROUPS + 1)}}})
    assert refused(more) == [name]
    assert refused("no JSON") == refused("[" * 100_000) == []
