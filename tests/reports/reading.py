"""Read a page strictly, and list what it would fetch."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}


class PageReader(HTMLParser):
    """Reads a page strictly: every element is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def attributes(self, name: str) -> list[str]:
        return [str(attributes[name]) for _, attributes in self.elements if name in attributes]

    def tags(self, *names: str) -> list[str]:
        return [tag for tag, _ in self.elements if tag in names]

    def rows(self) -> list[str | None]:
        """The rows of tables, without their heads: each has one header of its own."""
        return [attributes["scope"] for _, attributes in self.elements if attributes.get("scope") == "row"]

    def outward_links(self) -> list[str]:
        """Every address that is neither inside the page nor beside it."""
        links = self.attributes("href") + self.attributes("src") + self.attributes("xlink:href")
        return [link for link in links if "://" in link or link.startswith("//")]
