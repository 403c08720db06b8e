"""`seer-sgl rollout`: a rollout from files to files."""

import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from seer_sgl.config import Config
from seer_sgl.errors import ConfigError

from .progress import Progress
from .recorder import Recorder
from .rollout import Rollout
from .samples import SampleWriter, explained
from .timeline import draw_timeline


async def roll_out(config: Config, out: Path, overwrite: bool, console: Console) -> None:
    """Roll out `config.rollout.prompts` into `out`.

    However it ends, the samples that had finished, their report and their timeline are there.
    Raises SeerError, or CancelledError when interrupted.
    """
    if config.rollout.prompts is None:
        raise ConfigError("rollout.prompts: no prompts; give --prompts or set the key")

    def announce(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    rollout = Rollout(config, log_dir=out / "engines", announce=announce)
    prompts = rollout.read_prompts(Path(config.rollout.prompts))
    requests = sum(prompt.n for prompt in prompts)
    samples = _new_samples_file(out, overwrite)
    announce(f"{len(prompts)} groups, {requests} requests")
    async with rollout:
        progress = Progress(rollout.engines, len(prompts), requests)
        writer = SampleWriter(samples)
        try:
            async with progress.shown(console):
                async for _ in rollout.run(prompts, [writer, progress]):
                    pass
        finally:
            if rollout.recorder is not None:
                writer.close()
                _write_results(rollout.report(), rollout.recorder, out)
                announce(_summary(rollout.report(), out))


def _new_samples_file(out: Path, overwrite: bool) -> Path:
    """Where the samples go, known to be writable before any engine starts."""
    samples = out / "samples.jsonl"
    if samples.exists() and not overwrite:
        raise ConfigError(f"--out {out}: {samples} exists; use another folder or --overwrite")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
        if samples.exists():
            samples.open("ab").close()
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    return samples


def _write_results(report: dict[str, Any], record: Recorder, out: Path) -> None:
    with explained(out / "report.json"):
        (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    title = (
        f"{report['samples']:,} samples, {report['response_tokens']:,} tokens, "
        f"{report['throughput_tok_s']:,.0f} tok/s"
    )
    with explained(out / "timeline.png"):
        draw_timeline(record, out / "timeline.png", title)


def _summary(report: dict[str, Any], out: Path) -> str:
    left = f" ({report['unfinished_groups']} unfinished)" if report["unfinished_groups"] else ""
    return (
        f"{report['groups']} groups{left}, {report['samples']} samples, "
        f"{report['response_tokens']} tokens in {report['wall_s']:.1f} s: "
        f"{report['throughput_tok_s']:.0f} tok/s, tail {report['tail_s']:.1f} s, "
        f"{report['chunks']} chunks, {report['migrations']} migrations, "
        f"{report['recomputed_tokens']} tokens recomputed, {report['retractions']} retractions\n"
        f"wrote {out / 'samples.jsonl'}, report.json and timeline.png"
    )
