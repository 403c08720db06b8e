"""What the sample path uses of Ray, in this process: actors, references, get, wait and put.

A reference is a future. Actors run on one event loop in a thread of its own, as Ray's async actors
do. Ray keeps no order of their calls: with `shuffle`, neither does this.
"""

import asyncio
import concurrent.futures
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from openrlhf.trainer.ppo_utils import samples_generator
from seer_openrlhf import generator

Ref = concurrent.futures.Future[Any]


class LocalRay:
    """The module `ray`."""

    def __init__(self, shuffle: random.Random | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.shuffle = shuffle

    def actor(self, instance: Any) -> Any:
        """Returns a handle of an actor that is `instance`."""
        return _Handle(self, instance)

    def call(self, method: Any, arguments: Any, options: Any) -> Ref:
        """Calls a method on the actors' event loop."""

        async def called() -> Any:
            if self.shuffle is not None:
                for _ in range(self.shuffle.randrange(8)):
                    await asyncio.sleep(0)
            result = method(*arguments, **options)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(called(), self._loop)

    def get(self, refs: Any, timeout: float | None = 30) -> Any:
        """Returns the value of a reference, or the values of several."""
        if isinstance(refs, list):
            return [self.get(ref, timeout) for ref in refs]
        return refs.result(timeout)

    def wait(
        self, refs: Sequence[Ref], num_returns: int, timeout: float
    ) -> tuple[list[Ref], list[Ref]]:
        """Returns one reference that is ready, and the others."""
        assert num_returns == 1
        done, _ = concurrent.futures.wait(refs, timeout, concurrent.futures.FIRST_COMPLETED)
        ready = [ref for ref in refs if ref in done][:1]
        return ready, [ref for ref in refs if ref not in ready]

    def put(self, value: Any) -> Ref:
        """Returns a reference that is ready."""
        ref: Ref = concurrent.futures.Future()
        ref.set_result(value)
        return ref

    def soon(self, function: Callable[[], object]) -> None:
        """Calls a function on the actors' event loop."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Ends the event loop and what runs on it."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Handle:
    def __init__(self, ray: LocalRay, instance: Any) -> None:
        self._ray = ray
        self._instance = instance

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._instance, name)
        return SimpleNamespace(remote=lambda *a, **o: self._ray.call(method, a, o))


@contextmanager
def local_ray(shuffle: random.Random | None = None) -> Iterator[LocalRay]:
    """Puts a LocalRay in Ray's place where samples are generated, during the block."""
    ray = LocalRay(shuffle)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(samples_generator, "ray", ray)
            patch.setattr(generator, "ray", ray)
            yield ray
    finally:
        ray.close()
