"""The text of a fetched page. It runs in a process of its own: parsers and codecs have inputs that take them minutes."""


def read_page(encoding: str, html: bool, data: bytes = b"") -> str:
    """Return what a reader of the page sees: of HTML title and text, a line a block.

    Args:
        encoding: What the server says.
        html: Whether it is HTML.
        data: The page.
    """
    text = data.decode(encoding, errors="replace")
    return text_of_html(text) if html else text


def text_of_html(html: str) -> str:
    """Return the text of HTML without its marks, scripts and styles.

    Raises:
        ValueError: It is no HTML that can be read.
    """
    from bs4 import BeautifulSoup
    from bs4.exceptions import ParserRejectedMarkup

    try:
        soup = BeautifulSoup(html, "html.parser")
    except ParserRejectedMarkup:
        raise ValueError("it is no HTML that can be read") from None
    for hidden in soup(["script", "style", "noscript", "template"]):
        hidden.decompose()
    lines = (" ".join(line.split()) for line in soup.get_text("\n").splitlines())
    return "\n".join(line for line in lines if line)
