"""The name of an engine's weights, and the key of a request's KV. Without SGLang."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.link import contract
from seer_sgl.plugin import weights
from seer_sgl.plugin.pool import PoolPart
from seer_sgl.plugin.weights import Weights

from .stand_ins import replace_module


@pytest.fixture(autouse=True)
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs fakes of SGLang's tensor hash and of its list of skipped tensors."""

    def tensor_hash(tensor: torch.Tensor) -> int:
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")

    def computed(name: str) -> bool:
        return "cos_sin" in name

    replace_module(monkeypatch, "sglang.srt.managers.mm_utils", tensor_hash=tensor_hash)
    checker = "sglang.srt.utils.weight_checker"
    replace_module(monkeypatch, checker, _is_non_persistent_buffer_name=computed)


def model() -> Any:
    """Returns a small model whose parameters are all different."""
    module: Any = torch.nn.Module()
    module.layer = torch.nn.Linear(6, 4)
    module.scale = torch.nn.Parameter(torch.tensor(2.0))
    module.empty = torch.nn.Parameter(torch.zeros(0, 3))
    module.turned = torch.nn.Parameter(torch.zeros(3, 5).t())
    module.register_buffer("bias_of_experts", torch.zeros(3))
    module.register_buffer("cos_sin_cache", torch.zeros(8), persistent=False)
    module.k_scale = torch.nn.Parameter(torch.tensor(-1.0))
    module.k_scale._skip_weight_check = True
    with torch.no_grad():
        module.layer.weight.copy_(torch.arange(24.0).reshape(4, 6))
        module.layer.bias.zero_()
    return module


