"""Types of NumPy arrays by the kind of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Elements of any dtype."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Keys = NDArray[np.uint64]
"""Keys of items."""
