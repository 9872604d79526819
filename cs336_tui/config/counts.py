"""Numbers of steps that the steps themselves decide, in words: ``auto``, ``auto:50``, ``10s``, ``25ms:200``."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from cs336_tui.config.axis import SpecError

Counted = Literal["warmup_steps", "measure_steps"]
USUAL_MOST: dict[Counted, int] = {"warmup_steps": 100, "measure_steps": 1000}
"""The most steps of an automatic count when nobody says how many."""
FEWEST: dict[Counted, int] = {"warmup_steps": 10, "measure_steps": 20}
"""Steps after which an automatic count is looked at first, so that no ceiling makes sense below."""
MOST_BY_TIME = 100_000
"""The most steps of a count that comes from time when nobody says how many: each is a line of the log."""
INTERVAL = 0.01
"""Default width of the mean's confidence interval that ends automatic steps, as a share of the mean."""
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_AUTO_ALLOWED = "expected auto, or auto:MAX with the most steps, at least {}"
_TIME_ALLOWED = "expected a time such as 10s or 25ms, or 10s:MAX with the most steps"


class Auto(msgspec.Struct, frozen=True):
    """A number of steps that the steps themselves decide, `most` at most: until they come to `for_s` seconds, or, where
    that is None, until they are steady or known well enough."""

    most: int
    for_s: float | None = None

    @property
    def alone(self) -> str:
        """Why no other value may be beside it."""
        return f"{'auto' if self.for_s is None else 'a time'} stands alone"


def auto_of(field: Counted, text: str) -> Auto | None:
    """Parse ``auto``, ``auto:MAX``, ``10s`` or ``10s:MAX``, case-insensitively; None for any other text. Raises
    `SpecError`."""
    word, colon, most = text.strip().partition(":")
    for_s = duration_of(word)
    if for_s is None and word.strip().lower() != "auto":
        return None
    if not colon:
        return Auto(USUAL_MOST[field] if for_s is None else MOST_BY_TIME, for_s)
    least = FEWEST[field] if for_s is None else 1
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", most, re.ASCII) or int(most) < least:
        raise SpecError(field, " ".join(text.split()), _TIME_ALLOWED if for_s else _AUTO_ALLOWED.format(least))
    return Auto(int(most), for_s)


def duration_of(text: str) -> float | None:
    """Seconds of ``10s``, ``25ms``, ``2min``, ``2m`` or ``1h``; None for any other text, and for no time at all."""
    match = re.fullmatch(r"\s*([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})\s*(ms|s|min|m|h)\s*", text.lower(), re.ASCII)
    if match is None:
        return None
    seconds = float(f"{match[1]}e-3") if match[2] == "ms" else float(match[1]) * _UNITS[match[2]]
    return seconds or None


def duration_words(seconds: float) -> str:
    """Inverse of `duration_of`: ``25ms`` below a second, else ``10s``."""
    short = f"{seconds * 1e3:g}ms" if seconds < 1 else f"{seconds:g}s"
    return short if duration_of(short) == seconds else f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def check_duration(seconds: float | None, field: str) -> None:
    """Raise `SpecError` for what is no time to run steps."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise SpecError(field, seconds, "expected seconds, more than 0")


def steps_in(for_s: float, step_s: float, most: int) -> int:
    """The number of steps of `step_s` seconds that come to `for_s`: as many as fit whole, at least one."""
    return max(1, int(min(for_s / step_s, most))) if step_s > 0 else most


def least_s(most: int, for_s: float | None, step_s: float | None) -> float | None:
    """Seconds of `most` steps of `step_s`, or of as many as come to `for_s`, at least one; where `step_s` is unknown,
    `for_s`. None is unknown."""
    if for_s is None or step_s is None:
        return for_s if step_s is None else most * step_s
    return min(max(for_s, step_s), most * step_s)


def auto_words(field: Counted, most: int, for_s: float | None = None) -> str:
    """Inverse of `auto_of`: ``auto`` or ``10s``; ``auto:50`` or ``10s:50`` where the most is not the usual one."""
    word, usual = ("auto", USUAL_MOST[field]) if for_s is None else (duration_words(for_s), MOST_BY_TIME)
    return word if most == usual else f"{word}:{most}"


def check_most(field: Counted, most: int) -> None:
    """Raise `SpecError` for too small a ceiling of an automatic count."""
    if most < FEWEST[field]:
        raise SpecError(field, auto_words(field, most), _AUTO_ALLOWED.format(FEWEST[field]))


def warmup_words(warmup_steps: int, warmup_auto: bool, warmup_for: float | None) -> str:
    """A warm-up setting in a word: ``5``, ``auto``, ``auto:50``, ``10s``."""
    if warmup_auto or warmup_for is not None:
        return auto_words("warmup_steps", warmup_steps, warmup_for)
    return str(warmup_steps)


def steps_words(measure_steps: int, steps_auto: float | None, steps_for: float | None) -> str:
    """A number of measured steps in words, the interval's share where it is not the usual one: ``10``, ``auto 2%``,
    ``30s``."""
    if steps_for is not None:
        return auto_words("measure_steps", measure_steps, steps_for)
    if steps_auto is None:
        return str(measure_steps)
    words = auto_words("measure_steps", measure_steps)
    return words if steps_auto == INTERVAL else f"{words} {share_words(steps_auto)}"


def share_of(text: str, field: str = "interval") -> float:
    """``1%`` or ``0.01`` as a share. Raises `SpecError` on `field`."""
    share = _number(text)
    if not 0 < share < 1:
        raise SpecError(field, " ".join(text.split()) or "(empty)", "expected a share of the mean such as 1% or 0.01")
    return share


def share_words(share: float) -> str:
    """Inverse of `share_of`: ``1%``, or the share itself where a short percentage is not exact."""
    percent = f"{share * 100:g}%"
    return percent if _number(percent) == share else str(share)


def _number(text: str) -> float:
    """A number, a hundredth of it before a percent sign; not a number where the text is none."""
    match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)(e-[0-9]+|\s*%)?\s*", text, re.ASCII)
    if match is None:
        return math.nan
    number, end = match[1], match[2] or ""
    return float(f"{number}e-2" if end.endswith("%") else f"{number}{end}")
