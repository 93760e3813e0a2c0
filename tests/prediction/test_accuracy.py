from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from classgrad.networks import build
from classgrad.prediction.accuracy import (
    BATCH,
    ClassPrototypes,
    accuracy,
    class_means,
    class_statistics,
    evaluate,
    evaluate_task_free,
    mixed_inputs,
)
from classgrad.prediction.statistics import ClassStatistics, LinearDiscriminant
from classgrad.tasks import Split
from streams import blobs

STREAM = blobs(tasks=3)
TESTS = [STREAM.test(number) for number in range(3)]


def learnt(**options):
    net = build("mlp", STREAM.input_shape, **options)
    prototypes = ClassPrototypes()
    for task in STREAM:
        net.add_task(task.classes)
        with torch.no_grad():  # a head that points to the class means: far better than chance
            net.heads[-1].weight.copy_(10 * class_means(net, task))
        prototypes.add_task(net, task)
    return net, prototypes


@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "norm": "stored", "affine": "task"}])
def test_against_a_loop_over_samples(options):
    net, prototypes = learnt(**options)
    net.eval()
    task, test = STREAM[1], STREAM.test(1)
    given = confident = nearest = 0
    chosen = {"confidence": [0, 0, 0], "prototypes": [0, 0, 0]}
    with torch.no_grad():
        for image, label in zip(test.images, test.labels.tolist(), strict=True):
            x = image.float().div(255).unsqueeze(0)
            sure, close = [], []
            for other in STREAM:
                features = net.embed(x, other.id)
                chances = net.classify(features, other.id).softmax(1)[0]
                cosines = [
                    float(functional.cosine_similarity(features[0], p, dim=0))
                    for p in prototypes.prototypes[other.id]
                ]
                for c, name in enumerate(other.class_names):
                    sure.append((float(chances[c]), name, other.id))
                    close.append((cosines[c], name, other.id))
                if other.id == 1:
                    given += int(chances.argmax()) == label
            wanted = task.class_names[label]
            confident += max(sure)[1] == wanted
            nearest += max(close)[1] == wanted
            chosen["confidence"][max(sure)[2]] += 1
            chosen["prototypes"][max(close)[2]] += 1
    score = evaluate(net, task, test)
    without = evaluate_task_free(net, prototypes, STREAM, TESTS)[1]
    count = len(test)
    assert score.task_known == pytest.approx(100 * given / count)
    assert without.by_confidence == pytest.approx(100 * confident / count)
    assert without.by_prototype == pytest.approx(100 * nearest / count)
    assert 0 < without.by_confidence <= 100
    for way, counts in chosen.items():
        assert without.chosen_tasks[way] == pytest.approx([100 * n / count for n in counts])
    assert score.task_known == pytest.approx(accuracy(net, 1, task, test))
    assert sum(score.by_class) / 3 == pytest.approx(score.task_known)


def test_a_class_name_that_returns_is_the_same_class():
    from classgrad.benchmarks import permuted_digits

    stream = permuted_digits(tasks=2)
    prototypes = ClassPrototypes()
    net = build("mlp", stream.input_shape)
    for task in stream:
        net.add_task(10)
        prototypes.add_task(net, task)
    assert torch.equal(prototypes.tasks[0], prototypes.tasks[1])


def test_prototypes_are_unit_means_of_the_classes():
    net, _ = learnt()
    means = class_means(net, STREAM[0])
    task = STREAM[0]
    with torch.no_grad():
        features = functional.normalize(net.embed(task.train.unit_images(slice(None)), 0), dim=1)
    for label in range(3):
        mean = features[task.train.labels == label].mean(0)
        torch.testing.assert_close(means[label], mean / mean.norm())


def test_batch_statistics_use_batches_of_64_in_a_fixed_order():
    net, prototypes = learnt(batch_norm=True, norm="batch")
    assert evaluate(net, STREAM[0], TESTS[0]) == evaluate(net, STREAM[0], TESTS[0])
    first = evaluate_task_free(net, prototypes, STREAM, TESTS)
    assert first == evaluate_task_free(net, prototypes, STREAM, TESTS)


