"""Derivatives of matrix products, factorisations and solvers.

Batches are in front. `x^T` transposes, `x^H` also conjugates. Cotangents are transposed, so the rules keep
`Re sum(g * dy) = Re sum(gx * dx)`: what `dx -> b @ dx @ c` sends forward comes back as `b^T @ g @ c^T`, through a
conjugate transpose as `g^H`, through a real part unchanged.

- `cholesky`, `eigh` and `eigvalsh` read one triangle, and are differentiated as functions of `(x + x^H) / 2`: their
  cotangents are Hermitian. For tangents that are Hermitian there is no other answer.
- Factors with a free sign or phase (see `NOT_UNIQUE`) get the tangent of one choice. Functions that do not depend on
  the choice have the right derivatives, of all orders. Columns of `u` and `v` of `svd` turn their phases in `u`; of
  `eigh` and `eig`, each eigenvector changes at a right angle to itself.
- Vectors of equal singular values or eigenvalues have no derivative: infinities or NaNs come out, except for those that
  get no cotangent, and for the values alone.
- Triangular factors without an inverse have no derivative either: of `qr` and `lu`, whose first columns must be
  independent, the backward half raises `LinAlgError`, as that of `eig` does for a matrix without a basis of eigenvectors.
  `slogdet` of a singular matrix gets NaNs. `det` is a polynomial, and is right everywhere (see `_cofactors`).
"""

from dsl.ir.derivatives.linalg import eigenvalues, factors, products, singular_values, systems

__all__ = ["eigenvalues", "factors", "products", "singular_values", "systems"]
