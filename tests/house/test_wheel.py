"""A node is light to carry: what would go into its wheel stays small (R253), and is the same for all (R204).

Owns the bound on the package and on what is in it. It packs the files that are there as a wheel packs them and looks at
nothing else; what a node takes in memory is looked at by `unit/cli/test_up.py`.
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


def test_the_package_knows_no_network() -> None:
    """Code alone goes to a machine, the same to all; who a node is and whom it knows it is told or asks for (R204)."""
    files = {file for file in (tree.ROOT / "src" / "weft").rglob("*") if file.is_file()}
    others = {file.name for file in files if "__pycache__" not in file.parts and file.suffix not in (".py", ".pyi")}
    assert others <= {"py.typed", "_kernel.abi3.so"}
    image = (tree.ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [line.split()[1] for line in image if line.startswith(("COPY", "ADD"))]
    assert copied == ["dist/weft-*.whl"]
    assert not [line for line in image if line.startswith("ENV")]
    assert not {"--name", "--config"} & set(image[-1].replace('"', " ").replace(",", " ").split())
