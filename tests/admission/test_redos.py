"""The work of a regular expression is bounded before an engine matches it."""

import pytest

from seer_sgl.admission import redos
from seer_sgl.admission.redos import redos_risk

USUAL = [
    *("\\n\\n+Q: \\d+", "(END|STOP)+", "a{1,3}b+", "\\s*(?:Answer|ANSWER)\\s*:\\s*\\d+"),
    *("\\\\boxed\\{[^}]*\\}", "```\\n.*\\n```", "<\\|im_end\\|>|\\n\\nHuman:", "(?i)stop\\W+here"),
    *("\\d+\\s+\\d+\\s+\\d+", "\\b\\w+\\b\\s*$", "(?:\\d+\\.\\d+|\\d+)%", "[^\\n]*\\n[^\\n]*\\n"),
    *("(?:a|b)*c", "[A-Z][a-z]+ [A-Z][a-z]+", "[\\s\\S]*z", "\u4e00+[a-z]+", "", "(?:ab){2,5}"),
]
EXPONENTIAL = ["(a+)+$", "(?:a|[ab]c)*d", "(?:aa?)*z", "(?:a{1,3})*z", "((a{1,20}){1,20}){1,20}"]
POLYNOMIAL = [
    *(
        ".*.*z",
        ".*" * 24 + "z",
        "a+a+z",
        "a*b.*.*z",
        "\\w*\\s*\\w*z",
        "(?:.*)?x(?:.*)?y",
        "a*?a*?z",
    ),
    *("(?:a*b)?a*b?a*c", "(\\w+)\\1x", "(?=.*a.*)b", "(?>a*)a*z", "[\u4e00-\u9fa5]*\u4e01*x"),
    *("[\u0600-\u06ff]*\\d*x", "(?i)A*a*z", "a{17,}a{17,}z", "(?:a*){3}z"),
]
MANY_WAYS = ["a?" * 30 + "a" * 30, "(a|aa)" * 20 + "z", "(?:x{1,16}){1,16}y"]
MANY_WAYS += ["(" * 5 + "a|aa" + "){16}" * 5]  # 2 ^ (16 ^ 5)
LONG = ["(" * 60 + "a" + "){2}" * 60, "(" * 9 + "a*b" + "){16}" * 9, "a" * 4096]
LETTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
LONG += [f"[{LETTERS}]", "(" * 9 + "[a-cx-z]" + "){2}" * 9, "." * 500 + LETTERS]


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_patterns_may_be_matched(pattern: str) -> None:
    assert redos_risk(pattern) is None


@pytest.mark.parametrize(
    ("patterns", "why"),
    [
        (EXPONENTIAL, "for ever"),
        (POLYNOMIAL, "repetitions that can match the same text"),
        (MANY_WAYS, "ways to match one text"),
        (LONG, "more than 512 parts"),
        (["(?:" * 255 + "a" + "|)?" * 255], "too many levels"),
        (["(", "[z-a]", "(" * 4000, "a{4294967296}"], "no regular expression"),
    ],
)
def test_patterns_that_would_hold_an_engine_are_refused(patterns: list[str], why: str) -> None:
    for pattern in patterns:
        assert why in (redos_risk(pattern) or ""), pattern


def test_a_very_long_pattern_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(redos, "sre_parser")
    assert "more than 4096 characters" in (redos_risk("a" * 4097) or "")


def test_a_pattern_is_judged_once_and_a_letter_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    class Cases(dict[str, frozenset[str]]):
        def __getitem__(self, character: str) -> frozenset[str]:
            nonlocal looked
            looked += 1
            return super().__getitem__(character)

    cases = redos._cases
    monkeypatch.setattr(redos, "_cases", lambda alphabet: Cases(cases(alphabet)))
    for _ in range(2):
        assert redos_risk(LETTERS[:500]) is None
        assert looked == 500
