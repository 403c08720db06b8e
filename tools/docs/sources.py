"""What the source says about the fields of a class."""

import ast
import inspect
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """Returns the documentation of each annotated field: the string that follows it in the source
    (PEP 258, "Attribute Docstrings"), on one line. A field without one is missing."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs
