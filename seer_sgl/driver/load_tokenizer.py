"""Loads a model's tokenizer so that it reads text as SGLang does.

Where SGLang is installed, its own functions load the tokenizer, in a process of their own
(plugin/tokenizer.py); this process receives a copy. Elsewhere transformers loads it.
"""

import functools
import importlib
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.errors import ConfigError, first_line
from seer_sgl.link.tokenizer import PROGRAM, LoadedTokenizer, TokenizerSource
from seer_sgl.processes.child import PARENT_PID
from seer_sgl.torchvision_schemas import define_missing_schemas

from .tokenizer import Tokenizer

logger = logging.getLogger(__name__)
# A folder with a tokenizer has at least one of these files.
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "tiktoken*", "*.tiktoken", "tekken.json")
KEPT = 4  # tokenizers per process; each takes up to a hundred megabytes


def tokenizer_of(source: TokenizerSource) -> Tokenizer | None:
    """Returns the tokenizer of engines that are started with `source`; None for a folder without
    one.

    Without `trust_remote_code` the tokenizer's own Python code does not run. Raises ConfigError if
    the tokenizer cannot be loaded.
    """
    folder = Path(source.tokenizer_path)
    try:
        stamps = _stamps(folder)
        if folder.is_dir() and not any(any(folder.glob(name)) for name in TOKENIZER_FILES):
            return None
    except OSError as error:  # no permission, or a name that is too long
        raise ConfigError(f"no tokenizer in {folder}: {error.strerror}") from error
    return _loaded(source, stamps)


def _stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Returns names, sizes and times of a folder's files: a changed tokenizer is loaded again."""
    if not folder.is_dir():
        return ()
    files = sorted(file for file in folder.iterdir() if file.is_file())
    stats = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


@functools.lru_cache(maxsize=KEPT)
def _loaded(source: TokenizerSource, _: tuple[tuple[str, int, int], ...]) -> Tokenizer:
    # A driver needs no torch, and transformers warns about its absence on standard error.
    logging.getLogger("transformers").addFilter(_is_not_about_torch)
    try:
        if importlib.util.find_spec("sglang") is not None:
            loaded = _by_sglang(source)
            if loaded is not None:
                return loaded
        return Tokenizer(_by_transformers(source))
    except Exception as error:  # its files are data for many readers: KeyError, TypeError, ...
        path = source.tokenizer_path
        if "trust_remote_code=True" in str(error) and not source.trust_remote_code:
            raise ConfigError(
                f"model.trust_remote_code: the tokenizer in {path} has its own Python code, "
                f"which runs only if this is true"
            ) from error
        raise ConfigError(f"no tokenizer in {path}: {first_line(error)}") from error


def _by_sglang(source: TokenizerSource) -> Tokenizer | None:
    """Returns a copy of SGLang's tokenizer; None if SGLang cannot be asked here.

    Raises ValueError with SGLang's reason if it cannot load the tokenizer.
    """
    reply = _asked(source)
    if reply.error is not None:
        raise ValueError(reply.error)
    if reply.reader is None:
        logger.warning(
            "the tokenizer in %s is loaded by transformers alone, not as SGLang loads it: %s",
            source.tokenizer_path,
            (reply.unavailable or "no reason is known").splitlines()[0],
        )
        return None
    if source.trust_remote_code:
        from transformers.dynamic_module_utils import init_hf_modules

        init_hf_modules()  # where the tokenizer's own code is imported from
        importlib.invalidate_caches()  # the other process has just written it
    writer = None if reply.writer is None else _unpickled(reply.writer)
    return Tokenizer(_unpickled(reply.reader), writer)


def _asked(source: TokenizerSource) -> LoadedTokenizer:
    """Returns what SGLang's functions load, in a process of their own."""
    argument = msgspec.json.encode(source).decode()
    command = [sys.executable, "-m", PROGRAM, argument]
    # Text needs no GPU.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", PARENT_PID: str(os.getpid())}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # an interrupt is for this process
    ) as process:
        # Meanwhile, as unpickling needs it: it takes a second.
        from transformers import PreTrainedTokenizerBase  # noqa: F401

        output, errors = process.communicate()
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {process.returncode}"
        return LoadedTokenizer(unavailable=reason)
    return msgspec.msgpack.decode(output, type=LoadedTokenizer)


def _unpickled(tokenizer: bytes) -> Any:
    try:
        return pickle.loads(tokenizer)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    define_missing_schemas()  # some tokenizers import torchvision
    return pickle.loads(tokenizer)


def _by_transformers(source: TokenizerSource) -> Any:
    """Returns the tokenizer without SGLang's repairs, but with the options that SGLang gives."""
    from transformers import AutoTokenizer

    # Without a value of trust_remote_code transformers would prompt at the terminal.
    return AutoTokenizer.from_pretrained(
        source.tokenizer_path,
        trust_remote_code=source.trust_remote_code,
        revision=source.revision or "main",
        clean_up_tokenization_spaces=False,
    )


def _is_not_about_torch(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("PyTorch was not found")
