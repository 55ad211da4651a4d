"""A transformers sequence-classification model: found, loaded and run in padded batches."""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, RewardError
from ...tokenizer import load_tokenizer
from ..types import Trajectory
from .inputs import Exchange, InputEncoder, Row

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("turngym.rewards")

DTYPES = ("auto", "float32", "bfloat16", "float16")
PADDING_EFFECT = 0.01
"""A model minds padding where it changes a logit by more than this share of what another text changes."""
ROUNDING_EPS = 10
"""Float epsilons, of a logit's size, by which rounding alone may change it."""

_NEEDS = (
    "give a folder with config.json, a tokenizer and *.safetensors weights, as save_pretrained of a model for sequence "
    "classification writes it"
)
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierConfig:
    """Where a model is and how it runs. Fields as the arguments of `RewardModel`.

    Raises:
        ConfigError: a field can't be used, or the folder holds no model.
    """

    path: str
    device: str = "auto"
    dtype: str = "auto"
    max_length: int | None = None
    max_batch_size: int = 64
    max_batch_tokens: int = 16_384
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise ConfigError(f"device={self.device!r} must be 'auto', 'cpu', 'cuda' or 'cuda:N'")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")
        for name in ("max_length", "max_batch_size", "max_batch_tokens"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1) and (name, value) != ("max_length", None):
                raise ConfigError(f"{name}={value!r} must be an integer of at least 1")
        check_folder(self.path)


def check_folder(path: str) -> None:
    """Look whether a path is the Hub's name of a model, or a folder that holds what a model consists of.

    Raises:
        ConfigError: it is neither.
    """
    folder = Path(path)
    if not folder.is_dir():
        if folder.exists():
            raise ConfigError(f"model_path={path!r} is a file; {_NEEDS}")
        if _HUB_NAME.fullmatch(path) and not path.startswith("."):
            return
        raise ConfigError(f"model_path={path!r}: there is no such folder; {_NEEDS}")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"model_path={path!r} holds no config.json; {_NEEDS}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"model_path={path!r}: its config.json can't be read: {error}; {_NEEDS}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"model_path={path!r}: its config.json holds no object; {_NEEDS}")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model_path={path!r} holds no *.safetensors weights; {_NEEDS}")
    if not any(folder.glob("tokenizer*")) and not any(folder.glob("vocab*")):
        raise ConfigError(f"model_path={path!r} holds no tokenizer; {_NEEDS}")


