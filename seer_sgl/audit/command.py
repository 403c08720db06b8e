"""`seer-sgl audit`: computes samples of a file again on a server, and compares them."""

import itertools
import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress

from seer_sgl.config.addresses import is_url
from seer_sgl.engine.session import open_session
from seer_sgl.errors import AuditFailed, ConfigError
from seer_sgl.files import explained, make_out_folder, write_whole
from seer_sgl.link.contract import API_KEY
from seer_sgl.sampling import Sampling
from seer_sgl.timing import DEFAULT, Timing

from .audit_report import SHOWN, Compared, LargeDifference, PassReport, SelfComparison, compared
from .client import AuditClient
from .findings import findings
from .formats import SampleFile, read_samples, read_sampling
from .log_prob_figures import LogProbFigures
from .plan import PASSES, AuditPlan, Pass, plan
from .rescale import CANDIDATES
from .running_passes import Answers, run_passes
from .served import Provenance, ReportedEngine, ServedModel, provenance
from .tables import difference_lines, itself_table, largest_table, parts_table, passes_table
from .thresholds import exceeded, read_limits

logger = logging.getLogger(__name__)
RESULT = "audit.json"


class AuditRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    path: Path
    engine: str
    samples: int
    seed: int
    budget: int | None
    batch: int
    clip: float
    flush: bool
    sampling: Sampling
    limits: dict[str, float]

    @classmethod
    def of_options(
        cls,
        *,
        engine: str,
        overrides: Sequence[str],
        fail: Sequence[str],
        clip: float,
        **options: Any,
    ) -> "AuditRequest":
        """Returns the request of a command line. Raises ConfigError."""
        if not is_url(engine):
            raise ConfigError(f"--engine {engine}: expected http://host:port")
        if not math.isfinite(clip):  # no weight would be outside of the range
            raise ConfigError(f"--clip {clip}: expected a finite number")
        return cls(
            engine=engine,
            sampling=read_sampling(overrides),
            limits=read_limits(fail),
            clip=clip,
            **options,
        )


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """audit.json: everything that was found. `exceeded`: limits of `--fail`."""

    file: str
    format: str
    total: int
    samples: int
    seed: int
    left_out: dict[str, int]
    not_generated: dict[str, int]
    not_compared: dict[str, int]
    tokens: int
    clip: float
    server: ServedModel
    weights: Provenance
    findings: list[str]
    exceeded: list[str]
    limits: dict[str, float]
    passes: list[PassReport]
    itself: list[SelfComparison]
    parts: dict[str, dict[str, LogProbFigures]]
    largest: list[LargeDifference]


class _RolloutReport(msgspec.Struct):
    """The keys of a rollout's report.json that an audit reads."""

    engines: list[ReportedEngine] = []


async def audit(
    request: AuditRequest, out: Path, log: Console, console: Console, timing: Timing = DEFAULT
) -> None:
    """Audits a file, prints the tables and writes audit.json into the folder `out`.

    `log`: shows the progress. Raises AuditFailed if a limit is exceeded, and other SeerErrors.
    """
    file = read_samples(request.path, request.samples, request.seed, request.sampling)
    make_out_folder(out)
    async with open_session(os.environ.get(API_KEY)) as session:
        client = AuditClient(session, request.engine, timing)
        served = await client.served()
        logger.info("server: %s", served.description())
        chosen = plan(file, served, request.budget)
        if not chosen.samples:  # an audit of nothing would pass
            left_out = ", ".join(f"{count} {reason}" for reason, count in chosen.left_out.items())
            why = f"no sample can be audited ({left_out or 'none chosen'})"
            raise ConfigError(f"{request.path}: {why}")
        weights = provenance(chosen.samples, served, _engines_of(request.path))
        differ = weights.other_samples or weights.same_digest is False
        logger.log(logging.WARNING if differ else logging.INFO, "%s", weights.line)
        for line in _left_out(file, chosen):
            logger.info("%s", line)
        largest = max(sample.largest_id for sample in chosen.samples)
        vocabulary = served.vocab_size or largest + 1
        candidates = min(CANDIDATES, vocabulary)
        answers = await _asked(client, chosen, request, candidates, log)
    complete = candidates == served.vocab_size
    found = compared(chosen, answers, complete=complete, clip=request.clip)
    report = _report(request, file, chosen, found, served=served, weights=weights)
    with explained(out / RESULT):
        encoded = msgspec.json.format(msgspec.json.encode(report), indent=2)
        write_whole(out / RESULT, encoded + b"\n")
    _show(report, console)
    logger.info("wrote %s", out / RESULT)
    if report.exceeded:
        raise AuditFailed(f"the audit exceeds {len(report.exceeded)} of its limits")


async def _asked(
    client: AuditClient, chosen: AuditPlan, request: AuditRequest, candidates: int, log: Console
) -> Answers:
    """Returns the server's answers, and shows how many tokens it has processed."""
    with Progress(console=log, transient=True, disable=not log.is_terminal) as progress:
        shown = progress.add_task("tokens", total=chosen.tokens)

        def on_call(of: Pass, tokens: int) -> None:
            progress.update(shown, advance=tokens, description=of.name)

        return await run_passes(
            client,
            chosen,
            top=lambda sample: 0 if sample.temperature == 1.0 else candidates,
            batch=request.batch,
            flush=request.flush,
            on_call=on_call,
        )


def _report(
    request: AuditRequest,
    file: SampleFile,
    chosen: AuditPlan,
    found: Compared,
    *,
    served: ServedModel,
    weights: Provenance,
) -> AuditReport:
    return AuditReport(
        file=str(request.path),
        format=file.format,
        total=file.total,
        samples=len(chosen.samples),
        seed=request.seed,
        left_out=chosen.left_out,
        not_generated=chosen.not_generated,
        not_compared=found.not_compared,
        tokens=chosen.tokens,
        clip=request.clip,
        server=served,
        weights=weights,
        findings=findings(chosen, served, weights, found),
        exceeded=exceeded(request.limits, found.passes, weights),
        limits=request.limits,
        passes=found.passes,
        itself=found.itself,
        parts=found.parts,
        largest=found.largest,
    )


def _show(report: AuditReport, console: Console) -> None:
    title = f"{report.samples} of {report.total} samples, against the server"
    console.print(passes_table(report.passes, title))
    console.print(itself_table(report.itself))
    console.print(parts_table(report.parts))
    if report.largest:
        console.print(largest_table(report.largest))
    for line in itertools.islice(difference_lines(report.passes), SHOWN):
        console.print(f"first difference: {line}", markup=False, soft_wrap=True)
    for line in report.findings:
        console.print(f"- {line}", markup=False, soft_wrap=True)
    for line in report.exceeded:
        console.print(f"FAILED {line}", markup=False, soft_wrap=True)


def _left_out(file: SampleFile, chosen: AuditPlan) -> Iterator[str]:
    passes = sum(
        1 for audit_pass in PASSES if audit_pass.kind == "prefill" or any(chosen.generated)
    )
    yield (
        f"{len(chosen.samples)} of {file.total} samples ({file.format}), {passes} passes, "
        f"{chosen.tokens:,} tokens"
    )
    for reason, count in chosen.left_out.items():
        yield f"left out: {count} samples, {reason}"
    for reason, count in chosen.not_generated.items():
        yield f"not generated again: {count} samples: {reason}"


def _engines_of(path: Path) -> list[ReportedEngine]:
    """Returns the engines of the rollout, from the report beside samples of seer-sgl."""
    try:
        content = (path.parent / "report.json").read_bytes()
        return msgspec.json.decode(content, type=_RolloutReport).engines
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return []
