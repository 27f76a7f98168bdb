import torch


def test_score_gives_the_four_parts_and_the_mode_of_stored_features(problem, wake):
    model, rows = wake(problem.model), problem.unseen_anomalies
    pooled, maps = torch.from_numpy(rows.pooled), rows.map_batch()
    parts, mode = model.score(pooled, maps)
    with torch.no_grad():
        z = model.z(pooled)
        psi = model.psi(z, model.modes.start(z))
        deviation = model.prototypes.deviation(psi)
        torch.testing.assert_close(parts.g, model.global_score(-model.prototypes.log_prob(psi) / z.shape[1]))
        torch.testing.assert_close(parts.a, model.local_score(None, model.local_score.evidence(maps, mode)))
        torch.testing.assert_close(parts.r, model.residual_score(deviation))
        torch.testing.assert_close(parts.n, model.normality_score(z))
    assert torch.equal(mode, model.modes.posterior(z).argmax(1))
    assert set(mode.tolist()) == {0, 1}


def test_every_part_tells_images_apart_once_awake(problem, wake):
    rows = problem.unseen_normals
    parts, _ = wake(problem.model).score(torch.from_numpy(rows.pooled), rows.map_batch())
    assert all(part.shape == (len(rows),) and part.std() > 0 for part in parts)


def test_training_normals_have_standardised_features(problem):
    z = problem.model.z(torch.from_numpy(problem.data.normals.pooled))
    torch.testing.assert_close(z.mean(0), torch.zeros(z.shape[1]), rtol=0, atol=1e-4)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(z.shape[1]), rtol=0, atol=1e-4)


def test_a_score_does_not_depend_on_the_other_images(problem, wake):
    model, rows = wake(problem.model), problem.unseen_normals
    pooled, maps = torch.from_numpy(rows.pooled), rows.map_batch()
    together, alone = model.score(pooled, maps)[0], model.score(pooled[3:4], maps[3:4])[0]
    for part, single in zip(together, alone, strict=True):
        torch.testing.assert_close(part[3:4], single, rtol=1e-4, atol=1e-4)
