"""The config of each arm: it leaves out the other techniques and changes nothing else."""

import pytest

from seer_sgl.benchmark.arms import ARMS, EVERY, GREEDY, SEER
from seer_sgl.benchmark.config import BenchConfig, load_ready_bench, overrides_from
from seer_sgl.benchmark.derive import arm_config, servers_config
from seer_sgl.benchmark.fleets import runnable
from seer_sgl.config import ExternalEngines, LocalEngines
from seer_sgl.errors import ConfigError

UNPOOLED = ["kv_pool.backend=none", "draft.scope=none"]


@pytest.fixture(scope="module")
def base() -> BenchConfig:
    return load_ready_bench(gpu=False)


def test_the_last_arm_is_the_config_itself(base: BenchConfig) -> None:
    config = arm_config(EVERY[SEER], base, 5, None)
    assert (config.kv_pool, config.draft, config.sampling) == (
        base.kv_pool,
        base.draft,
        base.sampling,
    )
    assert config.scheduling.policy == "seer"
    assert config.rollout.seed == 5


@pytest.mark.parametrize(
    "name", [name for name, arm in ARMS.items() if arm.compared_with is not None]
)
def test_every_arm_adds_one_technique_to_the_one_before(name: str) -> None:
    arm = EVERY[name]
    before = EVERY[arm.compared_with or ""]
    differs = [
        arm.policy != before.policy,
        arm.pool != before.pool,
        arm.drafts != before.drafts,
    ]
    assert sum(differs) == 1


def test_only_the_oracle_knows_lengths(base: BenchConfig) -> None:
    known = {name: arm_config(arm, base, 1, "x").scheduling.lengths for name, arm in EVERY.items()}
    assert {name for name, lengths in known.items() if lengths} == {"oracle"}


def test_greedy_arms_sample_the_most_likely_token(base: BenchConfig) -> None:
    for name, arm in EVERY.items():
        greedy = arm_config(arm, base, 1, "x").sampling.temperature == 0.0
        assert greedy == (name in GREEDY)


def test_arms_of_a_kind_ask_for_the_same_servers(base: BenchConfig) -> None:
    for arm in EVERY.values():
        for other in EVERY.values():
            one, another = (servers_config(each, base) for each in (arm, other))
            same = one == another
            assert same == (arm.kind == other.kind)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("bench.arms=[sear]", "bench.arms: no arm 'sear'; known: group_round_robin, group_"),
        ("bench.arms=[router]", "bench.arms: no arm 'router'; python -m bench.full --router has"),
        ("bench.arms=[]", "bench.arms: the list is empty"),
        ("bench.arms=[divided, seer, divided]", "bench.arms: 'divided' is listed twice"),
        ("bench.seeds=[1, 1]", "bench.seeds: a seed is listed twice"),
        ("bench.seeds=[]", "bench.seeds: "),
        ("bench.rounds=0", "bench.rounds: "),
        ("bench.round=3", "bench.round: unknown key; did you mean rounds?"),
        (
            "bench.soak=3",
            "bench.soak: removed; in a checkout, python -m bench.full --soak",
        ),
        (
            "bench.pool.gb_s=3",
            "bench.pool: removed; in a checkout, python -m bench.full --sim",
        ),
        ("kv_pool.memory=much", "kv_pool.memory: 'much' is not a size"),
        ("rollout.prompts=null", "rollout.prompts: set this key or bench.workload"),
        ("bench.workload=x.jsonl", "sampling.ignore_eos: bench.workload needs true"),
        ("scheduling.policy=fcfs", "scheduling.policy: each arm sets its own policy"),
    ],
)
def test_a_wrong_config_is_one_line_with_its_key(override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_ready_bench(gpu=False, overrides=[override])
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_options_of_the_command_line() -> None:
    config = load_ready_bench(
        gpu=False,
        overrides=overrides_from({"engines": ["4"], "arms": "seer,oracle", "rounds": 7}),
    )
    assert isinstance(config.engines, LocalEngines)
    assert config.engines.count == 4
    assert config.bench.arms == ["seer", "oracle"]
    assert config.bench.rounds == 7


def test_engines_that_run_already() -> None:
    urls = ["http://a:1,http://b:2", "ngram=http://c:3"]
    overrides = overrides_from({"engines": urls, "workload": "run #3.jsonl"})
    config = load_ready_bench(gpu=False, overrides=[*overrides, *UNPOOLED])
    assert config.engines.launch == "external"
    assert config.bench.urls == {"plain": ["http://a:1", "http://b:2"], "ngram": ["http://c:3"]}
    assert config.bench.workload == "run #3.jsonl", "not YAML, where a # begins a comment"
    assert config.sampling.ignore_eos, "responses have the trace's lengths"
    assert {arm.kind for arm in runnable(config)} == {"plain", "ngram"}
    servers = servers_config(EVERY["greedy_ngram"], config)
    assert isinstance(servers.engines, ExternalEngines)
    assert servers.engines.urls == ["http://c:3"]
