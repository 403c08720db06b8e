"""Images of prompts: what is read, what is refused in one line, what is sent with each chunk."""

import base64
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from seer_sgl import Rollout
from seer_sgl.config import ImagesConfig
from seer_sgl.errors import JournalError, PromptError
from seer_sgl.link.contract import LONGEST, ORIGIN, PROMPT_LEN
from seer_sgl.rollout import images
from seer_sgl.rollout.images import ImageReader
from seer_sgl.rollout.prompts import PromptReader
from seer_sgl.rollout.trajectories import Client
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Prompt, token_array
from tests.rollout.fakes import fakes, rolled, samples_of, whole
from tests.support.images import PLACEHOLDER, ImageEngine, data_url, picture

ENGINES: Any = ImageEngine  # it has the log of `Logging`
IMPATIENT = Timing(fetch_s=0.05)


def prompt(number: int = 0, count: int = 1) -> dict[str, Any]:
    ids = [5] * (3 + number) + [PLACEHOLDER] * count
    return {
        "id": f"p{number}",
        "prompt_ids": ids,
        "image_data": [data_url(i) for i in range(count)],
    }


def refusal(reference: str, timing: Any = DEFAULT, **config: Any) -> str:
    """Returns the reason why an image is refused."""
    with pytest.raises(ValueError, match="image_data") as error:
        ImageReader(ImagesConfig(**config), timing=timing).read([reference])
    message = str(error.value)
    assert message.startswith("image_data[0]: ")
    assert "\n" not in message
    assert len(message) < 300
    return message.rpartition("': ")[2]