def poke(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.view(-1)[tensor.numel() // 2] += 1


def widen(module: Any) -> None:
    module.scale = torch.nn.Parameter(module.scale.double())


def reshape(module: Any) -> None:
    module.layer.weight = torch.nn.Parameter(module.layer.weight.detach().reshape(6, 4))


CHANGES: dict[str, Callable[[Any], None]] = {
    "a parameter": lambda module: poke(module.layer.weight),
    "a number": lambda module: poke(module.scale),
    "a tensor that is not contiguous": lambda module: poke(module.turned.data.t()),
    "a buffer": lambda module: poke(module.bias_of_experts),
    "a scale of the KV": lambda module: poke(module.k_scale),
    "a scale of the KV from a file": lambda module: setattr(module.layer, "k_scale", 0.5),
    "a type": widen,
    "a shape": reshape,
    "a name": lambda module: module.register_parameter(
        "other", module.__dict__["_parameters"]["scale"]
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_anywhere_in_a_model_changes_its_digest(change: str) -> None:
    module = model()
    before = weights.digest(module)
    CHANGES[change](module)
    if change == "a name":
        del module.scale
    assert weights.digest(module) != before


def test_equal_models_have_equal_digests_whatever_their_caches_have_grown_to() -> None:
    module, other = model(), model()
    other.cos_sin_cache = torch.ones(16)
    assert weights.digest(module) == weights.digest(other)


def test_a_large_tensor_is_read_whole_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PART_BYTES", 2 * 6 * 4)
    tensor = torch.arange(30.0).reshape(5, 6)
    parts = list(weights._parts(tensor))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat(parts), tensor)
    assert [len(part) for part in weights._parts(torch.zeros(3, 100))] == [1, 1, 1]


class Scheduler:
    """One rank of an engine: its model, its queues, and the calls of its cache."""

    def __init__(self, plugin: Weights) -> None:
        self.plugin = plugin
        self.model = model()
        self.other_rank = [("target", "its digest")]
        runner = SimpleNamespace(model=self.model)
        self.weight_updater = SimpleNamespace(
            _session=None,
            offload_tags=set(),
            tp_cpu_group="group",
            _select_runners=lambda: [("target", runner)],
        )
        self.model_config = SimpleNamespace(hf_config=SimpleNamespace(to_dict=dict))
        self.tree_cache = self
        self.waiting_queue: list[Any] = []
        self.running: list[Any] = []
        self.chunked_req: Any = None
        self.released: list[Any] = []
        self.req_to_token_pool = SimpleNamespace(req_to_token=torch.arange(32).reshape(2, 16))

    def collect_inflight_reqs(self) -> set[Any]:
        return set(self.running)

    def release_aborted_request(self, handle: Any) -> None:
        self.released.append(handle)

    def update(self, message: str = "UpdateWeightFromDiskReqInput", *, other: bool = True) -> None:
        """Changes the weights in place, and handles a message of this type."""
        if other:
            poke(self.model.layer.weight)
        obj = type(message, (), {})()
        assert self.plugin.message_handled("done", "the dispatcher", obj) == "done"


@dataclass(eq=False)
class Request:
    """A request of SGLang's."""

    extra_key: str | None = None
    lora_id: str | None = None
    skip_radix_cache_insert: bool = False
    kv: Any = field(default_factory=lambda: SimpleNamespace(req_pool_idx=1))

    def get_fill_ids(self) -> list[int]:
        return [7, 8, 9]

    @property
    def cache_request_handle(self) -> str:
        return f"handle of {id(self)}"


@dataclass(eq=False)
class Older(Request):
    """A request of SGLang's before 0.5.23."""

    prefix_indices: Any = ()


ATTACHED: Any = "a pool's rank"


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the first of two ranks, attached to a pool, with loaded weights."""
    return loaded(monkeypatch, PoolPart(ATTACHED))


def loaded(monkeypatch: pytest.MonkeyPatch, pool: PoolPart) -> Any:
    """Returns the first of two ranks with loaded weights."""

    def all_gather_object(ranks: list[Any], here: Any, group: str) -> None:
        assert (len(ranks), group) == (2, "group")
        ranks[:] = [here, first.other_rank]

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    first: Any = Scheduler(Weights(pool))
    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
    assert first.plugin.weights_loaded("done", first) == "done"
    return first


def queued(scheduler: Any, *requests: Request) -> None:
    for req in requests:
        scheduler.plugin.name_the_kv(scheduler, req)
        scheduler.waiting_queue.append(req)


def test_the_same_weights_have_the_same_name_and_others_another(scheduler: Any) -> None:
    first = scheduler.plugin.name
    scheduler.update()
    assert scheduler.plugin.name != first
    restarted: Any = Scheduler(scheduler.plugin)
    restarted.plugin.weights_loaded("done", restarted)
    assert scheduler.plugin.name == first


def test_the_name_covers_the_weights_of_every_rank(scheduler: Any) -> None:
    first = scheduler.plugin.name
    scheduler.other_rank = [("target", "another digest")]
    scheduler.update(other=False)
    assert scheduler.plugin.name != first


@pytest.mark.parametrize(("adapter", "shared"), [(None, True), ("a digest of its path", False)])
def test_kv_of_an_adapter_is_of_one_start_of_a_server(
    monkeypatch: pytest.MonkeyPatch, adapter: str | None, shared: bool
) -> None:
    keys = []
    for instance in ("one", "one", "another", ""):
        monkeypatch.setenv(contract.INSTANCE, instance)
        req = Request(adapter, lora_id=adapter)
        queued(loaded(monkeypatch, PoolPart(ATTACHED)), req)
        keys.append(req.extra_key)
    assert keys[0] == keys[1], "the ranks of a server"
    assert len(set(keys)) == (1 if shared else 3)


def test_new_weights_rename_what_waits_and_drop_what_it_was_fetching(scheduler: Any) -> None:
    waiting = [Request(), Request("mine")]
    queued(scheduler, *waiting)
    old = scheduler.plugin.name
    assert [req.extra_key for req in waiting] == [f"{old}|", f"{old}|mine"]
    scheduler.update()
    new = scheduler.plugin.name
    assert [req.extra_key for req in waiting] == [f"{new}|", f"{new}|mine"]
    assert scheduler.released == [req.cache_request_handle for req in waiting]
    assert not any(req.skip_radix_cache_insert for req in waiting)


def test_what_runs_while_the_weights_change_leaves_no_kv(scheduler: Any) -> None:
    running, chunked = Request(), Request()
    queued(scheduler, running, chunked)
    before = running.extra_key
    scheduler.waiting_queue.clear()
    scheduler.running, scheduler.chunked_req = [running], chunked
    scheduler.update()
    assert running.skip_radix_cache_insert
    assert chunked.skip_radix_cache_insert
    assert running.extra_key == before, "its prefix in the tree has this name"


def test_a_request_that_is_taken_out_of_a_batch_begins_anew(scheduler: Any) -> None:
    running, private = Request("mine"), Request(skip_radix_cache_insert=True)
    queued(scheduler, running, private)
    scheduler.waiting_queue.clear()
    scheduler.running = [running, private]
    scheduler.update()
    queued(scheduler, running, private)
    assert running.extra_key == f"{scheduler.plugin.name}|mine"
    assert not running.skip_radix_cache_insert
    assert private.skip_radix_cache_insert, "SGLang itself set it"


def test_the_same_weights_again_change_nothing(scheduler: Any) -> None:
    waiting, running = Request(), Request()
    queued(scheduler, waiting)
    scheduler.running = [running]
    scheduler.update(other=False)
    assert not scheduler.released
    assert not running.skip_radix_cache_insert


@pytest.mark.parametrize(
    "message",
    [
        *("BeginWeightUpdateReqInput", "EndWeightUpdateReqInput", "UpdateWeightVersionReqInput"),
        *("UpdateWeightsFromTensorReqInput", "UpdateWeightsFromIPCReqInput"),
        *("UpdateWeightsFromDistributedReqInput", "ResumeMemoryOccupationReqInput"),
        *("CheckWeightsReqInput", "RpcReqInput"),
    ],
)
def test_a_message_that_may_change_weights_is_a_sign_of_an_update(
    scheduler: Any, message: str
) -> None:
    before = scheduler.plugin.name
    scheduler.update(message)
    assert scheduler.plugin.name != before


def test_other_messages_cost_no_digest(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "digest", None)
    for message in (
        *("TokenizedGenerateReqInput", "AbortReq", "ReleaseMemoryOccupationReqInput"),
        *("GetWeightsByNameReqInput", "InitWeightsUpdateGroupReqInput"),
    ):
        scheduler.update(message, other=False)
    Weights(PoolPart()).message_handled("done", "another process's", object())


def test_an_sglang_without_a_list_of_models_names_its_target_model(scheduler: Any) -> None:
    of_a_list = scheduler.plugin.name
    del scheduler.weight_updater._select_runners
    del scheduler.weight_updater._session
    scheduler.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(model=scheduler.model))
    scheduler.update(other=False)
    assert scheduler.plugin.name == of_a_list
    scheduler.update()
    assert scheduler.plugin.name != of_a_list


@pytest.mark.parametrize("state", [{"_session": "open"}, {"offload_tags": {"weights"}}], ids=str)
def test_weights_that_are_not_all_there_are_nobody_elses_and_not_read(
    scheduler: Any, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = scheduler.plugin.name
    names = {settled}
    with monkeypatch.context() as during:
        during.setattr(weights, "digest", None)
        for name, value in state.items():
            during.setattr(scheduler.weight_updater, name, value)
        for _ in range(2):
            scheduler.update(other=False)
            names.add(scheduler.plugin.name)
    assert len(names) == 3
    scheduler.update(other=False)
    assert scheduler.plugin.name == settled


def stash(scheduler: Any, req: Any) -> list[int] | None:
    """Returns the slots behind which a request continues after its chunk; None: SGLang's own."""
    stock: list[Any] = []
    scheduler.plugin.stash_chunk(lambda _, req: stock.append(req), scheduler, req)
    assert stock == [req]
    rows = getattr(req, "prefix_indices", None)
    return None if rows is None else list(rows)


def test_a_chunk_that_may_not_be_cached_is_not_forgotten(scheduler: Any) -> None:
    chunked, fresh, newer = Older(), Older(), Request()
    for one in (chunked, newer):
        scheduler.chunked_req = one
        scheduler.update()
    assert stash(scheduler, chunked) == [16, 17, 18]
    assert stash(scheduler, fresh) == []
    assert stash(scheduler, newer) is None, "SGLang 0.5.23 continues behind the chunk itself"


def test_without_a_pool_requests_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = loaded(monkeypatch, PoolPart())
    waiting, running, private = Request("mine"), Request(), Older(skip_radix_cache_insert=True)
    before = scheduler.plugin.name
    queued(scheduler, waiting)
    scheduler.running = [running]
    scheduler.update()
    assert scheduler.plugin.name != before, "the driver compares them"
    assert (waiting.extra_key, running.skip_radix_cache_insert) == ("mine", False)
    assert stash(scheduler, private) == []
