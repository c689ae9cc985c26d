"""Mixtures keep the bounds of online gradient descent and of fixed share, whatever the labels."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.drift.mixer import SHARE, Expert, LinearSettings, Mixer
from dmondrian.drift.mixing_kernels import FLOOR
from dmondrian.tree.keyed_random import log, log_of_normal

NONE = np.empty(0)


def losses(forecasts: np.ndarray, y: np.ndarray) -> np.ndarray:
    return -np.log(forecasts[np.arange(len(y)), y])


def centred(inputs: np.ndarray) -> np.ndarray:
    logs = np.log(np.maximum(inputs, FLOOR))
    return logs - logs.mean(axis=2, keepdims=True)


def fixed(inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    powers = np.exp(np.tensordot(weights, centred(inputs), 1))
    return powers / powers.sum(axis=1, keepdims=True)


@settings(max_examples=25)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2), min_size=1, max_size=60),
    st.sampled_from([0.002, 0.02, 0.3]),
)
def test_one_expert_keeps_the_bound_of_gradient_descent(
    seed: int, labels: list[int], rate: float
) -> None:
    rng, y = np.random.default_rng(seed), np.array(labels)
    inputs = rng.dirichlet([0.3] * 3, (4, len(y)))
    start = np.full(4, 0.25)
    mixer = Mixer(4, [Expert((0, 1, 2, 3), tuple(start), rate)])
    forecasts, logs, rows = [], centred(inputs), np.arange(len(y))
    for t in rows:
        one = np.ascontiguousarray(inputs[:, t : t + 1])
        forecasts.append(mixer.mix_and_step(one, y[t : t + 1].astype(float), NONE)[0])
    found = np.array(forecasts)
    slopes = np.einsum("tc,gtc->tg", found, logs) - logs[:, rows, y].T
    for weights in (np.zeros(4), np.eye(4)[seed % 4], 2 * np.eye(4)[seed % 3], rng.normal(size=4)):
        gap = losses(found, y).sum() - losses(fixed(inputs, weights), y).sum()
        bound = ((weights - start) ** 2).sum() / (2 * rate) + rate / 2 * (slopes**2).sum()
        assert gap <= bound + 1e-9


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 1), min_size=2, max_size=80))
def test_the_mixture_keeps_up_with_the_best_expert_of_any_interval(
    seed: int, labels: list[int]
) -> None:
    rng, y = np.random.default_rng(seed), np.array(labels)
    inputs = rng.dirichlet([1.0] * 2, (3, len(y)))
    mixer = Mixer(3, [Expert((g,), (1.0,), 0.0) for g in range(3)])
    forecasts = mixer.mix_and_step(inputs, y.astype(float), NONE)
    first = int(rng.integers(0, len(y)))
    each = [losses(fixed(inputs, np.eye(3)[g]), y)[first:].sum() for g in range(3)]
    price = np.log(3 / SHARE) + 2 * SHARE * (len(y) - first)
    assert losses(forecasts, y)[first:].sum() <= min(each) + price


@given(st.floats(FLOOR, 1.0))
def test_logarithms_without_a_jump_are_those_of_the_library(value: float) -> None:
    assert log_of_normal(value) == log(value)


def test_a_block_is_mixed_by_the_mean_of_the_weights_in_the_one_before() -> None:
    rng = np.random.default_rng(0)
    inputs, y = rng.dirichlet([1.0] * 3, (2, 12)), rng.integers(0, 3, 12).astype(float)
    experts = [Expert((0, 1), (0.5, 0.5), 0.1), Expert((0,), (1.0,), 0.0)]
    one, late = Mixer(2, experts), Mixer(2, experts, delay=6)
    first = late.mix_and_step(inputs[:, :6], y[:6], NONE)
    np.testing.assert_array_equal(first, Mixer(2, experts).mix(inputs[:, :6]))
    late.end_block()
    steps = []
    for t in range(6):
        one.mix_and_step(inputs[:, t : t + 1], y[t : t + 1], NONE)
        steps.append(one.weights.inputs.copy())
    np.testing.assert_allclose(late.weights.inputs, np.mean(steps, axis=0), rtol=1e-14)
    assert abs(late.weights.experts.sum() - 1.0) < 1e-14
    # Experts move less by a label the longer the delay.
    assert 0.5 < late.weights.experts.max() < one.weights.experts.max()
    again = Mixer(2, experts, delay=6)
    again.mix_and_step(inputs[:, :6], y[:6], NONE)
    again.end_block()
    again.mix_and_step(inputs[:, 6:8], y[6:8], NONE)
    other = Mixer(2, experts, delay=6)
    other.load_json(json.loads(json.dumps(again.to_json())))
    for mixer in (again, other):
        mixer.mix_and_step(inputs[:, 8:], y[8:], NONE)
        mixer.end_block()
    np.testing.assert_array_equal(again.weights.inputs, other.weights.inputs)


def test_a_weight_is_so_many_steps() -> None:
    inputs = np.random.default_rng(0).dirichlet([1.0] * 3, (2, 1))
    weighted, repeated = (Mixer(2, [Expert((0, 1), (0.5, 0.5), 0.1)] * 2) for _ in range(2))
    y = np.array([2.0])
    weighted.mix_and_step(inputs, y, np.array([3.0]))
    for _ in range(3):
        repeated.mix_and_step(inputs, y, NONE)
    np.testing.assert_array_equal(weighted.weights.inputs, repeated.weights.inputs)
    np.testing.assert_array_equal(weighted.weights.experts, repeated.weights.experts)
    heavy, most = (Mixer(2, [Expert((0, 1), (0.5, 0.5), 0.1)]) for _ in range(2))
    heavy.mix_and_step(inputs, y, np.array([1e9]))
    most.mix_and_step(inputs, y, np.array([16.0]))
    np.testing.assert_array_equal(heavy.weights.inputs, most.weights.inputs)


def laws(rng: np.random.Generator, n_inputs: int, n: int) -> np.ndarray:
    """Return inputs, float64 [G, n, 2]: means about 5 and variances."""
    means = 5.0 + rng.normal(size=(n_inputs, n))
    return np.stack([means, rng.random((n_inputs, n))], axis=2)


def stepped(mixer: Mixer, inputs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mixtures row by row, and the scale in force at each step."""
    found, scales = [], []
    for t in range(len(y)):
        one = np.ascontiguousarray(inputs[:, t : t + 1])
        found.append(mixer.mix_and_step(one, y[t : t + 1], NONE)[0])
        scales.append(mixer.weights.scale[0])
    return np.array(found), np.array(scales)


