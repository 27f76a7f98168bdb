"""Mixture Prototype Flow Matching in torch: it knows nothing of Kedro, files or images.

Shapes: B batch, d size of z, K prototypes, J modes, C components of the velocity mixture.
"""
