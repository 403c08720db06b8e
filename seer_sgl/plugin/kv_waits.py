"""Requests that wait in the engine's queue until their KV was read from the pool."""

from collections.abc import Callable, Iterable
from typing import Any

from seer_sgl.link.contract import NO_READ

from .hook import LOADS, SCHEDULER, Hook
from .origin import given_origin
from .sglang_types import (
    SglLoadInquirer,
    SglLoadSnapshot,
    SglRadixCache,
    SglReq,
    SglScheduleBatch,
    SglScheduler,
)

MOST_NAMED = 1000  # requests in one report


def hooks() -> list[Hook]:
    return [
        Hook(
            f"{LOADS}.get_loads",
            count_waiting,
            "after",
            "SGLang counts requests whose KV is under way only between prefill and decode servers; "
            "here the same count has the queued requests whose KV is read from the pool.",
            "`/v1/loads` counts the queued requests whose KV is being read.",
        ),
        Hook(
            f"{SCHEDULER}._prefetch_kvcache",
            read_kv,
            "around",
            "SGLang looks for the KV of every request in the pool; while reads of an engine stand "
            "still, the driver sends it requests whose KV is computed.",
            "A request can forbid the read of its KV.",
        ),
    ]


def waiting_for_kv(
    queue: Iterable[SglReq], running: SglScheduleBatch, tree: SglRadixCache
) -> list[SglReq]:
    """Returns the queued requests that wait for KV and for nothing else.

    SGLang passes over a request while its KV is read from the pool. Once it lacks a slot or KV for
    a request, it calls the batch full and tries no other: then all of them wait for room.
    """
    reads = getattr(tree, "ongoing_prefetch", None)  # a cache without a pool has none
    if not reads or running.batch_is_full:
        return []
    return [req for req in queue if req.cache_request_handle in reads]


def waiting(scheduler: SglScheduler) -> list[str]:
    """Returns the ids of the requests that wait for KV, MOST_NAMED at most."""
    reqs = waiting_for_kv(scheduler.waiting_queue, scheduler.running_batch, scheduler.tree_cache)
    return [req.rid for req in reqs[:MOST_NAMED]]


def count_waiting(load: SglLoadSnapshot, inquirer: SglLoadInquirer) -> SglLoadSnapshot:
    """Hook after `SchedulerLoadInquirer.get_loads`: counts the requests that wait for KV."""
    tree = inquirer.pool_stats_observer.tree_cache
    reqs = waiting_for_kv(inquirer.get_waiting_queue(), inquirer.get_running_batch(), tree)
    if reqs and load.disaggregation is not None:
        load.disaggregation.decode_transfer_queue_reqs += len(reqs)
    return load


def read_kv(
    stock: Callable[..., Any], scheduler: object, req: SglReq, *args: Any, **kwargs: Any
) -> Any:
    """Hook around `Scheduler._prefetch_kvcache`: starts no read for a request that forbids it."""
    if given_origin(req).get(NO_READ) is True:
        return None
    return stock(scheduler, req, *args, **kwargs)
