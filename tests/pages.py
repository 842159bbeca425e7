"""The pages of docs/, and every other file of Markdown that people read."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
FILES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted(ROOT.glob("components/*/*/README.md")),
    *sorted(ROOT.glob("pipelines/*/*/README.md")),
    *sorted(ROOT.glob("deploy/**/README.md")),
]
