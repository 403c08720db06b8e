"""`seer-sgl audit` finds what was changed, names the cause, and changes nothing on the server."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typing_extensions import override

from seer_sgl.audit.command import AuditRequest, audit
from seer_sgl.errors import AuditFailed, ConfigError, EngineUnavailable
from seer_sgl.timing import DEFAULT, Timing
from tests.fake_sglang import serving

from .scoring_sglang import WORDS, ScoringSGLang, log_probs_after, sample_line, write_lines

PLUGIN = {"version": "0.1.0", "missing": [], "weights": "digest", "vocab_size": WORDS}


def lines(count: int = 8, **options: Any) -> list[dict[str, Any]]:
    return [sample_line(index, **options) for index in range(count)]


async def audited(
    tmp_path: Path,
    samples: list[dict[str, Any]],
    fake: ScoringSGLang | None = None,
    *,
    overrides: tuple[str, ...] = (),
    fail: tuple[str, ...] = (),
    console: Console | None = None,
    timing: Timing = DEFAULT,
    **options: Any,
) -> dict[str, Any]:
    """Returns audit.json of an audit of these samples on a fake server.

    Asserts that the audit fails if it exceeds a limit, and only then.
    """
    path = write_lines(tmp_path / "samples.jsonl", samples)
    defaults = {"samples": 32, "seed": 0, "budget": None, "batch": 8, "clip": 0.2, "flush": False}
    quiet = Console(quiet=True)
    async with serving(fake or ScoringSGLang()) as url:
        request = AuditRequest.of_options(
            path=path, engine=url, overrides=overrides, fail=fail, **defaults | options
        )
        failure = None
        try:
            await audit(request, tmp_path, quiet, console or quiet, timing)
        except AuditFailed as failed:
            failure = str(failed)
    result: dict[str, Any] = json.loads((tmp_path / "audit.json").read_text())
    count = len(result["exceeded"])
    assert failure == (f"the audit exceeds {count} of its limits" if count else None)
    return result


def passes(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {figures["name"]: figures for figures in report["passes"]}


async def test_samples_of_the_server_itself_agree_in_every_pass(tmp_path: Path) -> None:
    report = await audited(tmp_path, lines(), fail=("max=1e-9", "changed=0", "versions=0"))
    assert report["exceeded"] == []
    assert len(report["passes"]) == 6
    for name, figures in passes(report).items():
        assert figures["log_probs"]["max"] < 1e-9
        assert ("warm" in name) == (figures["cached_tokens"] > 0)
        if name.startswith("generate"):
            assert figures["same_samples"] == 8
            assert figures["same_tokens"] == 8 * 40
    (finding,) = report["findings"]
    assert finding.startswith("no differences beyond rounding: all 320 generated tokens")


async def test_a_changed_token_is_a_changed_record(tmp_path: Path) -> None:
    samples = lines()
    token = samples[3]["response_ids"][17]
    samples[3]["response_ids"][17] = (token + 1) % WORDS
    report = await audited(tmp_path, samples, fail=("changed=0",))
    assert report["exceeded"] == ["changed: 1, more than 0"]
    for name, figures in passes(report).items():
        if name.startswith("generate"):
            (difference,) = figures["differences"]
            assert (difference["sample"], difference["position"]) == ("g0[3]", 17)
            assert difference["generated"] == token
            assert difference["agree_after"] == 1.0
            assert difference["near_tie"] is False
    assert any(line.startswith("a changed record: g0[3], token 17:") for line in report["findings"])


async def test_another_token_with_its_own_log_probability_is_no_changed_record(
    tmp_path: Path,
) -> None:
    samples = lines()
    whole = samples[3]["prompt_ids"] + samples[3]["response_ids"][:17]
    other = (samples[3]["response_ids"][17] + 1) % WORDS
    samples[3]["response_ids"][17] = other
    samples[3]["rollout_log_probs"][17] = float(log_probs_after(whole, 1.0)[other])
    report = await audited(tmp_path, samples)
    (line,) = [line for line in report["findings"] if line.startswith("other tokens: in")]
    assert "1 at no near tie: g0[3], token 17" in line
    assert not any("a changed record" in line for line in report["findings"])


async def test_a_shifted_log_probability_is_found_at_its_place(tmp_path: Path) -> None:
    samples = lines()
    samples[5]["rollout_log_probs"][9] += 1e-3
    report = await audited(tmp_path, samples, fail=("max=5e-4",))
    assert report["exceeded"] == ["max: 0.001, more than 0.0005"]
    (finding,) = report["findings"]
    assert finding.startswith(
        "single log probabilities: 1 of 320 tokens differ by more than 0.0002"
    )
    assert "g1[1], token 9:" in finding
    assert report["largest"][0]["position"] == 9
    assert report["largest"][0]["parts"]["engine"] == "e0"


async def test_other_weights_are_named_first(tmp_path: Path) -> None:
    fake = ScoringSGLang(shift=0.02, weight_version="v2")
    report = await audited(tmp_path, lines(), fake, fail=("versions=0",))
    assert report["weights"]["other_samples"] == 8
    assert "DIFFERENT" in report["weights"]["line"]
    assert report["findings"][0].startswith("other weights: 8 of 8 samples")
    assert any(line.startswith("spread over the tokens") for line in report["findings"])
    assert report["exceeded"] == ["versions: 8, more than 0"]


async def test_the_weights_of_samples_beyond_the_budget_do_not_count(tmp_path: Path) -> None:
    fake = ScoringSGLang(shift=0.02, weight_version="v2")
    report = await audited(tmp_path, lines(), fake, fail=("versions=0",), budget=1000)
    assert report["weights"]["other_samples"] == report["samples"] == 3
    assert report["findings"][0].startswith("other weights: 3 of 3 samples")
    assert report["exceeded"] == ["versions: 3, more than 0"]


async def test_a_digest_beside_the_samples_is_compared(tmp_path: Path) -> None:
    engines = [{"weights": "another", "sglang_version": "0.5.21"}]
    (tmp_path / "report.json").write_text(json.dumps({"engines": engines}))
    report = await audited(tmp_path, lines(2), ScoringSGLang(plugin=PLUGIN))
    assert report["weights"]["same_digest"] is False
    assert report["findings"][0].startswith("other weights, or the same in another dtype")


@pytest.mark.parametrize("report", ["[" * 100_000, "{", "[]", '{"engines": 1}'])
async def test_a_broken_report_beside_the_samples_is_none(tmp_path: Path, report: str) -> None:
    (tmp_path / "report.json").write_text(report)
    audit = await audited(tmp_path, lines(2), ScoringSGLang(plugin=PLUGIN))
    assert audit["weights"]["same_digest"] is None


async def test_a_server_that_depends_on_its_batch_is_named(tmp_path: Path) -> None:
    report = await audited(tmp_path, lines(), ScoringSGLang(batch_shift=0.1))
    assert report["findings"][0].startswith("the server's own answers depend on the batch")
    assert passes(report)["generate, cold, alone"]["same_samples"] == 8
    assert passes(report)["generate, cold, batch"]["changed"] > 0


async def test_what_one_pass_generates_as_recorded_is_no_sign_of_other_weights(
    tmp_path: Path,
) -> None:
    report = await audited(tmp_path, lines(), ScoringSGLang(batch_shift=1.0))
    text = "\n".join(report["findings"])
    assert "not known to be near ties, but another pass generates them as recorded" in text
    assert "other weights" not in text


async def test_a_server_that_depends_on_its_cache_is_named(tmp_path: Path) -> None:
    report = await audited(tmp_path, lines(), ScoringSGLang(cache_shift=0.1))
    assert report["findings"][0].startswith("the server's own answers depend on the prefix cache")
    assert passes(report)["generate, cold, batch"]["same_samples"] == 8
    assert passes(report)["generate, warm, alone"]["changed"] > 0


async def test_log_probabilities_of_an_inexact_prefill_are_no_fault_of_the_record(
    tmp_path: Path,
) -> None:
    report = await audited(tmp_path, lines(), ScoringSGLang(prefill_shift=0.01))
    assert passes(report)["prefill, alone"]["log_probs"]["max"] > 1e-3
    assert report["findings"][0].startswith("no differences beyond rounding")
    assert report["findings"][1].startswith("note: the server's own prefill and decode steps")


async def test_the_rounding_of_a_prefill_is_measured_without_seeds_too(tmp_path: Path) -> None:
    samples = [line | {"seed": None} for line in lines(4)]
    report = await audited(tmp_path, samples, ScoringSGLang(prefill_shift=0.01))
    (pair,) = [pair for pair in report["itself"] if pair["varies"] == "prefill against decode"]
    assert pair["samples"] == 4
    assert pair["log_probs"]["max"] > 1e-3
    assert not any("spread" in line or "single" in line for line in report["findings"])


async def test_seeds_that_the_server_ignores_are_not_used(tmp_path: Path) -> None:
    fake = ScoringSGLang(deterministic=False)
    report = await audited(tmp_path, lines(4), fake, fail=("changed=0",))
    assert list(passes(report)) == ["prefill, alone", "prefill, batch"]
    assert list(report["not_generated"].values()) == [4]
    assert report["exceeded"] == ["changed: nothing was compared that it could limit"]


async def test_a_sample_without_a_seed_is_prefilled_and_not_generated(tmp_path: Path) -> None:
    samples = lines(4)
    samples[2]["seed"] = None
    report = await audited(tmp_path, samples)
    assert report["not_generated"] == {"without a seed": 1}
    for name, figures in passes(report).items():
        assert figures["samples"] == (4 if name.startswith("prefill") else 3)
    assert {pair["samples"] for pair in report["itself"]} == {4, 3}
    assert report["findings"][0].startswith("no differences beyond rounding")


async def test_greedy_samples_need_no_seed(tmp_path: Path) -> None:
    samples = [line | {"seed": None} for line in lines(4, temperature=0.0)]
    fake = ScoringSGLang(deterministic=False)
    report = await audited(tmp_path, samples, fake, overrides=("temperature=0",))
    assert passes(report)["generate, cold, alone"]["same_samples"] == 4
    assert report["findings"][0].startswith("no differences beyond rounding")


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.5])
async def test_prefills_are_compared_at_the_temperature_of_the_samples(
    tmp_path: Path, temperature: float
) -> None:
    samples = lines(4, temperature=temperature)
    fake = ScoringSGLang(plugin=PLUGIN)
    report = await audited(tmp_path, samples, fake, overrides=(f"temperature={temperature}",))
    assert passes(report)["prefill, alone"]["log_probs"]["tokens"] == 160
    assert passes(report)["prefill, alone"]["log_probs"]["max"] < 1e-6
    assert report["findings"][0].startswith("no differences beyond rounding")
    at_one = await audited(tmp_path, samples, fake)
    assert any("above all the temperature" in line for line in at_one["findings"])


async def test_a_budget_bounds_the_tokens_and_says_what_it_left_out(tmp_path: Path) -> None:
    fake = ScoringSGLang()
    report = await audited(tmp_path, lines(), fake, budget=1000)
    assert report["tokens"] == 3 * 6 * 46 <= 1000
    assert report["left_out"] == {"beyond the budget of tokens": 5}
    asked = sum(
        len(call["input_ids"]) + call["sampling_params"]["max_new_tokens"] for call in fake.seen
    )
    assert asked == report["tokens"]


@pytest.mark.parametrize("flush", [False, True])
async def test_nothing_but_a_flush_that_was_asked_for_changes_the_server(
    tmp_path: Path, flush: bool
) -> None:
    fake = ScoringSGLang()
    await audited(tmp_path, lines(2), fake, flush=flush)
    assert [path for path, _ in fake.calls] == ["/flush_cache"] * 4 * flush
    assert all(call["extra_key"] for call in fake.seen)


async def test_figures_are_given_by_part_of_the_responses(tmp_path: Path) -> None:
    samples = lines(4)
    samples[0] |= {
        "chunk_lengths": [1, 39],
        "weight_spans": [{"version": "v0", "tokens": 2}, {"version": "v1", "tokens": 38}],
    }
    parts = (await audited(tmp_path, samples))["parts"]
    tokens = {
        kind: {name: figures["tokens"] for name, figures in named.items()}
        for kind, named in parts.items()
    }
    assert tokens == {
        "position": {"0": 4, "1 to 15": 60, "16 to 63": 96},
        "chunk": {
            "first chunk": 61,
            "later chunks: first token": 4,
            "later chunks: other tokens": 95,
        },
        "engine": {"e0": 61, "e1": 99},
        "weight version": {"v0": 2, "v1": 158},
        "drafts": {"not drafted": 160},
    }


async def test_a_difference_of_one_engine_is_traced_to_it(tmp_path: Path) -> None:
    samples = lines(8)
    for sample in samples:
        values = sample["rollout_log_probs"]
        sample["rollout_log_probs"] = [*values[:20], *(value + 0.01 for value in values[20:])]
    report = await audited(tmp_path, samples)
    assert any("concentrated by engine: 'e1'" in line for line in report["findings"])


async def test_no_samples_are_an_error_and_no_success(tmp_path: Path) -> None:
    samples = [line | {"failure": "given up"} for line in lines(2)]
    with pytest.raises(ConfigError, match="no sample can be audited \\(2 given up by the rollout"):
        await audited(tmp_path, samples)


async def test_names_are_printed_as_the_file_has_them(tmp_path: Path) -> None:
    sample = lines(1)[0] | {"group_id": "a[/b]", "engines": ["[red]e0", ":bug:"]}
    sample["weight_spans"] = [{"version": "[/v]", "tokens": 40}]
    sample["rollout_log_probs"][3] += 0.5
    shown = Console(file=io.StringIO(), width=200)
    await audited(tmp_path, [sample], console=shown)
    printed = shown.file.getvalue()  # type: ignore[attr-defined]
    for name in ("a[/b][0]", "[red]e0", ":bug:", "[/v]"):
        assert name in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "localhost:1"}, "--engine localhost:1: expected http://host:port"),
        ({"fail": ("mox=1",)}, "--fail mox=1: expected NAME=VALUE"),
        ({"clip": float("nan")}, "--clip nan: expected a finite number"),
        ({"overrides": ("top_p=2",)}, "--set: top_p"),
        ({"overrides": ("temperature=hot",)}, "--set: temperature"),
        ({"overrides": ("temprature=1",)}, "temprature"),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"engine": "http://x:1", "overrides": (), "fail": (), "clip": 0.2}
    with pytest.raises(ConfigError) as error:
        AuditRequest.of_options(**given | options)
    assert message in str(error.value)


async def test_a_server_that_is_none_of_sglang_is_one_line(tmp_path: Path) -> None:
    fake = ScoringSGLang()
    fake.garbled = {"/model_info": "no version"}
    with pytest.raises(EngineUnavailable, match="/model_info: Object missing required field"):
        await audited(tmp_path, lines(1), fake)


class Mute(ScoringSGLang):
    """A fake that answers neither a flush nor a request."""

    @override
    async def flush(self, _: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    @override
    async def generate(self, http: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("flush", "message"),
    [
        (True, r"no answer on /flush_cache\?timeout=0.01 within 0.02 s"),
        (False, "no answer on /generate within 0.01"),
    ],
)
async def test_a_server_that_does_not_answer_ends_the_audit(
    tmp_path: Path, flush: bool, message: str
) -> None:
    timing = Timing(flush_s=0.01, audit_call_s=0.01)
    with pytest.raises(EngineUnavailable, match=message):
        await audited(tmp_path, lines(1), Mute(), flush=flush, timing=timing)
