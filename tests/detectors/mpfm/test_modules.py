import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.detectors.mpfm.modules import LocalScore, Logit, ResidualScore


def test_a_new_logit_standardises_and_a_trained_one_keeps_the_order():
    logit, score = Logit.start(torch.tensor([2.0, -1.0]), torch.tensor([3.0, 0.0])), torch.randn(2, 9)
    torch.testing.assert_close(logit(score)[0], (score[0] - 2) / 3)
    logit.slope.data.fill_(-4)
    assert torch.equal(logit(score).argsort(1), score.argsort(1)) and logit(score).isfinite().all()


def test_residual_score_starts_as_the_sum_of_squares_and_stays_positive():
    module, squares = ResidualScore(log_weight=torch.zeros(2, 1, 5)), torch.rand(2, 3, 4, 5)
    torch.testing.assert_close(module(squares), squares.sum(3))
    module.log_weight.data.normal_()
    expected = torch.einsum("rbxc,rc->rbx", squares, module.log_weight[:, 0].exp())
    torch.testing.assert_close(module(squares), expected)
    torch.testing.assert_close(module(squares[:, :, 0]), expected[:, :, 0])
    assert module(squares).min() > 0


def plain_scores(module, v):
    """Scores of the members through topk, with plain gradients."""
    scores = (torch.einsum("rec,bxc->rebx", module.weight, v) + module.bias[..., None, None]).abs()
    numbers = [max(1, int(share * v.shape[1])) for share in module.shares]
    return torch.stack([scores[:, e].topk(k, dim=2).values.mean(2) for e, k in enumerate(numbers)], 1)


SHARES = st.lists(st.floats(0.01, 1), min_size=1, max_size=3)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), SHARES, st.integers(1, 4), st.integers(1, 30), st.integers(0, 99))
def test_scores_of_members_and_their_gradients_are_those_through_topk(rounds, shares, batch, positions, seed):
    torch.manual_seed(seed)
    members = rounds, len(shares)
    module = LocalScore(shares, weight=torch.randn(*members, 5), bias=torch.randn(members))
    v, value, gradients = torch.randn(batch, positions, 5), torch.randn(rounds, len(shares), batch), []
    for scores in (module.member_scores(v), plain_scores(module, v)):
        torch.testing.assert_close(scores, plain_scores(module, v), rtol=1e-4, atol=1e-5)
        gradients.append(torch.autograd.grad((value * scores).sum(), [module.weight, module.bias]))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module(v)[0], plain_scores(module, v).mean(1), rtol=1e-4, atol=1e-5)
