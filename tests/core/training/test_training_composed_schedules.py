"""Schedules of several parts, warm-up and the momentum of one cycle, against torch.optim.lr_scheduler step by step."""

import pytest

from dsinga import nn
from dsinga.job import JobError, LRGenConf, UpdaterConf, check, loads, to_text
from dsinga.training import create_updater, schedule
from tests.support.refusals import refused, refused_with

BASE, STEPS = 0.4, 60


def torch_rates(make, steps: int = STEPS, base: float = BASE, **sgd) -> tuple[list[float], list[float]]:
    """Return the rates, and momenta, of the steps by the scheduler that ``make`` returns for torch.optim and an SGD."""
    torch = pytest.importorskip("torch")
    peer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base, **sgd)
    scheduler = make(torch.optim.lr_scheduler, peer)
    rates, momenta = [], []
    for _ in range(steps):
        rates.append(peer.param_groups[0]["lr"])
        momenta.append(peer.param_groups[0]["momentum"])
        peer.step()
        scheduler.step()
    return rates, momenta


def rates(conf: LRGenConf, steps: int = STEPS) -> list[float]:
    rate = schedule(conf)
    return [rate(step) for step in range(steps)]


def approx(values):
    return pytest.approx(values, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("power", [1.0, 0.5, 2.5])
def test_a_polynomial_is_that_of_pytorch(power):
    expected, _ = torch_rates(lambda o, p: o.PolynomialLR(p, total_iters=40, power=power))
    assert rates(nn.PolynomialDecay(BASE, 40, power=power)) == approx(expected)


@pytest.mark.parametrize(("first", "times"), [(7, 1), (7, 2), (1, 3), (60, 1)])
def test_restarts_are_those_of_pytorch(first, times):
    expected, _ = torch_rates(lambda o, p: o.CosineAnnealingWarmRestarts(p, first, times, eta_min=0.1))
    assert rates(nn.CosineDecayRestarts(BASE, first, t_mul=times, alpha=0.25)) == approx(expected)


def test_restarts_shrink_by_m_mul_as_in_keras():
    """By the formula of keras.optimizers.schedules.CosineDecayRestarts 3.15: completed restarts i, fraction r."""
    got = rates(nn.CosineDecayRestarts(BASE, 10, t_mul=1.5, m_mul=0.5, alpha=0.1), 26)
    for step, period, share in ((0, 0, 0.0), (9, 0, 0.9), (10, 1, 0.0), (24, 1, 14 / 15), (25, 2, 0.0)):
        cosine = schedule(nn.CosineDecay(1.0, 10**6))(round(share * 10**6))
        assert got[step] == pytest.approx(BASE * (0.9 * 0.5**period * cosine + 0.1), rel=1e-6)


@pytest.mark.parametrize("settings", [{}, {"pct_start": 0.5, "div_factor": 10.0, "final_div_factor": 100.0}])
@pytest.mark.parametrize("total", [60, 11])
def test_one_cycle_has_the_rates_and_momenta_of_pytorch(settings, total):
    expected, momenta = torch_rates(lambda o, p: o.OneCycleLR(p, BASE, total, **settings), total - 1, momentum=0.9)
    conf = nn.SGD(nn.OneCycle(BASE, total, **settings), nn.OneCycleMomentum(0.95, 0.85))
    updater = create_updater(conf)
    assert [updater.rate_at(step) for step in range(total - 1)] == approx(expected)
    assert [updater.momentum_at(step) for step in range(total - 1)] == approx(momenta)


def test_after_its_end_one_cycle_keeps_the_last_rate():
    first, *_, last, beyond = rates(nn.OneCycle(BASE, 20), 21)
    assert (first, last, beyond) == approx((BASE / 25, BASE / 25e4, BASE / 25e4))


@pytest.mark.parametrize("share", [0.001, 0.1, 1.0])
def test_one_cycle_has_a_rate_at_every_step_however_short_it_rises(share):
    got = rates(nn.OneCycle(BASE, 10, pct_start=share), 12)
    assert all(0 < rate <= BASE for rate in got)
    assert max(got) == BASE


WARM_UP = {"warmup_steps": 9, "warmup_lr": 0.1}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nn.Schedule("kFixed", BASE, **WARM_UP), lambda o, p: o.ConstantLR(p, 1.0, 0)),
        (nn.PolynomialDecay(BASE, 30, **WARM_UP), lambda o, p: o.PolynomialLR(p, 30)),
        (nn.CosineDecayRestarts(BASE, 8, t_mul=2, **WARM_UP), lambda o, p: o.CosineAnnealingWarmRestarts(p, 8, 2)),
        (nn.ExponentialDecay(BASE, 6, 0.5, staircase=True, **WARM_UP), lambda o, p: o.StepLR(p, 6, 0.5)),
    ],
    ids=["constant", "polynomial", "restarts", "stairs"],
)
def test_a_warm_up_comes_before_any_schedule_as_in_pytorch(ours, theirs):
    def sequence(o, p):
        return o.SequentialLR(p, [o.LinearLR(p, 0.25, 1.0, 9), theirs(o, p)], [9])

    assert rates(ours) == approx(torch_rates(sequence)[0])


