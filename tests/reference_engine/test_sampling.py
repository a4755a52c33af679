from __future__ import annotations

import numpy as np
import torch

from reference_engine.sampling import draw
from reference_engine.sequence import Sampling, Sequence
from tests.reference_engine.stub import make_sequence

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])


def draws(sampling: Sampling, number: int) -> list[int]:
    """Draw from LOGITS at `number` positions of one answer."""
    sequence: Sequence = make_sequence([1], max_tokens=number)
    sequence.sampling = sampling
    for _ in range(number):
        sequence.tokens += draw(LOGITS[None], [sequence]).tolist()
    return sequence.tokens[1:]


def test_frequencies_are_the_softmax_at_that_temperature() -> None:
    number = 4000
    shares = np.bincount(draws(Sampling(temperature=0.7, seed=1), number), minlength=4) / number
    expected = (LOGITS / 0.7).softmax(0).numpy()
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / number)


def test_top_k_and_top_p_cut_the_tail() -> None:
    assert set(draws(Sampling(temperature=2, top_k=2, seed=1), 200)) == {0, 1}
    # Shares 0.64, 0.24, 0.09, 0.03: two reach 0.8, three reach 0.9.
    assert set(draws(Sampling(temperature=1, top_p=0.8, seed=1), 200)) == {0, 1}
    assert set(draws(Sampling(temperature=1, top_p=0.9, seed=1), 400)) == {0, 1, 2}
    assert set(draws(Sampling(temperature=1, top_p=0.01, seed=1), 20)) == {0}


def test_a_seed_repeats_an_answer_and_another_seed_does_not() -> None:
    first, again, other = (draws(Sampling(temperature=1, seed=s), 50) for s in (1, 1, 2))
    assert first == again != other


def test_temperature_zero_is_greedy_beside_rows_that_draw() -> None:
    greedy, drawing = make_sequence([1], 1), make_sequence([1], 1)
    drawing.sampling = Sampling(temperature=1)
    assert draw(torch.stack([LOGITS, LOGITS]), [greedy, drawing])[0] == 0