def huge_png(width: int, height: int) -> bytes:
    """Returns a valid beginning of a picture whose header names a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    crc = struct.pack(">I", zlib.crc32(chunk))
    pixels = struct.pack(">I", 1 << 20) + b"IDAT"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + crc + pixels


def lying_png(width: int, height: int) -> bytes:
    """Returns a picture of 56 x 56 pixels whose header names another size."""
    content = picture()
    return huge_png(width, height)[: 8 + 25] + content[8 + 25 :]


def as_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def test_every_form_of_an_image_is_sent_as_a_data_url(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(3))
    (tmp_path / "b.jpg").write_bytes(picture(3, form="JPEG"))
    reader = ImageReader(ImagesConfig(folder=str(tmp_path)))
    plain = base64.b64encode(picture(3)).decode()
    found = reader.read([data_url(3), plain, "a.png", f"file://{tmp_path}/a.png"])
    assert set(found.urls) == {data_url(3)}
    assert found.tokens == 4 * 4
    assert reader.read(["b.jpg"]).urls[0].startswith("data:image/jpeg;base64,")


def test_bad_images_are_refused_with_one_line(tmp_path: Path) -> None:
    inside = tmp_path / "images"
    inside.mkdir()
    (tmp_path / "secret.png").write_bytes(picture())
    (inside / "link.png").symlink_to(tmp_path / "secret.png")
    (inside / "text.png").write_text("no image")
    (inside / "a.png").symlink_to(inside / "b.png")
    (inside / "b.png").symlink_to(inside / "a.png")
    folder = {"folder": str(inside)}
    assert refusal(as_url(picture()[:-30])).startswith("cannot be decoded: ")
    assert refusal(as_url(huge_png(10_000, 10_000))) == (
        "10000 x 10000 pixels; at most 50000000 (images.max_pixels)"
    )
    assert "pixels" in refusal(as_url(huge_png(1 << 30, 1 << 30)))
    assert "cannot be decoded" in refusal(as_url(lying_png(560, 560)))
    assert refusal(as_url(b"")) == "empty"
    assert refusal("data:image/png,abc").startswith("not a data URL")
    assert refusal("data:text/html;base64,aGk=").startswith("not a data URL")
    assert refusal("data:image/png;base64,@@").startswith("no base64")
    assert refusal("a.png") == "files are not read; images.folder allows those of a folder"
    for name in ("../secret.png", f"{tmp_path}/secret.png", f"file://{tmp_path}/secret.png"):
        assert refusal(name, **folder) == "outside images.folder"
    assert refusal("link.png", **folder) == "outside images.folder"
    missing = "no such file in images.folder"
    assert refusal("none.png", **folder) == missing
    assert refusal("a.png", **folder) in {missing, "a loop of symbolic links"}
    assert refusal("text.png", **folder).startswith("no image in one of the formats PNG")
    assert refusal("http://127.0.0.1/a.png").startswith("addresses are not fetched")
    with pytest.raises(ValueError, match=r"image_data: 64 images; at most 16 \(images.most\)"):
        ImageReader(ImagesConfig()).read([data_url()] * 64)


def test_a_body_reads_each_reference_once_and_has_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(picture(3))
    large = ImageReader(ImagesConfig(folder=str(tmp_path)))
    body = large.of_body(5)
    first = body.read(["a.png", "a.png"])
    file.unlink()
    assert first == body.read(["a.png"] * 2)
    assert first.tokens == 2 * 4
    assert len({id(url) for url in (*first.urls, *body.read(["a.png"]).urls)}) == 1
    with pytest.raises(ValueError, match="image_data: more than 5 images in one body"):
        body.read(["a.png"])
    monkeypatch.setattr(images, "MAX_BODY_BYTES", len(data_url(1)) + 1)
    small = large.of_body()
    small.read([data_url(1)] * 9)
    with pytest.raises(ValueError, match=r"image_data\[0\]: .*: more than 0 MB of images in one"):
        small.read([data_url(2)])
    assert large.of_body().read([data_url(2)]).urls == (data_url(2),)


def test_an_address_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/a.png"
        assert refusal(address, IMPATIENT, http=True) == "no answer within 0.05 s"
    assert "refused" in refusal(address, http=True)


@contextmanager
def answering(answer: bytes, drips: int = 0) -> Iterator[str]:
    """Yields the address of a server that answers once with these bytes, then with single ones."""
    ended = threading.Event()

    def answer_once() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            listening.close()  # nobody answers a second try
            connection.recv(1 << 16)
            connection.sendall(answer)
            for _ in range(drips):
                ended.wait(0.01)
                connection.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        thread = threading.Thread(target=answer_once)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/a.png"
        finally:
            ended.set()
            thread.join()


def redirect(to: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def test_odd_answers_are_refused_with_one_line() -> None:
    for answer in (b"garbage\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na"):
        with answering(answer) as address:
            assert refusal(address, http=True).startswith(("no answer of HTTP", "cannot be"))
    with answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as address:
        assert refusal(address, http=True) == "HTTP 404"
    for to in ("ftp://127.0.0.1/a", "file:///etc/passwd", "http://[", "http://a:b@"):
        with answering(redirect(to)) as address:
            assert refusal(address, http=True) == "it is, or leads to, no http(s) address"
    for address in ("http://[/a.png", "http:///a.png", "http://a:99999999/", f"http://{'a' * 70}/"):
        assert refusal(address, http=True).startswith(("it is, or leads to", "cannot be"))
    with answering(b"HTTP/1.1 200 OK\r\nX: ", drips=100) as address:
        assert refusal(address, IMPATIENT, http=True) == "no answer within 0.05 s"


@pytest.mark.parametrize("http", [False, True])
def test_no_message_has_a_password(http: bool) -> None:
    for user in ("user:secret", "a@b:secret", "u:" + "x" * 90 + "secret"):
        with pytest.raises(ValueError, match="not fetched") as error:
            ImageReader(ImagesConfig(http=http)).read([f"http://{user}@127.0.0.1:1/a.png"])
        assert "'http://***@127.0.0.1:1/a.png'" in str(error.value)


async def test_an_address_is_fetched_inside_a_running_loop() -> None:
    with answering(b"HTTP/1.0 200 OK\r\n\r\n" + picture(3)) as address:
        assert ImageReader(ImagesConfig(http=True)).read([address]).urls == (data_url(3),)


def reader() -> PromptReader:
    images_of = ImageReader(ImagesConfig(), 9)
    return PromptReader(4, None, vocab_size=50, max_prompt_len=80, images=images_of)


def test_a_prompt_has_a_placeholder_per_image() -> None:
    (read,) = reader().convert([prompt(count=2)])
    assert read.image_data == (data_url(0), data_url(1))
    assert reader().convert([read]) == [read], "what was read is not read again"
    one = {**prompt(), "image_data": data_url(0)}
    assert reader().convert([one])[0].image_data == (data_url(0),)
    wrong = {**prompt(count=2), "image_data": [data_url(0)]}
    with pytest.raises(PromptError, match="1 images, but the prompt has the placeholder 9 2 times"):
        reader().convert([wrong])
    made = Prompt(prompt_id="a", prompt_ids=token_array([9]), n=1, image_data=("a.png",))
    with pytest.raises(PromptError, match=r"prompts\[0\]: image_data\[0\]: 'a.png': files are not"):
        reader().convert([made])


def test_the_prompts_of_a_body_hold_an_image_once() -> None:
    two = [{**prompt(), "id": name, "image_data": [f"{data_url(1)}"]} for name in "ab"]
    one, other = reader().of_body().convert(two)
    assert one.image_data[0] is other.image_data[0]


class Chats:
    """A tokenizer whose template shows what it was given."""

    vocab_size = 50

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> Any:
        self.seen = messages
        parts = [part for message in messages for part in message["content"]]
        return token_array([9 if part["type"] == "image" else 5 for part in parts])


def test_parts_of_messages_are_images() -> None:
    tokenizer: Any = Chats()
    chats = PromptReader(1, tokenizer, 50, 80, images=ImageReader(ImagesConfig(), 9))
    text = {"type": "text", "text": "what is it?"}
    content = [
        {"type": "image_url", "image_url": {"url": data_url(1)}},
        text,
        {"type": "image", "image": data_url(2)},
    ]
    (read,) = chats.convert([{"messages": [{"role": "user", "content": content}]}])
    assert read.image_data == (data_url(1), data_url(2))
    assert tokenizer.seen[0]["content"] == [{"type": "image"}, text, {"type": "image"}]
    empty = [{"role": "user", "content": [{"type": "image_url"}]}]
    with pytest.raises(PromptError, match=r"messages\[0\]: a part of type 'image_url' has no"):
        chats.convert([{"messages": empty}])
    twice = {"messages": [{"role": "user", "content": content}], "image_data": [data_url()]}
    with pytest.raises(PromptError, match="the messages have images already"):
        chats.convert([twice])


async def test_every_chunk_has_the_prompt_as_written_the_images_and_the_response() -> None:
    prompts = [prompt(0), prompt(1, count=2), {"id": "text", "prompt_ids": [5] * 4}]
    async with fakes(kind=ENGINES) as it:
        groups, report = await rolled(it.config, prompts)
    assert report["chunks"] > 2 * report["samples"]
    for sample in samples_of(groups).values():
        assert sample.response_ids.tolist() == whole(sample)
    by_length = {len(each["prompt_ids"]): each.get("image_data", []) for each in prompts[:2]}
    for call in it.calls:
        sampling = call["sampling_params"]
        if "image_data" not in call:
            assert "custom_params" not in sampling
            continue
        origin = sampling["custom_params"][ORIGIN]
        assert call["image_data"] == by_length[origin[PROMPT_LEN]]
        assert call["input_ids"][: origin[PROMPT_LEN]].count(PLACEHOLDER) == len(call["image_data"])
    behind = sum(one.chunks for (name, _), one in samples_of(groups).items() if name != "text")
    assert sum("image_data" in call for call in it.calls) == behind
    assert report["recomputed_tokens"] == 0, "with the length that the engines count"


async def test_the_response_ends_where_the_images_leave_no_more_room() -> None:
    room = 40
    async with fakes(kind=ENGINES, max_request_len=room, tokens_per_image=25) as it:
        groups, _ = await rolled(it.config, [prompt(0)])
        (group,) = groups
        assert {request.prompt_len for request in group.requests} == {3 + 25}
        for sample in group.samples:
            assert sample.response_ids.tolist() == whole(sample)[: room - 28]
        for call in it.calls:
            assert call["sampling_params"]["custom_params"][ORIGIN][LONGEST] == room


async def test_without_the_plugin_a_prompt_with_images_is_undivided() -> None:
    async with fakes(kind=ENGINES, continues=False) as it:
        groups, _ = await rolled(it.config, [prompt(0), {"id": "t", "prompt_ids": [5] * 4}])
    samples = samples_of(groups)
    assert all(samples["p0", i].chunks == 1 for i in range(4))
    assert any(samples["t", i].chunks > 1 for i in range(4))


async def test_engines_without_images_refuse_the_prompt() -> None:
    async with fakes() as it, Rollout(it.config) as rollout:
        with pytest.raises(PromptError, match=r"'p0': image_data: engine e0 \(.*\) reads no"):
            [group async for group in rollout.run([prompt(0)])]


async def test_the_turns_of_a_trajectory_have_the_images_of_its_prompt() -> None:
    async def two_turns(given: Prompt, client: Client) -> list[int]:
        first = await client.generate()
        longer = [*given.prompt_ids, *first.response_ids, 7, 8]
        second = await client.generate(longer)
        assert list(second.prompt_ids) == longer
        return [first.response_length, second.response_length]

    async with fakes(kind=ENGINES) as it, Rollout(it.config) as rollout:
        results = [each async for each in rollout.trajectories(two_turns, [prompt(0)])]
        assert len(results[0].results) == 4
    assert len(it.calls) > 8
    for call in it.calls:
        origin = call["sampling_params"]["custom_params"][ORIGIN]
        assert call["image_data"] == [data_url(0)]
        assert (origin[PROMPT_LEN], LONGEST in origin) == (4, True)


async def test_stock_engines_get_no_turn_with_more_placeholders_than_images() -> None:
    async def image_token(given: Prompt, client: Client) -> int:
        with pytest.raises(PromptError, match="'p0', a turn: without the plugin SGLang takes an"):
            await client.generate([*given.prompt_ids, 7, PLACEHOLDER, 8])
        return (await client.generate([*given.prompt_ids, 7, 8])).response_length

    async with fakes(kind=ENGINES, continues=False) as it, Rollout(it.config) as rollout:
        rollout.images.placeholder = PLACEHOLDER
        results = [each async for each in rollout.trajectories(image_token, [prompt(0)])]
        assert len(results[0].results) == len(it.calls) == 4


async def test_a_journal_knows_the_images(tmp_path: Path) -> None:
    async with fakes(kind=ENGINES) as it:
        config = it.config_with(rollout={"journal": str(tmp_path / "j")})
        await rolled(config, [prompt(0), prompt(1)], groups=1)
        other = {**prompt(1), "image_data": [data_url(99)]}
        with pytest.raises(JournalError, match="prompt 'p1' is not the one in the journal"):
            await rolled(config, [prompt(0), other], resume=tmp_path / "j")
        groups, _ = await rolled(config, [prompt(0), prompt(1)], resume=tmp_path / "j")
    for sample in samples_of(groups).values():
        assert sample.response_ids.tolist() == whole(sample)
