"""Stages: where a failure happened is known, times add up, and nothing is measured when nobody asked."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from labkit.errors import RecordsError
from labkit.records import Pace, Stages, failure_stage
from labkit.records.pace import in_words


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


def test_the_stage_of_a_failure_is_the_innermost_one() -> None:
    stages = Stages()
    with pytest.raises(KeyError) as caught, stages("evaluation"), stages("forward"):
        raise KeyError("a word of a private example")
    assert failure_stage(caught.value) == "forward" == stages.failed(caught.value)
    assert stages.present == "other"


def test_straight_line_stages_place_a_failure_too() -> None:
    stages = Stages()
    stages.enter("data")
    stages.enter("backward")
    error = ValueError()
    assert stages.present == "backward" and stages.failed(error) == "backward"


def test_an_error_raised_because_of_another_keeps_the_first_ones_stage() -> None:
    stages = Stages()

    def raised(how: str) -> BaseException:
        with pytest.raises(RuntimeError) as caught, stages("publish"):
            try:
                with stages("optimizer"):
                    raise ValueError
            except ValueError as error:
                if how == "while handling":
                    raise RuntimeError  # noqa: B904
                raise RuntimeError from (error if how == "from" else None)
        return caught.value

    assert failure_stage(raised("from")) == failure_stage(raised("while handling")) == "optimizer"
    assert failure_stage(raised("from None")) == "publish"


def test_an_earlier_handled_error_does_not_lend_its_stage() -> None:
    stages = Stages()
    with pytest.raises(ValueError), stages("data"):
        raise ValueError
    assert failure_stage(ValueError()) is None and failure_stage(None) is None
    assert stages.failed(ValueError()) is None


def test_only_the_first_forward_of_a_process_is_the_first_forward() -> None:
    stages = Stages()
    seen = []
    for _ in range(2):
        for name in ("data", "forward", "backward"):
            stages.enter(name)
            seen.append(stages.present)
    assert seen == ["data", "first forward", "backward", "data", "forward", "backward"]


@pytest.mark.parametrize("profile", [False, True])
def test_an_unknown_stage_is_refused(profile: bool) -> None:
    stages = Stages(profile)
    with pytest.raises(RecordsError, match="unknown stage 'foward'.*forward"):
        stages("foward")
    with pytest.raises(RecordsError, match="unknown stage 'foward'"):
        stages.enter("foward")


def test_time_belongs_to_the_innermost_stage_and_adds_up_to_the_wall_time() -> None:
    clock = Clock()
    stages = Stages(profile=True, clock=clock)
    clock.forward(1)
    stages.enter("data")
    clock.forward(2)
    with stages("evaluation"):
        clock.forward(4)
        with stages("transfer"):
            clock.forward(8)
        clock.forward(16)
    clock.forward(32)
    profile = stages.take()
    assert profile.seconds == {"other": 1, "data": 34, "evaluation": 20, "transfer": 8}
    assert profile.wall == 63 == sum(profile.seconds.values())
    clock.forward(5)
    assert stages.take().seconds == {"data": 5}


def test_a_stage_left_by_an_exception_is_timed_and_closed() -> None:
    clock = Clock()
    stages = Stages(profile=True, clock=clock)
    with pytest.raises(ValueError), stages("backward"):
        clock.forward(3)
        raise ValueError
    clock.forward(1)
    assert stages.take().seconds == {"other": 1, "backward": 3}


def test_a_real_profile_sums_to_the_wall_time_within_five_percent_and_states_its_own_cost() -> None:
    weight = torch.ones(256, 256)
    stages = Stages(profile=True)
    begun = time.perf_counter()
    for _ in range(100):
        stages.enter("data")
        batch = torch.ones(256, 256)
        stages.enter("forward")
        batch @ weight
        stages.enter("record")
    profile = stages.take()
    wall = time.perf_counter() - begun
    named = sum(seconds for name, seconds in profile.seconds.items() if name != "other")
    assert named > 0.95 * profile.wall  # "other" is the moment before the first stage
    assert profile.wall == pytest.approx(sum(profile.seconds.values())) and profile.wall < 1.05 * wall
    assert 0 < profile.overhead < 0.5 * profile.wall
    assert "profiling" in str(profile)


def test_with_the_profile_off_no_clock_is_read_and_no_event_made() -> None:
    stages = Stages(profile=False, clock=lambda: pytest.fail("the clock was read"))
    stages.enter("data")
    with stages("evaluation"):
        pass
    assert stages.take().seconds == {}


def test_with_the_profile_off_a_stage_costs_less_than_a_microsecond_or_so() -> None:
    stages = Stages()
    stages.enter("forward")
    best = min(_seconds_for(stages, 1000) for _ in range(20)) / 1000
    assert best < 2e-6


def _seconds_for(stages: Stages, times: int) -> float:
    enter = stages.enter
    begun = time.perf_counter()
    for _ in itertools.repeat(None, times):
        enter("data")
    return time.perf_counter() - begun


@pytest.mark.cuda
def test_on_a_gpu_stages_sum_to_the_wall_time_and_the_work_is_found_where_it_was_queued_k14_02(
    cuda: torch.device,
) -> None:
    matrix = torch.randn(4096, 4096, device=cuda)
    matrix @ matrix
    torch.cuda.synchronize()
    stages = Stages(profile=True, device=cuda)
    begun = time.perf_counter()
    for _ in range(10):
        stages.enter("data")
        stages.enter("forward")
        for _ in range(5):
            matrix @ matrix
        stages.enter("record")
    profile = stages.take()
    wall = time.perf_counter() - begun
    assert abs(profile.wall - wall) < 0.05 * wall
    assert profile.seconds["forward"] + profile.seconds["first forward"] > 0.9 * wall


# --- pace ---


def test_time_left_comes_from_this_segment_and_is_unknown_at_its_first_line_k14_01() -> None:
    clock = Clock()
    pace = Pace(updates=900, seconds=5000.0, clock=clock)
    assert pace.seconds_left(1000) is None and in_words(pace.seconds_left(1000)) == "unknown"
    for _ in range(10):
        clock.forward(6)
        pace.add(examples=4, tokens=40)
    assert pace.seconds_left(1000) == pytest.approx(540)
    assert pace.total("updates") == 910


def test_warm_up_is_left_out_of_the_steady_rate_in_every_segment_k14_03() -> None:
    for before in (0, 11):
        clock = Clock()
        pace = Pace(updates=before, clock=clock)
        for seconds in (60, *[1] * 10):
            clock.forward(seconds)
            pace.add(examples=1, tokens=1)
        assert pace.steady_rate() == 1.0 and pace.warmup_seconds == 60 and pace.segment_seconds == 70


def test_time_left_is_in_updates_whatever_an_update_is_made_of_k14_04() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    for _ in range(10):
        clock.forward(2)  # two microbatches of a second each
        pace.add(examples=2, tokens=2)
    assert pace.seconds_left(1000) == pytest.approx(1980) and pace.seconds_left(10) == 0.0


def test_tokens_are_those_of_committed_updates_and_go_on_after_a_resume_k14_05() -> None:
    pace = Pace()
    for _ in range(5):
        pace.add(examples=1, tokens=100)
    resumed = Pace(updates=pace.total("updates"), examples=pace.total("examples"), tokens=pace.total("tokens"))
    for _ in range(5):
        resumed.add(examples=1, tokens=100)
    assert resumed.total("tokens") == 1000 and resumed.total("updates") == 10


def test_a_rate_divides_like_by_like_after_a_resume_k14_06() -> None:
    clock = Clock()
    pace = Pace(updates=1, tokens=1000, seconds=100.0, clock=clock)
    clock.forward(1)
    pace.add(examples=1, tokens=10)
    assert pace.segment_rate("tokens") == 10 and pace.overall_rate("tokens") == 10
    assert pace.total_seconds == 101  # K13-02: the pause is not in it, and it goes on


@pytest.mark.parametrize(("seconds", "words"), [(45, "45 s"), (720, "12 min"), (12600, "3.5 h"), (200000, "2.3 days")])
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
