"""The campaign itself, with few of each fault: the long one takes half an hour."""

from __future__ import annotations

import pytest

from tests.support.scripts import load

pytestmark = pytest.mark.slow

campaign = load("faults")


@pytest.mark.campaign
def test_the_campaign_prints_that_nothing_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(kills=1, disks=1, studies=0, groups=2, fuzz=60) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ")]
    assert len(rows) == 1 + 4 + 7
    assert all(int(cell) == 0 for row in rows[1:] for cell in row[2:8])
    assert all(int(row[1].replace(",", "")) > 0 for row in rows[1:])


def test_what_was_lost_is_counted_and_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = campaign.Row(what="a fault", injected=3, lost=1)
    assert lost.bad == 1
    assert "| a fault | 3 | 1 | 0 |" in campaign.report([lost])
    monkeypatch.setattr(campaign.Campaign, "groups", lambda self, count: lost)
    assert campaign.main(kills=0, disks=0, studies=0, groups=1, fuzz=0) == 1
