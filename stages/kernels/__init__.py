"""Compiled loops over Arrow string buffers: NumPy, Numba and pyarrow only."""
