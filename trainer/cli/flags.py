"""From a command line and a YAML file to typed sections; every mistake is one line."""

from __future__ import annotations

import difflib
import json
import re
from argparse import SUPPRESS, Action
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser, DefaultHelpFormatter  # pyright: ignore[reportPrivateImportUsage]

from ...envs.errors import ConfigError
from .flag_names import ALIASES, NOT_YET, NOT_YET_VALUES

_METAVARS: dict[Any, str] = {
    int: "N",
    int | None: "N",
    float: "X",
    float | None: "X",
    bool: "",
    bool | None: "[true|false]",
    tuple[float, float]: "X X",
    list[str]: "TEXT ...",
    dict[str, Any]: "K=V ...",
}
_BOOLEANS = ("true", "false", "null")


class _Formatter(DefaultHelpFormatter):
    """One line a flag where it fits: the flag, a short value, the help, the default in brackets."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, **{"max_help_position": 33, **kwargs})

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        if action.default is None or action.default is False or action.default in (SUPPRESS, "", [], {}):
            return text
        return f"{text} [%(default)s]"

    def _format_action_invocation(self, action: Action) -> str:
        text = super()._format_action_invocation(action)
        return re.sub(r", --\w+\+ .*", "", text)


class FlagParser(ArgumentParser):
    """A parser whose errors are `ConfigError`s of one line, and whose flags have no prefix.

    Args:
        prog: the command, such as `turngym train`.
        description: what it does.
    """

    def __init__(self, prog: str, description: str) -> None:
        usage = f"{prog} [--flag value ...] [--config run.yaml]"
        super().__init__(prog=prog, usage=usage, description=description, formatter_class=_Formatter)
        self.add_argument("--config", action=ActionConfigFile, help="settings from a YAML file; the command line wins")
        for action in self._actions:
            if "--print_config" in action.option_strings:
                action.help = "print all settings as YAML, and stop"
            elif "--help" in action.option_strings:
                action.help = "show this, and stop; defaults stand in brackets"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise `ConfigError` in words that name the flag."""
        raise ConfigError(_one_line(message, [action.dest for action in self._actions])) from ex


def add_section(parser: FlagParser, section: type, *, leave_out: Iterable[str] = ()) -> None:
    """Add the fields of a section as a group of flags."""
    parser.add_class_arguments(section, None, skip=set(leave_out))
    kinds = get_type_hints(section)
    for action in parser._actions:  # noqa: SLF001 - argparse gives no other way to them
        if action.dest in kinds:
            action.metavar = _metavar(kinds[action.dest])


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return _METAVARS.get(kind, "VALUE")


def parse(parser: FlagParser, argv: Sequence[str]) -> dict[str, Any]:
    """The flags' values: defaults, then the YAML files of `--config`, then the command line, the last one wins.

    Raises:
        ConfigError: there is no such flag, its part doesn't exist yet, or its value can't be used.
    """
    return parser.parse_args(_rewrite(parser, argv)).as_dict()


def _rewrite(parser: FlagParser, argv: Sequence[str]) -> list[str]:
    """The command line in the parser's own words: aliases resolved, switches and pairs spelled out."""
    actions = {option[2:]: action for action in parser._actions for option in action.option_strings}  # noqa: SLF001
    rewritten: list[str] = []
    rest = [_as_flag(token) for token in argv]
    while rest:
        token = rest.pop(0)
        if not token.startswith("--") or token == "--":
            rewritten.append(token)
            continue
        given, has_value, value = token[2:].partition("=")
        name = _resolve(given, actions)
        action = actions.get(name)
        if has_value:
            values = [value]
        else:
            count = next((i for i, following in enumerate(rest) if following.startswith("--")), len(rest))
            values, rest = rest[:count], rest[count:]
        if name == "config":
            values = [_settings(parser, value, actions) for value in values]
        rewritten += _spell_out(name, values, getattr(action, "_typehint", None))
    return rewritten


_PAIR = re.compile(r"\+{0,2}(training\.\w+=.*)", re.DOTALL)


def _as_flag(token: str) -> str:
    """A pair such as `training.reward_function=NAME` or `+training.log_rewards=true` as the flag that it stands for."""
    pair = _PAIR.fullmatch(token)
    return f"--{pair[1]}" if pair else token


