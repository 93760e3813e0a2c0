"""Several processes learn what one would: gradients, weights, bases, scores; and what they send."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from distributed import processes, together

SIZES = (2, 3)
CASES = [(name, size) for size in SIZES for name in together.runs(size)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone():
    result = {name: together.learnt(name) for name in together.RUNS}
    return {f"{name}/{key}": value for name, part in result.items() for key, value in part.items()}


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folders = {size: tmp_path_factory.mktemp(f"of{size}") for size in SIZES}
    script = str(processes.HERE / "together.py")
    started = {size: processes.start(size, [script, str(folders[size])]) for size in SIZES}
    ends = [end for size in SIZES for end in processes.ended(started[size])]
    assert [code for code, _, _ in ends] == [0] * sum(SIZES), "".join(err for _, _, err in ends)
    return folders


def said(several, size):
    result = [json.loads((several[size] / f"{rank}.json").read_text()) for rank in range(size)]
    assert all(one == result[0] for one in result)
    return result[0]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_several_processes_learn_what_one_does(alone, several, name, size):
    result = load_file(several[size] / "0.safetensors")
    keys = [key for key in alone if key.startswith(f"{name}/")]
    assert keys
    assert keys == [key for key in alone if key in result and key.startswith(f"{name}/")]
    for key in keys:
        one, other = result[key], alone[key]
        if "/basis " in key:
            assert one.shape == other.shape
            assert largest_sine(one, other) < 1e-6
            continue
        if name == "trgp":  # its scales are in coordinates of bases, whose columns have no sign
            one, other = one.abs(), other.abs()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        assert "/gradient" not in key or other.abs().max() > 1e-3


@pytest.mark.parametrize("size", SIZES)
def test_class_statistics_are_among_what_is_compared(several, size):
    result = load_file(several[size] / "0.safetensors")
    names = [key.partition("/")[0] for key in result if key.endswith("statistics scores")]
    assert names
    assert all(result[f"{name}/statistics scores"].std() > 1 for name in names)


@pytest.mark.parametrize("size", SIZES)
def test_all_processes_have_the_same_to_the_last_bit(several, size):
    first, *others = (load_file(several[size] / f"{rank}.safetensors") for rank in range(size))
    for other in others:
        assert [key for key in first if not torch.equal(first[key], other[key])] == []


def largest_sine(one, other):
    """Return the sine of the largest angle between the spans of orthonormal columns."""
    return float(torch.linalg.matrix_norm(other - one @ (one.T @ other), 2)) if one.numel() else 0


@pytest.mark.parametrize("size", SIZES)
def test_what_cannot_be_trained_together_is_refused_by_name(several, size):
    refused = said(several, size)["refusals"]
    named = [name for name in refused if name in together.methods.METHODS]
    assert {"gem", "si", "icarl", "den"} <= set(named)
    for name in named:
        assert f"method '{name}' cannot be trained by several processes" in refused[name]
    words = {
        "batch": f"batch_size=1 is less than the {size} processes",
        "few": f"has 1 training samples for {size} processes",
        "settings": "differ in the settings",
        "words": "differ in --fresh: start all of them with the same",
        "one input": "saw an input that is not a finite number",
        "sight": "differ in whether they see 'runs': give a folder for results that all",
        "versions": "differ in the version of torch",
        "missing": "MNIST is missing, hint fetch:mnist",
        "data": "differ in the data",
    }
    assert set(refused) == {*named, *words}
    for kind, text in words.items():
        assert text in refused[kind]
        assert "\n" not in refused[kind]


@pytest.mark.parametrize("size", SIZES)
def test_a_process_that_rounds_otherwise_has_what_the_first_has_after_a_task(several, size):
    ends = said(several, size)["parted"]  # which is the same in all of them
    assert set(ends) == {"gpm", "ogd"}
    assert all(len(values) > 4 for values in ends.values())


@pytest.mark.parametrize("size", SIZES)
def test_a_step_sends_its_gradients_and_the_loss(several, size):
    sent = said(several, size)["traffic"]
    assert sent["training sums"] == sent["steps"] * (sent["gradients"] + 8)
    assert sent["training handed"] == sent["gradients"]  # the parameters, before the first step
    assert "training counts" not in sent


@pytest.mark.parametrize("size", SIZES)
def test_what_a_base_update_sums_does_not_depend_on_the_samples(several, size):
    sent = said(several, size)["traffic"]
    few, all_there_are, some, many = "4 11", "11 11", "16 90", "90 90"
    sums = {sent[f"sums {samples}"] for samples in (few, all_there_are, some, many)}
    assert len(sums) == 1
    # A round of batches: whether there is one, whether it was bad, and three numbers a class.
    classes, rounds = 3, math.ceil(3 * 90 / 64 / size) - 1
    more = sent[f"counts {many}"] - sent[f"counts {some}"]
    assert more == rounds * (8 + 8 + 3 * 8 * classes * size)
    assert sent[f"counts {few}"] == sent[f"counts {some}"]


@pytest.mark.parametrize("size", SIZES)
def test_what_a_base_update_hands_on_is_what_it_found(several, size):
    sent = said(several, size)["traffic"]
    rest = [sent[key.replace("bases", "handed")] - sent[key] for key in sent if "bases" in key]
    assert len(rest) == 4
    assert all(0 < one < 4000 for one in rest), rest
