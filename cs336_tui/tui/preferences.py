"""A person's settings in the app: checked against what there is, keys moved, a theme kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from textual.binding import Binding
from textual.keys import _character_to_key

from cs336_tui.config.settings import Found


def checked(found: Found, themes: Collection[str]) -> Found:
    """The settings without those whose values there are not, each with a line that says so."""
    settings = found.settings
    if settings.theme not in themes:
        found = found.without("theme", f"{settings.theme}: expected one of {', '.join(themes)}")
    from cs336_tui.export.writing.files import FORMATS, canonical

    if canonical(settings.export_format) not in FORMATS:
        found = found.without("export_format", f"{settings.export_format}: expected one of {', '.join(FORMATS)}")
    if settings.columns:
        from cs336_tui.export.subjects.results_columns import COLUMNS

        if unknown := next((each for each in settings.columns if each not in COLUMNS), None):
            found = found.without("columns", f"{unknown}: expected some of {', '.join(COLUMNS)}")
    return _keys_checked(found) if settings.keymap else found


def _keys_checked(found: Found) -> Found:
    from difflib import get_close_matches

    from cs336_tui.tui.help import bindings_by_id, printed

    known = bindings_by_id()
    for id, keys in found.settings.keymap.items():
        wrong = [key for key in keys.split(",") if not _is_key(key.strip())]
        if id not in known:
            near = get_close_matches(id, known, 3) or ["help lists them"]
            found = found.without(f"keymap.{id}", f"no such action; near: {', '.join(near)}")
        elif wrong:
            found = found.without(f"keymap.{id}", f"{wrong[0]!r} is no key; expected such as f5, ctrl+r, x or slash")
    for id, (key, other) in _clashes(found.settings.keymap, known).items():
        text = f"{key} is taken by {other} ({known[other].description}, {printed(known[other])}); move that too"
        found = found.without(f"keymap.{id}", text)
    return found


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+") if key not in ("", "+") else [key]
    named = len(last) > 1 and all(part.isalnum() for part in last.split("_"))
    return set(modifiers) <= {"ctrl", "shift", "alt"} and (named or (len(last) == 1 and last.isprintable()))


def normal(keys: str) -> list[str]:
    """The keys of a list with commas, as bindings name them: ``slash`` for ``/``."""
    return [_character_to_key(key) if len(key) == 1 else key for key in (each.strip() for each in keys.split(","))]


def _clashes(keymap: Mapping[str, str], known: Mapping[str, Binding]) -> Mapping[str, tuple[str, str]]:
    """The moved actions that would get a key of another one in force with it: the key, and the other's id."""
    moved = _with_alike(keymap, known)
    keys = {id: normal(moved.get(id, binding.key)) for id, binding in known.items()}
    holders: dict[str, list[str]] = defaultdict(list)
    for id, each in keys.items():
        for key in each:
            holders[key].append(id)
    found: dict[str, tuple[str, str]] = {}
    for key, ids in holders.items():
        for id in ids:
            others = (other for other in ids if other != id and _meet(id, other, known))
            if id in keymap and (other := next(others, None)):
                found.setdefault(id, (key, other))
    return found


def _meet(one: str, other: str, known: Mapping[str, Binding]) -> bool:
    """True if both may be in force at once and do not mean the same."""
    scopes = {id.split(".")[0] for id in (one, other)}
    everywhere = {"app", "replay", "rows", "table"}
    same = known[one].tooltip and known[one].tooltip == known[other].tooltip
    return not same and (len(scopes) == 1 or bool(scopes & everywhere))


def _with_alike(moved: Mapping[str, str], known: Mapping[str, Binding]) -> dict[str, str]:
    """The keymap with the actions that mean the same in the same place as a moved one, such as Run and Add."""
    keymap = {id: ",".join(normal(keys)) for id, keys in moved.items()}
    for id in moved:
        scope = id.split(".")[0]
        for other, binding in known.items():
            if other.split(".")[0] == scope and binding.key == known[id].key and binding.tooltip == known[id].tooltip:
                keymap.setdefault(other, keymap[id])
    return keymap


def keymap_of(moved: Mapping[str, str]) -> dict[str, str]:
    """The keymap for Textual. It names the keys of all others, too, that have one in common with what was moved:
    Textual takes a key away from all that have it."""
    from cs336_tui.tui.help import bindings_by_id

    known = bindings_by_id()
    keymap = _with_alike(moved, known)
    taken = {key for id in keymap for key in (*normal(known[id].key), *normal(keymap[id]))}
    for id, binding in known.items():
        if taken & set(normal(binding.key)):
            keymap.setdefault(id, ",".join(normal(binding.key)))
    return keymap
