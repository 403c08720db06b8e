"""The combinations that bench.gpu.exact compares: kernels, kinds of engines, ways to roll out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.elsewhere import AlwaysElsewhere
from seer_sgl.scheduling.placement import CacheAware, Placement

REASONER = Path(__file__).parents[1] / "reasoner"
KV_TOKENS = 65536
DTYPES = ("float32", "bfloat16", "float16")
ON_CPU = "torch_native"  # the attention of a machine without a GPU
EXACT = ("triton", "fa3")  # attention that `engines.exact` allows
CHAINS_ONLY = ("fa3",)  # attention without masks
NEVER = 1 << 30  # an imbalance of engines that no rollout reaches


class Setup(NamedTuple):
    """The kernels of the engines: attention backend, dtype, deterministic inference or not."""

    backend: str
    dtype: str
    deterministic: bool

    @classmethod
    def parse(cls, name: str) -> "Setup":
        """Reads `BACKEND-DTYPE`, or `BACKEND-DTYPE-greedy` without deterministic inference.

        Raises ValueError for other names.
        """
        backend, _, rest = name.partition("-")
        dtype, _, greedy = rest.partition("-")
        if dtype not in DTYPES or greedy not in ("", "greedy"):
            raise ValueError(f"{name!r} is not BACKEND-DTYPE or BACKEND-DTYPE-greedy")
        return cls(backend, dtype, not greedy)

    @property
    def name(self) -> str:
        """The name that `parse` reads."""
        return f"{self.backend}-{self.dtype}{'' if self.deterministic else '-greedy'}"


class Servers(NamedTuple):
    """One kind of engines. `paths` of a draft: 0 without drafts, 1 for chains, more for trees.
    `exact`: as with `engines.exact`, which makes plain steps verifications."""

    name: str
    paths: int = 0
    pool: bool = False
    exact: bool = False


class Way(NamedTuple):
    """One way to roll out. `moves`: whether every chunk changes engines; None without division."""

    name: str
    moves: bool | None = None


class Work(NamedTuple):
    """The requests: `samples` of each of the first `prompts` held-out prompts of the reasoner, at
    most `tokens` long, in chunks of `chunk` tokens."""

    prompts: int = 16
    samples: int = 8
    tokens: int = 512
    chunk: int = 96


WHOLE, AGAIN = Way("whole"), Way("whole again")
STAYS, MOVES = Way("divided", moves=False), Way("divided and moved", moves=True)
PLAIN = Servers("plain")
WAYS: Mapping[Servers, tuple[Way, ...]] = {
    PLAIN: (WHOLE, AGAIN, STAYS, MOVES),
    Servers("exact", exact=True): (WHOLE, STAYS, MOVES),
    Servers("exact chains", paths=1, exact=True): (WHOLE, STAYS, MOVES),
    Servers("chains", paths=1): (WHOLE, AGAIN, STAYS, MOVES),
    Servers("pool", pool=True): (MOVES,),
    Servers("chains and pool", paths=1, pool=True): (MOVES,),
    Servers("trees", paths=4): (WHOLE, AGAIN),
}


def kinds(setup: Setup, names: Sequence[str] | None = None) -> list[Servers]:
    """Returns the kinds of engines that the setup can run, plain ones first; `names`: only these.

    Raises ValueError for an unknown name.
    """
    known = {servers.name: servers for servers in WAYS}
    if unknown := set(names or ()) - known.keys():
        raise ValueError(f"no engines {min(unknown)!r}; known: {', '.join(known)}")
    chosen = [known[name] for name in names] if names else list(WAYS)
    trees, exact = setup.backend not in CHAINS_ONLY, setup.backend in EXACT and setup.deterministic
    return [one for one in chosen if (trees or one.paths <= 1) and (exact or not one.exact)]


def engines(setup: Setup) -> dict[str, Any]:
    """Returns the config section of two small engines, on one GPU."""
    flags: dict[str, Any] = {
        "attention-backend": setup.backend,
        "dtype": setup.dtype,
        "enable-deterministic-inference": setup.deterministic,
        "max-total-tokens": KV_TOKENS,
        "max-running-requests": 64,
        "context-length": 8192,
        "skip-server-warmup": True,
    }
    if setup.backend != ON_CPU:
        flags |= {
            "base-gpu-id": 0,
            "mem-fraction-static": 0.3,
            "cuda-graph-max-bs-decode": 64,
            "disable-prefill-cuda-graph": True,  # its captures take longer than the prefills
            "sampling-backend": "pytorch",
        }
    section: dict[str, Any] = {"count": 2, "cores": "auto", "sglang": flags}
    if setup.dtype == "float32":
        # Triton's default for products of float32 numbers is TF32, which has 10 bits of mantissa.
        section["environment"] = {"TRITON_F32_DEFAULT": "ieee"}
    return section | {"start_timeout_s": 600, "stall_timeout_s": 300}


def config(setup: Setup, servers: Servers, way: Way, work: Work) -> dict[str, Any]:
    """Returns the config of a rollout. The engines are the same for all ways of one kind."""
    whole = way.moves is None
    sampled = {"temperature": 1.0} if setup.deterministic else {"temperature": 0.0}
    return {
        "model": {"path": str(REASONER / "model")},
        "engines": engines(setup) | {"exact": servers.exact},
        "kv_pool": {"backend": "auto", "page_size": 16, "memory": "1gb"} if servers.pool else {},
        "draft": {"scope": "engine", "paths": servers.paths} if servers.paths else {},
        "scheduling": {"divide": False} if whole else {"chunk_tokens": work.chunk},
        "sampling": {"max_response_len": work.tokens, **sampled},
        "rollout": {
            "seed": 1,
            "n_samples_per_prompt": work.samples if setup.deterministic else 1,
        },
    }


def placement(servers: Servers, way: Way) -> Placement | None:
    """Returns the placement of the chunks; None for the default one, of undivided requests."""
    if way.moves is None:
        return None
    return AlwaysElsewhere(fetch=servers.pool) if way.moves else CacheAware(max_spread=NEVER)
