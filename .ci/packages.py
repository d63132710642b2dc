"""Compare the `packages` list of pyproject.toml with the folders, or rewrite it (--write).

Inputs: pyproject.toml ([tool.setuptools] packages and package-dir) and the folders that package-dir names. Needed because
setuptools cannot search several folders that are installed under one name. Exit status 1 and a list of differences where
they do not agree.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def packages_in_folders(root: Path, package_dir: dict[str, str]) -> list[str]:
    """Names of all packages (folders with Python files) under the mapped folders, sorted. SystemExit if one lacks an __init__.py."""
    found = set()
    for name, folder in package_dir.items():
        for path in (root / folder).rglob("*.py"):
            if not (path.parent / "__init__.py").exists():
                raise SystemExit(f"{path.parent.relative_to(root)}: holds Python files, but no __init__.py")
            found.add(".".join([name, *path.parent.relative_to(root / folder).parts]))
    return sorted(found)


def rewritten(text: str, packages: list[str]) -> str:
    """`text` (a pyproject.toml) with the list replaced."""
    block = "packages = [\n" + "".join(f'    "{name}",\n' for name in packages) + "]\n"
    new, count = re.subn(r"^packages = \[\n.*?^\]\n", lambda _: block, text, count=1, flags=re.DOTALL | re.MULTILINE)
    if not count:
        raise SystemExit("pyproject.toml: no multi-line `packages = [` list found")
    return new


def main(write: bool) -> int:
    path = ROOT / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    settings = tomllib.loads(text)["tool"]["setuptools"]
    wanted = packages_in_folders(ROOT, settings["package-dir"])
    listed = settings["packages"]
    if listed == wanted:
        return 0
    if write:
        path.write_text(rewritten(text, wanted), encoding="utf-8")
        return 0
    missing, gone = sorted(set(wanted) - set(listed)), sorted(set(listed) - set(wanted))
    print(f"pyproject.toml: packages differ from the folders; run `make packages`\n  missing: {missing}\n  not there: {gone}")
    return 1


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
