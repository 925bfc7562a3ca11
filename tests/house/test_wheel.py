"""A node is light to carry: what would go into its wheel stays small (R253).

Owns the bound on the package. It packs the files that are there as a wheel packs them and looks at nothing else; what a
node takes in memory is looked at by `unit/cli/test_up.py`.
"""

from __future__ import annotations

import io
import zipfile

from house import tree

WHEEL_BYTES_MAX = 15_000_000


def test_the_wheel_is_small() -> None:
    packed = io.BytesIO()
    package = tree.ROOT / "src" / "weft"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for file in package.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                wheel.write(file, file.relative_to(package.parent))
    assert any(name.endswith(".so") for name in wheel.namelist()), "the kernel is not built"
    assert packed.tell() < WHEEL_BYTES_MAX
