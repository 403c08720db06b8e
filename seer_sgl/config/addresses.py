"""Server addresses: `host:port` and `http://host:port`. Host names that DNS cannot look up are
invalid."""

import ipaddress
import re

LAST_PORT = 65535
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = rf"(?=[^:/]{{1,253}}(?:[:/]|\Z)){_LABEL}(?:\.{_LABEL})*"
ADDRESS = re.compile(rf"{HOST}:([0-9]{{1,5}})")
URL = re.compile(rf"https?://(?:{HOST}|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{{1,5}}))?/?")


def is_address(text: str) -> bool:
    """Returns whether a text is host:port."""
    match = ADDRESS.fullmatch(text)
    return match is not None and _is_port(match[1])


def is_url(text: str) -> bool:
    """Returns whether a text is http://host:port without a path; https and no port are valid."""
    match = URL.fullmatch(text)
    if match is None or not (match[2] is None or _is_port(match[2])):
        return False
    return match[1] is None or _is_ipv6(match[1])


def _is_port(digits: str) -> bool:
    return 1 <= int(digits) <= LAST_PORT


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
