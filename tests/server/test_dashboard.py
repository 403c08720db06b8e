"""The Grafana dashboard: every query names series and labels that a real server has."""

import json
import re
from pathlib import Path
from typing import Any

from tests.fake_sglang import FakeSGLang
from tests.support.bodies import events
from tests.support.metrics import body, counters

from .helpers import served
from .scrape import scraped

DASHBOARD = Path(__file__).parents[2] / "configs" / "grafana" / "seer-sgl.json"
METRIC = re.compile(r"\bseer_\w+")
SELECTOR = re.compile(r"(seer_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
SCRAPED = {"instance", "job"}  # Prometheus adds them


def dashboard() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return parsed


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


async def test_every_query_names_series_and_labels_that_a_server_has() -> None:
    async with served(FakeSGLang(plugin=counters(10)), FakeSGLang(plugin=counters(10))) as it:
        await it.generate(**body(1))
        await it.generate(**body(2, top_logprobs_num=1))
        await events(it, **body(3))
        labels = (await scraped(it)).labels()
    problems, used = [], set()
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            names = set(METRIC.findall(expression))
            used |= names
            known = SCRAPED.union(*(labels.get(name, set()) for name in names))
            wanted = set(LEGEND.findall(target["legendFormat"]))
            for grouping in GROUPING.findall(expression):
                wanted.update(label.strip() for label in grouping.split(","))
            selected = SELECTOR.findall(expression)
            problems += [f"{name}: no such series" for name in names - labels.keys()]
            problems += [f"{expression}: no label {name}" for name in wanted - known]
            problems += [
                f"{name}: no label {label}"
                for name, matchers in selected
                for label in set(MATCHER.findall(matchers)) - labels.get(name, set()) - SCRAPED
            ]
            assert {name for name, _ in selected} == names, "every series is of one server"
    assert problems == []
    variables = dashboard()["templating"]["list"]
    assert set(METRIC.findall(json.dumps(variables))) <= labels.keys()
    # What a server counts is also shown, or has a reason not to be.
    left_out = {
        "seer_engine_chunks_total",  # shown over all engines
        "seer_retractions_total",  # shown by engine
        "seer_draft_cpu_seconds_total",
        "seer_draft_hub_tokens_total",
    }
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    missing = {name for name in families - shown if not name.endswith("_created")}
    assert {name for name in missing if not name.startswith("seer_process_")} == left_out


def test_queries_use_the_variables_of_the_dashboard() -> None:
    names = {variable["name"] for variable in dashboard()["templating"]["list"]}
    for target in (target for panel in panels() for target in panel["targets"]):
        found = set(re.findall(r"\$\{?(\w+)", target["expr"])) - {"__rate_interval"}
        assert found <= names
        assert target["datasource"]["uid"] == "${datasource}"
