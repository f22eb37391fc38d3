"""The benchmark of incidents works from end to end; its figures are held to nothing here, since few runs say little."""

import json

import pytest

from benchmarks import incidents
from benchmarks.incident_faults import CAUSES
from benchmarks.incident_record import fails_at, stands_out_at

NAN = float("nan")


def test_a_whole_run_has_what_was_asked_for() -> None:
    plans = incidents.plans_of(7)
    for cause in CAUSES:
        tasks = [plan.task for plan in plans if plan.cause == cause]
        assert (tasks.count("text"), tasks.count("iq")) == (20, 20)
    healthy = [plan for plan in plans if plan.cause is None]
    assert len(healthy) == 25
    assert sum(plan.steps for plan in healthy) == 50_000
    assert len({plan.seed for plan in plans}) == len(plans)
    assert {plan.cause for plan in incidents.plans_of(7, 0.01)} == {None, *CAUSES}


def test_when_an_unguarded_run_fails() -> None:
    assert fails_at([3.0] * 30) is None
    assert fails_at([3.0] * 30 + [6.5] * 30) == 38, "the mean of the last ten is 5.8 at step 37"
    assert fails_at([3.0, NAN]) == 1
    calm = [3.0 + 0.01 * (step % 3) for step in range(150)]
    assert stands_out_at(calm, 0) is None
    assert stands_out_at([*calm, 3.0, 6.0, 3.0], 0) == 151
    assert stands_out_at([*calm, NAN], 0) == 150


@pytest.mark.slow
def test_a_tenth_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["incidents", "--json", "--workers", "1", "--share", "0.1", "--seed", "4"])
    assert incidents.main() == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [run["cause"] for run in found["runs"]] == [*(cause for cause in CAUSES for _ in range(4)), None, None]
    assert all(run["finite"] for run in found["runs"])
    for run in found["runs"]:
        if run["ratio"] is not None:
            assert run["ratio"] == run["guarded"] / run["clean"]
    assert any(run["detected"] for run in found["runs"])
    assert set(found["bars"]) <= {line.split()[0] for line in printed.err.splitlines() if line}
    for cause in CAUSES:
        assert f"{cause}, text" in printed.err
