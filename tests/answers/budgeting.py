"""Answers to the exercises of lesson 08."""

from __future__ import annotations

import math


def seconds_of(updates, second, evaluation, saving):
    return updates * second + sum((updates // every) * cost for every, cost in (evaluation, saving))


def plan(examples, epochs, batch, times, evaluation, saving, price, devices):
    updates = math.ceil(examples / batch) * epochs
    hours = seconds_of(updates, sum(times[1:]) / len(times[1:]), evaluation, saving) / 3600
    return updates, hours, hours * devices * price


def variant(updates=None, second=None, extras=True, hours=1.0, cost=1.0):
    def planned(examples, epochs, batch, times, evaluation, saving, price, devices):
        n = math.ceil(examples / batch) * epochs if updates is None else updates(examples, epochs, batch)
        one = sum(times[1:]) / len(times[1:]) if second is None else second(times)
        clock = (seconds_of(n, one, evaluation, saving) if extras else n * one) / 3600
        factor = devices if hours == "devices" else hours
        paid = 1 / devices if cost == "devices" else cost
        return n, clock * factor, clock * devices * price * paid

    return planned


def interval(save_s, failures_mean_s, tolerated_s, update_s, updates):
    best = min(math.sqrt(2 * save_s * failures_mean_s), tolerated_s) / update_s
    return max(1, min(int(best), updates))


def no_two(save_s, failures_mean_s, tolerated_s, update_s, updates):
    return interval(save_s / 2, failures_mean_s, tolerated_s, update_s, updates)


def in_seconds(save_s, failures_mean_s, tolerated_s, update_s, updates):
    return max(1, min(int(min(math.sqrt(2 * save_s * failures_mean_s), tolerated_s)), updates))


def no_tolerance(save_s, failures_mean_s, tolerated_s, update_s, updates):
    return interval(save_s, failures_mean_s, 1e12, update_s, updates)


def to_zero(save_s, failures_mean_s, tolerated_s, update_s, updates):
    return min(int(min(math.sqrt(2 * save_s * failures_mean_s), tolerated_s) / update_s), updates)


def beyond(save_s, failures_mean_s, tolerated_s, update_s, updates):
    return interval(save_s, failures_mean_s, tolerated_s, update_s, 10**12)


def fraction(save_s, failures_mean_s, tolerated_s, update_s, updates):
    return max(1, min(min(math.sqrt(2 * save_s * failures_mean_s), tolerated_s) / update_s, updates))


def spent(segments):
    made = sum(end - start for start, end, _ in segments)
    progress = segments[-1][1]
    return progress, sum(s for *_, s in segments), made - progress


def all_progress(segments):
    made = sum(end - start for start, end, _ in segments)
    return made, sum(s for *_, s in segments), 0


def tail_free(segments):
    progress, seconds, abandoned = spent(segments)
    start, end, first = segments[0]
    return progress, seconds - first * abandoned / (end - start), abandoned


RIGHT = {"plan": plan, "interval": interval, "spent": spent}
WRONG = {
    "plan": {
        "one division for all epochs": variant(updates=lambda n, e, b: math.ceil(n * e / b)),
        "drops the short batch": variant(updates=lambda n, e, b: n // b * e),
        "warm-up included": variant(second=lambda times: sum(times) / len(times)),
        "forgets evaluation and saves": variant(extras=False),
        "forgets the devices": variant(cost="devices"),
        "device hours on the clock": variant(hours="devices"),
        "seconds as hours": variant(cost=3600),
        "not three numbers": lambda *args: plan(*args)[1],
        "another count": variant(updates=lambda n, e, b: n * e),
    },
    "interval": {
        "no factor two under the root": no_two,
        "seconds for updates": in_seconds,
        "tolerance ignored": no_tolerance,
        "rounds to 0": to_zero,
        "longer than the run": beyond,
        "not whole": fraction,
    },
    "spent": {
        "abandoned work as progress": all_progress,
        "abandoned time not paid": tail_free,
        "only the last segment": lambda s: (s[-1][1], s[-1][2], spent(s)[2]),
        "abandoned tail not counted": lambda s: (*spent(s)[:2], 0),
    },
}
ALSO = {
    ("plan", "one division for all epochs"): [
        variant(updates=lambda n, e, b: n * e / b),
        variant(updates=lambda n, e, b: n * e // b),
    ],
    ("plan", "seconds as hours"): [variant(hours=3600), variant(hours=60)],
    ("plan", "warm-up included"): [
        variant(second=lambda times: times[0]),
        variant(second=lambda times: times[0], extras=False),
    ],
}
