"""The Memory tab of a cell that ran out of memory: the recorded or predicted cause."""

from __future__ import annotations

from msgspec.structs import replace

from cs336_tui.events.events import ReportStage
from cs336_tui.tui.dialogs.windows import Reader
from tests.made_memory import an_oom_report
from tests.samples import START
from tests.tui.memory_tab import COMPACT, Tab, out_of_memory, pressed, recorded, report_events


async def test_a_cell_that_ran_out_of_memory_says_why_first() -> None:
    app = Tab(out_of_memory(*report_events(an_oom_report())))
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert "Memory ran out in forward: 2.15 GB was asked for with 80.0 GB" in text
        assert "Observed" in text
        assert "predicted to need 96.0 GB in backward, 15.0 GB more" in text
        rows = {row.split("  ")[0]: row.split()[-3:] for row in text.splitlines()}
        assert rows["activations"] == ["47", "%", "48.0"]
        text = await pressed(pilot, *["pagedown"] * 3)
        assert "transformer.py:135 weigh" in text
        await pressed(pilot, "enter")
        assert isinstance(app.screen, Reader)


async def test_a_predicted_reason_is_not_called_observed() -> None:
    app = Tab(out_of_memory(*report_events(an_oom_report(observed=False, note="The process was killed."))))
    async with app.run_test(size=COMPACT) as pilot:
        text = " ".join((await pressed(pilot)).split())
        assert "Predicted, not observed" in text
        assert "The process was killed." in text


async def test_the_reason_can_be_asked_for_and_comes_by_itself() -> None:
    subject = out_of_memory()
    app = Tab(subject)
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert "tried to allocate 2 GiB" in text
        assert "Press n" in text
        await pressed(pilot, "n")
        assert app.asked == [("make_report", ("oom", subject.spec, 0))]
        assert subject.spec is not None
        waits = replace(subject, asked=frozenset({("oom", subject.spec)}))
        assert "Next: the reason" in await app.about(pilot, waits)
        started, finished = report_events(an_oom_report())
        subject.state.apply(started)
        subject.state.apply(ReportStage(at=START + 51, report=0, stage="forward"))
        assert "finding out why: forward" in await app.about(pilot, subject)
        subject.state.apply(finished)
        assert "Memory ran out in forward" in await app.about(pilot, subject)


async def test_stepping_over_a_cell_that_did_not_fit_comes_back_to_the_view_before() -> None:
    app = Tab(recorded())
    async with app.run_test(size=COMPACT) as pilot:
        assert "Allocations of at least 1 MB" in await pressed(pilot, "v", "v")
        assert "Memory ran out" in await app.about(pilot, out_of_memory(*report_events(an_oom_report())))
        text = await app.about(pilot, recorded())
        assert "OOM" not in text
        assert "Allocations of at least 1 MB" in text