class Classifier:
    """A loaded model and its tokenizer. Used by one thread.

    Args:
        config: where it is and how it runs.

    Attributes:
        max_length: most tokens of a row: what the model takes, and no more than a batch may hold.
        labels: names of the model's classes, in order.
        minds_padding: whether a row's logits change where it is padded, as in models that have no use for a mask.

    Raises:
        ConfigError: it can't be loaded, or some of its weights would be random.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        import torch

        self._path = config.path
        with _load_lock:  # importing and loading change what is global to the process
            self._device = torch.device(_device(config.device))
            self._model, tokenizer = _load(config, self._device)
        settings = self._model.config
        self._configs = (settings, settings.get_text_config())
        settings.use_cache = False
        self._vocabulary_size: int = self._model.get_input_embeddings().num_embeddings
        takes = inspect.signature(self._model.forward).parameters
        self._takes_mask = "attention_mask" in takes
        self._takes_types = (
            "token_type_ids" in takes
            and "token_type_ids" in tokenizer.model_input_names
            and getattr(settings, "type_vocab_size", 0) > 1
        )
        pad = self._configs[1].pad_token_id
        self._pad: int | None = pad if isinstance(pad, int) and 0 <= pad < self._vocabulary_size else None
        self.max_length = min(
            config.max_length or config.max_batch_tokens,
            config.max_batch_tokens,
            _position_limit(self._model),
            tokenizer.model_max_length,
        )
        self._encoder = InputEncoder(tokenizer, self.max_length)
        self.minds_padding, num_classes = self._probed()
        self.labels = [str(settings.id2label.get(index, index)) for index in range(num_classes)]

    def encode(self, exchange: Exchange) -> Row:
        """The model's input for an exchange.

        Raises:
            RewardError: the chat template refuses it, or its tokens are none of the model's.
        """
        row = self._encoder.encode(exchange)
        if max(row.token_ids) >= self._vocabulary_size:
            raise RewardError(
                f"the tokenizer gave the token {max(row.token_ids)}, and the model has {self._vocabulary_size}; save "
                "the tokenizer that the model was trained with beside it"
            )
        return row

    def logits(self, rows: Sequence[Row]) -> list[list[float]]:
        """One pass: [rows] lists of one logit for each class."""
        import torch

        length = max(len(row.token_ids) for row in rows)
        pad = self._padding_id(rows)
        inputs = {"input_ids": [row.token_ids + [pad] * (length - len(row.token_ids)) for row in rows]}
        if self._takes_mask:
            inputs["attention_mask"] = [[1] * len(row.token_ids) + [0] * (length - len(row.token_ids)) for row in rows]
        if self._takes_types:
            inputs["token_type_ids"] = [row.type_ids + [0] * (length - len(row.type_ids)) for row in rows]
        with torch.inference_mode():
            given = self._model(**{name: torch.tensor(values, device=self._device) for name, values in inputs.items()})
        if given.logits.ndim != 2 or len(given.logits) != len(rows):
            raise RewardError(f"the logits are {list(given.logits.shape)}; they must be [{len(rows)}, classes]")
        return given.logits.double().tolist()

    def _padding_id(self, rows: Sequence[Row]) -> int:
        """The token to pad with. A decoder scores the last token that is another one.

        Where the model names none, it is a token that no row ends with, so that each row's last token is its own.
        """
        if self._pad is not None:
            return self._pad
        last = {row.token_ids[-1] for row in rows}
        pad = next((token for token in range(self._vocabulary_size) if token not in last), 0)
        for config in self._configs:
            config.pad_token_id = pad
        return pad

    def _probed(self) -> tuple[bool, int]:
        """Whether a row's logits change where it is padded, and how many there are.

        Raises:
            ConfigError: the model can't score a short text.
        """
        import torch

        row, other = map(self._probe, _PROBES)
        try:
            alone, another = self.logits([row])[0], self.logits([other])[0]
        except Exception as error:
            raise ConfigError(
                f"model_path={self._path!r} can't score a short text: {type(error).__name__}: {error}; its config and "
                "its weights may not belong together"
            ) from error
        start = row.token_ids[:1] * min(len(row.token_ids) * 3, self.max_length - len(row.token_ids))
        long = replace(row, token_ids=start + row.token_ids, type_ids=[0] * len(start) + row.type_ids)
        try:
            padded = self.logits([row, long])[0]
        except Exception:  # noqa: BLE001 - it takes rows of one length together, or one by one
            return True, len(alone)
        eps = torch.finfo(self._model.dtype).eps
        is_same = all(
            abs(a - b) <= PADDING_EFFECT * abs(a - c) + ROUNDING_EPS * eps * max(1.0, abs(a))
            for a, b, c in zip(alone, padded, another, strict=True)
        )
        return not is_same, len(alone)

    def _probe(self, exchange: Exchange) -> Row:
        try:
            return self.encode(exchange)
        except RewardError:  # a template that wants other messages
            ids = [1 + len(exchange.prompt) % (self._vocabulary_size - 1)] * min(8, self.max_length)
            return Row(token_ids=ids, type_ids=[0] * len(ids), is_cut=False, is_response_cut=False)


_PROBES = (
    Exchange.of(Trajectory(prompt="What is 2 + 2?", response="It is 4.")),
    Exchange.of(Trajectory(prompt="Name a colour.", response="Blue, perhaps.")),
)
_load_lock = threading.Lock()
_said: set[str] = set()


def _load(config: ClassifierConfig, device: torch.device) -> tuple[Any, Any]:
    """Model and tokenizer.

    Raises:
        ConfigError: they can't be loaded, or the model lacks weights.
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    dtype: Any = getattr(torch, config.dtype, "auto")
    if config.dtype == "auto" and device.type == "cpu":
        dtype = torch.float32
    try:
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            config.path,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
        )
        model, report = loaded
        tokenizer = load_tokenizer(config.path, trust_remote_code=config.trust_remote_code)
        missing = sorted({*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])})
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ConfigError(
                f"model_path={config.path!r}: the weights lack {', '.join(missing[:3])}{more}, which would be random; "
                f"it is no model for sequence classification, or not all of one. {_NEEDS[0].upper()}{_NEEDS[1:]}"
            )
        return model.to(device).eval().requires_grad_(False), tokenizer
    except ConfigError:
        raise
    except Exception as error:  # transformers, safetensors and torch raise whatever they like
        reason = next(iter(str(error).splitlines()), "").rstrip(" :.") or type(error).__name__
        raise ConfigError(f"model_path={config.path!r} can't be loaded: {reason}; {_NEEDS}") from error


def _device(wanted: str) -> str:
    """The device there is; users' files ask for a GPU, and run where there is none, too."""
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        if wanted not in _said:
            _said.add(wanted)
            logger.warning("device=%r, and torch sees no GPU: reward models run on the CPU; this is said once", wanted)
        return "cpu"
    return wanted


def _position_limit(model: Any) -> int:
    """Most tokens that the model has positions for."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) and limit > 0 else sys.maxsize
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(getattr(module, "padding_idx", None), int):
            return min(limit, module.num_embeddings - module.padding_idx - 1)  # RoBERTa's begin after the padding's
    return limit