def test_a_sequence_is_that_of_pytorch():
    parts = [nn.PolynomialDecay(BASE, 12), nn.ExponentialDecay(BASE, 1, 0.9), BASE]
    expected, _ = torch_rates(
        lambda o, p: o.SequentialLR(
            p, [o.PolynomialLR(p, 12), o.ExponentialLR(p, 0.9), o.ConstantLR(p, 1.0, 0)], [10, 30]
        )
    )
    assert rates(nn.SequentialSchedule(parts, [10, 30])) == approx(expected)


def test_a_sequence_may_be_inside_another_one_and_warms_up():
    inner = nn.SequentialSchedule([0.1, 0.2], [3], warmup_steps=2)
    outer = nn.SequentialSchedule([1.0, inner], [4])
    assert rates(outer, 11) == approx([1.0] * 4 + [0.0, 0.05] + [0.1] * 3 + [0.2] * 2)


def test_the_momentum_of_one_cycle_waits_for_the_warm_up():
    updater = create_updater(nn.SGD(nn.OneCycle(BASE, 20, warmup_steps=5), nn.OneCycleMomentum()))
    assert [updater.momentum_at(step) for step in (0, 5, 10)] == approx([0.95, 0.95, 0.85])


def job(rate: str, momentum: str = ""):
    return loads(f"train_steps: 20\nupdater {{ type: kSGD {momentum}\nlearning_rate {{ {rate} }} }}", "job.conf")


ONE, SEQUENTIAL = "schedule { type: kFixed }", "type: kSequential sequential_conf {"
TWO = f"{ONE}\nschedule {{ type: kStep\nstep_conf {{ change_freq: 5 }} }}"


def test_a_sequence_in_a_job_file_is_written_as_it_was_read():
    conf = job(f"{SEQUENTIAL} {TWO}\nboundary: 5 }}").updater
    assert loads(f"updater {{ {to_text(conf)} }}").updater == conf
    assert isinstance(conf, UpdaterConf)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ("type: kFixed\nwarmup_lr: 0.1", "job.conf:4: warmup_lr has no effect without warmup_steps"),
        ("type: kFixed\nwarmup_steps: 21", "job.conf:4: warmup_steps: 21 is more than the 20 steps of the run"),
        (f"{SEQUENTIAL} {TWO}\nboundary: [9, 5] }}", "job.conf:3: sequential_conf needs one boundary less than it has"),
        (f"{SEQUENTIAL} {TWO} {ONE}\nboundary: [9, 5] }}", "job.conf:6: the boundaries of sequential_conf must rise"),
        (f"{SEQUENTIAL} schedule {{\ntype: kStep }} }}", "job.conf:4: type kStep needs step_conf"),
        (f"{SEQUENTIAL} schedule {{ type: kFixed\nwarmup_steps: 30 }} }}", "job.conf:4: warmup_steps: 30 is more than"),
        ("type: kPolynomial polynomial_conf {\nchange_freq: 9 power: 0 }", "job.conf:4: power must be above 0"),
        ("type: kOneCycle onecycle_conf {\nchange_freq: 9 pct_start: 2 }", "job.conf:4: pct_start must be in"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(rate, message):
    refused(lambda: check(job(rate)), message, error=JobError)


@pytest.mark.parametrize(
    ("rate", "momentum", "message"),
    [
        ("kFixed", "one_cycle: true", "job.conf:3: one_cycle needs learning_rate { type: kOne"),
        ("kFixed", "", "job.conf:2: momentum_conf needs saturation_step"),
        ("kOneCycle onecycle_conf { change_freq: 9 }", "one_cycle: true saturation_step: 3", "job.conf:3: gives one_"),
    ],
)
def test_mistakes_in_a_momentum_are_reported_with_file_and_line(rate, momentum, message):
    conf = job(f"type: {rate}", f"momentum_conf {{\n{momentum} }}")
    refused_with(lambda: create_updater(conf.updater), message, error=JobError)
