"""Asks for predictions, judges them for this machine or for a named GPU, and looks for the largest batch that fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from textual.timer import Timer

from cs336_tui.analysis.estimates import Estimate, duration_range, judge_each, total_s
from cs336_tui.analysis.eta import takes_words
from cs336_tui.analysis.targets import Target, named_target, search, target_here
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import capability_pair
from cs336_tui.events.gpus import GpuModel
from cs336_tui.events.prediction import Prediction
from cs336_tui.session.state import SessionState
from cs336_tui.tui import format
from cs336_tui.tui.configure.form import Forecast
from cs336_tui.tui.configure.pane import PREDICTING, ConfigurePane
from cs336_tui.tui.configure.preview import MOST, Cells, Need, Preview, as_cells, needs_of, run_alike
from cs336_tui.tui.host import Host
from cs336_tui.tui.tabs.estimate import EstimateChoice, Estimated, EstimatePane, Whose
from cs336_tui.tui.tabs.estimate_texts import EstimateRow, Largest, target_text

SETTLED_S = 0.3
"""Predictions are asked for when the choices have stayed the same for this time."""
_KEPT_S = 5.0
"""Time for which a reading of a device's free memory is kept: a margin that flickers cannot be read."""
_AT_ONCE = 4
"""Cells whose largest batch is looked for at the same time."""


class _Missing(Exception):
    """A prediction that the search needs next."""

    def __init__(self, spec: CellSpec) -> None:
        super().__init__()
        self.spec = spec


class BatchSearch:
    """Looks for the largest batch of cells that fits, among the predictions that there are. What it lacks is `missing`,
    of few cells at a time: with those it comes further when it is asked again. The room is that of the first look."""

    def __init__(self) -> None:
        self._rooms: dict[CellSpec, int | None] = {}
        self._found: dict[CellSpec, Largest] = {}
        self.missing: tuple[CellSpec, ...] = ()

    def of(
        self,
        predictions: Mapping[CellSpec, Prediction],
        unpredictable: Mapping[CellSpec, str],
        spec: CellSpec,
        target: Target,
    ) -> Largest:
        """The largest batch of a cell, or how far the search for it is. The mappings are by `needs_of`."""
        if (known := self._found.get(spec)) is not None:
            return known
        room = self._rooms.setdefault(spec, target.room_bytes(spec.ranks))
        if room is None:
            return Largest(problem="the memory of the device is not known")

        def predict(candidate: CellSpec) -> Prediction:
            if found := predictions.get(needs_of(candidate)):
                return found
            raise _Missing(candidate)

        try:
            self._found[spec] = Largest(search(spec, "batch", predict, room))
        except _Missing as missing:
            if why := unpredictable.get(needs_of(missing.spec)):
                return Largest(problem=f"batch {missing.spec.batch_size} is not predicted: {why}")
            if len(self.missing) < _AT_ONCE:
                self.missing += (missing.spec,)
            return Largest(tries=missing.spec.batch_size)
        return self._found[spec]


