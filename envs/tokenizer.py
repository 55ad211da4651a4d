"""Reading a tokenizer, with the splitting rules that its own folder states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import ConfigError

_NEEDS = "give a folder that holds a tokenizer.json, or the Hub name of a model"


def load_tokenizer(path: str | Path, *, trust_remote_code: bool = False, local_files_only: bool = False) -> Any:
    """The tokenizer of a folder, or of a Hub name.

    Where a folder names no special class, `AutoTokenizer` takes the class of the model's type; that of Qwen2 then puts
    its own splitting rules in place of those in `tokenizer.json`, and text gets other tokens than in training.

    Args:
        path: a folder, or a Hub name.
        trust_remote_code: whether code that comes with the tokenizer may run.
        local_files_only: whether a Hub name is looked up in the local cache only.

    Raises:
        ConfigError: there is none.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    folder = Path(path).expanduser()
    is_folder = folder.is_dir()
    needs = f"{_NEEDS} that is downloaded already" if local_files_only else _NEEDS
    if is_folder and not any(folder.glob("tokenizer*")):
        raise ConfigError(f"{path} holds no tokenizer; {needs}")
    where = folder if is_folder else str(path)
    try:
        named = get_tokenizer_config(where, local_files_only=local_files_only).get("tokenizer_class")
        loader = PreTrainedTokenizerFast if named in ("TokenizersBackend", "PreTrainedTokenizerFast") else AutoTokenizer
        return loader.from_pretrained(where, trust_remote_code=trust_remote_code, local_files_only=local_files_only)
    except Exception as error:  # a broken tokenizer.json raises a bare Exception
        reason = next(iter(str(error).splitlines()), "").rstrip(" :.") if is_folder else "no such folder"
        raise ConfigError(f"no tokenizer could be loaded from {path} ({reason}); {needs}") from error
