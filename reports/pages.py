"""The page templates, in the package: what comes from outside is escaped, nothing is left undefined."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


def template_text(name: str) -> str:
    """Return a file of the templates folder."""
    return resources.files("reports").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the script of the pages that have figures."""
    return template_text("explore.js")


def script_digest() -> str:
    """Return what a content security policy calls the script: no other may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()


def data_link(text: str) -> str:
    """Return a link that holds a JSON text itself."""
    return "data:application/json;base64," + base64.b64encode(text.encode()).decode()


@cache
def page_template(name: str) -> Template:
    """Return a template, ready to render."""
    from jinja2 import Environment, StrictUndefined
    from jinja2.loaders import FunctionLoader

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(template_text),
    )
    environment.globals |= {"css": template_text("page.css"), "script": script(), "digest": script_digest()}
    return environment.get_template(name)
