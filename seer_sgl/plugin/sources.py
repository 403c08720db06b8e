"""Finds the definition of a dotted name in SGLang's sources, without importing them.

The sources are those of the installed package or of any other that `Read` reaches.
"""

import ast
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PACKAGE = "sglang"
Read = Callable[[str], str | None]  # a path within the package's parent -> text


class Definition(NamedTuple):
    """A definition and its module. `node` is None if it is not SGLang's own."""

    module: str
    node: ast.AST | None


class Sources:
    """The modules of one version of SGLang, each parsed once."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._trees: dict[str, ast.Module | None] = {}
        self._attributes: dict[ast.ClassDef, dict[str, ast.Attribute]] = {}  # set on `self`

    @classmethod
    def installed(cls) -> "Sources":
        """Returns the sources of the installed package."""
        spec = importlib.util.find_spec(PACKAGE)
        assert spec is not None, "SGLang is not installed"
        assert spec.origin is not None
        return cls.folder(Path(spec.origin).parents[1])

    @classmethod
    def folder(cls, parent: Path) -> "Sources":
        """Returns the sources of the package in `parent`."""

        def read(path: str) -> str | None:
            file = parent / path
            return file.read_text(encoding="utf-8") if file.is_file() else None

        return cls(read)

    def find(self, dotted: str) -> Definition | None:
        """Returns where a module, class, function, method or attribute is defined."""
        return self._find(dotted, frozenset())

    def _find(self, dotted: str, seen: frozenset[str]) -> Definition | None:
        if dotted in seen:
            return None
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            module = ".".join(parts[:cut])
            tree = self._tree(module)
            if tree is not None:
                return self._inner(Definition(module, tree), parts[cut:], seen | {dotted})
        return None if parts[0] == PACKAGE else Definition(parts[0], None)

    def _inner(
        self, place: Definition, names: Sequence[str], seen: frozenset[str]
    ) -> Definition | None:
        for name in names:
            if place.node is None:
                return place
            found = self._member(place, name, seen)
            if found is None:
                return None
            place = found
        return place

    def _member(self, place: Definition, name: str, seen: frozenset[str]) -> Definition | None:
        """Returns the definition of `name` in a module or class."""
        inside = place.node.body if isinstance(place.node, ast.Module | ast.ClassDef) else []
        for node in _statements(inside):
            if isinstance(node, ast.ImportFrom | ast.Import):
                found = self._imported(place.module, node, name, seen)
                if found is not None:
                    return found
            elif name in _defined(node):
                return Definition(place.module, node)
        if not isinstance(place.node, ast.ClassDef):
            return None
        if place.node not in self._attributes:
            self._attributes[place.node] = _set_on_self(place.node)
        attribute = self._attributes[place.node].get(name)
        if attribute is not None:
            return Definition(place.module, attribute)
        return self._inherited(place.module, place.node, name, seen)

    def _inherited(
        self, module: str, node: ast.ClassDef, name: str, seen: frozenset[str]
    ) -> Definition | None:
        for base in node.bases:
            if isinstance(base, ast.Name | ast.Attribute):
                found = self._find(f"{module}.{ast.unparse(base)}.{name}", seen)
                if found is not None and found.node is not None:
                    return found
        return None

    def _imported(
        self, module: str, node: ast.ImportFrom | ast.Import, name: str, seen: frozenset[str]
    ) -> Definition | None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                if name == (alias.asname or alias.name):
                    return self._find(alias.name, seen)
                continue
            origin = self._origin(module, node)
            if alias.name == "*":
                found = self._find(f"{origin}.{name}", seen)
                if found is not None and found.node is not None:
                    return found
            elif name == (alias.asname or alias.name):
                return self._find(f"{origin}.{alias.name}", seen)
        return None

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        """Returns the absolute name of the module that a statement imports from."""
        if not node.level:
            return node.module or ""
        package = module if self._is_package(module) else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package

    def _is_package(self, module: str) -> bool:
        return self._read(f"{module.replace('.', '/')}/__init__.py") is not None

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            path = module.replace(".", "/")
            text = self._read(f"{path}.py")
            text = self._read(f"{path}/__init__.py") if text is None else text
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a body, also statements under a condition."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(node, inner, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


def _defined(node: ast.stmt) -> set[str]:
    """Returns the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        inner = [one for target in node.targets for one in ast.walk(target)]
        return {one.id for one in inner if isinstance(one, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def _set_on_self(node: ast.ClassDef) -> dict[str, ast.Attribute]:
    """Returns the attributes that a class's own methods set on `self`, by name."""
    return {
        one.attr: one
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }
