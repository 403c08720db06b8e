"""A bounded YAML loader: any text gives plain values or BadYaml, in little time and memory."""

import re
from typing import Any

import yaml
from typing_extensions import override

MAX_BYTES = 1 << 20  # per file
MAX_DEPTH = 64  # levels; Python's own recursion limit is a thousand frames
MAX_NODES = 100_000  # values and keys; an alias counts once per use
MAX_NUMBER = 500  # characters; the cost of arithmetic is quadratic in a number's length
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class BadYaml(Exception):
    """The problem of a text. `line`: its line, counted from 1; None: unknown."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """A SafeLoader that counts nodes while it composes, before it expands aliases."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[yaml.Node, int] = {}  # nodes in each complete node, including itself

    @override
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        before = self._nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadYaml(f"nested deeper than {MAX_DEPTH} levels", line)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise BadYaml(f"the alias *{event.anchor} refers to itself", line)
            self._nodes += self._sizes[node]
        else:
            self._nodes += 1
        if self._nodes > MAX_NODES:
            raise BadYaml(f"more than {MAX_NODES} values, with its aliases written out", line)
        if node is None:
            return None
        if isinstance(node, yaml.MappingNode):
            _require_unique(node)
        if node.tag in NUMBERS and len(node.value) > MAX_NUMBER:
            raise BadYaml(f"a number of {len(node.value)} characters", line)
        self._sizes.setdefault(node, self._nodes - before)
        return node


def _require_unique(mapping: yaml.MappingNode) -> None:
    """Raises BadYaml for a key that is there twice: the first value would be lost silently."""
    seen: set[tuple[str, str]] = set()
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue  # an unhashable key is refused later
        if (key.tag, key.value) in seen:
            raise BadYaml(f"the key {key.value[:100]} is there twice", key.start_mark.line + 1)
        seen.add((key.tag, key.value))


# YAML 1.2's numbers without a point, such as 1e-6, which PyYAML takes for words.
_Loader.add_implicit_resolver(
    NUMBERS[1], re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+\Z"), list("-+0123456789")
)


def load(text: str) -> tuple[yaml.Node | None, Any]:
    """Returns the document in a text, as nodes with their places and as plain values; None if
    empty.

    Raises BadYaml if the text is not one document within the bounds. Its cause is left out: it
    quotes lines of the file, and one may hold a secret.
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except BadYaml:
        raise
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise BadYaml(error.problem or str(error), line) from None
    except yaml.reader.ReaderError as error:
        raise BadYaml(f"{error.reason} ({error.character!r})") from None
    except Exception as error:  # a tag with an invalid value: KeyError, IndexError, ...
        raise BadYaml(str(error) or type(error).__name__) from None
    finally:
        if loader is not None:
            loader.dispose()