@settings(max_examples=25)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.floats(-20.0, 20.0), min_size=2, max_size=60),
    st.sampled_from([0.005, 0.08, 0.5]),
)
def test_an_expert_of_means_keeps_the_bound_of_exponentiated_gradient(
    seed: int, labels: list[float], rate: float
) -> None:
    rng, y = np.random.default_rng(seed), np.array(labels)
    inputs, kind = laws(rng, 4, len(y)), LinearSettings()
    mixer = Mixer(4, [Expert((0, 1, 2, 3), (0.25,) * 4, rate)], linear=kind)
    forecasts, scales = stepped(mixer, inputs, y)
    mean, first = forecasts[:, 0], int(rng.integers(0, len(y)))
    slopes = -2.0 * (y - mean) * (inputs[:, :, 0] - mean) / scales
    reach = (slopes.max(axis=0) - slopes.min(axis=0))[first:]
    for weights in (np.full(4, 0.25), np.eye(4)[seed % 4], rng.dirichlet([1.0] * 4)):
        gap = (y - mean) ** 2 - (y - weights @ inputs[:, :, 0]) ** 2
        share, length = kind.input_share, len(y) - first
        price = np.log(4.0 / share) + 2.0 * share * length
        # Inputs that are left out had at most twice what sharing keeps up, of each of three others.
        slack = 10.0 * share * np.abs(slopes[:, first:]).max(axis=0, initial=0.0).sum()
        bound = price / rate + rate / 8.0 * (reach**2).sum() + slack
        assert (gap / scales)[first:].sum() <= bound + 1e-9


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 80))
def test_the_mixture_of_means_keeps_up_with_the_best_expert_of_any_interval(
    seed: int, n: int
) -> None:
    rng, kind = np.random.default_rng(seed), LinearSettings(rate=0.5)
    inputs, y = laws(rng, 3, n), 5.0 + rng.normal(size=n)
    mixer = Mixer(3, [Expert((g,), (1.0,), 0.0) for g in range(3)], linear=kind)
    forecasts, scales = stepped(mixer, inputs, y)
    first = int(rng.integers(0, n))
    each = ((y - inputs[:, :, 0]) ** 2 / scales)[:, first:]
    reach = each.max(axis=0) - each.min(axis=0)
    price = np.log(3 / SHARE) + 2 * SHARE * (n - first)
    bound = price / kind.rate + kind.rate / 8.0 * (reach**2).sum() + 10.0 * SHARE * reach.sum()
    assert ((y - forecasts[:, 0]) ** 2 / scales)[first:].sum() <= each.sum(axis=1).min() + bound


def test_a_mixture_of_laws_has_their_mean_and_variance() -> None:
    inputs = laws(np.random.default_rng(0), 3, 5)
    weights = np.array([0.5, 0.3, 0.2])
    mixer = Mixer(3, [Expert((0, 1, 2), tuple(weights), 0.0)], linear=LinearSettings())
    forecasts = mixer.mix(inputs)
    mean = weights @ inputs[:, :, 0]
    np.testing.assert_allclose(forecasts[:, 0], mean)
    square = weights @ (inputs[:, :, 1] + (inputs[:, :, 0] - mean) ** 2)
    np.testing.assert_allclose(forecasts[:, 1], square)


def test_an_input_far_off_is_left_out_after_one_row() -> None:
    inputs = laws(np.random.default_rng(0), 3, 22)
    inputs[2, 20:] = [1e50, 1.0]
    mixer = Mixer(3, [Expert((0, 1, 2), (1 / 3,) * 3, 0.08)], linear=LinearSettings())
    forecasts = mixer.mix_and_step(inputs, np.full(22, 5.0), NONE)
    assert forecasts[20, 0] > 1e49
    assert abs(forecasts[21, 0] - 5.0) < 3.0
