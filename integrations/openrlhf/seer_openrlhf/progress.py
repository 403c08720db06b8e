"""What a checkpoint keeps of the generation, next to the state of the dataloader."""

from collections.abc import Iterator
from typing import Any

from .ahead import Prompt

KEY = "seer_openrlhf"


class Progress:
    """The progress of the training's batches.

    `batches`: how many have begun; seeds depend on it. `left_over`: prompts that the dataloader
    has handed out and that no batch has used.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.left_over: list[Prompt] = []
        self._position: Any = None  # the dataloader's own state_dict
        self._before_end: Any = None  # its state when prompts ahead reached its end

    def next_batch(self) -> int:
        """Returns the number of a new batch, from 0."""
        self.batches += 1
        return self.batches - 1

    def read(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yields what the dataloader's iterator yields, for prompts ahead of OpenRLHF's loop.

        A dataloader that is loaded from a state after its end begins anew. So a checkpoint has the
        state before it, until the loop has reached the end as well (`end`).
        """
        while True:
            before = self._position()
            columns = next(iterator, None)
            if columns is None:
                self._before_end = self._before_end or before
                return
            yield columns

    def end(self) -> None:
        """The loop has reached the end of the dataloader."""
        self._before_end = None

    def join(self, dataloader: Any) -> None:
        """Makes the progress a part of the dataloader's state, which checkpoints save.

        OpenRLHF calls `state_dict` and `load_state_dict` of the dataloader for nothing else.
        """
        state_dict, load_state_dict = dataloader.state_dict, dataloader.load_state_dict
        self._position = state_dict

        def save() -> Any:
            return {**(self._before_end or state_dict()), KEY: self._state()}

        def load(state: Any) -> None:
            self.end()
            self._load(state.get(KEY, {}))
            load_state_dict({name: value for name, value in state.items() if name != KEY})

        dataloader.state_dict, dataloader.load_state_dict = save, load

    def _state(self) -> dict[str, Any]:
        left_over = [(each.prompt, each.label, each.image) for each in self.left_over]
        return {"batches": self.batches, "left_over": left_over}

    def _load(self, state: dict[str, Any]) -> None:
        self.batches = state.get("batches", 0)
        self.left_over = [Prompt(*columns) for columns in state.get("left_over", [])]
