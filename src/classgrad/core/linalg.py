"""Subspace kernels on tensors: the linear algebra of GPM (2021), TRGP and CGP (2022).

A representation matrix C (d x n) has one column per input of a layer. Every decision in the papers
is a function of C Cᵀ or, when n < d, of the smaller Cᵀ C. Here C is passed as its transpose, rows
(n x d), as layers see them. S is a basis: d x r with orthonormal columns, r = 0 allowed.
"""

import torch
from torch import Tensor

# Directions with less than this share of the energy are rounding: float64 eigenvalues of a Gram
# matrix are exact to about 1e-16 of the largest one.
NEGLIGIBLE_ENERGY = 1e-14

# A unit vector whose part outside a span is shorter than this lies in it.
SPAN_TOLERANCE = 1e-7

# Below this width, forming part of a product takes as long as forming all of it.
MIN_BLOCK = 128

# A unit vector whose part inside a span is shorter than this is orthogonal to it up to rounding.
ORTHOGONAL_TOLERANCE = 1e-8


def gram(rows: Tensor) -> Tensor:
    """Rows (n x d) -> C Cᵀ (d x d, float64)."""
    rows = rows.double()
    dimension = rows.shape[1]
    size = max(MIN_BLOCK, -(-dimension // 4))
    c_ct = rows.new_empty(dimension, dimension)
    for start in range(0, dimension, size):  # C Cᵀ is symmetric: the rest of a column is copied
        stop = min(start + size, dimension)
        c_ct[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        c_ct[stop:, start:stop] = c_ct[start:stop, stop:].T
    return c_ct


def upper_half(matrix: Tensor) -> Tensor:
    """Symmetric matrix (d x d) -> its upper half, row by row (d (d + 1) / 2)."""
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def from_upper_half(half: Tensor, dimension: int) -> Tensor:
    """Upper half of a symmetric matrix -> the matrix (d x d)."""
    rows, columns = torch.triu_indices(dimension, dimension)
    matrix = half.new_zeros(dimension, dimension)
    matrix[rows, columns] = half
    matrix[columns, rows] = half
    return matrix


def window_products(lines: Tensor, window: tuple[int, int]) -> Tensor:
    """Lines (w x h x n x c) -> Σ lines[x+u, y+i]ᵀ lines[x+v, y+j] at i, j, u, v (... x c x c).

    i and j are below window[0], u and v below window[1]. The sum is over the h - window[0] + 1 by
    w - window[1] + 1 positions of the window; the first number must be at least window[0]. Sums
    with the same j - i and v - u differ only at the edges: what they share is computed once.
    """
    tall, wide = window
    channels = lines.shape[3]
    positions = lines.shape[1] - tall + 1
    products = lines.new_empty(tall, tall, wide, wide, channels, channels)

    def product(start: int, stop: int) -> Tensor:
        first, second = lines[:, start:stop], lines[:, start + gap : stop + gap]
        return _column_products(first.flatten(1, 2), second.flatten(1, 2), wide, symmetric=gap == 0)

    for gap in range(tall):
        edge = tall - 1 - gap
        middle = product(edge, positions)
        before = [product(line, line + 1) for line in range(edge)]
        after = [product(line, line + 1) for line in range(positions, positions + edge)]
        for i in range(edge + 1):
            products[i, i + gap] = block = middle + sum(before[i:]) + sum(after[:i])
            products[i + gap, i] = block.permute(1, 0, 3, 2)
    return products


def _column_products(first: Tensor, second: Tensor, window: int, *, symmetric: bool) -> Tensor:
    """Two of (w x n x c) -> Σ_x first[x+u]ᵀ second[x+v] at u, v (window x window x c x c)."""
    width, _, channels = first.shape
    positions = width - window + 1
    sums = first.new_empty(window, window, channels, channels)
    for gap in range(0 if symmetric else 1 - window, window):
        left, right = max(0, -gap), max(0, gap)
        products = first[left : width - right].transpose(1, 2) @ second[right : width - left]
        for start in range(window - abs(gap)):
            block = products[start : start + positions].sum(0)
            sums[start + left, start + right] = block
            if symmetric:
                sums[start + right, start + left] = block.T
    return sums


def residual(rows: Tensor, basis: Tensor) -> Tensor:
    """Rows (n x d) -> rows of Ĉ = C - S Sᵀ C, their part outside the basis."""
    return rows - (rows @ basis) @ basis.T


def residual_gram(c_ct: Tensor, basis: Tensor, along: Tensor | None = None) -> Tensor:
    """C Cᵀ -> Ĉ Ĉᵀ = (I - S Sᵀ) C Cᵀ (I - S Sᵀ); `along` is C Cᵀ S, if it is known."""
    half = c_ct - (c_ct @ basis if along is None else along) @ basis.T
    full = residual(half.T, basis)
    return (full + full.T) / 2


def energy_along(rows: Tensor, basis: Tensor) -> Tensor:
    """Rows (n x d) -> δ = diag(Sᵀ C Cᵀ S), the energy along each basis vector."""
    return (rows @ basis).square().sum(0)


def energy_along_gram(c_ct: Tensor, basis: Tensor) -> Tensor:
    """C Cᵀ -> δ = diag(Sᵀ C Cᵀ S)."""
    return (basis * (c_ct @ basis)).sum(0)


def spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n x d) -> (σ² descending, U): eigenpairs of C Cᵀ with energy above rounding.

    Works on the thin side: for n < d on Cᵀ C (n x n), whose eigenvectors V give U = C V / σ.
    """
    count, dimension = rows.shape
    if count >= dimension:
        return spectrum_of_gram(gram(rows))
    rows = rows.double()
    values, vectors = spectrum_of_gram(rows @ rows.T)
    directions = rows.T @ vectors / values.sqrt()
    # Dividing by a small σ magnifies rounding: for σ² at 1e-12 of the largest, columns of U are
    # orthogonal only to 1e-4. QR makes them orthogonal without rotating the strong ones.
    return values, orthonormal(directions)


def rows_of_gram(c_ct: Tensor) -> Tensor:
    """C Cᵀ (d x d) of rank k -> k rows (k x d) with the same C Cᵀ up to rounding.

    A pivoted Cholesky factorisation: d k² operations, where eigenvectors take some ten d³.

    >>> rows_of_gram(torch.tensor([[4.0, 2.0], [2.0, 1.0]])).tolist()
    [[2.0, 1.0]]
    """
    remaining = c_ct.diagonal().double().clone()
    smallest = NEGLIGIBLE_ENERGY * remaining.max() if len(remaining) else 0.0
    rows = remaining.new_empty(len(remaining), len(remaining))
    for k in range(len(remaining)):
        pivot = int(remaining.argmax())
        if remaining[pivot] <= smallest:
            return rows[:k]
        row = c_ct[pivot] - rows[:k, pivot] @ rows[:k]
        rows[k] = row / remaining[pivot].sqrt()
        remaining -= rows[k].square()
        remaining[pivot] = 0.0
    return rows


def spectrum_of_gram(c_ct: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric matrix -> (eigenvalues descending, eigenvectors), those above rounding."""
    values, vectors = torch.linalg.eigh(c_ct.double())
    values, vectors = values.flip(0), vectors.flip(1)
    if not len(values):
        return values, vectors
    keep = values > NEGLIGIBLE_ENERGY * values.clamp(min=0).sum()
    return values[keep], vectors[:, keep]


def leading_spectrum(c_ct: Tensor, energy: float) -> tuple[Tensor, Tensor] | None:
    """C Cᵀ -> (θ descending, U): directions that hold `energy`, and no more than one too many.

    For few of many directions, where all eigenvectors take long: subspace iteration on random
    columns (Halko, Martinsson, Tropp 2011). θ is exactly the energy along U. None if more than d/16
    directions are needed, or if their number is not proved to be at most that of exact
    eigenvectors plus one. The proof: let B be the part of C Cᵀ U[:l] outside the span of U[:l], and
    ν a bound of the eigenvalues outside it. The first j exact eigenvalues have a sum of at most
    Σθ[:j] + ||B||² / (θ[j] - ν), because a subspace that leaves that of U by sines s gains at most
    2 ||B|| ||s|| and loses at least (θ[j] - ν) ||s||².
    """
    dimension = len(c_ct)
    count = dimension // 8
    rng = torch.Generator().manual_seed(dimension)
    basis = torch.randn(dimension, count, generator=rng, dtype=torch.float64)
    for _ in range(3):
        for _ in range(2):
            basis = torch.linalg.qr(c_ct @ basis).Q
        product = c_ct @ basis
        values, rotation = torch.linalg.eigh(basis.T @ product)
        values, rotation = values.flip(0), rotation.flip(1)
        rank = smallest_rank(values, energy)
        if rank > count // 2:
            return None
        basis, product = basis @ rotation, product @ rotation
        used = (rank + count) // 2
        outside = (product - basis * values)[:, :used].square().sum()
        last, bound = values[rank - 1], (values[rank - 1] + values[used - 1]) / 2
        best = values[: max(rank - 2, 0)].sum() + outside / (last - bound)
        if best < energy and _bounds_rest(bound, c_ct, basis[:, :used], values[:used]):
            return values[:used], basis[:, :used]
    return None


def _bounds_rest(bound: Tensor, c_ct: Tensor, basis: Tensor, values: Tensor) -> bool:
    """Prove a bound of the eigenvalues outside a basis: there, bound I - C Cᵀ is positive."""
    difference = (basis * values) @ basis.T - c_ct
    difference.diagonal().add_(bound)
    return not torch.linalg.cholesky_ex(difference).info


def energies(symmetric: Tensor) -> Tensor:
    """Symmetric matrix -> eigenvalues descending; about a third of the work with eigenvectors."""
    values: Tensor = torch.linalg.eigvalsh(symmetric.double())
    return values.flip(0)


def orthonormal(vectors: Tensor) -> Tensor:
    """Independent columns -> orthonormal columns, without the sign flips of QR."""
    q: Tensor
    q, r = torch.linalg.qr(vectors)
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)


def reorthonormalised(columns: Tensor) -> Tensor:
    """Columns (d x r), orthonormal up to rounding -> the nearest by Gram-Schmidt, in float64.

    Float64 columns come back as they are. With the Cholesky factor L of their Gram matrix it is
    columns L⁻ᵀ, which is exact where that matrix is nearly the identity.
    """
    if columns.dtype == torch.float64 or not columns.shape[1]:
        return columns.double()
    columns = columns.double()
    lower = torch.linalg.cholesky(gram(columns))
    basis: Tensor = torch.linalg.solve_triangular(lower.T, columns, upper=True, left=False)
    return basis


def smallest_rank(energies: Tensor, target: float) -> int:
    """Energies in order -> the smallest k with energies[:k].sum() >= target; else their number.

    >>> smallest_rank(torch.tensor([4.0, 3.0, 2.0, 1.0]), 7.0)
    2
    >>> smallest_rank(torch.tensor([4.0, 3.0]), 0.0)
    0
    """
    if target <= 0:
        return 0
    enough = (energies.double().cumsum(0) >= target).nonzero()
    return int(enough[0]) + 1 if len(enough) else len(energies)


def extend(basis: Tensor, vectors: Tensor) -> Tensor:
    """Basis (d x r) and columns (d x m) -> orthonormal basis of both, d x (r + new).

    The first r columns stay as they are; columns inside their span are dropped. Each column is
    orthogonalised twice, because after one pass the error is rounding / length of the remaining
    part; once where all columns are nearly orthogonal to the basis.
    """
    vectors = vectors.double()
    lengths = vectors.norm(dim=0)
    for _ in range(2):
        along = basis.T @ vectors
        vectors = vectors - basis @ along
        if (along.norm(dim=0) <= ORTHOGONAL_TOLERANCE * lengths).all():
            break
    vectors = vectors[:, vectors.norm(dim=0) > SPAN_TOLERANCE * lengths]
    if vectors.shape[1] == 0:
        return basis
    vectors = vectors / vectors.norm(dim=0)
    new, r = torch.linalg.qr(vectors)
    well_conditioned = bool(r.diagonal().abs().min() > 0.1)  # so QR magnified no rounding
    if vectors.shape[1] > vectors.shape[0] or r.diagonal().abs().min() < SPAN_TOLERANCE:
        # Linearly dependent columns: QR would replace them by arbitrary directions.
        left, singular, _ = torch.linalg.svd(vectors, full_matrices=False)
        new = left[:, singular > SPAN_TOLERANCE]
    new = new[:, : basis.shape[0] - basis.shape[1]]
    if not well_conditioned:
        new = new - basis @ (basis.T @ new)
    return torch.cat([basis, orthonormal(new)], dim=1)


def complement(basis: Tensor) -> Tensor:
    """Basis (d x r) -> orthonormal basis of the orthogonal complement, d x (d - r)."""
    dimension, rank = basis.shape
    if rank == 0:
        return torch.eye(dimension, dtype=basis.dtype)
    # Random columns without their part in S span the complement. A complete QR of S takes longer.
    rng = torch.Generator().manual_seed(rank)
    columns = torch.randn(dimension, dimension - rank, generator=rng, dtype=torch.float64)
    columns = columns.to(basis)
    outside: Tensor = torch.linalg.qr(columns - basis @ (basis.T @ columns)).Q
    return outside


def remove(matrix: Tensor, basis: Tensor) -> Tensor:
    """Matrix (o x d) -> matrix - (matrix S) Sᵀ, its part outside the basis (CGP, Eq. project2)."""
    return torch.addmm(matrix, matrix @ basis, basis.T, alpha=-1)


def keep(matrix: Tensor, basis: Tensor) -> Tensor:
    """Matrix (o x d) -> (matrix S) Sᵀ, its part inside the basis."""
    return (matrix @ basis) @ basis.T
