"""The fake engines that benchmarks start as programs, on uvloop."""

import pytest

from bench.fakes import running_fakes


@pytest.mark.process
def test_each_process_serves_its_engines() -> None:
    with running_fakes("tests.fake_sglang", 2, count=2) as urls:
        assert len(set(urls)) == 4
