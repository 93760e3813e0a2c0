"""What is counted on paper: one layer by hand, and networks whose sums are known."""

import pytest

from benchmarks import devices
from benchmarks.estimates import (
    Layer,
    Network,
    layer_rows,
    memory_row,
    paper,
    resnet50,
    vit_b16,
    vit_l16,
)


def test_counts_of_one_layer_are_those_by_hand():
    layer = Layer("one", outputs=10, dimension=8, positions=3, linear=True)
    # 2 images x 3 positions are 6 rows, and half of 8 directions 4.
    assert layer.training(2) == 3 * (2 * 6 * 8 * 10)
    assert layer.by_rows(2) == 2 * (2 * 6 * 8 * 4)
    assert layer.on_gradient() == 2 * (2 * 10 * 8 * 4)
    # 375 rows: C Cᵀ; δ; (I - S Sᵀ) from both sides, two products each; eigenvectors.
    assert layer.bases() == 2 * 375 * 64 + 2 * 8 * 8 * 4 + 4 * (2 * 8 * 8 * 4) + 9 * 512


def test_rows_are_chosen_in_linear_layers_that_have_no_more_of_them_than_outputs():
    layer = Layer("one", outputs=6, dimension=8, positions=3, linear=True)
    assert layer.chosen(2) == layer.by_rows(2)
    assert layer.chosen(3) == layer.on_gradient() < layer.by_rows(3)
    convolution = Layer("one", outputs=7, dimension=8, positions=3, linear=False)
    assert convolution.chosen(2) == convolution.on_gradient() > convolution.by_rows(2)


def test_a_network_is_the_sum_of_its_layers():
    one = Layer("one", outputs=10, dimension=8, positions=3, linear=True, count=2)
    two = Layer("two", outputs=4, dimension=5, positions=1, linear=False)
    network = Network("small", [one, two], weightless=100)
    images = paper()["images"]
    whole = 2 * one.training(images) + two.training(images) + 3 * images * 100
    rows = layer_rows(network)
    assert [row["count"] for row in rows] == [2, 1, 3]
    assert rows[-1]["training_flops"] == whole
    on_gradients = 2 * one.on_gradient() + two.on_gradient()
    assert rows[-1]["on_gradient_share"] == pytest.approx(on_gradients / whole)
    memory = memory_row(network)
    assert memory["weight_bytes"] == 4 * (2 * 80 + 20)
    assert memory["basis_half_bytes"] == 4 * (2 * 8 * 4 + 5 * 2) == memory["side_bytes"]
    assert 2 * memory["basis_full_bytes"] == 8 * (2 * 64 + 25) == memory["gram_bytes"]


@pytest.mark.parametrize(
    ("network", "products", "weights"),
    [
        (vit_b16(), 17.56e9, 85_524_480),
        (vit_l16(), 61.55e9, 302_776_320),
        (resnet50(), 4.087e9, 23_454_912),
    ],
)
def test_networks_have_the_operations_and_weights_that_are_known_of_them(
    network, products, weights
):
    assert network.training(1) / 6 == pytest.approx(products, rel=1e-3)
    assert memory_row(network)["weight_bytes"] == 4 * weights


def test_a_step_on_many_devices_is_that_by_hand():
    layer = Layer("one", outputs=1000, dimension=2000, positions=3, linear=False)
    network = Network("small", [layer], norms=(7,))
    row = devices.step_row(network, 64)
    compute = 6 * 64 * 3 * 1000 * 2000 / (0.4 * 312e12)
    projection = 4 * 1000 * 2000 * 1000 / (0.4 * 156e12)
    gradients = 2 * 63 / 64 * 8e6 / 25e9 + 2 * 6 * 10e-6  # one bucket, over six rounds of a tree
    norms = 2 * 63 / 64 * 8 * (15 + 14) / 25e9 + 2 * (2 * 6 * 10e-6)
    assert row["compute_seconds"] == pytest.approx(compute)
    assert row["projection_seconds"] == pytest.approx(projection)
    assert row["gradient_seconds"] == pytest.approx(gradients)
    assert row["norm_seconds"] == pytest.approx(norms)
    step = compute + projection + norms + gradients
    assert row["worst_images_per_second"] == pytest.approx(64 * 64 / step)
    hidden = step - min(gradients, compute * 2 / 3)
    assert row["best_images_per_second"] == pytest.approx(64 * 64 / hidden)
    assert row["best_efficiency"] == pytest.approx((compute + projection) / hidden)
    alone = devices.step_row(network, 1)
    assert alone["worst_efficiency"] == alone["best_efficiency"] == 1
    assert alone["wire_bytes"] == alone["gradient_seconds"] == alone["norm_seconds"] == 0


def test_a_base_update_of_many_devices_is_that_by_hand():
    layer = Layer("one", outputs=10, dimension=8, positions=3, linear=True)
    row = devices.update_row(Network("small", [layer]), 64)
    sent = 10 * 9 / 16 * 8 * 64 + 8 * 8 * 4
    assert row["wire_bytes"] == sent
    assert row["sum_seconds"] == pytest.approx(sent / (25e9 / 8))
    products = 10 * 2 * 375 * 64
    assert row["product_seconds"] == pytest.approx(products / 1e12 / 8)  # machines
    assert row["basis_seconds"] == pytest.approx((10 * layer.bases() - products) / 1e12)
    assert devices.update_row(Network("small", [layer]), 1)["wire_bytes"] == 0
