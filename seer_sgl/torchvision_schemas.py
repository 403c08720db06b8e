"""Makes torchvision importable beside a CPU build of torch.

PyPI's torchvision wheel contains compiled CUDA operators that a CPU build of torch cannot load. Its
import then fails, because it describes operators that do not exist. SGLang and transformers only
need the import and never call these two operators.
"""

from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[Any] = []  # a schema lives as long as its library object


def define_missing_schemas() -> None:
    """Defines the schemas of torchvision's detection operators once, on a CPU build of torch."""
    import torch

    if torch.version.cuda is not None or _libraries:
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
