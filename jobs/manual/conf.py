"""Settings of the manual: ``python -m sphinx -W -c jobs/manual . site``, in the repository's root.

The root is the source, so that the README files are pages themselves and no text stands twice.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import dmondrian

project = "dmondrian"
author = copyright = "The dmondrian developers"
version = release = dmondrian.__version__

root_doc = "jobs/manual/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "jobs/README.md",
    "jobs/manual/*.md",
    "cluster/README.md",
    "benchmarks/**.md",
]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "matplotlib.sphinxext.plot_directive",
]

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 3  # links to headings, as GitHub has them
suppress_warnings = ["toc.not_included"]  # reports of benchmarks are listed by their own README

autodoc_default_options = {"members": True, "inherited-members": "BaseEstimator"}
autodoc_typehints = "none"  # numpydoc has types with shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # autodoc has them
numpydoc_class_members_toctree = False

plot_formats = ["svg"]
plot_html_show_formats = False
plot_html_show_source_link = False
plot_include_source = True
plot_rcparams = {"figure.figsize": (6.4, 3.2), "savefig.bbox": "tight", "svg.hashsalt": "dmondrian"}

html_theme = "furo"
html_title = f"dmondrian {release}"


def skip_inherited(_app: object, _what: str, _name: str, member: object, *_: object) -> bool | None:
    """Whether to leave a member out: those of scikit-learn and river are described there."""
    module = str(getattr(member, "__module__", ""))
    return True if module.startswith(("sklearn.", "river.")) else None


def name_rows(_app: Sphinx, _page: str, text: list[str]) -> None:
    """Make rows of tables, named as GitHub reads it, targets of links."""
    text[0] = re.sub(r'<a id="([\w-]+)"></a>', r"[]{#\1}", text[0])


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("source-read", name_rows)
    app.connect("autodoc-skip-member", skip_inherited)
