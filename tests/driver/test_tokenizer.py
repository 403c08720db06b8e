"""A model's own tokenizer, and when its own Python code may run."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import transformers.dynamic_module_utils

from seer_sgl.driver import load_tokenizer as loading
from seer_sgl.driver.load_tokenizer import tokenizer_of
from seer_sgl.errors import ConfigError
from seer_sgl.link.tokenizer import TokenizerSource
from tests.support.tokenizers import load_tokenizer
from tests.tokenizers.byte_rows import ROWS

pytestmark = pytest.mark.process

CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizer

Path(__file__).with_name("ran").touch()


class OwnTokenizer(PreTrainedTokenizer):
    vocab_size = 7

    def get_vocab(self):
        return {str(i): i for i in range(7)}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return int(token)

    def _convert_id_to_token(self, index):
        return str(index)
"""

with_sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="SGLang, which loads it, is not installed"
)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own for the code of models."""
    modules = str(tmp_path / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
    monkeypatch.setenv("HF_MODULES_CACHE", modules)  # of SGLang's process
    monkeypatch.syspath_prepend(modules)
    _forget_modules()  # of another test's folder
    yield
    _forget_modules()


@pytest.fixture
def model(tmp_path: Path, modules: None) -> Path:
    """A model folder whose tokenizer has its own Python class."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenization_own.py").write_text(CODE)
    named = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    settings = {"tokenizer_class": "OwnTokenizer", "auto_map": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _forget_modules() -> None:
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def test_code_of_a_tokenizer_runs_only_if_it_is_trusted(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_tokenizer(str(model))
    line = str(raised.value)
    assert line.startswith(f"model.trust_remote_code: the tokenizer in {model} has its own Python")
    assert "\n" not in line
    assert not list(tmp_path.rglob("ran"))

    tokenizer = load_tokenizer(str(model), trust_remote_code=True)
    assert tokenizer is not None
    assert list(tokenizer.encode("315")) == [3, 1, 5]
    assert list(tmp_path.rglob("ran"))


CONFIG = """
from pathlib import Path
from transformers import LlamaConfig

Path(__file__).with_name("ran").touch()


class OwnConfig(LlamaConfig):
    model_type = "own"
"""


@with_sglang
def test_code_of_a_model_that_may_read_images_runs_only_if_it_is_trusted(
    tmp_path: Path, modules: None
) -> None:
    folder = ROWS[1].make(tmp_path)
    (folder / "configuration_own.py").write_text(CONFIG)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "own",
        "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
        "vision_config": {},
    }
    (folder / "config.json").write_text(json.dumps(config))
    untrusted = TokenizerSource(tokenizer_path=str(folder), model_path=str(folder))
    with pytest.raises(ConfigError, match=r"^model\.trust_remote_code: [^\n]*$"):
        tokenizer_of(untrusted)
    assert not list(tmp_path.rglob("ran"))
    assert tokenizer_of(msgspec.structs.replace(untrusted, trust_remote_code=True)) is not None
    assert list(tmp_path.rglob("ran"))


def test_another_mistake_of_a_tokenizer_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^no tokenizer in .*: .+$"):
        load_tokenizer(str(tmp_path))


def test_a_path_that_cannot_be_looked_at_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^no tokenizer in x{300}: [^\n]+$"):
        load_tokenizer("x" * 300)  # longer than a file's name may be


@with_sglang
def test_where_sglang_cannot_be_asked_transformers_loads_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = ROWS[1].make(tmp_path)
    monkeypatch.setattr(loading, "PROGRAM", "seer_sgl.no_such_module")
    alone = load_tokenizer(str(folder))
    assert alone is not None
    assert alone.encode("x").tolist() == [ord("x")], "without the <bos> that SGLang restores"
    (line,) = (record.getMessage() for record in caplog.records if record.name == loading.__name__)
    assert line.startswith(f"the tokenizer in {folder} is loaded by transformers alone")
    assert line.endswith("No module named seer_sgl.no_such_module")


@with_sglang
def test_a_tokenizer_is_loaded_once_and_again_when_its_files_change(tmp_path: Path) -> None:
    folder = ROWS[1].make(tmp_path)
    first = load_tokenizer(str(folder))
    assert load_tokenizer(str(folder)) is first
    settings = folder / "tokenizer_config.json"
    settings.write_text(
        settings.read_text().replace('"add_bos_token": true', '"add_bos_token": false')
    )
    second = load_tokenizer(str(folder))
    assert first is not None
    assert second is not None
    assert len(first.encode("x")) == 2
    assert len(second.encode("x")) == 1
