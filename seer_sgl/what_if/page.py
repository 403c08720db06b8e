"""The answer on one page of a terminal."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .answer import WhatIfAnswer
from .orders import LABELS, TODAY, Try, mean_gain

BAR = 40  # characters of the longest bar


def print_page(answer: WhatIfAnswer, console: Console) -> None:
    """Prints the answer, advice first."""
    for line in _lines(answer):
        console.print(escape(line), soft_wrap=True)
    console.print(_orders(answer))
    for line in _remarks(answer):
        console.print(escape(line), soft_wrap=True)


def _lines(answer: WhatIfAnswer) -> Iterator[str]:
    yield answer.advice.headline
    yield from (f"  {reason}" for reason in answer.advice.reasons)
    yield ""
    lengths = answer.lengths
    yield (
        f"{answer.trace} ({answer.format}): {lengths.groups:,} groups, {lengths.responses:,} "
        f"responses, {answer.engines} engines, {answer.gpus} GPUs"
    )
    yield f"  {answer.profile}"
    yield ""
    yield (
        f"Lengths in tokens: mean {lengths.mean:,.0f}, median {lengths.p50:,.0f}, 90 % "
        f"{lengths.p90:,.0f}, 99 % {lengths.p99:,.0f}, longest {lengths.longest:,}"
    )
    most = max(lengths.bins)
    for edge, count in zip(lengths.edges[1:], lengths.bins, strict=True):
        yield f"  up to {edge:>9,.0f} {count:>7,} {'#' * round(BAR * count / most)}"
    if lengths.longest_over_mean is not None:
        share = lengths.group_share
        prompt = "" if share is None else f"; the prompt explains {share:.0%} of the spread"
        yield (
            f"  Within a group the longest is {lengths.longest_over_mean:.2f} times the mean "
            f"(median of groups){prompt}."
        )
    yield ""


def _orders(answer: WhatIfAnswer) -> Table:
    priced = any(row.price is not None for row in answer.orders)
    title = f"Simulated, chunks of {answer.chunk_tokens:,}"
    table = Table(box=SIMPLE, title_justify="left", title=title, padding=0, pad_edge=False)
    table.add_column("order", no_wrap=True)
    names = ["time s", "tail s", "idle", "GPU-h", "gain"]
    for name in [*names, *(["price", "idle"] if priced else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in answer.orders:
        cells = [
            _short(row.wall_s),
            _short(row.tail_s),
            f"{row.idle_share:.0%}",
            _short(row.idle_gpu_hours),
            f"{row.ratio:.2f}",
        ]
        if row.price is not None and row.idle_price is not None:
            cells += [_short(row.price), _short(row.idle_price)]
        table.add_row(row.label, *cells, end_section=row.name == TODAY[-1])
    table.add_section()
    today_s = min(row.wall_s for row in answer.orders if row.name in TODAY)
    ratio = f"{today_s / answer.bound_s:.2f}" if answer.bound_s else ""
    table.add_row("no order can be faster", _short(answer.bound_s), "", "", "", ratio)
    return table


def _replayed(answer: WhatIfAnswer) -> Iterator[str]:
    if not answer.replayed_ratios:
        return
    rounds = len(answer.replayed) // (len(answer.replayed_ratios) + 1)
    yield ""
    yield f"Replayed on the given servers, {rounds} rounds; time over that of order and division:"
    for ratio in answer.replayed_ratios:
        yield f"  {LABELS[ratio.order]}: {ratio.wall}, simulated {ratio.simulated_wall:.2f}"
        if ratio.tail is not None and ratio.simulated_tail is not None:
            yield f"    last 10 %: {ratio.tail}, simulated {ratio.simulated_tail:.2f}"


def _remarks(answer: WhatIfAnswer) -> Iterator[str]:
    yield "gain: time of today's fastest order over the time of this one; tail: the last 10 %;"
    yield "idle: engines without a request, as a share, in GPU-hours, and in price."
    tried = _tried(answer.chunks_tried)
    if tried:
        yield f"Chunk length that suits: {answer.chunk_tokens:,} tokens ({tried})."
    tried = _tried(answer.concurrency_tried)
    if tried:
        yield f"Requests at once per engine that suffice: {answer.concurrency} ({tried})."
    mean, least, most = mean_gain(answer.draws)
    yield ""
    yield f"How sure? Gain {mean:.2f} ({least:.2f} to {most:.2f}) on:"
    yield from (f"  {draw.source}: {draw.gain:.2f}" for draw in answer.draws)
    yield from (f"  {sentence}" for sentence in answer.calibration)
    yield from _replayed(answer)
    if answer.assumed:
        yield "Assumed:"
        yield from (f"  {sentence}" for sentence in answer.assumed)


def _short(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _tried(tries: Sequence[Try]) -> str:
    return ", ".join(f"{tried.value:,}: {_short(tried.wall_s)} s" for tried in tries)
