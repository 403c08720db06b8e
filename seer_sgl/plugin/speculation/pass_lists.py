"""The lists of KV slots of SGLang's deterministic Triton attention, built once per forward pass.

SGLang builds them in every layer, with some ten kernels each time, although they are the same in
all layers of a model without sliding windows. A captured graph then holds a copy per layer.
"""

from typing import Any


class PassLists:
    """The lists of the forward pass under way, for one `TritonAttnBackend`."""

    def __init__(self, backend: Any) -> None:
        """Puts itself in place of the two methods of `backend` that build and use the lists."""
        self._build = backend.build_unified_kv_indices
        self._attend = backend._forward_extend_unified
        self._layer = -1  # the last one that attended
        self._inputs: tuple[object, ...] = ()
        self._lists: Any = None
        backend.build_unified_kv_indices = self.build
        backend._forward_extend_unified = self.attend

    def attend(self, q: Any, o: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for `_forward_extend_unified`: layers ascend within a pass.

        A graph's warm-up and its capture have the same metadata, so nothing else tells passes
        apart; each one must build its own lists.
        """
        if layer.layer_id <= self._layer:
            self._lists = None
        self._layer = layer.layer_id
        return self._attend(q, o, layer, *args, **kwargs)

    def build(self, *inputs: Any) -> Any:
        """Stands for `build_unified_kv_indices`: computes in the first layer of a pass.

        inputs: starts and slots of the prefixes, starts and lengths of the new tokens per request,
        slots of the new tokens, number of requests.
        """
        prefix_starts, prefix_slots, _, _, new_slots, requests = inputs
        same = (prefix_starts, prefix_slots, new_slots, requests)
        if self._lists is None or any(
            one is not other for one, other in zip(same, self._inputs, strict=True)
        ):
            self._lists = None  # its memory is free for the new lists
            self._lists, self._inputs = self._build(*inputs), same
        return self._lists
