"""The Python code of the pages does what its page states. Code that needs servers runs in
tests/e2e/test_docs.py."""

import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from seer_sgl.driver.observer import Observer
from seer_sgl.plugin.sources import Sources
from seer_sgl.routed_experts import RoutedExperts
from seer_sgl.scheduling.strategy import Strategy
from tests.helpers import make_group
from tests.support.experts import SHAPE, rows_of
from tools.docs.pages import ROOT

from .blocks import scripts
from .scripts import ON_SERVERS, run, script

POLICY = "development.md#how-do-i-add-a-policy"
BRANCH = "development.md#how-do-i-add-a-policy-2"
HOOK = "development.md#how-do-i-add-a-hook"
LOGGING = "python.md#logging"
EXPERTS = "trainers.md#routed-experts"
MESSAGES = """
for name in ("seer_sgl.engine", "another.library"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        logging.getLogger(name).log(level, "message")
"""


def test_a_test_runs_all_python_code_of_the_pages() -> None:
    assert {each.name for each in scripts()} == {
        *(POLICY, BRANCH, HOOK, LOGGING, EXPERTS),
        *ON_SERVERS,
    }


def test_the_policy_that_a_page_adds_orders_requests_by_their_prompts() -> None:
    names = run(POLICY, {"__package__": "seer_sgl.scheduling"})
    placement = object()
    branch = script(BRANCH).code.replace("return ", "strategy = ")
    context = {"name": "shortest_prompt", "cache_aware": placement, "Strategy": Strategy, **names}
    exec(branch, context)
    strategy = context["strategy"]
    assert isinstance(strategy, Strategy)
    assert strategy.placement is placement
    policy = strategy.make_policy()
    for group in (make_group("long", prompt_len=9), make_group("short", prompt_len=2)):
        for request in group.requests:
            policy.push(request)
    assert [policy.pop().uid for _ in range(4)] == ["short.0", "short.1", "long.0", "long.1"]


def test_the_hook_that_a_page_adds_acts_at_a_place_of_sglang() -> None:
    part = run(HOOK, {"__package__": "seer_sgl.plugin"})["Steps"]()
    (hook,) = part.hooks()
    assert Sources.installed().find(hook.target) is not None
    for _ in range(2):
        hook.function(SimpleNamespace(), SimpleNamespace())
    assert part._count == 2


@pytest.mark.process
def test_the_logging_of_a_page_shows_the_steps_of_seer_sgl_alone() -> None:
    command = [sys.executable, "-c", script(LOGGING).code + MESSAGES]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines() == [
        "INFO:seer_sgl.engine:message",
        "WARNING:seer_sgl.engine:message",
        "WARNING:another.library:message",
    ]


def test_the_function_of_a_page_reads_routed_experts_of_a_line() -> None:
    experts = RoutedExperts.of(rows_of(5, 0, 7), SHAPE)
    line = {"routed_experts": msgspec.json.decode(msgspec.json.encode(experts))}
    read = run(EXPERTS)["routed_experts"](line)
    assert read.tolist() == experts.array().tolist()


def test_the_events_that_a_page_lists_are_those_of_an_observer() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = page.partition("| event | arguments | when |")[2].partition("\n\n")[0]
    listed = {
        name.strip("`")
        for row in table.splitlines()[2:]
        for name in row.split("|")[1].replace(" ", "").split(",")
    }
    assert listed == {name for name in vars(Observer) if not name.startswith("_")}
