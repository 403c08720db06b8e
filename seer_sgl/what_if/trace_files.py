"""The traces of a what-if, from files and folders, and what they do not have."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from seer_sgl.errors import ConfigError
from seer_sgl.link.tokenizer import TokenizerSource
from seer_sgl.traces.reading import read_trace
from seer_sgl.traces.rl_lines import Count
from seer_sgl.traces.trace import Trace

SOURCE = "TRACE"
VALIDATION = "val_"  # how the names of files of validation rollouts begin
NAMED = 3  # traces that a sentence names


def read_traces(
    paths: Sequence[Path],
    *,
    group_size: int | None = None,
    groups: int | None = None,
    tokenizer: str | None = None,
) -> list[Trace]:
    """Returns a trace per file, with `groups` of its groups. Raises ConfigError.

    A folder stands for its files `*.jsonl` by number: veRL writes one per step. `group_size` and
    `tokenizer`: where a file lacks groups, or has texts only.
    """
    count = None if tokenizer is None else _counter(tokenizer)
    found = [file for path in paths for file in _files(path)]
    counts = Counter(path.name for path, _ in found)
    traces = []
    for path, left_out in found:
        trace = read_trace(path, source=SOURCE, group_size=group_size, count=count)
        name = trace.name if counts[path.name] == 1 else str(path)
        trace = msgspec.structs.replace(trace, name=name, assumed=[*trace.assumed, *left_out])
        traces.append(_some(trace, groups))
    return traces


def assumed_of(traces: Sequence[Trace]) -> list[str]:
    """Returns what the traces do not have; a sentence about some of them names these."""
    about: dict[str, list[str]] = {}
    for trace in traces:
        for sentence in trace.assumed:
            about.setdefault(sentence, []).append(trace.name)
    return [
        sentence if len(names) == len(traces) else f"{_few(names)}: {sentence}"
        for sentence, names in about.items()
    ]


def _few(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _some(trace: Trace, groups: int | None) -> Trace:
    """Returns a trace with so many of its groups, drawn at random, in their order."""
    if groups is None or groups >= len(trace.groups):
        return trace
    chosen = sorted(random.Random(0).sample(range(len(trace.groups)), groups))
    return msgspec.structs.replace(
        trace,
        groups=[trace.groups[number] for number in chosen],
        assumed=[*trace.assumed, f"{groups} of {len(trace.groups)} groups, drawn at random."],
    )


def _counter(tokenizer: str) -> Count:
    """Returns the function that counts the tokens of a text."""
    from seer_sgl.driver.load_tokenizer import tokenizer_of

    loaded = tokenizer_of(TokenizerSource(tokenizer_path=tokenizer))
    if loaded is None:
        raise ConfigError(f"--tokenizer {tokenizer}: no tokenizer in this folder")
    return lambda text: len(loaded.encode(text))


def _files(path: Path) -> list[tuple[Path, list[str]]]:
    """Returns a file, or those of a folder, with sentences on what is left out."""
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise ConfigError(f"{SOURCE}: {path}: {error.strerror}") from error
    if not is_folder:
        return [(path, [])]
    found = [file for file in path.glob("*.jsonl") if file.is_file() and file.name[0] != "."]
    files = [file for file in found if not file.name.startswith(VALIDATION)]
    if not files:
        raise ConfigError(f"{SOURCE}: {path}: no file *.jsonl in this folder")
    skipped = len(found) - len(files)
    left_out = [f"Files {VALIDATION}* in {path}, left out: {skipped}."] if skipped else []
    files.sort(key=lambda file: (len(file.stem), file.stem))
    return [(file, left_out) for file in files]