def test_without_the_task_batches_mix_all_tasks():
    net, _ = learnt()
    stream = blobs(tasks=3, per_class=40)
    tests = [task.train for task in stream]  # more images
    total = sum(map(len, tests))
    images = torch.cat([test.unit_images(slice(None)) for test in tests])
    seen = []
    for index, x in mixed_inputs(net, stream, tests):
        torch.testing.assert_close(x, images[index])
        share = (index < len(tests[0])).double().mean()
        assert len(index) < BATCH or 0.1 < share < 0.6  # a third, give or take
        seen += index.tolist()
    assert sorted(seen) == list(range(total)) != seen


def test_each_image_is_transformed_as_its_task_is():
    net, _ = learnt()
    tasks = [replace(task, transform=lambda x, by=task.id: x + by) for task in STREAM]
    images = torch.cat([test.unit_images(slice(None)) for test in TESTS])
    owners = torch.arange(3).repeat_interleave(torch.tensor([len(test) for test in TESTS]))
    for index, x in mixed_inputs(net, tasks, TESTS):
        added = owners[index].reshape(-1, *[1] * (x.dim() - 1))
        torch.testing.assert_close(x, images[index] + added)


def test_by_statistics_the_class_with_the_highest_score_of_all_tasks_is_chosen():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    net, prototypes = learnt()
    statistics = ClassStatistics.empty(0, net.embedding)
    for task in STREAM:
        statistics.append(class_statistics(net, task))
    without = evaluate_task_free(net, prototypes, STREAM, TESTS, statistics)
    with torch.no_grad():
        trained = torch.cat([net.embed(task.train.unit_images(slice(None)), 0) for task in STREAM])
        tested = torch.cat([net.embed(test.unit_images(slice(None)), 0) for test in TESTS])
    labels = torch.cat([task.train.labels + 3 * task.id for task in STREAM])
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.5, priors=[1 / 9] * 9)
    assert statistics.counts.tolist() == torch.bincount(labels).tolist()
    expected = model.fit(trained.numpy(), labels.numpy()).predict(tested.numpy())
    truth = torch.cat([test.labels + 3 * number for number, test in enumerate(TESTS)]).numpy()
    for number, right in enumerate((expected == truth).reshape(3, -1).mean(1)):
        assert without[number].by_statistics == pytest.approx(100 * right, abs=10)
        assert without[number].by_statistics > 50  # nine classes: chance is 11
        shares = without[number].chosen_tasks["statistics"]
        assert sum(shares) == pytest.approx(100)
        assert shares[number] >= without[number].by_statistics


def test_the_tasks_of_the_answers_are_counted():
    net, prototypes = learnt()
    statistics = ClassStatistics.empty(0, net.embedding)
    for task in STREAM:
        statistics.append(class_statistics(net, task))
    rng = torch.Generator().manual_seed(3)
    shape = (300, *TESTS[0].images.shape[1:])
    images = torch.randint(256, shape, generator=rng, dtype=torch.uint8)
    noise = Split(images, torch.zeros(300, dtype=torch.int64))  # of no task
    few = [Split(test.images[:1], test.labels[:1]) for test in TESTS[1:]]
    found = evaluate_task_free(net, prototypes, STREAM, [noise, *few], statistics)[0].chosen_tasks
    with torch.no_grad():
        x = net.embed(noise.unit_images(slice(None)), 0)
        sure = torch.stack([net.classify(x, n).softmax(1).max(1).values for n in range(3)])
        close = torch.stack([(x @ p.T).max(1).values for p in prototypes.prototypes])
    scores = LinearDiscriminant(statistics).scores(functional.normalize(x, dim=1))
    for way, best in {
        "confidence": sure.argmax(0),
        "prototypes": close.argmax(0),
        "statistics": scores.argmax(1) // 3,
    }.items():
        expected = [float((best == n).double().mean() * 100) for n in range(3)]
        assert found[way] == pytest.approx(expected)
        assert max(expected) < 95
    assert found["confidence"] != found["statistics"]


def test_evaluation_changes_nothing():
    net, prototypes = learnt(batch_norm=True, norm="stored")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    evaluate(net, STREAM[0], TESTS[0])
    evaluate_task_free(net, prototypes, STREAM, TESTS)
    for name, value in net.state_dict().items():
        assert torch.equal(before[name], value), name
    assert isinstance(net, nn.Module)