class EstimateController:
    """Serves the Estimate tab and Configure's summary; made when one of them is first in sight."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._elsewhere = Preview(app)
        self._choice = EstimateChoice()
        self._targets: dict[tuple[int, str], tuple[float, Target]] = {}
        self._judged: dict[str, tuple[tuple[object, ...], tuple[Estimate | None, ...]]] = {}
        self._batches: BatchSearch | None = None
        self._asked: tuple[tuple[CellSpec, ...], tuple[CellSpec, ...]] = (), ()
        """The predictions that were asked for last, here and on the named GPU."""
        self._timer: Timer | None = None
        self._session_cells: tuple[tuple[int, int], Cells] = ((0, 0), Cells())

    def summary(self) -> Forecast:
        """The end of Configure's summary: largest peak, whether all fit, and how long all take."""
        state, chosen = self._app.live.state, self._app.main.chosen
        predicts = self._predicts and not self._app.run_in_progress
        wanted = chosen.largest
        if wanted and not self._app.main.preview.is_current:  # they are those of the choices before
            return Forecast(PREDICTING if predicts else "")
        seen = tuple(need for need in wanted if needs_of(need.spec) not in state.unpredictable)
        if wanted and not seen and (why := state.unpredictable[needs_of(wanted[0].spec)]):
            return Forecast(f"not predicted: {format.plain(why)}", "caution")
        known = [(need, found) for need, found in zip(seen, self._judge(state, seen, None), strict=True) if found]
        if len(known) < len(seen) or not seen:
            return Forecast(PREDICTING if predicts and seen else "")
        more = len(seen) < len(chosen.needs)
        takes = takes_words(self._app.live.takes_s(chosen))  # as the Queue tab has it; before anything is timed:
        if not takes and (whole := whole_time(known, more=more, from_s=1, lanes=chosen.lanes)):
            takes = f"takes {whole}"
        takes = takes and f" · {takes}"
        peak = max(found.prediction.peak_bytes for _, found in known)
        misfits = sum(need.cells for need, found in known if found.fits is False)
        of_those = f" (of the {MOST} largest kinds)" if chosen.is_cut else ""
        text = f"peak {format.size(peak)}"
        if misfits:
            total, least = len(chosen.cells), "at least " if more else ""
            which = f"{least}{misfits} of {total} {'does' if misfits == 1 else 'do'} not " if total > 1 else "does not "
            return Forecast(f"{text}{of_those} · {which}fit{takes}", "bad" if misfits == total else "caution")
        if any(found.fits is None for _, found in known):
            return Forecast(f"{text}{of_those}{takes}")
        tight = any(found.tight for _, found in known)
        verdict = "fits tightly" if tight else "fits"
        return Forecast(f"{text} {verdict}{of_those}{takes}", "caution" if tight else "text")

    def take_choice(self) -> None:
        """Take what the Estimate tab, which is in sight, asks for. Configure's summary is about the same link."""
        choice = self._app.main.query_one(EstimatePane).choice
        if (choice.gpu, choice.largest) != (self._choice.gpu, self._choice.largest):
            self._batches = BatchSearch() if choice.largest else None
        self._choice = choice

    def estimated(self) -> Estimated:
        """The content of the Estimate tab."""
        choice, state = self._choice, self._app.state
        chosen = self._chosen_there if self._has_choices else Cells()
        of_session = self._cells_of(state)
        turned = choice.whose == "session" or not self._has_choices
        whose: Whose = "session" if of_session.cells and turned else "chosen"
        cells = chosen if whose == "chosen" else of_session
        found = self._asked_of(cells.largest)
        estimates = self._judge(state, found, self._choice.gpu)
        measured = self._measured(state) if self._choice.gpu is None else {}
        if self._batches:
            self._batches.missing = ()
        rows = tuple(
            EstimateRow(
                need.spec,
                estimate,
                measured.get(run_alike(need.spec)),
                self._refused(need.spec),
                state.unpredictable.get(needs_of(need.spec), ""),
                self._largest(state, need.spec, estimate),
            )
            for need, estimate in zip(found, estimates, strict=True)
        )
        return Estimated(
            rows,
            whose,
            target=self._target(state, rows),
            elsewhere=self._choice.gpu is not None,
            why_none=chosen.why_none or "This session has no cells yet.",
            waiting=self._waiting,
            total=self._total(found, rows, more=cells.is_cut, lanes=1 if self._choice.gpu else cells.lanes),
            part=f"the {MOST} largest of {cells.kinds} kinds" if cells.is_cut else "",
            can_switch=bool(of_session.cells) and self._has_choices,
        )

    def _target(self, state: SessionState, rows: tuple[EstimateRow, ...]) -> str:
        if self._choice.gpu is not None:
            return target_text(named_target(self._choice.gpu))
        devices = tuple(dict.fromkeys(row.spec.device for row in rows))
        if len(devices) != 1:
            return "this machine" if devices else ""
        target = self._target_of(state, devices[0])
        return target_text(target) if target else devices[0]

    def _refused(self, spec: CellSpec) -> str:
        gpu = self._choice.gpu
        if gpu is None or spec.precision in gpu.precisions:
            return ""
        return f"{gpu.name} can do {', '.join(gpu.precisions)}, not {spec.precision}"

    def _largest(self, state: SessionState, spec: CellSpec, estimate: Estimate | None) -> Largest | None:
        if self._batches is None or self._refused(spec):
            return None
        if estimate is None:
            return Largest()
        return self._batches.of(self._known(state, self._choice.gpu), state.unpredictable, spec, estimate.target)

    @staticmethod
    def _total(found: tuple[Need, ...], rows: tuple[EstimateRow, ...], *, more: bool, lanes: int) -> str:
        possible = [
            (need, row.estimate)
            for need, row in zip(found, rows, strict=True)
            if not row.refused and (row.estimate or not row.unpredictable)
        ]
        known = [(need, estimate) for need, estimate in possible if estimate]
        if not possible or len(known) < len(possible):
            return ""
        unknown = sum(not row.estimate and bool(row.unpredictable) for row in rows)
        whole = whole_time(known, more=more or unknown > 0, lanes=lanes)
        return f"all steps {whole}{f', {unknown} not predicted' if unknown else ''}" if whole else ""

    @property
    def _waiting(self) -> str:
        if not self._predicts:
            if self._app.shown.state.is_recorded:
                return "Recorded elsewhere: the model is unknown, so there is no prediction."
            return "No prediction in this session's log."
        return "predictions resume after the run ..." if self._app.run_in_progress else PREDICTING

    @staticmethod
    def _measured(state: SessionState) -> dict[CellSpec, int]:
        """The allocator's peak of the cells that have run, by what they need and how they run."""
        return {
            run_alike(cell.spec): cell.finished.peak_allocated_bytes
            for cell in state.cells.values()
            if cell.finished and cell.finished.status == "ok" and cell.finished.peak_allocated_bytes is not None
        }

    @property
    def _has_choices(self) -> bool:
        return not self._app.replaying and self._app.shown is self._app.live

    @property
    def _predicts(self) -> bool:
        return self._has_choices and self._app.live.source is not None

    @property
    def _chosen_there(self) -> Cells:
        """The cells of the choices, on the named GPU where there is one; none while only those before are known."""
        main = self._app.main
        if self._choice.gpu is None:
            cells, preview = main.chosen, main.preview
        else:
            preview = self._elsewhere
            cells = preview.cells(main.query_one(ConfigurePane).choices_elsewhere)
        return cells if preview.is_current else Cells(why_none=PREDICTING)

    def _cells_of(self, state: SessionState) -> Cells:
        of = (id(state), len(state.cells))
        if self._session_cells[0] != of:
            self._session_cells = of, as_cells(tuple((cell.spec, cell.repeat) for cell in state.cells.values()))
        return self._session_cells[1]

    def ask(self) -> None:
        """Have predicted what is wanted, once that has stayed the same for a moment."""
        source = self._app.live.source
        if source is None or self._app.replaying:
            return
        needed = self._needed()
        if needed == self._asked:
            return
        self._asked = needed
        source.bench.trust.name(*(need.spec for need in self._app.main.chosen.largest))
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._app.set_timer(SETTLED_S, self._ask_now)

    def _ask_now(self) -> None:
        if (source := self._app.live.source) is None:
            return
        state, (here, there) = self._app.live.state, self._asked
        known = self._known(state, self._choice.gpu)
        source.bench.predict(
            [spec for spec in here if needs_of(spec) not in state.predictions],
            [spec for spec in there if needs_of(spec) not in known],
            capability_pair(self._choice.gpu.capability) if self._choice.gpu else None,
        )

    def _needed(self) -> tuple[tuple[CellSpec, ...], tuple[CellSpec, ...]]:
        """The choices' cells, then the session's: here, and on the named GPU, where there is one."""
        chosen, of_session = self._app.main.chosen.largest, self._cells_of(self._app.live.state).largest
        tried = self._batches.missing if self._batches else ()
        if self._choice.gpu is None:
            return _each_need(tried, (*chosen, *of_session)), ()
        there = (*self._asked_of(self._chosen_there.largest), *self._asked_of(of_session))
        return _each_need((), (*chosen, *of_session)), _each_need(tried, there)

    @staticmethod
    def _known(state: SessionState, gpu: GpuModel | None) -> Mapping[CellSpec, Prediction]:
        """The predictions for a GPU, or else for the devices of the session's machine."""
        return (
            state.predictions if gpu is None else state.predictions_elsewhere.get(capability_pair(gpu.capability), {})
        )

    def _asked_of(self, needs: Sequence[Need]) -> tuple[Need, ...]:
        """These, on the named GPU where there is one."""
        if self._choice.gpu is None:
            return tuple(needs)
        there = (need._replace(spec=msgspec.structs.replace(need.spec, device="cuda:0")) for need in needs)
        return tuple({run_alike(need.spec): need for need in there}.values())

    def _target_of(self, state: SessionState, device: str) -> Target | None:
        """A device of the session's machine; None while that is not known."""
        info = state.environment.device(device) if state.environment else None
        if info is None or state.environment is None:
            return None
        now = state.last_at or 0.0
        known = self._targets.get((id(state), device))
        reporting = any(report.status is None for report in state.reports.values())  # it uses memory that will be free
        if known is None or not (reporting or 0 <= now - known[0] < _KEPT_S):
            known = self._targets[id(state), device] = now, target_here(info, state.environment, state.devices)
        return known[1]

    def _judge(self, state: SessionState, needs: Sequence[Need], gpu: GpuModel | None) -> tuple[Estimate | None, ...]:
        """Each on the GPU, or else on its device of the session's machine; None where the prediction or the device is
        not known."""
        targets: dict[str, Target] = {}
        for device in dict.fromkeys(need.spec.device for need in needs):
            if target := named_target(gpu) if gpu else self._target_of(state, device):
                targets[device] = msgspec.structs.replace(target, stated_link=self._choice.link)
        known, measured = self._known(state, gpu), sum(cell.is_over for cell in state.cells.values())
        predictions = tuple(known.get(needs_of(need.spec)) for need in needs)
        of = (id(state), tuple(needs), predictions, targets, len(known), measured)
        place = gpu.name if gpu else ""
        if place in self._judged and self._judged[place][0] == of:
            return self._judged[place][1]
        cells = [(need.spec, prediction) for need, prediction in zip(needs, predictions, strict=True)]
        self._judged[place] = of, judge_each(cells, targets, state)
        return self._judged[place][1]