def _settings(parser: FlagParser, value: str, actions: Mapping[str, Action]) -> str:
    """A file of settings, checked alone, so that its mistakes are told with its name; in the flags' own names."""
    path = Path(value)
    if not path.is_file():
        raise ConfigError(f"--config {value}: there is no such file")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        given = None  # the parser says what is wrong
    try:
        if isinstance(given, dict) and (flat := dict(_flat(given, actions))) != given:
            value = json.dumps(flat)
            parser.parse_string(value)
        else:
            parser.parse_path(value)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return value


def _flat(given: Mapping[Any, Any], actions: Mapping[str, Action], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings in sections, such as `training: {reward_function: NAME}`, as pairs of flag and value."""
    for key, value in given.items():
        name = _plain_name(f"{prefix}{key}")
        if isinstance(value, dict) and name not in actions:
            yield from _flat(value, actions, f"{prefix}{key}.")
        else:
            yield name, value


def _plain_name(given: str) -> str:
    """The flag that an alias, or a name in the section `training`, stands for."""
    return ALIASES.get(given, given).removeprefix("training.")


def _resolve(given: str, actions: Mapping[str, Action]) -> str:
    """The flag that a name on the command line stands for."""
    name = given if given in actions else given.replace("-", "_")
    name = _plain_name(name)
    if name in actions or name.partition(".")[0] in actions:
        return name
    if name in NOT_YET:
        raise ConfigError(f"--{given} can't be used yet: {NOT_YET[name]}")
    raise ConfigError(f"there is no flag --{given}; {_nearest(given, actions)}")


def _nearest(given: str, names: Iterable[str]) -> str:
    known = sorted({*names, *(alias for alias, flag in ALIASES.items() if flag not in NOT_YET)})
    near = difflib.get_close_matches(given.replace("-", "_"), known, n=1, cutoff=0.5)
    return f"did you mean --{near[0]}?" if near else "--help shows all"


def _spell_out(name: str, values: list[str], kind: Any) -> list[str]:
    if values and (name, values[0]) in NOT_YET_VALUES:
        raise ConfigError(f"--{name} {values[0]} can't be used yet: {NOT_YET_VALUES[name, values[0]]}")
    if kind in (bool, bool | None) and (not values or values[0].lower() not in _BOOLEANS):
        return [f"--{name}", "true", *values]
    if kind in (bool, bool | None):
        return [f"--{name}", values[0].lower(), *values[1:]]
    if kind == dict[str, Any] and values and not values[0].startswith("{"):
        return [f"--{name}", json.dumps(_pairs(name, values))]
    if kind == list[str] and values and not values[0].startswith("["):
        return [f"--{name}", json.dumps(values)]
    if get_origin(kind) is tuple and values and not values[0].startswith("["):
        return [f"--{name}", f"[{', '.join(values)}]"]
    if len(values) > 1 and kind is not None:
        raise ConfigError(f"--{name} takes one value, got {len(values)}: {' '.join(values)}")
    return [f"--{name}", *values]


def _pairs(name: str, values: Iterable[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for value in values:
        key, is_pair, text = value.partition("=")
        if not is_pair or not key:
            raise ConfigError(f"--{name} {value!r}: give key=value pairs, or one JSON object")
        pairs[key] = yaml.safe_load(text)
    return pairs


_PREFIX = re.compile(r'Parser key "(?P<key>[\w.]+)":\s*')


def _one_line(message: str, names: Sequence[str]) -> str:
    """The parser's message, which spans lines and speaks of types, as one line that speaks of flags."""
    text = " ".join(message.split())
    text = _PREFIX.sub(lambda match: f"--{match['key']}: ", text)
    literal = re.search(r"Expected a (?:typing\.)?Literal\[(.*?)\]\. Got value: (.*)", text)
    if literal:
        choices = literal[1].replace("'", "")
        text = f"{text[: literal.start()]}choose one of {choices}; got {literal[2]}"
    text = re.sub(r"Expected an? <class '(\w+)'>\. Got value: ", r"expected \1; got ", text)
    text = re.sub(r"Option '([\w.]+)' is not accepted", lambda match: _unknown_key(match[1], names), text)
    return re.sub(r"argument (--\w+): expected one argument", r"\1 needs a value", text)


def _unknown_key(key: str, names: Sequence[str]) -> str:
    if key in NOT_YET:
        return f"{key} can't be used yet: {NOT_YET[key]}"
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"there is no setting {key}" + (f"; did you mean {near[0]}?" if near else "; --help shows all")
