"""References in bodies that pass through: none reaches an engine that would open it."""

from typing import Any

import pytest

from seer_sgl.config import ImagesConfig
from seer_sgl.rollout.images import ImageReader
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.passthrough.media import read_images, require_inline, require_no_reference
from tests.support.images import data_url

READER = ImageReader(ImagesConfig())
EMBEDDING = {"format": "precomputed_embedding", "feature": [[0.5, 1.0]]}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        ["http://169.254.169.254/x", {}],
        ["/etc/x.png", None],
        [["file:///etc/x.png"]],
        [["http://10.0.0.1/a", {}]],
        [{}],
        [{"url": "http://10.0.0.1/a"}],
        {"http://10.0.0.1/a": 1},
        [[[["a.png"]]]],
        [5],
        [{**EMBEDDING, "feature": [["/etc/passwd"]]}],
        [{**EMBEDDING, "x": {"y": "http://10.0.0.1/a"}}],
        [{"format": ["processor_output"]}],
    ],
)
def test_no_reference_hides_in_image_data(given: Any, batch: bool) -> None:
    with pytest.raises(BadRequest, match=r"^image_data[^\n]{,200}$"):
        read_images(given, READER, batch)


def test_images_and_processed_ones_keep_their_places() -> None:
    one, two = data_url(1), data_url(2)
    same: list[Any] = [one, [one], [[one, two]], [EMBEDDING], [None], [one, EMBEDDING, two]]
    for given in same:
        assert read_images(given, READER, False) == given
    plain = one.partition(",")[2]
    mixed = [plain, [two, EMBEDDING], None, [[plain]]]
    assert read_images(mixed, READER, True) == [one, [two, EMBEDDING], None, [[one]]]


@pytest.mark.parametrize("name", ["audio_data", "video_data"])
@pytest.mark.parametrize("value", ["http://10.0.0.1/a", ["/etc/passwd"], [["AAAA"]], [{"url": ""}]])
def test_videos_and_audio_are_no_references(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=rf"^{name}: [^\n]*$"):
        require_inline({name: value})
    require_inline({name: ["data:video/mp4;base64,AAAA", EMBEDDING, None]})


@pytest.mark.parametrize("kind", ["video_url", "audio_url"])
def test_parts_of_a_chat_are_no_references(kind: str) -> None:
    def chat(url: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [{"type": kind, kind: url}]}]}

    for url in ({"url": "http://10.0.0.1/a"}, "/etc/passwd"):
        with pytest.raises(BadRequest, match=rf"^messages: {kind}: [^\n]*only data URLs"):
            require_inline(chat(url))
    require_inline(chat({"url": "data:audio/wav;base64,AAAA"}))


def test_other_paths_pass_no_reference_on() -> None:
    def said(**part: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [part]}]}

    address, file = "http://10.0.0.1/a", "/etc/a.png"
    for fields in (
        said(type="image", source={"type": "url", "url": address}),
        said(type="tool_result", content=[{"type": "image", "source": {"url": address}}]),
        {"input": [{"content": [{"type": "input_image", "image_url": address}]}]},
        {"input": [{"text": "a", "image": file}]},
        {"input": [{"text": "a", "image_data": [[file]]}]},
        {"video_data": "AAAA"},
        {"image_data": "FILE:///etc/passwd"},
        {"audio_data": {"url": address}},
        {"type": "tool_use", "input": [{"image": address}]},
        {"input": [{"type": "tool_use", "image": address}]},
    ):
        with pytest.raises(BadRequest, match=r"only data URLs"):
            require_no_reference(fields)
    for fields in (
        said(type="image", source={"type": "base64", "data": "AAAA"}),
        said(type="tool_use", input={"image": address}),
        said(type="text", text=address),
        {"tools": [{"image": address}], "image_data": [data_url(1), "/9j/AAAA", "iVBORw0KGgo="]},
        {"input": [{"text": address, "image": None}], "video_data": "data:video/mp4;base64,AAAA"},
    ):
        require_no_reference(fields)