def _each_need(tried: Iterable[CellSpec], needs: Iterable[Need]) -> tuple[CellSpec, ...]:
    """One of all specs that need the same."""
    return tuple({needs_of(spec): spec for spec in (*tried, *(need.spec for need in needs))}.values())


def whole_time(known: Sequence[tuple[Need, Estimate]], *, more: bool, from_s: float = 0.0, lanes: int = 1) -> str:
    """Duration of the steps of all that fit, in words, with what is not in it; empty if unknown, or if it has no upper
    bound and a lower one below `from_s`. `more`: there are others, which take time too."""
    low_s, high_s = total_s((cell for need, found in known for cell in of_each(need, found, lanes)), lanes)
    if low_s is None or (high_s is None and low_s < from_s):
        return ""
    fitting = [found for _, found in known if found.fits is not False]
    takes = f"more than {duration_range(low_s, low_s)}" if more else duration_range(low_s, high_s)
    compiling = " and compiling" if any(found.spec.compile != "off" for found in fitting) else ""
    others = ", partly from other variants" if any(found.by_others for found in fitting) else ""
    side_by_side = f" in {lanes} lanes" if lanes > 1 else ""
    return f"{takes}{side_by_side}{compiling}{others}"


def of_each(need: Need, estimate: Estimate, lanes: int) -> list[Estimate]:
    """The steps of all cells of a need in one, in several lanes of each of them."""
    cells = 1 if lanes == 1 else need.cells
    times = need.steps / estimate.spec.total_steps / cells
    each = msgspec.structs.replace(
        estimate,
        run_low_s=None if estimate.run_low_s is None else estimate.run_low_s * times,
        run_high_s=None if estimate.run_high_s is None else estimate.run_high_s * times,
    )
    return [each] * cells
