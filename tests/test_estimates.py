"""What is counted on paper: one layer by hand, and networks whose sums are known."""

import pytest

from benchmarks.estimates import Layer, Network, layer_rows, memory_row, paper, resnet50, vit_b16


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
    assert memory["basis_half_bytes"] == 8 * (2 * 8 * 4 + 5 * 2) == 2 * memory["side_bytes"]
    assert memory["basis_full_bytes"] == 8 * (2 * 64 + 25) == memory["gram_bytes"]


@pytest.mark.parametrize(
    ("network", "products", "weights"),
    [(vit_b16(), 17.56e9, 85_524_480), (resnet50(), 4.087e9, 23_454_912)],
)
def test_networks_have_the_operations_and_weights_that_are_known_of_them(
    network, products, weights
):
    assert network.training(1) / 6 == pytest.approx(products, rel=1e-3)
    assert memory_row(network)["weight_bytes"] == 4 * weights
