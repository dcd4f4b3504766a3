"""Answers to the exercises of lesson 07."""

from __future__ import annotations

import torch

from labkit.errors import NonfiniteError


def clip(gradients, max_norm):
    present = [g for g in gradients if g is not None]
    if not all(bool(torch.isfinite(g).all()) for g in present):
        raise NonfiniteError("a gradient is not finite")
    norm = torch.stack([g.double().norm() for g in present]).norm().item()
    if norm > max_norm:
        for g in present:
            g.mul_(max_norm / norm)
    return norm


def plain_norm(gradients):
    return torch.stack([g.norm() for g in gradients if g is not None]).norm().item()


def each(gradients, max_norm):
    norm = plain_norm(gradients)
    for g in gradients:
        if g is not None and g.norm() > max_norm:
            g.mul_(max_norm / g.norm())
    return norm


def values(gradients, max_norm):
    norm = plain_norm(gradients)
    for g in gradients:
        if g is not None:
            g.clamp_(-max_norm, max_norm)
    return norm


def up(gradients, max_norm):
    norm = plain_norm(gradients)
    for g in gradients:
        if g is not None:
            g.mul_(max_norm / norm)
    return norm


def after(gradients, max_norm):
    clip(gradients, max_norm)
    return plain_norm(gradients)


def no_check(gradients, max_norm):
    norm = plain_norm(gradients)
    if not norm <= max_norm:
        for g in gradients:
            if g is not None:
                g.mul_(max_norm / norm)
    return norm


def hides(gradients, max_norm):
    for g in gradients:
        if g is not None:
            g.nan_to_num_(0.0, 0.0, 0.0)
    return clip(gradients, max_norm)


def overflows(gradients, max_norm):
    if not all(bool(torch.isfinite(g).all()) for g in gradients if g is not None):
        raise NonfiniteError("a gradient is not finite")
    return no_check(gradients, max_norm)


def zeros_for_none(gradients, max_norm):
    for n, g in enumerate(gradients):
        if g is None:
            gradients[n] = torch.zeros(1)
    return clip(gradients, max_norm)


def finite(run, loss):
    return bool(torch.isfinite(loss)) and all(bool(torch.isfinite(p.grad).all()) for p in run.model.parameters())


def commit(run, batch):
    run.optimizer.step()
    run.schedule.step()
    run.average_update()
    run.committed += 1
    run.refused_in_a_row = 0
    return True


def attempt(run, batch):
    run.attempted += 1
    run.cursor += len(batch)
    run.optimizer.zero_grad()
    loss = run.loss(batch)
    loss.backward()
    return loss


def refuse(run, cap=True):
    run.optimizer.zero_grad()
    run.refused_in_a_row += 1
    if cap and run.refused_in_a_row > run.max_refused:
        raise NonfiniteError("too many refusals in a row")
    return False


def guarded_update(run, batch):
    loss = attempt(run, batch)
    return commit(run, batch) if finite(run, loss) else refuse(run)


def zeros(run, batch):
    loss = attempt(run, batch)
    for p in run.model.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0)
    if finite(run, loss.detach() * 0 if not torch.isfinite(loss) else loss):
        return commit(run, batch)
    run.optimizer.step()
    return refuse(run)


def loss_only(run, batch):
    loss = attempt(run, batch)
    return commit(run, batch) if torch.isfinite(loss) else refuse(run)


def unguarded(run, batch):
    attempt(run, batch)
    return commit(run, batch)


def schedule_moves(run, batch):
    loss = attempt(run, batch)
    if finite(run, loss):
        return commit(run, batch)
    run.schedule.step()
    return refuse(run)


def average_moves(run, batch):
    loss = attempt(run, batch)
    if finite(run, loss):
        return commit(run, batch)
    with torch.no_grad():
        for value in run.average.values():
            value.add_(1.0)
    return refuse(run)


def cursor_stays(run, batch):
    loss = attempt(run, batch)
    if finite(run, loss):
        return commit(run, batch)
    run.cursor -= len(batch)
    return refuse(run)


def no_cap(run, batch):
    loss = attempt(run, batch)
    return commit(run, batch) if finite(run, loss) else refuse(run, cap=False)


def gradients_stay(run, batch):
    run.attempted += 1
    run.cursor += len(batch)
    loss = run.loss(batch)
    loss.backward()
    if finite(run, loss):
        done = commit(run, batch)
        run.optimizer.zero_grad()
        return done
    run.refused_in_a_row += 1
    if run.refused_in_a_row > run.max_refused:
        raise NonfiniteError("too many refusals in a row")
    return False


def never_forgets(run, batch):
    loss = attempt(run, batch)
    if not finite(run, loss):
        return refuse(run)
    refused = run.refused_in_a_row
    commit(run, batch)
    run.refused_in_a_row = refused
    return True


def committed_anyway(run, batch):
    loss = attempt(run, batch)
    if finite(run, loss):
        return commit(run, batch)
    run.committed += 1
    return refuse(run)


def raises_at_once(run, batch):
    if run.refused_in_a_row >= 1 and not torch.isfinite(batch).all():
        raise NonfiniteError("again")
    return guarded_update(run, batch)


RIGHT = {"clip": clip, "guarded_update": guarded_update}
WRONG = {
    "clip": {
        "each tensor by itself": each,
        "cuts values": values,
        "scales up": up,
        "returns the norm after": after,
        "infinity becomes zeros": hides,
        "spreads what is not finite": no_check,
        "overflow": overflows,
        "None becomes something": zeros_for_none,
        "nothing clipped": lambda gradients, max_norm: plain_norm(gradients),
    },
    "guarded_update": {
        "zeros for NaN": zeros,
        "tests the loss only": loss_only,
        "no guard": unguarded,
        "schedule advanced": schedule_moves,
        "average advanced": average_moves,
        "cursor stays": cursor_stays,
        "no cap": no_cap,
        "gradients left in place": gradients_stay,
        "never forgets a refusal": never_forgets,
        "counts a refusal as committed": committed_anyway,
        "gives up too early": raises_at_once,
        "another return value": lambda run, batch: int(guarded_update(run, batch)),
        "a good attempt does not commit": lambda run, batch: refuse(run),
    },
}
