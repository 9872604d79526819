"""Redaction of a session's events: names of users and machines, folders of paths and secrets are replaced, alike in all
events. Numbers, choices and names of code stay, so that tables are those of the session."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import msgspec

from cs336_tui.config.spec import AXES, EDITIONS, size_names
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.reports import REPORTS

USER, HOST, FOLDER, SECRET = "user", "host", "PATH", "REDACTED"
"""The word in place of each, of several with a number. ``PATH/model.py`` has lost the folders that it lay in."""
_NAMES_A_SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|KEY|AUTH|COOKIE", re.IGNORECASE)
_LEAST_SECRET = 6
_SECRET = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abeprs]-|AKIA|ya29\.|eyJ)[\w.-]{8,}|(?<=://)[^\s/@]+(?=@)"
    r"|(?:(?<=KEY=)|(?<=TOKEN=)|(?<=Bearer )|(?i:(?<=[_-]key[= ])|(?<=[_-]token[= ])|(?<=secret=)|(?<=password=)"
    r"|(?<=-secret )|(?<=-password )))[^\s'\"]+"
)
"""Secrets by their form: tokens of known services, a login in a URL, the value of a variable that is named as one."""
_PATH = re.compile(
    r"(?:(?<![\w./-])|(?<=\s-[A-Za-z]))(?:file://)?(?:~(?:[A-Za-z_][\w.-]*)?|\.\.?)?(?:/(?!/)[\w.@+=-]+)+/?"
)
_MODEL_PATH = re.compile(r"(?<=--model-path[ =])(?:'[^']*'|[^\s']+)")
_LOGIN = re.compile(r"(?<![\w.+-])(?<!//)[A-Za-z_][\w.+-]*@[\w-]+(?:\.[\w-]+)*(?::[\w./~-]+)?")
_ADDRESS = re.compile(r"(?<![\w.-])(?<!==)\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_UUID = re.compile(r"(?i:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_HOME = re.compile(rb"/(?:home|Users)/([\w.-]+)")
_SHORT = 4
"""A name of fewer letters is replaced only where it is a whole word."""
_VOCABULARY = (
    *(value for axis in AXES.values() for value in axis.values), *chain.from_iterable(map(size_names, EDITIONS)),
    *REPORTS, *get_args(ev.Status), *get_args(ev.Stage), *get_args(ev.StepKind), *get_args(ev.JobStage),
    ev.GRADIENT_SYNC, "slurm local ssh cuda cpu mps MB MiB GB GiB",
)  # fmt: skip
_WORDS = frozenset(re.findall("[A-Za-z]+", " ".join(_VOCABULARY)))
"""The words of the vocabulary: a text of nothing else stays, whatever the user is called."""


def redacted(events: Sequence[ev.Event]) -> list[ev.Event]:
    """The events without what is private to this user, on this machine and on those that they name."""
    return list(map(redaction_of(events), events))


def redaction_of(events: Sequence[ev.Event]) -> Callable[[Any], Any]:
    """The redaction of a session's events, and of any other value, such as the name of a file."""
    names = dict.fromkeys(_users(b"".join(map(to_line, events))), USER)
    hosts = [host for host in dict.fromkeys(_hosts(events)) if host not in names]
    names |= {host: f"{HOST}-{number}" if number > 1 else HOST for number, host in enumerate(hosts, 1)}
    places = {str(folder) for here in (Path.home(), Path.cwd()) for folder in (here, here.resolve())} - {"/"}
    stand_ins = [
        *((re.escape(secret), SECRET) for secret in _longest_first(_secrets(os.environ))),
        *((rf"{re.escape(place)}(?![\w.-])/?", f"{FOLDER}/") for place in _longest_first(places)),
    ]
    of_names = [(_pattern(name), names[name]) for name in _longest_first(names)]
    folders: dict[str, str] = {}
    uuids: dict[str, str] = {}

    def folder_of(path: str) -> str:
        return folders.setdefault(path.strip("'"), f"{FOLDER}-{len(folders) + 1}" if folders else FOLDER)

    @lru_cache(maxsize=1 << 16)
    def replaced(text: str) -> str:
        if all(word in _WORDS for word in re.findall("[A-Za-z]+", text)):
            return text
        text = _MODEL_PATH.sub(lambda path: folder_of(path[0]), text)
        text = _UUID.sub(lambda uuid: uuids.setdefault(uuid[0], f"uuid-{len(uuids) + 1}"), text)
        for private, stand_in in stand_ins:
            text = re.sub(private, stand_in, text)
        text = _LOGIN.sub(f"{USER}@{HOST}", _PATH.sub(_cut, _SECRET.sub(SECRET, text)))
        text = _ADDRESS.sub(HOST, text)
        text = re.sub(rf"\b{FOLDER}/(?:[\w.@+=-]+/)*", f"{FOLDER}/", text)
        for private, stand_in in of_names:
            text = re.sub(private, lambda part, name=stand_in: part["kept"] or name, text)  # type: ignore[misc]
        return text

    def without(value: Any) -> Any:
        match value:
            case str():
                return replaced(value)
            case msgspec.Struct():
                fields = {name: getattr(value, name) for name in value.__struct_fields__}
                public = {name: without(old) for name, old in fields.items()}
                if paths := fields.get("model_path"):
                    public["model_path"] = tuple(map(folder_of, paths))
                changed = {name: new for name, new in public.items() if new != fields[name]}
                return msgspec.structs.replace(value, **changed) if changed else value
            case dict():
                return {without(key): without(each) for key, each in value.items()}
            case tuple() if value and not isinstance(value[0], float):
                return value._make(map(without, value)) if hasattr(value, "_make") else tuple(map(without, value))
        return value

    return without


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=len, reverse=True)


def _pattern(name: str) -> str:
    """A name, or as ``kept`` a part of a command or of the vocabulary that may hold it."""
    words = [rf"(?<![A-Za-z]){word}(?![A-Za-z])" for word in sorted(_WORDS) if name in word]
    kept = "|".join([r"cs336[-_]tui", r"(?<![\w-])--[a-z][\w-]*", *words])
    whole = re.escape(name) if len(name) >= _SHORT else rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
    return f"(?P<kept>{kept})|{whole}"


def _cut(path: re.Match[str]) -> str:
    return f"{FOLDER}/{path[0].rstrip('/').rpartition('/')[2]}"


def _users(log: bytes) -> Iterator[str]:
    """The names of this user, and of those whose homes the log names."""
    with suppress(OSError, KeyError):  # a user without a name
        yield getpass.getuser()
    yield from filter(None, map(os.environ.get, ("USER", "LOGNAME", "USERNAME")))
    yield from (name.decode() for name in _HOME.findall(log))


def _hosts(events: Iterable[ev.Event]) -> Iterator[str]:
    """The names of this machine, and of those that the events name, with and without their domains."""
    found = [platform.node(), os.environ.get("HOSTNAME", "")]
    for event in events:
        match event:
            case ev.EnvironmentRead():
                found.append(event.environment.host)
            case ev.JobChanged():
                found.append(event.node)
            case ev.CellFinished():
                found += event.rank_nodes
            case ev.LanesOpened():
                found += [lane.machine for lane in event.lanes]
    yield from (name for host in found if host for name in (host, host.partition(".")[0]))


def _secrets(variables: Mapping[str, str]) -> Iterator[str]:
    """Values of variables of the environment that are secrets by their name or by their form."""
    for name, value in variables.items():
        if len(value) >= _LEAST_SECRET and (_NAMES_A_SECRET.search(name) or _SECRET.fullmatch(value)):
            yield value
