"""What a rollout reads before its engines are up: the files that its config names."""

from pathlib import Path
from typing import NamedTuple, Self

from seer_sgl.config import Config, LocalEngines
from seer_sgl.driver.checks import check_pool
from seer_sgl.driver.draft_groups import Responses
from seer_sgl.driver.load_tokenizer import tokenizer_of
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.engine.launch.process import require_model
from seer_sgl.errors import ConfigError
from seer_sgl.scheduling.lengths import KnownLengths

from .history import read_history
from .lengths import read_lengths
from .model import ModelFacts, model_facts, tokenizer_source


class RolloutInputs(NamedTuple):
    """Lengths and responses of an earlier rollout, the model's own config, and its tokenizer."""

    known: KnownLengths | None
    history: Responses
    facts: ModelFacts
    tokenizer: Tokenizer | None

    @classmethod
    def read(cls, config: Config) -> Self:
        """Returns the inputs. Raises InputError for an unusable one."""
        lengths, history = config.scheduling.lengths, config.draft.history
        known = None if lengths is None else read_lengths(Path(lengths))
        earlier: Responses = (lambda _: ()) if history is None else read_history(Path(history))
        facts = model_facts(config.model.path)
        if isinstance(config.engines, LocalEngines):
            require_model(config.model.path or "")
        chunk = min(config.scheduling.chunk_tokens, config.sampling.max_new_tokens)
        check_pool(config.kv_pool, chunk, facts.least_kv_bytes_per_token())
        source = tokenizer_source(config)
        tokenizer = None if source is None else tokenizer_of(source)
        if config.sampling.stops() and tokenizer is None:
            raise ConfigError("sampling.stop: stop strings need a tokenizer: set model.path")
        return cls(known, earlier, facts, tokenizer)
