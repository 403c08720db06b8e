"""What pickled tensors may name: anything else crashes SGLang's unpickler and the engine. Pure.

Nothing is imported or called here: each name becomes a stand-in. The list is SGLang 0.5.21's
`SafeUnpickler.ALLOWED_GLOBALS`, as far as tensors need it.
"""

import base64
import binascii
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seer_sgl.backend.bodies import ENTRIES
from seer_sgl.server.errors import BadRequest

BUCKET = "flattened_bucket"  # a load format with one tensor for all
FORMATS = (None, "direct", BUCKET)
SCALARS = ["BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"]
DTYPES = [
    *("bfloat16", "bit", "bits16", "bits1x8", "bits2x4", "bits4x2", "bits8", "bool", "cdouble"),
    *("cfloat", "chalf", "complex128", "complex32", "complex64", "double", "float", "float16"),
    *("float32", "float4_e2m1fn_x2", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "half", "int", "int1", "int16", "int2", "int3", "int32"),
    *("int4", "int5", "int6", "int64", "int7", "int8", "long", "qint32", "qint8", "quint2x4"),
    *("quint4x2", "quint8", "short", "uint1", "uint16", "uint2", "uint3", "uint32", "uint4"),
    *("uint5", "uint6", "uint64", "uint7", "uint8"),
]
ALLOWED: Mapping[str, frozenset[str]] = {
    module: frozenset(names)
    for module, names in {
        "builtins": [
            *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int"),
            *("list", "range", "set", "slice", "str", "tuple"),
        ],
        "collections": ["OrderedDict", "defaultdict", "deque", "Counter"],
        "copyreg": ["__newobj__", "__newobj_ex__"],
        "multiprocessing.reduction": ["_rebuild_partial", "_rebuild_socket"],
        "multiprocessing.resource_sharer": ["DupFd"],
        "_codecs": ["encode"],
        "torch": [
            *("Tensor", "Size", "device", "dtype", "UntypedStorage"),
            *(f"{kind}{what}" for kind in SCALARS for what in ("Tensor", "Storage")),
            *DTYPES,
        ],
        "torch.cuda": [f"{kind}{what}" for kind in SCALARS for what in ("Tensor", "Storage")],
        "torch.nn.parameter": ["Parameter"],
        "torch.serialization": ["_get_layout"],
        "torch._utils": [
            *("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"),
            *("_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_sparse_tensor"),
            *("_rebuild_meta_tensor_no_storage", "_rebuild_wrapper_subclass"),
            *("_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor"),
        ],
        "torch._tensor": ["_rebuild_from_type_v2"],
        "torch.storage": ["UntypedStorage", "_UntypedStorage", "TypedStorage", "_load_from_bytes"],
        "torch.multiprocessing.reductions": [
            *("rebuild_tensor", "rebuild_meta_tensor", "rebuild_cuda_tensor"),
            *("rebuild_nested_tensor", "rebuild_sparse_coo_tensor", "rebuild_storage_fd"),
            *("rebuild_sparse_compressed_tensor", "rebuild_storage_filename"),
            *("rebuild_storage_empty", "rebuild_typed_storage", "rebuild_typed_storage_child"),
        ],
        "torch_npu.multiprocessing.reductions": ["rebuild_npu_tensor"],
        "sglang.srt.utils.patch_torch": [
            *("_rebuild_cuda_tensor_modified", "_rebuild_npu_tensor_modified"),
        ],
        "sglang.srt.weight_sync.tensor_bucket": [
            *("FlattenedTensorMetadata", "FlattenedTensorBucket"),
        ],
        "sglang.srt.model_executor.model_runner_components.weight_updater": [
            "LocalSerializedTensor"
        ],
        "sglang.srt.model_executor.model_runner": ["LocalSerializedTensor"],
    }.items()
}


def require_loadable(entries: Sequence[str], load_format: str | None) -> None:
    """Raises BadRequest for pickled tensors that would crash the engine that loads them.

    entries: base64. The names and shapes of the tensors are not checked.
    """
    if load_format not in FORMATS and "." not in str(load_format):  # with a dot: a loader's name
        raise BadRequest(f"load_format: {str(load_format)[:80]!r} is unknown to SGLang")
    for entry in entries:
        for why in _check_shape(_loaded(entry), load_format):
            raise BadRequest(f"{ENTRIES}: {why}")


def require_adapter(entries: Sequence[str], load_format: str | None, ranks: int) -> None:
    """Raises BadRequest for a pickled LoRA adapter that would crash the engine that loads it.

    ranks: each of an engine loads its own entry.
    """
    if len(entries) < ranks:
        raise BadRequest(f"{ENTRIES}: {len(entries)} entries for {ranks} ranks of an engine")
    for entry in entries:
        loaded = _loaded(entry)
        if load_format == BUCKET:
            for why in _check_shape(loaded, load_format):
                raise BadRequest(f"{ENTRIES}: {why}")
        elif not isinstance(loaded, dict | StandIn):
            raise BadRequest(f"{ENTRIES}: no tensors by name")


def _loaded(entry: str) -> Any:
    """Returns what a pickle makes of the stand-ins. Raises BadRequest."""
    try:
        return _Inert(io.BytesIO(base64.b64decode(entry, validate=True))).load()
    except BadRequest:
        raise
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{ENTRIES}: no base64 of pickled tensors: {error}") from error
    except Exception as error:  # whatever a broken pickle makes of the stand-ins
        raise BadRequest(f"{ENTRIES}: no pickled tensors: {error!r:.200}") from error


def _check_shape(loaded: Any, load_format: str | None) -> Iterator[str]:
    if load_format == BUCKET:
        if not isinstance(loaded, dict) or not {"flattened_tensor", "metadata"} <= {*loaded}:
            yield "no bucket of tensors: an object with flattened_tensor and metadata"
    elif not isinstance(loaded, list) or not all(map(_is_named, loaded)):
        yield "no list of pairs of a name and a tensor"


def _is_named(pair: Any) -> bool:
    return (
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], StandIn)
    )


class StandIn:
    """What a name in a pickle becomes: it can be called, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> "StandIn":
        return StandIn()

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    append = extend = add = __setstate__  # of lists and sets


class _Inert(pickle._Unpickler):
    """Unpickles to stand-ins. In Python: the compiled one allocates what a pickle asks for."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns a stand-in. Raises BadRequest for a name that SGLang does not allow."""
        if name not in ALLOWED.get(module, ()):
            raise BadRequest(f"{ENTRIES}: a pickle may not name {module[:80]}.{name[:80]}")
        return StandIn

    def persistent_load(self, _: Any) -> Any:
        """Refuses what is stored elsewhere."""
        raise BadRequest(f"{ENTRIES}: a pickle may not refer to other storage")
